"""A TRL trainer that trains several times: as without ecorl, with an attempt or a run for each."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from ecorl.errors import RunError
from ecorl.ledger import Ledger, LedgerReader, RunEnding, ending_of
from ecorl.records import Stage
from tests.integration.checks import config
from tests.integration.tiny_trainer import tiny_trainer

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from roll_adapters.trl_hooks import attach  # noqa: E402

N_STEPS, N_ROWS = 2, 8


class Full(RuntimeError):
    """A GPU without memory, as PyTorch tells it."""

    def __init__(self):
        super().__init__("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.fixture
def make(tiny, tmp_path):
    def trainer(name, **changes):
        sizes = {"per_device_train_batch_size": N_ROWS, "max_steps": N_STEPS}
        return tiny_trainer(tiny, tmp_path / name, **sizes | changes)

    return trainer


def fill(trainer, at_call):
    """Let a trainer run out of memory once, in its so-many-th loss."""
    compute, calls = trainer.compute_loss, []

    def compute_loss(*args, **kwargs):
        calls.append(len(calls) + 1)
        if calls[-1] == at_call:
            activations = torch.zeros(1)
            trainer.held = weakref.ref(activations)
            raise Full
        return compute(*args, **kwargs)

    trainer.compute_loss = compute_loss


def outcome(trainer):
    keys = ("loss", "grad_norm", "reward")
    log = [{key: row[key] for key in keys} for row in trainer.state.log_history if "loss" in row]
    return log, {name: w.clone() for name, w in trainer.model.state_dict().items()}


def assert_same(one, other):
    assert one[0] == other[0]
    assert len(one[0]) == N_STEPS
    assert all(torch.equal(w, other[1][name]) for name, w in one[1].items())


@contextlib.contextmanager
def reading(folder):
    with contextlib.closing(LedgerReader(folder)) as reader:
        yield reader


def attempts(folder):
    with reading(folder) as reader:
        return [row.from_step for row in reader.attempts()], ending_of(reader)[0]


def steps(folder, stage, *, superseded=False):
    with reading(folder) as reader:
        rows = [row for row in reader.executions() if row.superseded is superseded]
    return [row.result.iteration for row in rows if row.result.stage is stage]


def test_a_user_who_catches_the_error_goes_on_in_the_same_run(make, tmp_path):
    def train(name, settings=None):
        trainer = make(name)
        fill(trainer, at_call=2)
        if settings is not None:
            attach(trainer, settings)
        with contextlib.suppress(Full):
            trainer.train()
        # What the failed step held is free again, or the next try would fail too.
        gc.collect()
        assert trainer.held() is None
        trainer.train()
        return trainer

    plain, attached = train("plain"), train("attached", config(tmp_path))
    assert_same(outcome(plain), outcome(attached))
    assert attempts(tmp_path / "run") == ([0, 0], RunEnding.FINISHED)
    for stage in (Stage.GENERATION, Stage.ACTOR_TRAIN):
        assert steps(tmp_path / "run", stage) == list(range(1, N_STEPS + 1))
    assert steps(tmp_path / "run", Stage.ACTOR_TRAIN, superseded=True) == [1, 2], (
        "spent all the same"
    )


def test_a_second_training_is_a_run_of_its_own(make, tmp_path, capsys):
    def train(name, settings=None):
        trainer = make(name)
        attachment = attach(trainer, settings, overwrite=True) if settings else None
        trainer.train()
        trainer.train()
        return trainer, attachment

    (plain, _), (attached, attachment) = train("plain"), train("attached", config(tmp_path))
    assert_same(outcome(plain), outcome(attached))
    told = capsys.readouterr().err
    for name in ("run", "run-2"):
        assert attempts(tmp_path / name) == ([0], RunEnding.FINISHED)
        assert steps(tmp_path / name, Stage.GENERATION) == list(range(1, N_STEPS + 1))
        assert f"ecorl: the record lies in {tmp_path / name}; " in told
    n_callbacks = len(attached.callback_handler.callbacks)
    attachment.detach()
    assert "train" not in attached.__dict__
    attached.train()
    assert len(attached.callback_handler.callbacks) == n_callbacks, "of one attachment alone"
    assert not (tmp_path / "run-3").exists(), "it was detached"


def test_an_error_of_a_second_training_ends_its_record(make, tmp_path):
    trainer = make("attached", save_strategy="steps", save_steps=1)
    fill(trainer, at_call=N_STEPS + 2)
    attach(trainer, config(tmp_path))
    trainer.train()
    with pytest.raises(Full):
        trainer.train()
    assert attempts(tmp_path / "run-2") == ([0], RunEnding.FAILED)
    trainer.train(resume_from_checkpoint=str(tmp_path / "attached" / "checkpoint-1"))
    assert attempts(tmp_path / "run") == ([0], RunEnding.FINISHED)
    assert attempts(tmp_path / "run-2") == ([0, 1], RunEnding.FINISHED)


def test_a_record_that_cannot_be_made_costs_itself_alone(make, tmp_path, caplog, monkeypatch):
    def broken(*args, **kwargs):
        raise OSError("no space left")

    trainer = make("attached")
    attachment = attach(trainer, config(tmp_path))
    trainer.train()
    with monkeypatch.context() as full:
        full.setattr(Ledger, "create", broken)
        trainer.train()
    assert trainer.state.global_step == N_STEPS
    told = f"this training is not measured: run_dir: {tmp_path / 'run-2'} cannot be written (no spa"
    assert told in caplog.text
    assert not (tmp_path / "run-2").exists()
    trainer.train()
    assert steps(tmp_path / "run-2", Stage.GENERATION) == list(range(1, N_STEPS + 1))
    attachment.detach()
    assert "train" not in trainer.__dict__


def test_what_the_user_holds_or_removes_ends_no_training(make, tmp_path):
    trainer = make("attached")
    callbacks = list(trainer.callback_handler.callbacks)
    attachment = attach(trainer, config(tmp_path))
    train = trainer.train
    train()
    trainer.callback_handler.callbacks[:] = callbacks
    train()
    train()
    assert [attempts(tmp_path / name)[0] for name in ("run-2", "run-3")] == [[0], [0]]
    attachment.detach()
    train()
    assert not (tmp_path / "run-4").exists()


def test_attaching_again_by_hand_is_as_before(make, tmp_path):
    trainer = make("attached")
    attach(trainer, config(tmp_path))
    trainer.train()
    attach(trainer, config(tmp_path / "other"))
    trainer.train()
    assert attempts(tmp_path / "other" / "run") == ([0], RunEnding.FINISHED)
    assert not (tmp_path / "run-2").exists()


def test_another_trainer_after_out_of_memory_goes_on_with_the_run(make, tmp_path):
    first = make("first")
    fill(first, at_call=2)
    attach(first, config(tmp_path))
    with pytest.raises(Full):
        first.train()
    smaller = make("smaller", per_device_train_batch_size=4)
    attach(smaller, config(tmp_path))
    smaller.train()
    assert attempts(tmp_path / "run") == ([0, 0], RunEnding.FINISHED)
    with pytest.raises(RunError, match="finished after step 2"):
        attach(make("third"), config(tmp_path))


def test_a_second_training_goes_on_in_gears(make, tmp_path, caplog):
    gears = {"allowed": ["BF16"], "measure_every": 0}
    trainer = make("geared")
    attach(trainer, config(tmp_path, more={"gears": gears}))
    trainer.train()
    trainer.train()
    assert "stays as it is" not in caplog.text, "its optimizer is adapted already"
    with reading(tmp_path / "run-2") as reader:
        trained = [row for row in reader.executions() if row.result.stage is Stage.ACTOR_TRAIN]
    assert [row.result.gear for row in trained] == ["BF16"] * N_STEPS
