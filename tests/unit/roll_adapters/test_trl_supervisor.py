"""The supervisor of training processes, with stand-ins for them: their life and their faults."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console

import roll_adapters.trl
from ecorl.child_process import start_module
from ecorl.cli.exits import STOPPED
from ecorl.config import RayRuntimeConfig, validate_config
from ecorl.errors import CheckpointError, ConfigError, TrainingError
from ecorl.runtime.runs.record import create_run
from roll_adapters.trl import run as trl_run
from roll_adapters.trl.launch import group, supervisor, worker
from roll_adapters.trl.launch.crew import NEXT_WIDTH, AttemptOutcome
from roll_adapters.trl.launch.messages import Begin, Channel, Ended
from roll_adapters.trl.launch.supervisor import WORKER, Supervisor, SupervisorPatience
from tests.fakes.training_process import CLUSTER, FAULTS, LOST, MODULE, N_STEPS, PLAN, TRIES

ROOT = Path(__file__).parents[3]
PATIENCE = SupervisorPatience(ready_s=240.0, retry_s=3600.0, end_s=20.0, tell_s=0.2)


@pytest.fixture
def supervise(tmp_path, monkeypatch):
    """Run the stand-ins by a plan of widths and with faults; what the supervisor returns."""

    def run(plan=None, *faults, width=1, patience=PATIENCE, tries=1, cluster=None):
        monkeypatch.setenv(PLAN, json.dumps(plan or {}))
        monkeypatch.setenv(FAULTS, json.dumps(faults))
        monkeypatch.setenv(TRIES, str(tries))
        before = set(psutil.Process().children(recursive=True))
        try:
            begin = Begin("start", str(tmp_path), "")
            return Supervisor(begin, MODULE, patience, cluster).run(width)
        finally:
            assert set(psutil.Process().children(recursive=True)) <= before, "a process is left"

    return run


def steps_of(folder):
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def widths_of(folder):
    """Widths of the steps, each of which was made once."""
    steps = steps_of(folder)
    assert [s["step"] for s in steps] == list(range(1, len(steps) + 1))
    return [s["width"] for s in steps]


def fault(width, rank, when, how, **more):
    return {"width": width, "rank": rank, "when": when, "how": how, **more}


def reasons_of(folder):
    """Why widths could not be begun with, as training processes were told while and before they
    trained."""
    before = [json.loads(file.read_text()) for file in sorted(folder.glob("go-*.json"))]
    return [*filter(None, before), *(reason for s in steps_of(folder) for reason in s["dropped"])]


@pytest.mark.parametrize("width", [1, 2])
def test_a_run_of_one_width_is_made_by_its_processes(supervise, tmp_path, width):
    assert supervise(width=width)
    assert widths_of(tmp_path) == [width] * N_STEPS


def test_the_number_of_processes_changes_between_two_steps(supervise, tmp_path):
    assert supervise({3: 2, 6: 3, 9: 1})
    assert widths_of(tmp_path) == [1] * 3 + [2] * 3 + [3] * 3 + [1] * 3


def test_training_goes_on_while_the_others_load(supervise, tmp_path):
    assert supervise({2: 2}, tries=0)
    widths = widths_of(tmp_path)
    assert widths[:3] == [1, 1, 1]
    assert len(widths) == N_STEPS


def test_a_changed_mind_drops_the_processes_that_stand_by(supervise, tmp_path):
    hanging = fault(2, 1, "ready", "hang", always=True)
    assert supervise({1: 2, 3: 1}, hanging, tries=0)
    assert widths_of(tmp_path) == [1] * N_STEPS
    assert reasons_of(tmp_path) == []


@pytest.mark.parametrize(
    ("when", "how", "word"),
    [
        ("loading", "kill", "SIGKILL"),
        ("loading", "user", "/there: is no checkpoint"),
        ("loading", "vanish", "ended"),
        ("ready", "kill", "SIGKILL"),
    ],
)
def test_processes_that_fail_while_they_load_cost_the_training_nothing(
    supervise, tmp_path, when, how, word
):
    assert supervise({3: 2}, fault(2, 0, when, how))
    widths = widths_of(tmp_path)
    assert len(widths) == N_STEPS
    (reason,) = reasons_of(tmp_path)
    assert word in reason


def without_ids(line):
    """A line that is the same whatever the number of the process that it tells of."""
    return re.sub(r"process id \d+", "process id <n>", line)


@pytest.mark.parametrize("how", ["exit", "abort"])
def test_the_reason_holds_the_last_words_of_a_process_that_is_no_rank_0(
    supervise, tmp_path, snapshot, how
):
    assert supervise({3: 2}, fault(2, 1, "loading", how))
    (reason,) = reasons_of(tmp_path)
    snapshot(without_ids(reason))


def test_a_width_that_failed_is_tried_again_later(supervise, tmp_path):
    patience = replace(PATIENCE, retry_s=0.0, longest_retry_s=0.0)
    assert supervise({3: 2}, fault(2, 0, "loading", "kill"), patience=patience, tries=2)
    assert widths_of(tmp_path) == [1] * 3 + [2] * (N_STEPS - 3)
    assert len(reasons_of(tmp_path)) == 1


def test_the_time_until_it_is_tried_again_doubles(supervise, tmp_path):
    p = SupervisorPatience(10.0, retry_s=10.0, longest_retry_s=35.0)
    supervisor = Supervisor(Begin("start", str(tmp_path), ""), MODULE, p)
    for wait_s in (10.0, 20.0, 35.0, 35.0):
        before_s = time.monotonic()
        supervisor._note_failure(2, "no good")
        failed_s = supervisor._failures[2].not_before_s - wait_s
        # Sums of clock readings: their last bits differ.
        assert before_s - 1e-6 <= failed_s <= time.monotonic() + 1e-6


def test_processes_that_do_not_get_ready_in_time_are_given_up(supervise, tmp_path):
    patience = replace(PATIENCE, ready_s=0.5)
    assert supervise({3: 2}, fault(2, 0, "loading", "hang"), patience=patience)
    assert widths_of(tmp_path) == [1] * N_STEPS
    (reason,) = reasons_of(tmp_path)
    assert "0.5 s" in reason


@pytest.mark.parametrize(("rank", "when"), [(0, "go"), (1, "step")])
def test_processes_that_die_before_their_first_step_are_replaced_by_as_many_as_before(
    supervise, tmp_path, rank, when
):
    assert supervise({3: 2}, fault(2, rank, when, "kill"))
    assert widths_of(tmp_path) == [1] * N_STEPS
    (reason,) = reasons_of(tmp_path)
    assert "SIGKILL" in reason


def test_a_death_in_the_moment_of_leaving_ends_the_run_at_its_checkpoint(supervise, tmp_path):
    with pytest.raises(TrainingError, match=r"0 of 1 .*SIGKILL"):
        supervise({3: 2}, fault(1, 0, "leaving", "kill"))
    assert widths_of(tmp_path) == [1] * 3


def test_a_death_after_leaving_is_of_no_matter(supervise, tmp_path):
    assert supervise({3: 2}, fault(1, 0, "left", "kill"))
    assert widths_of(tmp_path) == [1] * 3 + [2] * (N_STEPS - 3)


@pytest.mark.parametrize(("rank", "how"), [(0, "kill"), (1, "kill"), (1, "exit"), (0, "vanish")])
def test_a_process_that_dies_ends_the_run(supervise, rank, how):
    words = {"kill": "was ended by SIGKILL", "exit": "something went wrong", "vanish": "ended"}
    with pytest.raises(TrainingError, match=words[how]):
        supervise({}, fault(2, rank, "step", how), width=2)


@pytest.mark.parametrize(("when", "how"), [("over", "exit"), ("exit", "abort")])
def test_a_process_that_ends_while_rank_0_closes_the_record_is_no_fault(
    supervise, tmp_path, when, how
):
    faults = [fault(2, 0, "closing", "dawdle"), fault(2, 1, when, how)]
    patience = replace(PATIENCE, tell_s=240.0)
    assert supervise({}, *faults, width=2, patience=patience)
    assert widths_of(tmp_path) == [2] * N_STEPS


@pytest.mark.parametrize(("rank", "code"), [(0, STOPPED), (1, 0)])
def test_of_a_stopped_run_rank_0_alone_tells_by_its_exit_code(monkeypatch, tmp_path, rank, code):
    def start(*_run):
        return AttemptOutcome.STOPPED

    attempt = SimpleNamespace(start=start, resume=start, stand_by=start)
    monkeypatch.setitem(sys.modules, "roll_adapters.trl.attempt", attempt)
    monkeypatch.setattr(roll_adapters.trl, "attempt", attempt, raising=False)
    monkeypatch.setattr(worker, "_part", lambda: None)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    own, there = socket.socketpair()
    with there:
        channel = Channel(own)
        assert worker._work(Begin("start", str(tmp_path), ""), channel) == code
        channel.close()


def test_an_error_of_the_user_s_arrives_as_it_is(supervise):
    with pytest.raises(CheckpointError, match=r"^/there: is no checkpoint$"):
        supervise({}, fault(2, 1, "loading", "user"), width=2)


def test_an_unforeseen_error_is_shown_with_where_it_came_from(supervise, capsys):
    with pytest.raises(TrainingError, match=r"^RuntimeError: no good$"):
        supervise({}, fault(1, 0, "step", "raise"))
    assert "Traceback: no good" in capsys.readouterr().err


def test_lines_that_are_no_message_end_nothing(supervise, tmp_path, caplog):
    assert supervise({}, fault(1, 0, "step", "garbage"))
    assert widths_of(tmp_path) == [1] * N_STEPS
    assert "b'nonsense'" in caplog.text


def test_a_training_that_runs_out_of_memory_beside_others_starts_again_without_them(
    supervise, tmp_path, snapshot
):
    faults = [fault(1, 0, "later", "memory"), fault(2, 0, "loading", "hang", always=True)]
    patience = replace(PATIENCE, retry_s=0.0, longest_retry_s=0.0)
    assert supervise({1: 2}, *faults, tries=0, patience=patience)
    assert widths_of(tmp_path) == [1] * N_STEPS
    (reason,) = reasons_of(tmp_path)
    snapshot(reason)


def test_a_training_that_runs_out_of_memory_by_itself_ends(supervise, tmp_path):
    # Rank 1 is the one that says why; to rank 0 it is a lost connection.
    faults = [fault(2, 1, "loading", "memory"), fault(2, 0, "loading", "broken")]
    with pytest.raises(TrainingError, match=r"^OutOfMemoryError: CUDA out of memory$"):
        supervise({}, *faults, width=2, patience=replace(PATIENCE, tell_s=240.0))


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_a_training_process_has_started_ends_with_it(supervise, tmp_path, is_killed):
    faults = [fault(2, 0, "loading", "child")]
    if is_killed:
        faults.append(fault(2, 1, "step", "kill"))
        with pytest.raises(TrainingError, match="SIGKILL"):
            supervise({}, *faults, width=2)
    else:
        assert supervise({}, *faults, width=2)
    pid = int((tmp_path / "child").read_text())
    if psutil.pid_exists(pid):
        assert_gone([psutil.Process(pid)])


def test_processes_that_the_kernel_cannot_end_hold_up_nobody(monkeypatch):
    class Stuck:
        pid, returncode = 2**22 + 1, None  # above any process id of the kernel's

        def poll(self):
            return None

        def wait(self, timeout):
            raise subprocess.TimeoutExpired("stuck", timeout)

    own, there = socket.socketpair()
    with there:
        stuck = group.TrainingGroup(
            1, [group.TrainingProcess(Stuck(), Channel(own), None)], 0.0, None
        )
        sup = Supervisor(Begin("start", "/", ""), MODULE, PATIENCE)
        sup._gone = [(stuck, 0.0)]
        sup._let_go()
        assert sup._gone == []


# ---------------------------------------------------------------- the cluster of the run's own


class StandInCluster:
    """A cluster that is lost while a file is there, and how often it was started anew."""

    def __init__(self, folder, on_renew=lambda: None):
        self.file, self.n_renewed, self.on_renew = folder / LOST, 0, on_renew

    @property
    def variables(self):
        return {CLUSTER: f"cluster {self.n_renewed}"}

    def is_lost(self):
        return self.file.exists()

    def renew(self):
        self.on_renew()
        self.file.unlink()
        self.n_renewed += 1


def clusters_of(folder):
    return [s["cluster"] for s in steps_of(folder)]


@pytest.mark.parametrize("how", ["cluster", "cluster and this"])
def test_a_run_whose_cluster_is_lost_goes_on_by_itself_on_another_one(
    supervise, tmp_path, snapshot, how
):
    cluster = StandInCluster(tmp_path, (tmp_path / "ledger.sqlite").touch)
    assert supervise({}, fault(2, 0, "later", how), width=2, cluster=cluster)
    assert widths_of(tmp_path) == [2] * N_STEPS
    assert clusters_of(tmp_path) == ["cluster 0"] * 2 + ["cluster 1"] * (N_STEPS - 2)
    ways = [(s["how"], s["lost"]) for s in steps_of(tmp_path)]
    assert set(ways[:2]) == {("start", "")}
    ((way, lost),) = set(ways[2:])
    assert way == "resume"
    snapshot(lost)


def test_a_run_whose_cluster_is_lost_before_its_record_was_begun_starts_afresh(supervise, tmp_path):
    cluster = StandInCluster(tmp_path)
    assert supervise({}, fault(1, 0, "loading", "cluster"), cluster=cluster)
    assert {s["how"] for s in steps_of(tmp_path)} == {"start"}
    assert set(clusters_of(tmp_path)) == {"cluster 1"}


@pytest.mark.parametrize(("width", "when"), [(2, "ready"), (2, "go"), (1, "leaving")])
def test_a_cluster_may_be_lost_while_the_number_of_processes_changes(
    supervise, tmp_path, width, when
):
    cluster = StandInCluster(tmp_path)
    assert supervise({3: 2}, fault(width, 0, when, "cluster"), cluster=cluster)
    assert widths_of(tmp_path)[-1] == 2
    assert len(widths_of(tmp_path)) == N_STEPS
    assert clusters_of(tmp_path)[-1] == "cluster 1"


def test_clusters_that_are_lost_again_and_again_end_the_run(supervise, tmp_path):
    cluster = StandInCluster(tmp_path)
    again = fault(1, 0, "loading", "cluster", always=True)
    with pytest.raises(TrainingError, match=r"\b6\b"):
        supervise({}, again, cluster=cluster)
    assert cluster.n_renewed == supervisor.MOST_CLUSTERS == 5


def test_where_no_other_cluster_starts_the_run_ends_in_one_line(supervise, tmp_path, snapshot):
    def refuse():
        raise ConfigError("runtime.address", "local", "a cluster that starts (no space left)")

    cluster = StandInCluster(tmp_path, refuse)
    with pytest.raises(TrainingError) as caught:
        supervise({}, fault(1, 0, "later", "cluster"), cluster=cluster)
    snapshot(str(caught.value))


def test_a_signal_while_another_cluster_starts_ends_the_run(supervise, tmp_path):
    cluster = StandInCluster(tmp_path, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        supervise({}, fault(1, 0, "later", "cluster"), cluster=cluster)
    assert len(widths_of(tmp_path)) == 2


# ---------------------------------------------------------------- signals


def started(tmp_path, plan, *faults, width=2):
    code = (
        "import sys; from tests.unit.roll_adapters.test_trl_supervisor import *;"
        f"sup = Supervisor(Begin('start', sys.argv[1], ''), MODULE, PATIENCE);"
        f"print('ended', sup.run({width}))"
    )
    told = {PLAN: json.dumps(plan), FAULTS: json.dumps(faults), TRIES: "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | told | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    limit = time.monotonic() + 240
    while not (tmp_path / "steps.jsonl").exists():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < limit
        time.sleep(0.005)
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_supervisor_goes_back_stops_the_run_where_it_was_left(
    supervise, tmp_path, monkeypatch, number
):
    start, n_started = supervisor.start_group, []

    def signalled(*told):
        n_started.append(told)
        if len(n_started) == 3:
            os.kill(os.getpid(), number)
        return start(*told)

    monkeypatch.setattr(supervisor, "start_group", signalled)
    # The third group is the one that the supervisor goes back to.
    assert supervise({3: 2}, fault(2, 0, "go", "kill")) is False
    assert len(n_started) == 3
    assert widths_of(tmp_path) == [1] * 3


def test_a_signal_that_ends_processes_before_their_first_step_stops_the_run(supervise, tmp_path):
    # Whatever else befalls them then: nobody is started in their place.
    assert supervise({3: 2}, fault(2, 0, "go", "terminated")) is False
    assert widths_of(tmp_path) == [1] * 3


def assert_gone(processes, timeout_s=240):
    _, alive = psutil.wait_procs(processes, timeout_s)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_rank_0_which_stops_after_its_step(tmp_path, number):
    process, children = started(tmp_path, {}, fault(2, 0, "later", "await stop"))
    process.send_signal(number)
    output, _ = process.communicate(timeout=240)
    assert "stopping" in output
    assert "ended False" in output
    assert_gone(children)
    assert 0 < len(widths_of(tmp_path)) < N_STEPS


def test_a_signal_while_a_training_process_still_loads_leaves_no_trace_on_the_terminal(tmp_path):
    """It comes in the first moment, before the process has a handler of its own."""
    ours, theirs = socket.socketpair()
    with (tmp_path / "printed").open("wb") as printed, theirs:
        process = start_module(WORKER, theirs.fileno(), output=printed, own_session=True)
        process.send_signal(signal.SIGINT)
    channel = Channel(ours)
    try:
        assert process.wait(240) == STOPPED
        assert channel.receive() == [Ended("broken")]
    finally:
        process.kill()
        channel.close()
    assert (tmp_path / "printed").read_text() == ""


def test_a_second_signal_ends_all_at_once(tmp_path):
    process, children = started(tmp_path, {}, fault(2, 0, "later", "hang"))
    limit = time.monotonic() + 240
    while not (tmp_path / "fault-0").exists():
        assert time.monotonic() < limit
        time.sleep(0.005)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    output, _ = process.communicate(timeout=240)
    assert "KeyboardInterrupt" in output
    assert_gone(children)


@pytest.mark.parametrize("when", ["later", "left"])
def test_when_the_supervisor_is_killed_no_process_is_left(tmp_path, when):
    # While they train, or while the ones that stood by are about to go on.
    plan = {} if when == "later" else {3: 3}
    process, children = started(tmp_path, plan, fault(2, 0, when, "supervisor"))
    process.wait(240)
    assert process.returncode == -signal.SIGKILL
    assert_gone(children)
    steps = len(widths_of(tmp_path))
    time.sleep(0.2)
    assert len(widths_of(tmp_path)) == steps < N_STEPS


# ---------------------------------------------------------------- the command's side


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run that was begun, with stand-ins in place of its training processes."""
    monkeypatch.setattr(supervisor, "WORKER", MODULE)
    monkeypatch.setenv(PLAN, "{}")
    monkeypatch.setenv(TRIES, "0")
    settings = {"run_dir": str(tmp_path), "trainer": {"widths": [1, 2]}}
    config = validate_config(settings)
    with create_run(config, tmp_path, {}) as ledger:
        yield config, ledger


def save(folder, step):
    checkpoint = folder / "checkpoints" / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "ecorl_state.json").write_text(f'{{"iteration": {step}, "edi": {{}}}}')


def test_a_run_goes_on_with_the_number_of_processes_that_was_chosen_last(begun, tmp_path):
    config, ledger = begun
    assert trl_run.last_width(config, tmp_path) == 1
    ledger.metric(3, NEXT_WIDTH, 2.0)
    ledger.flush()
    # What was chosen after a step whose checkpoint is not complete was not begun with.
    assert trl_run.last_width(config, tmp_path) == 1
    save(tmp_path, 3)
    assert trl_run.last_width(config, tmp_path) == 2
    ledger.metric(6, NEXT_WIDTH, 1.0)
    ledger.flush()
    assert trl_run.last_width(config, tmp_path) == 2
    save(tmp_path, 6)
    assert trl_run.last_width(config, tmp_path) == 1


def test_the_line_of_a_killed_process_names_the_command_that_goes_on(
    begun, tmp_path, monkeypatch, snapshot
):
    _, ledger = begun
    ledger.metric(3, NEXT_WIDTH, 2.0)
    ledger.close()
    save(tmp_path, 3)
    monkeypatch.setenv(FAULTS, json.dumps([fault(2, 1, "step", "kill")]))
    with pytest.raises(TrainingError) as caught:
        trl_run.resume(tmp_path, Console(quiet=True))
    snapshot(without_ids(str(caught.value)))
    monkeypatch.setenv(FAULTS, "[]")
    assert trl_run.resume(tmp_path, Console(quiet=True))
    assert widths_of(tmp_path) == [2] * N_STEPS


def test_several_processes_of_torchrun_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = validate_config({"run_dir": str(tmp_path / "run"), "trainer": {"widths": [1, 2]}})
    with pytest.raises(ConfigError, match=r"trainer\.widths"):
        trl_run.run(config, tmp_path / "run", Console(quiet=True))
    assert not (tmp_path / "run").exists()


def test_the_supervising_process_loads_no_framework():
    code = "import sys, roll_adapters.trl.run as r; print({'torch', 'trl'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_all_processes_of_a_group_are_given_the_variables_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv(PLAN, "{}")
    monkeypatch.setenv(FAULTS, "[]")
    begin = Begin("by", str(tmp_path), "")
    started = group.start_group(MODULE, 2, begin, {"OF_THE_RUN": "yes", "WORLD_SIZE": "7"})
    try:
        processes = [psutil.Process(member.process.pid) for member in started.members]
        # The kernel shows none for a moment after the process has been started.
        found = [next(filter(None, iter(process.environ, None))) for process in processes]
        assert {env.get("OF_THE_RUN") for env in found} == {"yes"}
        # What a process is told of its group is not the run's to say.
        assert {env["WORLD_SIZE"] for env in found} == {"2"}
    finally:
        started.kill()


def test_a_cluster_that_does_not_start_leaves_the_hint_how_to_go_on(
    begun, tmp_path, monkeypatch, snapshot
):
    config, ledger = begun
    ledger.close()

    class Refused:
        def __init__(self, n_workers):
            assert n_workers == 0

        def __enter__(self):
            raise ConfigError("runtime.address", "local", "a cluster that starts (no space left)")

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(trl_run, "local_cluster", Refused)
    on_ray = config.model_copy(update={"runtime": RayRuntimeConfig(type="ray", address="local")})
    with pytest.raises(ConfigError) as caught:
        trl_run._supervised("resume", on_ray, tmp_path, 1)
    snapshot(str(caught.value))
