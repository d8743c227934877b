"""Saves that fail: whose they are, and what they cost."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console
from transformers import Trainer

from ecorl.config import load_config
from ecorl.ledger import LedgerReader
from ecorl.runtime.checkpoints import newest_checkpoint
from roll_adapters.trl import attempt
from roll_adapters.trl.callbacks import StageCallback
from roll_adapters.trl.saves import save_or_note
from roll_adapters.trl_hooks import attach
from tests.integration.checks import assert_same_bits, config, outcome
from tests.integration.test_run import config_writer
from tests.integration.test_trl_care import fault_kinds


class Full:
    """Fails as a full disk does, once, in the middle of a trainer's save."""

    def __init__(self, trainer, error: Exception) -> None:
        self._own, self._error = trainer._save_optimizer_and_scheduler, error
        trainer._save_optimizer_and_scheduler = self

    def __call__(self, *args, **kwargs):
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._own(*args, **kwargs)


NO_SPACE = OSError(28, "No space left on device")


def test_a_save_that_the_user_asked_for_fails_as_without_ecorl(make_trainer, tmp_path):
    trainer = make_trainer(save_strategy="steps", save_steps=2)
    attach(trainer, config(tmp_path))
    Full(trainer, NO_SPACE)
    with pytest.raises(OSError, match="No space"):
        trainer.train()


@pytest.mark.parametrize(
    "error", [NO_SPACE, RuntimeError("inline_container.cc: file write failed")]
)
def test_a_save_that_ecorl_asked_for_costs_its_checkpoint_alone(make_trainer, tmp_path, error):
    plain = make_trainer()
    plain.train()
    trainer = make_trainer(name="attached", save_strategy="steps", save_steps=2)
    attach(trainer, config(tmp_path)).guards_saves = True
    Full(trainer, error)
    trainer.train()
    assert_same_bits(outcome(plain), outcome(trainer))
    assert fault_kinds(tmp_path / "run") == ["CheckpointIncomplete"]
    assert not (tmp_path / "attached" / "checkpoint-2").exists()
    assert (tmp_path / "attached" / "checkpoint-4" / "ecorl_state.json").is_file()
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        assert [c.iteration for c in reader.checkpoints()] == [4]


def test_a_run_of_the_command_goes_on_after_a_save_that_fails(tiny, tmp_path, monkeypatch):
    path = config_writer(tiny, tmp_path)()
    lines = [line for line in path.read_text().splitlines() if "eval_prompts" not in line]
    text = "\n".join(line for line in lines if not line.startswith("pairs"))
    path.write_text(
        text.replace("steps = 12", "steps = 5").replace("save_every = 3", "save_every = 2")
    )
    settings = load_config(str(path))
    own, errors = Trainer._save_optimizer_and_scheduler, [NO_SPACE]

    def full(trainer, folder):
        if errors:
            raise errors.pop()
        own(trainer, folder)

    monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", full)
    run_dir = tmp_path / "run"
    assert attempt.start(settings, run_dir, Console(quiet=True)) == "complete"
    assert fault_kinds(run_dir) == ["CheckpointIncomplete"]
    assert newest_checkpoint(run_dir / "checkpoints").name == "checkpoint-5"


def test_a_save_for_the_end_that_the_control_path_asked_for_is_ecorl_s():
    def nothing(*_told):
        return True

    runtime = SimpleNamespace(is_head=False, settle=nothing)
    attachment = SimpleNamespace(
        packing=None,
        closed=False, guards_saves=False, runtime=runtime,
        begin_step=nothing, end_training_stage=nothing,
    )  # fmt: skip
    callback, state, control = StageCallback(attachment), SimpleNamespace(), SimpleNamespace()
    callback.on_step_begin(None, state, control)
    callback.on_step_end(None, state, control)
    assert control.should_save
    assert attachment.guards_saves


@pytest.mark.parametrize("reasons", [(None, None), (None, "full"), ("full", None)])
def test_all_processes_take_a_save_for_failed_where_one_does(tmp_path, reasons):
    faults = []
    record = SimpleNamespace(fault=faults.append)
    results, lock = {}, threading.Barrier(2)
    told: dict[int, object] = {}

    def process(rank):
        def all_gather(value):
            told[rank] = value
            lock.wait(240)
            return [told[0], told[1]]

        def save():
            checkpoint.mkdir(exist_ok=True)
            if reasons[rank]:
                raise OSError(28, reasons[rank])

        runtime = SimpleNamespace(is_head=rank == 0, record=record)
        ranks = SimpleNamespace(all_gather=all_gather)
        results[rank] = save_or_note(save, checkpoint, 3, runtime, ranks)

    checkpoint = tmp_path / "checkpoint-3"
    threads = [threading.Thread(target=process, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    is_saved = reasons == (None, None)
    assert results == {0: is_saved, 1: is_saved}
    assert checkpoint.exists() is is_saved
    assert [f.kind for f in faults] == ([] if is_saved else ["CheckpointIncomplete"])
