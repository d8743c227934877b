"""A run over a Ray cluster whose parts are killed: each row is answered exactly once.

The engines are toys, so that right answers are known bit for bit; the exact path of these runs adds
1000, so that one can tell who has answered.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import psutil
import pytest

from ecorl.errors import RunError
from ecorl.ledger import LEDGER_FILE
from ecorl.records import Action, FaultKind, Stage
from ecorl.report.aggregate import lost_energy
from ecorl.runtime.ray.node_records import node_folder, run_token
from tests.cluster import CARDS, LOOPBACK, OBJECT_STORE_BYTES, node_behind
from tests.toy_engine import HANG, SHORT, SLOW
from tests.toy_runs import (
    REWARD_ALONE,
    ROOT,
    ToyRun,
    make_batch,
    make_checkpoint,
    same,
    work_of,
)

ALL = range(5)
SPARE, AHEAD = "spare", "ahead"


@pytest.fixture
def cluster(ray_cluster):
    return ray_cluster


@pytest.fixture
def make(cluster, tmp_path):
    made = []

    def run(start=True, **options):
        options.setdefault("placement", REWARD_ALONE)
        table = {"type": "ray", "address": cluster.address, "patience_s": 240.0}
        one = ToyRun(tmp_path / "run", table, **options)
        made.append(one)
        if start:
            one.runtime.start()
        return one

    yield run
    for one in made:
        one.close()


def test_a_worker_that_is_killed_hangs_or_answers_wrongly(make):
    run = make(placement=REWARD_ALONE | {"deadline_s": 10.0, "max_faults": 1000})
    steps = Steps(run)
    steps.by_engine()
    # In the middle of a batch.
    batch = make_batch(seed=2, first=HANG)
    started = run.start(steps.next(), batch)
    time.sleep(0.3)
    kill("WorkerActor")
    assert same(run.end(started, batch), batch, exact_rows=ALL)
    steps.until_engine()
    # While it is idle: Ray starts it anew before anybody asks.
    pid = kill("WorkerActor")
    wait_until(lambda: pid_of("WorkerActor") not in (None, pid))
    time.sleep(1)
    steps.until_engine()
    # It never answers: it is ended at the deadline and started anew.
    pid = pid_of("WorkerActor")
    assert same(*steps.one(HANG), exact_rows=ALL)
    steps.until_engine()
    assert pid_of("WorkerActor") != pid
    # An answer that lacks a value.
    assert same(*steps.one(SHORT), exact_rows=ALL)
    steps.by_engine()
    run.close()
    kinds = Counter(fault.kind for fault in run.faults())
    assert kinds[FaultKind.ENGINE_TIMEOUT] >= 1
    assert kinds[FaultKind.INVALID_RESULT] == 1
    assert kinds[FaultKind.ENGINE_CRASHED] >= 2
    check_whole(run)


def test_a_monitor_that_is_killed_loses_readings_and_no_executions(make):
    run = make()
    steps = Steps(run)
    steps.by_engine()
    wait_until(lambda: run.runtime.totals().gpu_power_w is not None)
    generate(run, 1, 0.3)
    wait_until(lambda: Stage.GENERATION in run.runtime.totals().roles)
    kill("MonitorActor", holding=CARDS)
    step = run.iterations[1]
    across = run.runtime.on_stage_start(step, work_of(make_batch(), Stage.CRITIC))
    home = kill("MonitorActor", holding=run.training.home)
    wait_until(lambda: pid_of("MonitorActor", f"nodes/{run.training.home}-") not in (None, home))
    wait_until(lambda: run.runtime.totals().gpu_power_w is not None)
    time.sleep(0.3)
    run.runtime.on_stage_end(across)
    steps.by_engine()
    generate(run, 2, 0.5)
    wait_until(lambda: run.runtime.totals().roles[Stage.GENERATION].n_executions == 2)
    # What was drawn while nobody read is not known, and so is the sum.
    assert run.runtime.totals().drawn_j is None
    run.close()
    lost = {f.where for f in run.faults() if f.kind is FaultKind.MONITOR_LOST}
    assert lost == {CARDS, run.training.home}
    rows = {(r.iteration, r.stage): r for r in run.executions()}
    for number in (1, 2):
        assert rows[number, Stage.GENERATION].energy.energy_j > 0
        assert rows[number, Stage.REWARD].energy.energy_j == 4.0
    assert rows[1, Stage.CRITIC].energy.energy_j is None
    check_whole(run)


@pytest.mark.deep
def test_a_scheduler_that_is_started_anew_leaves_a_model_without_engine_alone(make):
    import ray

    run = make(placement={}, engine={"options": {"broken": "reference"}})
    steps = Steps(run)
    steps.by_engine()
    # The worker of the other is gone, and its card is for another run to have.
    wait_until(lambda: ray.available_resources().get("FPGA", 0.0) >= 1.0)
    kill("SchedulerActor")
    steps.until_engine()
    run.step(2, make_batch(), Stage.REFERENCE)
    run.close()
    faults = run.faults()
    assert FaultKind.ENGINE_GIVEN_UP not in {fault.kind for fault in faults}
    assert [f.where for f in faults if f.kind is FaultKind.NO_ENGINE] == ["reference"]
    with run.reader() as reader:
        reasons = {
            row.placement.reason
            for row in reader.placements()
            if row.placement.stage is Stage.REFERENCE
        }
    assert reasons == {"stays on the host: its engine cannot load it (model is broken)"}


def test_a_scheduler_that_is_killed_goes_on_where_it_was(make):
    import ray

    until_there = ray.remote(wait_for_file)
    run = make(placement={})
    steps = Steps(run)
    steps.by_engine()
    run.step(1, make_batch(), Stage.REFERENCE)
    generate(run, 1, 0.2)
    run.runtime.retire(Stage.REFERENCE, "the user changed it")
    run.runtime.refresh(Stage.REWARD, make_checkpoint(run.folder / "next", scale=10))
    wait_until(lambda: not run.runtime.refreshing(Stage.REWARD))
    steps.scale = 10
    steps.by_engine()
    wait_until(lambda: len(run.runtime.totals().roles) == 3)
    before = run.runtime.totals()
    # Told just before and just after its end: not all of it can be on the disk.
    told = itertools.count(1)
    tell(run, told)
    # With a batch in flight.
    batch = make_batch(seed=3, first=SLOW)
    started = run.start(steps.next(), batch)
    # And with stages whose ends it waits for: one is over before it is back.
    gate, killed, begun = (run.folder / name for name in ("gate", "killed", "begun"))
    brief = start_tasks(run, Stage.ACTOR_TRAIN, until_there.remote(killed, begun))
    start_tasks(run, Stage.CRITIC, until_there.remote(gate))
    wait_until(begun.exists)
    with telling_beside(run) as beside:
        tell(run, told)
        kill("SchedulerActor")
        killed.touch()
        tell(run, told)
    ray.get(brief)
    assert same(run.end(started, batch), batch, exact_rows=ALL)
    # Until it is back the GPU path answers, and what happens is recorded later.
    answered = steps.one()
    assert same(*answered, exact_rows=ALL) or same(*answered, scale=steps.scale)
    generate(run, steps.number, 0.2)
    tell(run, told)
    steps.until_engine()
    tell(run, told)
    other = make_batch(seed=99)
    assert same(
        run.step(steps.number, other, Stage.REFERENCE), other, Stage.REFERENCE, exact_rows=ALL
    )
    opened_s = time.monotonic()
    gate.touch()
    wait_until(lambda: Stage.CRITIC in run.runtime.totals().roles)
    after = run.runtime.totals()
    assert after.roles[Stage.REWARD].n_executions > before.roles[Stage.REWARD].n_executions
    assert after.roles[Stage.GENERATION].energy_j >= before.roles[Stage.GENERATION].energy_j
    assert '"reward"' in run.runtime.edi_json()
    run.close()
    with run.reader() as reader:
        assert [row.value for row in reader.metrics("told")] == list(range(1, next(told)))
        # Of these the kill has cut a batch, or nearly.
        assert [row.value for row in reader.metrics("beside")] == list(range(next(beside)))
    kinds = Counter(fault.kind for fault in run.faults())
    assert kinds[FaultKind.SCHEDULER_LOST] == 3  # the batch's, the brief stage's and its own
    (critic,) = [r for r in run.executions() if r.stage is Stage.CRITIC]
    assert critic.t_end_s >= opened_s
    # When the other one ended nobody has seen: it has its rows, and no time and no energy.
    (unseen,) = [r for r in run.executions() if r.stage is Stage.ACTOR_TRAIN]
    assert (unseen.time_s, unseen.energy) == (None, None)
    assert unseen.n_sequences > 0
    assert "actor_train" in {f.where for f in run.faults() if f.kind is FaultKind.SCHEDULER_LOST}
    check_whole(run)


def test_a_machine_that_is_removed_takes_its_record_with_it(cluster, make):
    node = cluster.add_node(
        num_cpus=1,
        node_name=SPARE,
        resources={"FPGA": 1},
        object_store_memory=OBJECT_STORE_BYTES,
        node_ip_address=LOOPBACK,
    )
    run = make(places={"reward": {"node": SPARE}})
    steps = Steps(run)
    steps.by_engine()
    batch = make_batch(seed=2, first=HANG)
    started = run.start(steps.next(), batch)
    cluster.remove_node(node)
    assert same(run.end(started, batch), batch, exact_rows=ALL)
    for _ in range(3):
        assert same(*steps.one(), exact_rows=ALL)
    wait_until(lambda: kinds(run) & {FaultKind.ENGINE_GIVEN_UP}, steps.one)
    run.close()
    assert {FaultKind.MONITOR_LOST, FaultKind.NODE_RECORD_LOST} <= kinds(run)
    with run.reader() as reader:
        (lost,) = reader.lost_nodes()
        assert lost.node == SPARE
        # The report names it among what is missing.
        (gap,) = lost_energy([lost], reader.node_spans(), n_attempts=1)
        assert SPARE in gap
    # The waits at the barrier stand in the head's record.
    assert run.counts() == (0, 0)


def test_a_record_that_a_killed_attempt_left_is_fetched_by_the_next(cluster, make, tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from tests.toy_runs import *;"
        "run = ToyRun(Path(sys.argv[1]), {'type': 'ray', 'address': sys.argv[2]},"
        " placement={'policy': {'type': 'static', 'reward': 'concurrent'}});"
        "run.runtime.start();"
        "[run.step(n, make_batch(seed=n)) for n in (1, 2)];"
        "time.sleep(1); print('ready', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run"), cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as first:
        while first.stdout.readline().strip() != "ready":
            assert first.poll() is None
        first.kill()
        first.wait()
    # Ray ends the actors of a driver that was killed, a little later.
    made = []
    wait_until(lambda: resumed(made, lambda: make(from_step=1)))
    (run,) = made
    steps = Steps(run, first=2)
    steps.by_engine()
    run.close()
    with run.reader() as reader:
        assert reader.lost_nodes() == []
        rows = [(r.attempt, r.superseded, r.result.iteration) for r in reader.executions()]
    assert rows == [(1, False, 1), (1, True, 2), (2, False, 2)]
    # What was fetched is not kept on the machine.
    assert not node_folder(run_token(run.folder / LEDGER_FILE)).exists()
    run.expected[1, "reward"] = 5
    assert run.counts() == (0, 0)


def test_executions_on_a_machine_with_another_clock_lie_in_the_runs_time(cluster, make):
    with node_ahead(cluster.address, seconds=5):
        run = make(places={"reward": {"node": AHEAD}})
        t_start_s = time.monotonic()
        steps = Steps(run)
        steps.by_engine()
        steps.by_engine()
        t_end_s = time.monotonic()
        run.close()
    with run.reader() as reader:
        (node,) = [row for row in reader.nodes() if row.node == AHEAD]
        rows = [row.result for row in reader.executions()]
    assert node.offset_s == pytest.approx(5.0, abs=node.offset_error_s + 1e-6)
    assert [r.node for r in rows] == [AHEAD, AHEAD]
    for r in rows:
        assert t_start_s - node.offset_error_s <= r.t_start_s
        assert r.t_start_s <= r.t_end_s <= t_end_s + node.offset_error_s
    check_whole(run)


# ---------------------------------------------------------------- helpers


class Steps:
    """Steps of one rewarded batch each; what they answer is checked."""

    def __init__(self, run, first=1):
        self.run, self.number, self.scale = run, first - 1, 100

    def next(self):
        self.number += 1
        return self.number

    def one(self, first=None):
        """A step; its values and its batch."""
        batch = make_batch(seed=self.next(), first=first)
        return self.run.step(self.number, batch), batch

    def by_engine(self):
        """A step that the engine has to answer."""
        assert same(*self.one(), scale=self.scale)

    def until_engine(self):
        """Steps that anybody answers, until the engine does."""

        def answered():
            values, batch = self.one()
            by_engine = same(values, batch, scale=self.scale)
            assert by_engine or same(values, batch, exact_rows=ALL)
            return by_engine

        wait_until(answered)


def resumed(made, make):
    with contextlib.suppress(RunError):
        made.append(make())
    return bool(made)


def tell(run, numbers):
    """Tell the scheduler 40 metrics, whose values go on from those before."""
    for value in itertools.islice(numbers, 40):
        run.runtime.record.metric(1, "told", value)


@contextlib.contextmanager
def telling_beside(run):
    """Tell the scheduler metrics all the time, from a thread; yields their values to come."""
    numbers, is_over = itertools.count(), threading.Event()

    def go_on():
        while not is_over.wait(0.0005):
            run.runtime.record.metric(1, "beside", next(numbers))

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        time.sleep(0.3)
        yield numbers
        time.sleep(0.3)
    finally:
        is_over.set()
        thread.join()


def wait_for_file(path, begun=None):
    if begun is not None:
        begun.touch()
    while not path.exists():
        time.sleep(0.05)


def start_tasks(run, stage, ref):
    """A stage of the newest iteration that ends with a task of Ray."""
    newest = run.iterations[max(run.iterations)]
    started = run.runtime.on_stage_start(newest, work_of(make_batch(), stage))
    run.runtime.end_when_ready(started, [ref])
    return ref


def generate(run, number, time_s):
    """A stage of the GPU path that lasts a while."""
    work = work_of(make_batch(), Stage.GENERATION)
    started = run.runtime.on_stage_start(run.iterations[number], work)
    end_s = time.monotonic() + time_s
    while time.monotonic() < end_s:
        sum(range(10_000))
    run.runtime.on_stage_end(started)
    run.runtime.settle()


def check_whole(run):
    """Each row was answered once, no execution is doubled, no figure invented."""
    assert run.counts() == (0, 0)
    rows = run.executions()
    keys = Counter((r.iteration, r.role, r.t_start_s, r.n_sequences) for r in rows)
    assert set(keys.values()) == {1}
    for r in rows:
        assert r.energy is None or r.energy.energy_j is None or r.energy.energy_j > 0
        if r.action is not Action.GPU and r.n_rows_fallback == r.n_sequences:
            assert r.energy is None or r.energy.energy_j in (None, 4.0)


def kinds(run):
    with run.reader() as reader:
        return {fault.kind for fault in reader.faults()}


def pid_of(actor, holding=""):
    """Process of an actor of this cluster, or None; perhaps the one that holds a file open."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            named = " ".join(process.cmdline()).startswith(f"ray::{actor}")
            if named and (not holding or any(holding in f.path for f in process.open_files())):
                return process.pid
    return None


def kill(actor, holding=""):
    pid = pid_of(actor, holding and f"nodes/{holding}-")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_until(condition, meanwhile=lambda: None, limit_s=240.0):
    limit_s += time.monotonic()
    while not condition():
        assert time.monotonic() < limit_s
        meanwhile()
        time.sleep(0.1)


def node_ahead(address, seconds):
    """A node of the cluster whose clocks, but for the time of day, are ahead of this machine's."""
    ahead = ["--monotonic", str(seconds), "--boottime", str(seconds)]
    return node_behind(address, AHEAD, ["unshare", "-T", *ahead, "--fork", "--kill-child"])
