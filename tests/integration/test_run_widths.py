"""`ecorl run` with training processes whose number changes: from one to two and back, and killed.

Width 1 trains to step 4, width 2 to step 8, width 1 the ninth. An epoch has six steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

import psutil
import pytest
from trl.trainer.utils import RepeatSampler

from ecorl.errors import DeviceLost
from ecorl.ledger import LedgerReader
from ecorl.records import EventKind
from tests.forks import Fork
from tests.integration import test_run
from tests.integration.test_run import assert_same_weights, config_writer, cut_off
from tests.integration.width_worker import KILLS, NOTES, PLAN, STEPS

here = test_run.here
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODULE = "tests.integration.width_worker"
COMMAND = (
    f"from roll_adapters.trl.launch import supervisor; supervisor.WORKER = {MODULE!r};"
    "from ecorl import cli; cli.main()"
)
N_PROMPTS, N_UNIQUE, SEED = 24, 4, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("widths")


@pytest.fixture(scope="module")
def prompts(tiny, folder):
    lines = tiny.prompts.read_text().splitlines()[:N_PROMPTS]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    return [json.loads(line)["prompt"] for line in lines]


def config_of(tiny, folder, name, steps):
    path = config_writer(tiny, folder)(name, prompts=f'"{folder}/prompts.jsonl"')
    text = path.read_text("utf-8").replace(f"steps = {test_run.STEPS}\n", f"steps = {steps}\n")
    text = text.replace('type = "threshold"', 'type = "static"')
    path.write_text(text.replace("[trainer]", "[trainer]\nwidths = [1, 2]"), "utf-8")
    return path


def started(folder, words, steps, plan, **more):
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    told = {NOTES: str(notes), STEPS: str(steps), PLAN: json.dumps(plan)}
    return Fork("-c", COMMAND, "run", *words, env=os.environ | told | more)


@pytest.fixture(scope="module")
def changed(tiny, folder, prompts):
    """The run that goes from one process to two and back."""
    config = config_of(tiny, folder, "changed", 9)
    process = started(folder, ("--config", str(config)), 9, {4: 2, 8: 1})
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "going on from step 4 of 9, processes: 2" in out
    return folder / "changed"


def losses_of(run_dir):
    """Losses by step; each step was recorded once and none was thrown away."""
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        rows = reader.metrics("loss")
        assert not any(row.superseded for row in reader.executions())
    assert not any(row.superseded for row in rows)
    assert [row.iteration for row in rows] == list(range(1, len(rows) + 1))
    return [row.value for row in rows]


def test_each_step_is_made_once_and_the_record_tells_of_the_changes(changed):
    assert len(losses_of(changed)) == 9
    assert (changed / "model" / "model.safetensors").is_file()
    with contextlib.closing(LedgerReader(changed)) as reader:
        assert [a.from_step for a in reader.attempts()] == [0, 4, 8]
        changes = [e.detail for e in reader.events() if e.kind is EventKind.WIDTH]
        assert [words.split(" after ")[1] for words in changes] == ["step 4", "step 8"]
        assert EventKind.FINISH in {e.kind for e in reader.events()}
        assert EventKind.STOP not in {e.kind for e in reader.events()}
        # The sampler may look at a process in the moment in which that has ended as planned.
        assert {row.kind for row in reader.faults()} <= {DeviceLost.__name__}
        chosen = [(m.iteration, m.value) for m in reader.metrics("next_width")]
        costs = {m.iteration: m.value for m in reader.metrics("width_change_s")}
        phases = [e.phase for e in reader.evaluations() if e.name == "reward"]
    assert chosen == [(4, 2.0), (8, 1.0)]
    assert costs.keys() == {5, 9}
    assert all(cost is not None and cost > 0 for cost in costs.values())
    assert set(phases) == {"before", "after"}


def test_the_prompts_of_a_step_do_not_depend_on_the_number_of_processes(changed, folder, prompts):
    sampler = RepeatSampler(prompts, 4, N_UNIQUE, seed=SEED)
    order = [prompts[i] for _ in range(2) for i in sampler]
    notes = [
        json.loads(line)
        for file in sorted((folder / "notes").iterdir())
        for line in file.read_text().splitlines()
    ]
    for step in range(1, 10):
        own = sorted((n for n in notes if n["step"] == step), key=lambda n: n["rank"])
        assert len(own) == (2 if 5 <= step <= 8 else 1)
        told = [prompt for note in own for prompt in note["prompts"]]
        assert told == order[16 * (step - 1) : 16 * step], step


def test_killed_when_it_has_left_a_run_goes_on_as_if_it_had_not_been(tiny, changed, tmp_path):
    prompts = (changed.parent / "prompts.jsonl").read_text()
    (tmp_path / "prompts.jsonl").write_text(prompts)
    config = config_of(tiny, tmp_path, "killed", 6)
    words = ("--config", str(config))
    process = started(tmp_path, words, 6, {4: 2}, **{KILLS: "1"})
    children = set()
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            children |= set(psutil.Process(process.pid).children(recursive=True))
        time.sleep(0.1)
    assert process.returncode == -signal.SIGKILL, process.communicate()[1]
    assert len(children) >= 3
    _, alive = psutil.wait_procs(children, 240)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    resumed = started(tmp_path, ("--resume", str(tmp_path / "killed")), 6, {4: 2})
    out, err = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, err
    assert "going on from step 4 of 6, processes: 2" in out
    assert losses_of(tmp_path / "killed") == losses_of(changed)[:6]


def test_a_run_of_one_process_goes_on_in_a_later_epoch_as_if_it_had_not_stopped(
    tiny, here, folder, prompts, tmp_path
):
    path = config_of(tiny, folder, "alone", 8)
    path.write_text(path.read_text().replace("[1, 2]", "[1]").replace("every = 3", "every = 7"))
    assert here("run", "--config", str(path)).returncode == 0
    run_dir = cut_off(folder / "alone", tmp_path / "cut")
    for file in (run_dir / "checkpoints" / "checkpoint-8").glob("*"):
        file.unlink()
    assert here("run", "--resume", str(run_dir)).returncode == 0
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        assert reader.attempts()[-1].from_step == 7
    assert_same_weights(folder / "alone", run_dir)
