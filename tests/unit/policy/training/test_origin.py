"""A policy's record tells whether the figures that it was trained on are still those in force."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecorl.devices import load_profile
from ecorl.policy.training import origin
from ecorl.policy.training.origin import FIGURES, figures_digest, is_stale
from ecorl.policy.training.train import TrainingPlan, train
from ecorl.scheduler import iteration_costs, tables
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.sim import scenario
from ecorl.sim.families import jobs
from ecorl.sim.families.training import training_pool

TINY = TrainingPlan("paper", n_scenarios=2, n_iterations=8, n_rounds=1, n_epochs=1, ppo_steps=0)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(origin, "N_SAMPLED", 3)


def test_the_shipped_policy_was_trained_on_the_figures_of_this_program():
    assert is_stale(PolicyFile().record) is False, "train it anew: make policy"


def test_the_sample_holds_every_gpu_and_model_size_of_the_pool():
    sample = training_pool(0, origin.N_SAMPLED)
    gpus, cards = ([d.name.partition("_x")[0] for d in of] for of in zip(
        *((s.setting.gpu, s.setting.card) for s in sample), strict=True
    ))  # fmt: skip
    assert {*jobs.GPUS, "cpu16"} <= set(gpus)
    assert {*jobs.SECONDS, "cpu4"} <= set(cards)
    assert {*jobs.SIZES, "70b"} <= {size for s in sample for size in s.sizes.values()}
    assert {s.calibration for s in sample} == {"roofline", "paper"}
    assert any(s.divergence.table_error > 0.0 for s in sample)
    assert any(s.sleeps for s in sample)


def test_a_training_records_the_digest(tmp_path, few):
    made = train(TINY, tmp_path, tensorboard=False)
    assert made.record[FIGURES] == figures_digest("paper")
    assert is_stale(made.record) is False
    assert is_stale({**made.record, FIGURES: "0" * 64}) is True
    assert is_stale({"plan": made.record["plan"]}) is True  # made before digests were kept


def test_what_was_trained_on_a_run_cannot_be_told(few):
    assert figures_digest("fitted") is None
    assert is_stale({"plan": {"family": "fitted"}, FIGURES: None}) is None
    assert is_stale({}) is None


def dearer_gpu(monkeypatch):
    def load(name):
        profile = load_profile(name)
        figure = profile.figures["idle_w"]
        return replace(
            profile, figures={**profile.figures, "idle_w": replace(figure, value=figure.value + 1)}
        )

    monkeypatch.setattr(scenario, "load_profile", load)


def slower_kernels(monkeypatch):
    batch = tables.CostModel.fpga_cost

    def slower(self, work):
        cost = batch(self, work)
        return replace(cost, time_s=None if cost.time_s is None else 1.001 * cost.time_s)

    monkeypatch.setattr(tables.CostModel, "fpga_cost", slower)


def quicker_heat(monkeypatch):
    monkeypatch.setattr(iteration_costs, "FULL_RISE_C", 2.0 * iteration_costs.FULL_RISE_C)


@pytest.mark.parametrize("change", [dearer_gpu, slower_kernels, quicker_heat])
def test_a_changed_figure_changes_the_digest(few, monkeypatch, change):
    before = figures_digest("roofline")
    assert figures_digest("roofline") == before
    change(monkeypatch)
    assert figures_digest("roofline") != before
