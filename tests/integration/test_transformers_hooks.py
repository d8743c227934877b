"""ecorl in a `Trainer` of transformers: its numbers stay, and its steps stand in the record."""

from __future__ import annotations

import contextlib
import time
from functools import partial

import pytest

from ecorl.errors import ConfigError, RunError
from ecorl.ledger import LedgerReader
from ecorl.records import Stage
from tests.fakes.grids import (
    TWO_WAITS,
    check_no_step_in_a_pause,
    n_pauses,
    plain_config,
    waiting_config,
)

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from roll_adapters.transformers_hooks import EcorlCallback, attach  # noqa: E402

N_ROWS, LENGTH, N_STEPS = 44, 12, 6


class Rows(torch.utils.data.Dataset):
    """Sequences of random tokens, the same each time."""

    def __init__(self):
        self.tokens = torch.randint(3, 30, (N_ROWS, LENGTH), generator=torch.manual_seed(9))

    def __len__(self):
        return N_ROWS

    def __getitem__(self, number):
        return {"input_ids": self.tokens[number], "labels": self.tokens[number]}


def plain_trainer(folder, name="plain", callbacks=(), eval_dataset=None, **changes):
    """A plain Trainer with a model of two layers, whose output goes below a folder."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    shape = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 32}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "attention_dropout": 0.1}
    settings = {
        "output_dir": str(folder / name), "use_cpu": True, "max_steps": N_STEPS,
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2, "seed": 7, "logging_steps": 1, "report_to": [],
        "save_strategy": "no", "disable_tqdm": True,
    } | changes  # fmt: skip
    made = Trainer(
        model=LlamaForCausalLM(LlamaConfig(**shape, **layers)),
        args=TrainingArguments(**settings),
        train_dataset=Rows(),
        eval_dataset=eval_dataset,
        callbacks=list(callbacks),
    )
    made.remove_callback(PrinterCallback)
    return made


@pytest.fixture
def make(tmp_path):
    """Makes a plain Trainer; keyword arguments go to its settings."""
    return partial(plain_trainer, tmp_path)


def outcome(trainer):
    keys = ("loss", "grad_norm", "learning_rate")
    history = [row for row in trainer.state.log_history if "loss" in row]
    weights = {name: w.clone() for name, w in trainer.model.state_dict().items()}
    return [{key: row[key] for key in keys} for row in history], weights


def assert_same(one, other, n_steps=N_STEPS):
    assert one[0] == other[0]
    assert len(one[0]) == n_steps
    for name, weight in one[1].items():
        assert torch.equal(weight, other[1][name]), name


class Pace(TrainerCallback):
    """Takes a while over each step, as a larger model does."""

    def __init__(self, pace_s):
        self.pace_s = pace_s

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        time.sleep(self.pace_s)


@contextlib.contextmanager
def reading(tmp_path):
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        yield reader


def states(tmp_path):
    told = ("start", "resume", "stop", "failure", "finish")
    with reading(tmp_path) as reader:
        return [event.kind for event in reader.events() if event.kind in told]


# ---------------------------------------------------------------- numbers and record


def test_the_callback_changes_no_bit(make, tmp_path):
    plain = make()
    plain.train()
    callback = EcorlCallback(plain_config(tmp_path / "run"))
    measured = make("measured", [callback, Pace(0.05)])
    measured.train()
    assert_same(outcome(plain), outcome(measured))
    with reading(tmp_path) as reader:
        results = [row.result for row in reader.executions()]
        metrics = {(m.name, m.iteration) for m in reader.metrics()}
        meta = reader.run().meta
        assert len(reader.placements()) == N_STEPS
    assert [(r.iteration, r.stage) for r in results] == [
        (i, Stage.ACTOR_TRAIN) for i in range(1, N_STEPS + 1)
    ]
    # 44 rows are 16, 16 and 12 in an epoch.
    assert [r.n_sequences for r in results] == [16, 16, 12] * 2
    assert [r.n_tokens for r in results] == [r.n_sequences * LENGTH for r in results]
    for name in ("loss", "grad_norm", "learning_rate", "peak_memory_host_bytes"):
        assert {(name, i) for i in range(1, N_STEPS + 1)} <= metrics
    assert states(tmp_path) == ["start", "finish"]
    assert meta.items() >= {
        "trainer": "transformers Trainer", "gradient_accumulation_steps": "2",
        "per_device_train_batch_size": "8", "effective_batch_size": "16",
    }.items()  # fmt: skip


class UntilDirtyAgain(TrainerCallback):
    """Has a step last until the grid has become dirty for the second time."""

    def __init__(self, grid):
        self.grid = grid

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.grid.until_turned(2)


def test_pauses_change_no_bit(make, tmp_path, turning_grid):
    plain = make()
    plain.train()
    callback = EcorlCallback(waiting_config(tmp_path / "run", TWO_WAITS))
    paused = make("paused", [callback, UntilDirtyAgain(turning_grid)])
    paused.train()
    assert_same(outcome(plain), outcome(paused))
    assert n_pauses(tmp_path / "run") == 2
    check_no_step_in_a_pause(tmp_path / "run")


# ---------------------------------------------------------------- logs


class Logger(TrainerCallback):
    """A logger, in the place where a Trainer has those of ``report_to``."""

    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append(dict(logs))


def test_loggers_see_energy_and_emissions(make, tmp_path):
    logger = Logger()
    evaluates = {"eval_strategy": "steps", "eval_steps": 3}
    trainer = make("measured", [logger, Pace(0.1)], Rows(), **evaluates)
    attach(trainer, plain_config(tmp_path / "run"))
    trainer.train()
    trained = [row for row in logger.seen if "loss" in row]
    assert len(trained) == N_STEPS
    # Which row has the energy of a step is a matter of time.
    assert set().union(*logger.seen) >= {
        "energy/total_j", "energy/actor_train_j", "carbon/g", "carbon/intensity_g_per_kwh",
    }  # fmt: skip
    told_g = [row["carbon/g"] for row in logger.seen if "carbon/g" in row]
    assert told_g == sorted(told_g)
    assert told_g[-1] > 0
    history = [row for row in trainer.state.log_history if "loss" in row]
    assert [row.get("carbon/g") for row in history] == [row.get("carbon/g") for row in trained]
    assert all("carbon/g" not in row for row in logger.seen if "eval_loss" in row)
    # Of the whole training: behind it no energy of a step is to come.
    last = logger.seen[-1]
    assert "train_loss" in last
    assert last["energy/up_to_step"] == N_STEPS
    with reading(tmp_path) as reader:
        booked_j = sum(row.result.energy.energy_j for row in reader.executions())
    logged_j = sum(row.get("energy/actor_train_j", 0.0) for row in logger.seen)
    assert logged_j == pytest.approx(booked_j, rel=1e-9)
    assert trainer.state.log_history[-1]["energy/total_j"] == last["energy/total_j"]
    with reading(tmp_path) as reader:
        assert {m.iteration for m in reader.metrics("eval_loss")} == {3, 6}


# ---------------------------------------------------------------- ends and resumes


class Cut(Exception):
    """Ends a training as an error of the user's code would."""


class CutAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Cut


SAVES = {"save_strategy": "steps", "save_steps": 2}


def test_a_resume_goes_on_with_the_record(make, tmp_path):
    plain = make(**SAVES)
    plain.train()
    config = plain_config(tmp_path / "run")
    cut = make("measured", [CutAt(5)], **SAVES)
    attach(cut, config)
    with pytest.raises(Cut):
        cut.train()
    assert states(tmp_path) == ["start", "failure"]
    assert (tmp_path / "measured" / "checkpoint-4" / "ecorl_state.json").is_file()
    with pytest.raises(RunError, match="with resume_from_checkpoint for train"):
        make("measured", [EcorlCallback(config)], **SAVES).train()
    again = make("measured", [EcorlCallback(config)], **SAVES)
    again.train(resume_from_checkpoint=True)
    assert_same(outcome(plain), outcome(again))
    assert states(tmp_path) == ["start", "failure", "resume", "finish"]
    with reading(tmp_path) as reader:
        rows = [(row.result.iteration, row.superseded) for row in reader.executions()]
    assert [i for i, superseded in rows if not superseded] == [1, 2, 3, 4, 5, 6]
    assert [i for i, superseded in rows if superseded] == [5]


def test_attaching_twice_is_refused_until_the_first_has_ended(make, tmp_path):
    config = plain_config(tmp_path / "run")
    trainer = make("measured", max_steps=1)
    own = trainer.train
    attachment = attach(trainer, config)
    with pytest.raises(RunError, match=r"attached to this trainer already: call detach\(\)"):
        attach(trainer, config)
    attachment.detach()
    assert trainer.train == own
    attach(trainer, config)
    trainer.train()
    attach(trainer, config, overwrite=True)
    trainer.train()
    assert states(tmp_path) == ["start", "finish"]
    with reading(tmp_path) as reader:
        assert len(reader.attempts()) == 1


def test_the_run_has_the_trainer_s_seed(make, tmp_path, caplog, capsys):
    config = plain_config(tmp_path / "run").model_copy(
        update={"seed": 5, "run_dir": tmp_path / "runs" / "{name}-{seed}"}
    )
    attach(trainer := make("measured", max_steps=1), config)
    trainer.train()
    assert "the config: seed = 5 is not used: the trainer's seed is 7" in caplog.text
    with contextlib.closing(LedgerReader(tmp_path / "runs" / "run-7")) as reader:
        assert "seed = 7" in reader.run().config_toml
    assert f"see: ecorl report {tmp_path}/runs/run-7" in capsys.readouterr().err


def test_a_callback_alone_ends_the_record_when_it_is_closed(make, tmp_path):
    callback = EcorlCallback(plain_config(tmp_path / "run"))
    trainer = make("measured", [callback, CutAt(2)])
    with pytest.raises(Cut):
        trainer.train()
    callback.close()
    callback.close()
    assert states(tmp_path) == ["start", "stop"]


def test_the_budget_saves_and_stops(make, tmp_path):
    accounting = {"budget_g": 1e-9, "over_budget": "stop"}
    callback = EcorlCallback(plain_config(tmp_path / "run", accounting=accounting))
    trainer = make("measured", [callback, Pace(0.2)], max_steps=100)
    trainer.train()
    done = trainer.state.global_step
    assert 0 < done < 100
    assert (tmp_path / "measured" / f"checkpoint-{done}" / "ecorl_state.json").is_file()
    assert states(tmp_path) == ["start", "stop"]


def test_a_wrong_config_is_told_before_training(make, tmp_path):
    with pytest.raises(ConfigError, match=r"^config = 'nowhere\.toml': allowed is an existing"):
        EcorlCallback("nowhere.toml")
    trainer = make("measured", [EcorlCallback(plain_config(tmp_path / "run"))])
    trainer.args._n_gpu = 4
    with pytest.raises(ConfigError, match=r"devices\.n_gpus = 1: allowed is 4"):
        trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    assert not (tmp_path / "run").exists()
