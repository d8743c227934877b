"""A script of the user's own, stopped and started again: its record goes on with its training."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import pytest
from rich.console import Console
from transformers import TrainerCallback

from ecorl.control import Why
from ecorl.errors import ConfigError, RunError
from ecorl.ledger import LedgerReader
from ecorl.records import EventKind, Stage
from roll_adapters.trl import run as trl_run
from roll_adapters.trl_hooks import attach
from tests.fakes.grids import until
from tests.integration.checks import assert_same_bits, config, outcome

STEPS = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}


class Cut(Exception):
    """Ends a training as an error of the user's code would."""


class CutAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Cut


class AwaitsReadings(TrainerCallback):
    """Has no step begin before it is known that something was drawn."""

    def __init__(self, runtime) -> None:
        self.runtime = runtime

    def on_step_begin(self, args, state, control, **kwargs):
        until(lambda: self.runtime.totals().drawn_j)


@pytest.fixture
def cut_run(make_trainer, tmp_path) -> Path:
    """A run folder whose training ended in step 5, after the checkpoint of step 4."""
    trainer = make_trainer(name="attached", **STEPS)
    attachment = attach(trainer, config(tmp_path))
    trainer.add_callback(CutAt(5))
    with pytest.raises(Cut):
        trainer.train()
    attachment.detach()
    return tmp_path / "run"


@pytest.mark.parametrize("which", [True, "path"])
def test_training_and_record_go_on_together(make_trainer, tmp_path, cut_run, which):
    plain = make_trainer(**STEPS)
    plain.train()
    again = make_trainer(name="attached", **STEPS)
    checkpoint = True if which is True else tmp_path / "attached" / "checkpoint-4"
    attach(again, config(tmp_path), resume_from_checkpoint=checkpoint)
    again.train(resume_from_checkpoint=checkpoint if which is True else str(checkpoint))
    unbroken, resumed = outcome(plain), outcome(again)
    assert_same_bits(unbroken, resumed)
    with contextlib.closing(LedgerReader(cut_run)) as reader:
        losses = [(m.iteration, m.superseded) for m in reader.metrics("loss")]
        events = [e.kind for e in reader.events()]
        useful = sorted({r.result.iteration for r in reader.executions() if not r.superseded})
        assert len(reader.attempts()) == 2
    assert [i for i, superseded in losses if not superseded] == [1, 2, 3, 4, 5, 6]
    assert useful == [1, 2, 3, 4, 5, 6]
    assert "finish" in events


def test_a_run_that_is_there_is_not_written_over(make_trainer, tmp_path, cut_run):
    with pytest.raises(RunError, match="with resume_from_checkpoint=True for attach and train"):
        attach(make_trainer(name="attached", **STEPS), config(tmp_path))


def test_a_record_goes_on_under_its_own_config_alone(make_trainer, tmp_path, cut_run):
    before = (cut_run / "ledger.sqlite").read_bytes()
    other = config(tmp_path, q_max=3)
    with pytest.raises(ConfigError, match=r"placement\.q_max = 3: allowed is 8 as in the run"):
        attach(make_trainer(name="attached", **STEPS), other, resume_from_checkpoint=True)
    assert (cut_run / "ledger.sqlite").read_bytes() == before


def test_a_checkpoint_that_is_not_there_is_named(make_trainer, tmp_path):
    trainer = make_trainer(name="attached", **STEPS)
    for wrong in (True, "/nowhere"):
        with pytest.raises(ConfigError, match="resume_from_checkpoint"):
            attach(trainer, config(tmp_path), resume_from_checkpoint=wrong)
    assert not (tmp_path / "run").exists()


def test_training_from_another_step_than_the_record_is_refused_before_it_starts(
    make_trainer, tmp_path, cut_run
):
    trainer = make_trainer(name="attached", **STEPS)
    attachment = attach(trainer, config(tmp_path), resume_from_checkpoint=True)
    with pytest.raises(RunError, match="from step 0, its record from step 4"):
        trainer.train()
    attachment.detach()
    assert trainer.state.global_step == 0


def test_ecorl_run_does_not_take_over_a_script_s_run(tmp_path, cut_run):
    before = sorted(p.name for p in (tmp_path / "attached").iterdir())
    with pytest.raises(RunError, match="was started by another command: start its script again"):
        trl_run.resume(cut_run, Console(quiet=True))
    with contextlib.closing(LedgerReader(cut_run)) as reader:
        assert len(reader.attempts()) == 1
    assert sorted(p.name for p in (tmp_path / "attached").iterdir()) == before


def test_the_record_holds_what_the_trainer_was_told(make_trainer, tmp_path, caplog):
    trainer = make_trainer(name="attached", max_steps=1)
    file = tmp_path / "ecorl.toml"
    file.write_text(f'run_dir = "{tmp_path}/run"\n[trainer]\nsteps = 500\n')
    with caplog.at_level(logging.WARNING):
        attach(trainer, file)
    assert "attach does not use ['trainer']" in caplog.text
    trainer.train()
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        run = reader.run()
    assert run.meta["origin"] == "attach"
    assert (run.meta["learning_rate"], run.meta["num_generations"]) == ("0.001", "4")
    for text in (run.config_toml, (tmp_path / "run" / "config.toml").read_text()):
        assert "[trainer]" not in text
        assert "[task]" not in text
        assert "[placement]" in text


def steps_of(run_dir: Path) -> list[int]:
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        rows = [r for r in reader.executions() if not r.superseded]
    return sorted(r.result.iteration for r in rows if r.result.stage is Stage.GENERATION)


def states(run_dir: Path) -> list[str]:
    told = ("start", "stop", "failure", "resume", "finish")
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        return [e.kind for e in reader.events() if e.kind in told]


def test_after_an_error_the_same_process_goes_on(make_trainer, tmp_path):
    trainer = make_trainer(name="attached", **STEPS)
    attach(trainer, config(tmp_path))
    cut = CutAt(5)
    trainer.add_callback(cut)
    with pytest.raises(Cut):
        trainer.train()
    trainer.remove_callback(cut)
    attach(trainer, config(tmp_path), resume_from_checkpoint=True)
    trainer.train(resume_from_checkpoint=True)
    assert steps_of(tmp_path / "run") == [1, 2, 3, 4, 5, 6]
    assert states(tmp_path / "run") == ["start", "failure", "resume", "finish"]
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        assert [e.detail for e in reader.events() if e.kind is EventKind.FAILURE] == ["Cut"]


def test_before_the_first_checkpoint_a_run_is_started_again_by_overwriting_it(
    make_trainer, tmp_path
):
    trainer = make_trainer(name="attached", **STEPS)
    attach(trainer, config(tmp_path))
    trainer.add_callback(CutAt(1))
    with pytest.raises(Cut):
        trainer.train()
    with pytest.raises(RunError, match="overwrite=True"):
        trl_run.resume(tmp_path / "run", Console(quiet=True))
    again = make_trainer(name="attached", **STEPS)
    attach(again, config(tmp_path), overwrite=True)
    again.train()
    assert steps_of(tmp_path / "run") == [1, 2, 3, 4, 5, 6]


class StopAt(CutAt):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


def test_a_training_that_a_callback_stopped_can_be_gone_on_with(make_trainer, tmp_path):
    trainer = make_trainer(name="attached", **STEPS)
    attach(trainer, config(tmp_path))
    trainer.add_callback(StopAt(4))
    trainer.train()
    assert states(tmp_path / "run") == ["start", "stop"]
    again = make_trainer(name="attached", **STEPS)
    attach(again, config(tmp_path), resume_from_checkpoint=True)
    again.train(resume_from_checkpoint=True)
    assert steps_of(tmp_path / "run") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("there", [False, True])
def test_a_refused_config_leaves_the_folder_as_it_was(make_trainer, tmp_path, there):
    folder = tmp_path / "run"
    if there:
        folder.mkdir()
        (folder / "config.toml").write_text('name = "mine"')
    trainer = make_trainer(name="attached", **STEPS)
    missing = {"type": "learned", "name": "nobody"}
    with pytest.raises(ConfigError):
        attach(trainer, config(tmp_path, policy=missing))
    assert folder.exists() == there
    assert [f.name for f in folder.glob("*")] == (["config.toml"] if there else [])
    attach(trainer, config(tmp_path)).detach()


def test_a_training_that_ends_at_its_budget_goes_on_from_a_whole_step(make_trainer, tmp_path):
    sizes = STEPS | {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    plain = make_trainer(**sizes)
    plain.train()
    # Used up by the first step: the training ends after the one that follows.
    accounting = {"budget_g": 1e-9, "over_budget": "stop"}
    first = make_trainer(name="attached", **sizes)
    attachment = attach(first, config(tmp_path, more={"accounting": accounting}))
    first.add_callback(AwaitsReadings(attachment.runtime))
    first.train()
    stopped = first.state.global_step
    assert 0 < stopped < 6
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        assert reader.choices()[-1].choice.why is Why.BUDGET
        assert EventKind.STOP in {e.kind for e in reader.events()}
    again = make_trainer(name="attached", **sizes)
    checkpoint = tmp_path / "attached" / f"checkpoint-{stopped}"
    assert checkpoint.is_dir()
    # A budget may be raised: it is no factor of what was recorded.
    more = {"accounting": accounting | {"budget_g": 1e9}}
    attach(again, config(tmp_path, more=more), resume_from_checkpoint=str(checkpoint))
    again.train(resume_from_checkpoint=str(checkpoint))
    assert_same_bits(outcome(plain), outcome(again))
