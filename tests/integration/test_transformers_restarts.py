"""A `Trainer` that trains several times: as without ecorl, with an attempt or a run for each."""

from __future__ import annotations

import contextlib
import copy
from functools import partial

import pytest

from ecorl.ledger import Ledger, LedgerReader, RunEnding, ending_of
from ecorl.records import EventKind
from tests.fakes.grids import plain_config
from tests.integration.test_transformers_hooks import (
    N_STEPS,
    assert_same,
    outcome,
    plain_trainer,
)

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from roll_adapters.transformers_hooks import EcorlCallback, attach  # noqa: E402


class Full(RuntimeError):
    """A GPU without memory, as PyTorch tells it."""

    def __init__(self):
        super().__init__("CUDA out of memory. Tried to allocate 2.00 GiB")


class Small(torch.nn.Module):
    """A model that has memory for so many rows, from its second batch on."""

    def __init__(self, model, n_rows):
        super().__init__()
        self.model, self.n_rows, self.n_calls = model, n_rows, 0
        self.config = model.config

    def forward(self, input_ids, labels, **kwargs):
        self.n_calls += 1
        if self.n_calls > 1 and len(input_ids) > self.n_rows:
            raise Full
        return self.model(input_ids=input_ids, labels=labels, **kwargs)


@pytest.fixture
def make(tmp_path):
    return partial(plain_trainer, tmp_path)


def attempts(folder):
    """First steps of a run's attempts, and how the run has ended."""
    with contextlib.closing(LedgerReader(folder)) as reader:
        return [row.from_step for row in reader.attempts()], ending_of(reader)[0]


def steps(folder, *, superseded=False):
    with contextlib.closing(LedgerReader(folder)) as reader:
        rows = [row for row in reader.executions() if row.superseded is superseded]
    return [row.result.iteration for row in rows]


def searching(make, name, n_rows, **changes):
    """A trainer that finds its own batch size: one that its model has memory for."""
    trainer = make(name, auto_find_batch_size=True, gradient_accumulation_steps=1, **changes)
    trainer.model = trainer.model_wrapped = Small(trainer.model, n_rows)
    return trainer


@pytest.mark.parametrize("as_callback", [False, True])
def test_a_batch_size_that_is_found_has_an_attempt_for_each_try(make, tmp_path, as_callback):
    plain = searching(make, "plain", 7)
    plain.train()
    attached = searching(make, "attached", 7)
    if as_callback:
        attached.add_callback(EcorlCallback(plain_config(tmp_path / "run")))
    else:
        attach(attached, plain_config(tmp_path / "run"))
    attached.train()
    assert attached._train_batch_size == 7
    assert_same(outcome(plain), outcome(attached))
    assert attempts(tmp_path / "run") == ([0, 0], RunEnding.FINISHED)
    assert steps(tmp_path / "run") == list(range(1, N_STEPS + 1))
    assert steps(tmp_path / "run", superseded=True) == [1], "its energy was spent all the same"
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        told = [event.detail for event in reader.events() if event.kind is EventKind.FAILURE]
        assert told == ["BeganAgain: training began again, with 7 rows a batch"]
        assert "batch_size" not in reader.run().meta
        rows = [row.result.n_sequences for row in reader.executions() if not row.superseded]
    assert set(rows) <= {7, 44 % 7}


@pytest.mark.parametrize("as_callback", [False, True])
def test_a_user_who_catches_the_error_goes_on_in_the_same_run(make, tmp_path, as_callback):
    trainer = make("attached", gradient_accumulation_steps=1)
    trainer.model = trainer.model_wrapped = Small(trainer.model, 4)
    if as_callback:
        callback = EcorlCallback(plain_config(tmp_path / "run"))
        trainer.add_callback(callback)
    else:
        callback = attach(trainer, plain_config(tmp_path / "run"))
    with pytest.raises(Full):
        trainer.train()
    assert callback.has_ended is not as_callback, "a callback alone is not told"
    trainer._train_batch_size = trainer.args.per_device_train_batch_size = 4
    trainer.train()
    assert callback.has_ended
    assert attempts(tmp_path / "run") == ([0, 0], RunEnding.FINISHED)
    assert steps(tmp_path / "run") == list(range(1, N_STEPS + 1))


def test_a_second_training_is_a_run_of_its_own(make, tmp_path, capsys):
    plain = make("plain")
    plain.train()
    plain.train()
    attached = make("attached")
    (tmp_path / "run-2").mkdir()
    attach(attached, plain_config(tmp_path / "run"), overwrite=True)
    attached.train()
    attached.train()
    assert_same(outcome(plain), outcome(attached))
    told = capsys.readouterr().err
    for name in ("run", "run-3"):
        assert attempts(tmp_path / name) == ([0], RunEnding.FINISHED)
        assert steps(tmp_path / name) == list(range(1, N_STEPS + 1))
        assert f"ecorl: the record lies in {tmp_path / name}; " in told
    assert list((tmp_path / "run-2").iterdir()) == [], "it was there before"


def test_more_steps_after_the_end_are_a_run_of_their_own(make, tmp_path):
    trainer = make("attached", save_strategy="steps", save_steps=N_STEPS)
    attach(trainer, plain_config(tmp_path / "run"))
    trainer.train()
    trainer.args.max_steps = N_STEPS + 2
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == N_STEPS + 2
    assert attempts(tmp_path / "run") == ([0], RunEnding.FINISHED)
    assert steps(tmp_path / "run-2") == [N_STEPS + 1, N_STEPS + 2]


def test_each_trial_of_a_search_is_a_run_of_its_own(make, tmp_path):
    trainer = make("attached", gradient_accumulation_steps=1)
    config = plain_config(tmp_path / "run")
    attach(trainer, config)
    small, model = Small(trainer.model, 1), trainer.model
    trainer.model = trainer.model_wrapped = small
    with pytest.raises(Full):
        trainer.train(trial={"learning_rate": 0.1})
    trainer.model = trainer.model_wrapped = model
    trainer.train(trial={"learning_rate": 0.2})
    assert attempts(tmp_path / "run") == ([0], RunEnding.FAILED)
    assert attempts(tmp_path / "run-2") == ([0], RunEnding.FINISHED)


def test_what_follows_a_search_is_no_attempt_of_its_last_trial(make, tmp_path):
    trainer = make("attached", gradient_accumulation_steps=1)
    attach(trainer, plain_config(tmp_path / "run"))
    small, model = Small(trainer.model, 1), trainer.model
    trainer.model = trainer.model_wrapped = small
    with pytest.raises(Full):
        trainer.train(trial={"learning_rate": 0.1})
    trainer.model = trainer.model_wrapped = model
    trainer.train()
    assert attempts(tmp_path / "run") == ([0], RunEnding.FAILED)
    assert attempts(tmp_path / "run-2") == ([0], RunEnding.FINISHED)


def test_a_record_that_cannot_be_made_costs_itself_alone(make, tmp_path, caplog, monkeypatch):
    def broken(*args, **kwargs):
        raise OSError("no space left")

    trainer = make("attached")
    attach(trainer, plain_config(tmp_path / "run"))
    trainer.train()
    with monkeypatch.context() as full:
        full.setattr(Ledger, "create", broken)
        trainer.train()
    assert trainer.state.global_step == N_STEPS
    told = f"this training is not measured: run_dir: {tmp_path / 'run-2'} cannot be written (no spa"
    assert told in caplog.text
    assert not (tmp_path / "run-2").exists()
    trainer.train()
    assert steps(tmp_path / "run-2") == list(range(1, N_STEPS + 1))


def test_a_copy_of_a_trainer_trains_itself(make, tmp_path):
    trainer = make("attached")
    callback = attach(trainer, plain_config(tmp_path / "run"))
    other = copy.deepcopy(trainer)
    other.train()
    assert (trainer.state.global_step, other.state.global_step) == (0, N_STEPS)
    assert not callback.has_ended
