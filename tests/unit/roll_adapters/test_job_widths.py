"""Width by save and restart: when a job leaves, what is started then, and what is not possible."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import psutil
import pytest

pytest.importorskip("ray")

from ecorl.config import validate_config
from ecorl.control import TrainingStage
from ecorl.errors import ConfigError
from ecorl.runtime.control.governor import ungoverned
from roll_adapters.openrlhf.widths import check_gpus, check_widths, flags_for, width_of
from roll_adapters.ray_jobs import policy_training
from roll_adapters.ray_jobs.policy_training import PolicyTraining
from roll_adapters.ray_jobs.widths.handover import VARIABLE, Handover, WidthLeft
from roll_adapters.ray_jobs.widths.leaving import Leaving
from roll_adapters.ray_jobs.widths.supervisor import JobSupervisor, handed_over
from tests.fakes.openrlhf import FakeRuntime, flags

# ---------------------------------------------------------------- leaving


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


def test_a_job_leaves_behind_a_checkpoint_of_its_last_step_and_nowhere_else():
    clock = Clock()
    leaving = Leaving(1, (1, 2), wall=clock)
    for step, saved in ((1, False), (2, True), (3, False), (4, True)):
        clock.now_s += 10.0 if step < 4 else 40.0
        leaving.chosen(2, waited_s=30.0 if step == 4 else 0.0)
        assert leaving.ended(step, saved=saved) is None
        left = leaving.leaves(step, steps_left=6)
        assert (left is not None) is saved, step
    assert (left.width, left.step, left.ended_s) == (2, 4, clock.now_s)
    # Pauses are no part of what a step takes.
    assert left.usual_s == 10.0
    assert leaving.leaves(4, steps_left=0) is None
    for width in (None, 1, 3):
        leaving.chosen(width, 0.0)
        assert leaving.leaves(4, steps_left=6) is None
    again = pickle.loads(pickle.dumps(left))
    assert (again.width, again.step, again.ended_s, again.usual_s) == left.args


@pytest.mark.parametrize(
    ("left", "cost_s"),
    [
        (Handover(2, 4, 1000.0, 10.0), 60.0),
        (Handover(2, 4, 1000.0, None), None),
        # A width that could not be begun with: what passed is no change's time.
        (Handover(1, 4, 1000.0, 10.0, (2,), "it failed"), None),
        (None, None),
    ],
)
def test_a_change_costs_what_passes_until_its_first_step_ends_less_a_usual_step(left, cost_s):
    clock = Clock()
    leaving = Leaving(2, (1, 2), left, wall=clock)
    leaving.chosen(None, waited_s=5.0)
    clock.now_s += 75.0
    assert leaving.ended(5, saved=False) == cost_s
    clock.now_s += 10.0
    assert leaving.ended(6, saved=False) is None


def test_the_control_path_is_told_of_the_widths_and_a_job_leaves_before_it_shifts(monkeypatch):
    asked = []

    def stand(runtime, *, steps_left, stage):
        asked.append((steps_left, stage))
        return replace(ungoverned(0.0), width=2)

    monkeypatch.setattr(policy_training, "stand", stand)
    runtime = FakeRuntime()
    training = PolicyTraining(1, None, Leaving(1, (1, 2)), n_optimizer_steps=9)
    assert training.make_ready(1) == 9
    for number in (1, 2):
        training.stand(runtime, number, 10 - number)
        training.take_leave()
        training.saved(runtime, number, is_complete=number == 2)
    training.stand(runtime, 3, 7)
    with pytest.raises(WidthLeft) as caught:
        training.take_leave()
    training.take_leave()  # once
    assert (caught.value.width, caught.value.step) == (2, 2)
    assert asked == [(left, TrainingStage(width=1, widths=(1, 2))) for left in (9, 8, 7)]
    assert runtime.record.metrics == {(2, "next_width"): 2.0}


# ---------------------------------------------------------------- the supervisor


JOB = """
import json, os, sys
from pathlib import Path
from roll_adapters.ray_jobs.widths.handover import Handover, handover_file
from roll_adapters.ray_jobs.widths.supervisor import handed_over
width, log = int(sys.argv[1]), Path(sys.argv[2])
told = handed_over(handover_file())
with log.open("a") as file:
    file.write(json.dumps([width, told and [told.width, told.step, told.barred, told.reason]]))
    file.write("\\n")
plan = json.loads(sys.argv[3])
what = plan[len(log.read_text().splitlines()) - 1]
if isinstance(what, list):
    Handover(what[0], what[1], 5.0).write(handover_file())
    sys.exit(0)
sys.exit(what)
"""


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.delenv(VARIABLE, raising=False)
    log = tmp_path / "log"

    def run(plan, stepped=lambda step: False):
        def command(width):
            word = "1" if width is None else str(width)
            return [sys.executable, "-c", JOB, word, str(log), json.dumps(plan)]

        code = JobSupervisor(command, 1, stepped).run()
        return code, [json.loads(line) for line in log.read_text().splitlines()]

    return run


def test_a_job_that_left_is_followed_by_another_until_one_ends(supervised):
    code, jobs = supervised([[2, 4], [1, 8], 0])
    assert code == 0
    assert jobs == [[1, None], [2, [2, 4, [], None]], [1, [1, 8, [], None]]]


def test_a_width_that_cannot_be_begun_with_is_given_up_once_and_for_all(supervised):
    code, jobs = supervised([[2, 4], 3, [4, 6], [1, 8], 0])
    assert code == 0
    reason = "the job ended with exit code 3 before its first step"
    assert jobs[1:3] == [[2, [2, 4, [], None]], [1, [1, 4, [2], reason]]]
    assert jobs[3:] == [[4, [4, 6, [2], None]], [1, [1, 8, [2], None]]]


@pytest.mark.parametrize(
    ("plan", "stepped", "n_jobs"),
    [
        ([3], lambda step: False, 1),
        # It has trained: what ended it is no matter of the width.
        ([[2, 4], 3], lambda step: step == 4, 2),
        # As wide as before it fails too.
        ([[2, 4], 3, 5], lambda step: False, 3),
    ],
)
def test_a_job_that_fails_otherwise_ends_the_command(supervised, plan, stepped, n_jobs):
    code, jobs = supervised(plan, stepped)
    assert code == plan[-1]
    assert len(jobs) == n_jobs


SLEEPER = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); time.sleep(600)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("wait_s", [None, 0.4])
def test_a_signal_ends_the_job_and_no_other_follows(number, wait_s):
    made = []
    before = signal.getsignal(number)

    def command(width):
        made.append(width)
        if wait_s is None:  # between two jobs, when there is none to pass it on to
            os.kill(os.getpid(), number)
        else:
            threading.Timer(wait_s, os.kill, (os.getpid(), number)).start()
        return [sys.executable, "-S", "-c", SLEEPER]

    assert JobSupervisor(command, 1, lambda step: False).run() in (-number, 1)
    assert made == [None]
    assert signal.getsignal(number) == before


COUNTS = """
import signal, sys, time
seen = []
def count(*_): seen.append(print("signal", flush=True))
signal.signal(signal.SIGINT, count)
print("up", flush=True)
while not seen: time.sleep(0.02)
limit = time.monotonic() + 1.0
while time.monotonic() < limit: time.sleep(0.02)
"""
SUPERVISOR = """
import sys
from roll_adapters.ray_jobs.widths.supervisor import JobSupervisor
command = [sys.executable, "-S", "-c", sys.argv[1]]
sys.exit(JobSupervisor(lambda width: command, 1, lambda step: False).run())
"""


@pytest.fixture
def begun(monkeypatch):
    """Start a supervisor, in a session of its own, of a job with the given code that prints."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    processes = []

    def start(code):
        words = [sys.executable, "-c", SUPERVISOR, code]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        processes.append(process)
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_ctrl_c_in_the_terminal_reaches_the_job_once(begun):
    process = begun(COUNTS)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does
    assert process.communicate(timeout=240)[0] == "signal\n"
    assert process.returncode == 0


def test_a_job_ends_with_its_supervisor(begun):
    process = begun("import time; print('up', flush=True); time.sleep(600)")
    (job,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait(240)
    _, alive = psutil.wait_procs([job], 240)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_the_first_job_is_handed_nothing(tmp_path):
    assert handed_over(None) is None
    assert handed_over(tmp_path / "left.json") is None


# ---------------------------------------------------------------- OpenRLHF's flags


FINE = {
    "ds__zero_stage": 0, "ckpt__save_steps": 2, "actor__num_gpus_per_node": 2,
    "train__batch_size": 16, "train__micro_batch_size": 2, "rollout__batch_size": 8,
    "rollout__n_samples_per_prompt": 2, "rollout__micro_batch_size": 4,
}  # fmt: skip


def config_of(*widths):
    return validate_config({"trainer": {"widths": list(widths)}} if widths else {})


def test_widths_that_openrlhf_can_be_started_again_with_are_let_through():
    check_widths(config_of(1, 2, 4), flags(**FINE))
    check_widths(config_of(), flags(**(FINE | {"ds__zero_stage": 3})))
    check_widths(config_of(1), flags(**(FINE | {"ds__zero_stage": 3})))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ds__zero_stage": 2}, "one with --ds.zero_stage 2"),
        ({"train__async_enable": True}, "one with --train.async_enable"),
        ({"train__colocate_all": True}, "one with --train.colocate_all"),
        ({"train__colocate_actor_ref": True}, "one with --train.colocate_actor_ref"),
        ({"train__dynamic_batch_enable": True}, "one with --train.dynamic_batch_enable"),
        ({"ckpt__disable_ds": True}, "one with --ckpt.disable_ds"),
        ({"ds__ring_attn_size": 2}, "one with --ds.ring_attn_size above 1"),
        ({"actor__num_nodes": 2}, "one with --actor.num_nodes above 1"),
        ({"ckpt__save_steps": -1}, "one without --ckpt.save_steps"),
        ({"ckpt__save_steps": float("inf")}, "one without --ckpt.save_steps"),
        ({"actor__num_gpus_per_node": 3}, "a list with --actor.num_gpus_per_node, which is 3"),
        ({"train__micro_batch_size": 8}, "divisors of 2 and 4"),
        ({"rollout__micro_batch_size": 16}, "divisors of 8 and 1"),
    ],
)
def test_others_are_refused(changed, told):
    with pytest.raises(ConfigError) as caught:
        check_widths(config_of(1, 2, 4), flags(**(FINE | changed)))
    assert caught.value.key == "trainer.widths"
    assert told in caught.value.allowed


def test_gpus_that_the_cluster_lacks_are_missed_at_once():
    args = {
        "reward__num_gpus_per_node": 1, "reward__num_nodes": 1, "ref__num_gpus_per_node": 1,
        "ref__num_nodes": 1, "critic__model_name_or_path": None, "vllm__num_engines": 2,
        "vllm__tensor_parallel_size": 2, "algo__kl__init_coef": 0.1, "reward__remote_url": None,
    }  # fmt: skip
    check_gpus(config_of(1, 2, 4), flags(**args), 10)
    with pytest.raises(ConfigError, match=r"\b3: .*\b9 GPUs"):
        check_gpus(config_of(1, 2, 4), flags(**args), 9)
    fewer = args | {"algo__kl__init_coef": 0.0, "reward__remote_url": "http://x"}
    check_gpus(config_of(1, 2, 4), flags(**fewer), 8)


@pytest.mark.parametrize(
    "given",
    [
        ["--a", "1", "--actor.num_gpus_per_node", "1", "--b"],
        ["--a", "1", "--actor.num_gpus_per_node=1", "--b"],
        ["--a", "1", "--b", "--ckpt.load_enable"],
    ],
)
def test_the_next_job_s_flags_are_the_last_one_s_with_another_width(given):
    found = ["--a", "1", "--b", "--actor.num_gpus_per_node", "2", "--ckpt.load_enable"]
    assert flags_for(given, 2) == found
    assert width_of(found) == 2
    assert width_of(given) == (8 if given[-1] == "--ckpt.load_enable" else 1)
