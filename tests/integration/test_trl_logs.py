"""The energy of a run in the trainer's own log, and in the loggers that read it."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import secrets
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from ecorl.config import validate_config
from ecorl.ledger import LedgerReader
from ecorl.runtime.energy.log_figures import LEGEND
from ecorl.runtime.energy.run_energy import recorded_totals
from ecorl.telemetry.history import PowerHistory
from roll_adapters.trl_hooks import attach
from tests.integration.checks import BOTH, assert_same_bits, config, outcome

OURS = ("energy/", "power/", "device/", "carbon/")
STAGES = ("generation", "reward", "reference", "actor_train")


def our_rows(trainer: Any) -> list[dict[str, float]]:
    """What ecorl added to each log of the training."""
    rows = trainer.state.log_history
    return [{k: v for k, v in row.items() if k.startswith(OURS)} for row in rows]


def train(trainer: Any, settings: Any, **attaching: Any) -> list[dict[str, float]]:
    attach(trainer, settings, **attaching)
    trainer.train(**attaching)
    return our_rows(trainer)


def test_every_stage_is_in_the_log_and_the_training_is_the_same(make_trainer, tmp_path, caplog):
    plain = make_trainer(max_steps=12)
    plain.train()
    trainer = make_trainer(name="attached", max_steps=12)
    with caplog.at_level(logging.INFO, logger="roll_adapters"):
        rows = train(trainer, config(tmp_path))
    assert_same_bits(outcome(plain), outcome(trainer))
    assert caplog.text.count(LEGEND) == 1
    assert len(rows) == 13  # one a step, and that of the end
    for row in rows:
        assert all(isinstance(v, float) and math.isfinite(v) for v in row.values())
    for stage in STAGES:
        assert any(row.get(f"energy/{stage}_j", 0.0) > 0 for row in rows), stage
        assert any(row.get(f"energy/{stage}_j_per_token", 0.0) > 0 for row in rows), stage
        assert all(row[f"device/{stage}"] == 0.0 for row in rows[1:])
    assert {row["energy/provenance"] for row in rows if "energy/total_j" in row} == {3.0}
    totals = [row["energy/total_j"] for row in rows if "energy/total_j" in row]
    assert {row["carbon/intensity_g_per_kwh"] for row in rows} == {450.0}
    for row in rows:
        if "energy/total_j" in row:
            assert row["carbon/g"] == pytest.approx(row["energy/total_j"] / 3.6e6 * 450 * 1.2)
    assert totals == sorted(totals)
    assert all(
        0 <= row["energy/idle_j"] <= row["energy/total_j"] for row in rows if "energy/idle_j" in row
    )
    assert any(row.get("power/gpu_w", 0.0) > 0 for row in rows)
    assert_logged_as_booked(trainer, tmp_path, n_steps=12)


def assert_logged_as_booked(trainer: Any, tmp_path: Path, n_steps: int) -> None:
    """Each log is whole up to the step that it names, and the last one names the last step."""
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        booked = [(r.result.iteration, r.result.energy.energy_j) for r in reader.executions()]
    logged_j = 0.0
    for log, row in zip(trainer.state.log_history, our_rows(trainer), strict=True):
        logged_j += sum(row.get(f"energy/{stage}_j", 0.0) for stage in STAGES)
        if not any(key.startswith("energy/") and "_j" in key for key in row):
            continue  # no reading is in yet
        up_to = row["energy/up_to_step"]
        assert up_to <= log["step"]
        assert logged_j >= sum(j for step, j in booked if step <= up_to) * (1 - 1e-9)
    assert up_to == n_steps
    assert logged_j == pytest.approx(sum(j for _, j in booked), rel=1e-9)


LATE_S = 0.7


@pytest.fixture
def late_readings(monkeypatch):
    """Energies are final a while after the readings behind them, as under load."""
    newest = PowerHistory.watermark_s

    def watermark_s(self: PowerHistory, device_id: str) -> float | None:
        mark_s = newest(self, device_id)
        return None if mark_s is None else mark_s - LATE_S

    monkeypatch.setattr(PowerHistory, "watermark_s", watermark_s)


@pytest.mark.usefixtures("late_readings")
def test_energies_that_settle_late_are_in_the_last_log(make_trainer, tmp_path):
    plain = make_trainer()
    plain.train()
    trainer = make_trainer(name="attached")
    train(trainer, config(tmp_path))
    assert_same_bits(outcome(plain), outcome(trainer))
    assert_logged_as_booked(trainer, tmp_path, n_steps=trainer.state.max_steps)


def test_offloaded_stages_say_so(make_trainer, tmp_path):
    rows = train(make_trainer(), config(tmp_path, policy=BOTH))
    for row in rows:
        assert row["device/reward"] == row["device/reference"] == 2.0
        assert row["device/generation"] == 0.0
    assert any("energy/reference_j_per_token" in row for row in rows)


def test_without_power_readings_nothing_is_said_of_energy(make_trainer, tmp_path):
    settings = validate_config(
        {"run_dir": str(tmp_path / "run"), "telemetry": {"gpu": {"type": "null"}}}
    )
    plain = make_trainer()
    plain.train()
    trainer = make_trainer(name="attached")
    rows = train(trainer, settings)
    assert_same_bits(outcome(plain), outcome(trainer))
    # What the grid emits is known without them.
    assert {key for row in rows for key in row} == {
        "carbon/intensity_g_per_kwh", *(f"device/{stage}" for stage in STAGES),
    }  # fmt: skip


def test_an_evaluation_s_log_stays_as_it_is(make_trainer, tmp_path, tiny):
    trainer = make_trainer(
        max_steps=2, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=16,
        parts={"eval_dataset": _eval_rows(tiny)},
    )  # fmt: skip
    attach(trainer, config(tmp_path))
    trainer.train()
    evaluations = [row for row in trainer.state.log_history if "eval_reward" in row]
    assert len(evaluations) == 2
    assert not [key for row in evaluations for key in row if key.startswith(OURS)]
    # The log of the whole training comes behind the last evaluation.
    assert our_rows(trainer)[-1]["energy/up_to_step"] == 2


def _eval_rows(tiny: Any) -> Any:
    import json

    from datasets import Dataset

    rows = [json.loads(line) for line in tiny.eval_prompts.read_text().splitlines()]
    return Dataset.from_list([{"prompt": row["prompt"]} for row in rows[:16]])


def test_the_log_is_the_trainer_s_own_again_after_the_run(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1)
    attach(trainer, config(tmp_path))
    assert "log" in trainer.__dict__
    trainer.train()
    assert "log" not in trainer.__dict__


# ---------------------------------------------------------------- resume

STEPS = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}


class Cut(Exception):
    """Ends a training as an error of the user's code would."""


class CutAt(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 5:
            raise Cut


def test_a_resumed_run_goes_on_with_its_sum(make_trainer, tmp_path):
    first = make_trainer(name="attached", **STEPS)
    attach(first, config(tmp_path))
    first.add_callback(CutAt())
    with pytest.raises(Cut):
        first.train()
    spent = recorded_totals(tmp_path / "run")
    assert spent.drawn_j > 0
    last_j = max(row.get("energy/total_j", 0.0) for row in our_rows(first))
    # The record goes on to the end, a little later than the last log.
    assert spent.drawn_j >= 0.9 * last_j
    again = make_trainer(name="attached", **STEPS)
    attach(again, config(tmp_path), resume_from_checkpoint=True)
    again.train(resume_from_checkpoint=True)
    new = our_rows(again)[4:]  # behind those of the checkpoint
    totals = [row["energy/total_j"] for row in new if "energy/total_j" in row]
    assert totals == sorted(totals)
    assert totals[0] > spent.drawn_j
    # The joules of the cut attempt are in the sum, not in the figures of a stage since then.
    stages_j = sum(row.get(f"energy/{stage}_j", 0.0) for row in new for stage in STAGES)
    assert stages_j < totals[-1]
    grams_per_joule = 450 * 1.2 / 3.6e6
    assert spent.carbon_g == pytest.approx(spent.drawn_j * grams_per_joule, rel=1e-6)
    assert new[-1]["carbon/g"] == pytest.approx(totals[-1] * grams_per_joule, rel=1e-6)
    whole = recorded_totals(tmp_path / "run")
    assert whole.drawn_j >= 0.9 * totals[-1]
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        n_executions = len(reader.executions())
    assert sum(sums.n_executions for sums in whole.roles.values()) == n_executions


def test_what_was_not_read_stays_missing_after_a_resume(make_trainer, tmp_path):
    settings = validate_config(
        {"run_dir": str(tmp_path / "run"), "telemetry": {"gpu": {"type": "null"}}}
    )
    trainer = make_trainer(max_steps=1)
    assert recorded_totals(tmp_path / "run") is None
    attach(trainer, settings)
    trainer.train()
    spent = recorded_totals(tmp_path / "run")
    assert (spent.drawn_j, spent.beside_j, spent.provenance) == (None, None, None)
    assert spent.roles["generation"].n_missing == spent.roles["generation"].n_executions == 1


# ---------------------------------------------------------------- loggers


def test_tensorboard_has_the_figures(make_trainer, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = make_trainer(report_to=["tensorboard"], max_steps=8)
    rows = train(trainer, config(tmp_path))
    found: dict[str, list[tuple[int, float]]] = {}
    for file in (tmp_path / "board").rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend((e.step, e.value) for e in events.Scalars(tag))
    for key in ("energy/total_j", "energy/generation_j", "device/reference", "energy/provenance"):
        logged = [row[key] for row in rows if key in row]
        assert logged
        values = [value for _, value in sorted(found[f"train/{key}"], key=lambda item: item[0])]
        assert values == pytest.approx(logged, rel=1e-6)


def _demand(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def test_trackio_has_the_figures(make_trainer, tmp_path, monkeypatch):
    _demand("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    from trackio.sqlite_storage import SQLiteStorage

    # TRL has imported trackio long before, with the folder of then, which other runs share.
    project = f"ecorl-{secrets.token_hex(4)}"
    trainer = make_trainer(
        report_to=["trackio"], project=project, run_name="one", trackio_static_space_id=False,
        max_steps=8,
    )  # fmt: skip
    rows = train(trainer, config(tmp_path))
    # A thread of trackio writes them, some of them after the training has ended.
    limit_s = time.monotonic() + 240
    logs = SQLiteStorage.get_logs(project, "one")
    while len(logs) < len(rows) and time.monotonic() < limit_s:
        time.sleep(0.1)
        logs = SQLiteStorage.get_logs(project, "one")
    for key in ("energy/total_j", "device/reference"):
        logged = [row[key] for row in rows if key in row]
        values = [row[f"train/{key}"] for row in logs if f"train/{key}" in row]
        assert values == pytest.approx(logged)


def test_mlflow_has_the_figures(make_trainer, tmp_path, monkeypatch):
    _demand("mlflow")
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    rows = train(make_trainer(report_to=["mlflow"], max_steps=8), config(tmp_path))
    run = mlflow.last_active_run()
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "energy/total_j")
    logged = [row["energy/total_j"] for row in rows if "energy/total_j" in row]
    assert [m.value for m in history] == pytest.approx(logged)


def test_wandb_has_the_figures(make_trainer, tmp_path, monkeypatch):
    _demand("wandb")
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    train(make_trainer(report_to=["wandb"], max_steps=8), config(tmp_path))
    summary = dict(wandb.run.summary)
    wandb.finish()
    assert summary["train/energy/total_j"] > 0


def test_figures_reach_callbacks_that_were_there_before(make_trainer, tmp_path):
    """A logger that the trainer had before `attach` sees them too."""

    class Spy(TrainerCallback):
        def __init__(self) -> None:
            self.seen: list[set[str]] = []

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.seen.append(set(logs))

    trainer, spy = make_trainer(max_steps=2), Spy()
    trainer.callback_handler.callbacks.insert(0, spy)
    train(trainer, config(tmp_path))
    assert all("device/generation" in keys for keys in spy.seen)
    assert Path(tmp_path / "run").is_dir()
