"""The three lines of a first try: a config that holds a name and nothing else, and any trainer."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from ecorl.errors import ConfigError, RunError
from ecorl.ledger import LedgerReader
from ecorl.runtime.runs import folder as run_folder
from roll_adapters.trl_hooks import attach
from tests.integration.tiny_trainer import TinyTask, tiny_trainer

SEED = 11
"""Of the tiny trainer."""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder of the user's, in which the script runs."""
    monkeypatch.chdir(tmp_path)
    Path("ecorl.toml").write_text('name = "my-run"\n')
    return tmp_path


def short(completions, **kwargs) -> list[float]:
    return [-float(len(text)) for text in completions]


def make(tiny: TinyTask, kind: str = "grpo", **changes: Any) -> Any:
    """A trainer as its user makes it: of an algorithm, of a subclass, or with other parts."""
    parts: dict[str, Any] = {}
    if kind.endswith("function"):
        parts = {"reward_funcs": [short], "reward_processing_classes": None}
    if kind.endswith("peft"):
        from peft import LoraConfig

        parts = {"peft_config": LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")}
    algorithm = kind.split("-", maxsplit=1)[0]
    trainer = tiny_trainer(
        tiny, Path("out"), algorithm, parts=parts, **{"max_steps": 1, "use_cpu": True} | changes
    )
    if kind.endswith("subclass"):
        trainer.__class__ = type("OwnTrainer", (type(trainer),), {})
    return trainer


@contextlib.contextmanager
def reading(folder: str = f"runs/my-run-{SEED}"):
    with contextlib.closing(LedgerReader(Path(folder))) as reader:
        yield reader


@pytest.mark.parametrize(
    "kind",
    ["grpo", "rloo", "grpo-subclass", "rloo-subclass", "grpo-function", "rloo-function",
     "grpo-peft", "rloo-peft"],
)  # fmt: skip
def test_a_name_is_enough_for_any_trainer(tiny, here, kind):
    if kind.endswith("peft"):
        pytest.importorskip("peft")
    trainer = make(tiny, kind)
    attach(trainer, "ecorl.toml")
    trainer.train()
    assert trainer.state.global_step == 1
    with reading() as reader:
        run = reader.run()
        assert reader.executions()
    assert f'algorithm = "{kind[:4]}"' in run.config_toml
    assert f"seed = {SEED}" in run.config_toml
    assert (run.run_id, run.meta["seed"]) == (f"my-run-{SEED}", str(SEED))


def test_an_algorithm_that_the_config_sets_is_held_to(tiny, here):
    Path("ecorl.toml").write_text('algorithm = "grpo"\n')
    with pytest.raises(ConfigError, match=r"algorithm = 'grpo': allowed is rloo for a RLOOTrainer"):
        attach(make(tiny, "rloo"), "ecorl.toml")
    assert not Path("runs").exists()


def test_a_seed_that_the_trainer_does_not_have_is_warned_of(tiny, here, caplog):
    Path("ecorl.toml").write_text("seed = 5\n")
    with caplog.at_level(logging.WARNING):
        attach(make(tiny), "ecorl.toml").detach()
    assert "ecorl.toml: seed = 5 is not used: the trainer's seed is 11" in caplog.text


def test_a_large_seed_of_a_trainer_is_no_mistake(tiny, here):
    trainer = make(tiny, "grpo-function", seed=2**32 - 1)
    attach(trainer, "ecorl.toml")
    trainer.train()
    assert Path(f"runs/my-run-{2**32 - 1}/ledger.sqlite").is_file()


def test_a_config_that_is_not_there_is_named_as_it_was_given(tiny, here):
    with pytest.raises(ConfigError, match=r"^config = 'nope\.toml': allowed is an existing TOML"):
        attach(make(tiny), "nope.toml")


# ---------------------------------------------------------------- twice on one trainer


def test_attaching_twice_is_refused_until_the_first_has_ended(tiny, here):
    trainer = make(tiny)
    attachment = attach(trainer, "ecorl.toml")
    with pytest.raises(RunError, match=r"attached to this trainer already: call detach\(\)"):
        attach(trainer, "ecorl.toml")
    attachment.detach()
    assert not Path("runs/my-run-11").exists(), "nothing was trained"
    attachment = attach(trainer, "ecorl.toml")
    Path("runs/my-run-11/mine.txt").write_text("kept")
    attachment.detach()
    assert [path.name for path in Path("runs/my-run-11").iterdir()] == ["mine.txt"]
    attach(trainer, "ecorl.toml")
    trainer.train()
    attach(trainer, "ecorl.toml", overwrite=True).detach()


# ---------------------------------------------------------------- a run that is there


class Cut(Exception):
    """Ends a training as an error of the user's code would."""


class CutAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Cut


def cut(trainer: Any, step: int) -> None:
    """Train until an error of the user's ends it."""
    trainer.add_callback(CutAt(step))
    with pytest.raises(Cut):
        trainer.train()


SAVES = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}


def test_an_unfinished_run_is_refused_with_the_ways_on(tiny, here):
    trainer = make(tiny, **SAVES)
    attach(trainer, "ecorl.toml")
    cut(trainer, 2)
    with pytest.raises(RunError) as caught:
        attach(make(tiny, **SAVES), "ecorl.toml")
    assert str(caught.value) == (
        "runs/my-run-11 holds a run already, failed after step 2: to go on with it "
        "start its script again with resume_from_checkpoint=True for attach and train (its "
        "checkpoint: out/checkpoint-1); overwrite=True removes it first; "
        'name = "..." or run_dir = "runs/{name}-{seed}-{time}" in the config makes another run'
    )
    again = make(tiny, **SAVES)
    attach(again, "ecorl.toml", resume_from_checkpoint=True)
    again.train(resume_from_checkpoint=True)
    with pytest.raises(
        RunError, match=r"finished after step 2: `ecorl report runs/my-run-11` shows"
    ):
        attach(make(tiny), "ecorl.toml")


def test_overwriting_leaves_the_user_s_files_alone(tiny, here):
    trainer = make(tiny, max_steps=2)
    attach(trainer, "ecorl.toml")
    cut(trainer, 1)
    run = Path("runs/my-run-11")
    (run / "notes.txt").write_text("mine")
    with pytest.raises(
        RunError, match=r"no checkpoint of it is recorded, so that there is nothing"
    ):
        attach(make(tiny), "ecorl.toml")
    with pytest.raises(
        ConfigError, match=r"overwrite = True: allowed is False for a training that"
    ):
        attach(make(tiny), "ecorl.toml", resume_from_checkpoint=checkpoint(), overwrite=True)
    anew = make(tiny)
    attach(anew, "ecorl.toml", overwrite=True)
    anew.train()
    with reading() as reader:
        assert len(reader.attempts()) == 1
        assert not any(row.superseded for row in reader.executions())
    assert (run / "notes.txt").read_text() == "mine"


def checkpoint() -> Path:
    """A checkpoint of some training."""
    folder = Path("other/checkpoint-1")
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text('{"global_step": 1}')
    return folder


def test_a_record_that_is_being_written_is_not_overwritten(tiny, here):
    attachment = attach(make(tiny), "ecorl.toml")
    with pytest.raises(RunError, match="this process writes it already"):
        attach(make(tiny), "ecorl.toml", overwrite=True)
    with pytest.raises(RunError, match=r"that is still written, before its"):
        attach(make(tiny), "ecorl.toml")
    assert Path("runs/my-run-11/ledger.sqlite").is_file()
    attachment.detach()


# ---------------------------------------------------------------- a folder for each start


def test_each_start_has_a_folder_of_its_own_time(tiny, here, monkeypatch, capsys):
    class Stopped(run_folder.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 24, 13, 30, 1)

    monkeypatch.setattr(run_folder, "datetime", Stopped)
    Path("ecorl.toml").write_text('name = "my-run"\nrun_dir = "runs/{name}-{seed}-{time}"\n')
    first, second = (make(tiny, **SAVES) for _ in range(2))
    attach(first, "ecorl.toml")
    first.train()
    attach(second, "ecorl.toml")
    cut(second, 2)
    names = sorted(path.name for path in Path("runs").iterdir())
    assert names == ["my-run-11-20261124-133001", "my-run-11-20261124-133001-2"]
    with reading("runs/my-run-11-20261124-133001-2") as reader:
        assert '/runs/my-run-11-20261124-133001-2"' in reader.run().config_toml
    again = make(tiny, **SAVES)
    attach(again, "ecorl.toml", resume_from_checkpoint=True)
    assert (
        "ecorl: the record in runs/my-run-11-20261124-133001-2 goes on; " in capsys.readouterr().err
    )
    again.train(resume_from_checkpoint=True)
    with reading("runs/my-run-11-20261124-133001-2") as reader:
        assert len(reader.attempts()) == 2
    with pytest.raises(ConfigError, match=r"a run that is not finished .* there is none"):
        attach(make(tiny, **SAVES), "ecorl.toml", resume_from_checkpoint=True)
    assert len(list(Path("runs").iterdir())) == 2


# ---------------------------------------------------------------- what is told


def told(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("ecorl: ")]


def test_the_start_and_the_end_are_told(tiny, here, capsys):
    Path("ecorl.toml").write_text('telemetry.gpu.type = "modelled"\n')
    trainer = make(tiny)
    attach(trainer, "ecorl.toml")
    trainer.train()
    start, end = told(capsys)
    assert start == "ecorl: the record lies in runs/run-11; processor power modelled"
    assert end.startswith("ecorl: recorded 1 step, ")
    assert end.endswith("; see: ecorl report runs/run-11")
    assert " J by the readings of its devices (modelled)" in end or "energy unknown" in end


@pytest.mark.parametrize(
    ("saves", "way"),
    [
        (SAVES, "resume_from_checkpoint=True for attach and train (its checkpoint: "
         "out/checkpoint-1)"),
        ({"max_steps": 2}, "no checkpoint is recorded yet: start its script again with "
         "overwrite=True"),
    ],
)  # fmt: skip
def test_the_end_of_a_training_that_was_cut_says_how_to_go_on(tiny, here, capsys, saves, way):
    trainer = make(tiny, **saves)
    attach(trainer, "ecorl.toml")
    cut(trainer, 2)
    end = told(capsys)[-1]
    assert "training ended with Cut; recorded " in end
    assert way in end


def test_a_stream_that_is_closed_costs_no_training(tiny, here, monkeypatch):
    closed = io.StringIO()
    closed.close()
    trainer = make(tiny)
    monkeypatch.setattr(sys, "stderr", closed)
    attach(trainer, "ecorl.toml")
    trainer.train()
    assert trainer.state.global_step == 1
