"""Answers to a plan: arithmetic, limits, shares of a run, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ecorl.devices import load_profile
from ecorl.errors import ConfigError, RunError
from ecorl.operate.levers.choice import Lever, LeverLimits
from ecorl.operate.levers.step import priced_step
from ecorl.operate.plan.answer import plan_answer
from ecorl.operate.plan.job import PlannedJob, plan_values
from ecorl.operate.plan.offload import best_saved_share
from ecorl.operate.plan.payback import PlanTerms, payback
from ecorl.operate.plan.shares import shares_of_calibration, shares_of_run, shares_of_texts
from ecorl.operate.plan.whatifs import what_if_grid, what_ifs
from ecorl.policy.calibration.calibrate import calibrate
from ecorl.records import Stage
from tests.fakes.hidden_runs import wrote

JOB = PlannedJob(policy_model="8b", n_gpus=8, card="l4", n_cards=8)
TERMS = PlanTerms(card_price=3000.0, kwh_price=0.2, g_per_kwh=300.0, card_embodied_kg=150.0)


def scenario_of(job):
    (made,) = job.scenarios(1).values()
    return made


@pytest.fixture(scope="module")
def answer():
    return plan_answer(JOB, scenario_of(JOB), TERMS)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return wrote(tmp_path_factory.mktemp("plan-run"), seed=3)


def test_a_loss_is_told_as_one_and_never_pays_back(answer):
    assert answer.offload.saved_share < 0.0
    assert not answer.offload.pays
    assert answer.offload.best_number == 0
    assert answer.bought.kwh_per_year < 0.0
    assert answer.bought.money_years is None
    assert answer.bought.carbon_years is None
    assert answer.offload.low <= answer.offload.saved_share <= answer.offload.high


def test_the_placements_are_sorted_and_the_best_is_the_verdict(answer):
    energies = [row.energy_j for row in answer.offload.placements]
    assert energies == sorted(energies)
    assert answer.offload.saved_share == pytest.approx(1 - energies[0] / answer.step.energy_j)
    own = best_saved_share(scenario_of(JOB).setting, JOB.length)
    assert own == pytest.approx(answer.offload.saved_share)
    by_length = next(s for s in answer.offload.scans if s.what == "length")
    assert by_length.saved[1024] == pytest.approx(own)
    assert answer.offload.by_number[8] == pytest.approx(own)


def test_a_device_that_pays_is_bought_and_pays_back():
    fast = load_profile("l4")
    powers = {"idle_w": 1.0, "busy_w": 2.0, "active_w": 5.0, "tdp_w": 5.0}
    figures = {
        key: replace(f, value=powers[key], low=None, high=None) if key in powers else f
        for key, f in fast.figures.items()
    }
    scenario = replace(scenario_of(JOB), card=replace(fast, figures=figures, name="frugal"))
    found = plan_answer(JOB, scenario, TERMS)
    assert found.offload.pays
    assert found.offload.best_number >= 1
    back = found.bought
    assert back.money_years == pytest.approx(8 * 3000.0 / back.money_per_year)
    assert back.carbon_years == pytest.approx(8 * 150.0 / back.kg_per_year)
    assert back.embodied_share == pytest.approx(back.carbon_years / TERMS.years)


def test_payback_by_hand():
    found = payback(0.1, 1000.0, 2, replace(TERMS, use=0.5))
    kwh = 0.1 * 1.0 * 0.5 * 8760
    assert found.kwh_per_year == pytest.approx(kwh)
    assert found.money_years == pytest.approx(6000.0 / (kwh * 0.2))
    assert payback(0.1, 1000.0, 2, PlanTerms()).missing == (
        "kwh_price", "g_per_kwh", "card_price", "card_embodied_kg",
    )  # fmt: skip
    assert payback(0.1, 1000.0, 2, PlanTerms()).money_per_year is None


def test_nothing_is_above_a_physical_bound(answer):
    step = answer.step
    assert step.energy_j <= step.limit_w * step.time_s * (1 + 1e-9)
    for share in (*answer.study.alone.values(), answer.study.together):
        assert 0.0 <= share.low <= share.high < 1.0
    everything = answer.study.all
    idle_j = step.draws[0].idle_w * everything.time_s
    assert everything.energy_j > idle_j  # no lever takes less than GPUs that stand still


def test_fewer_gpus_take_longer_and_are_told_with_it():
    job = replace(JOB, n_gpus=16)
    found = plan_answer(job, scenario_of(job), TERMS)
    assert found.narrower.n_gpus == 8
    assert found.narrower.slowdown > 0.1


# ---------------------------------------------------------------- what the user has measured


def test_shares_of_a_run_replace_those_of_the_model(run_dir):
    told = shares_of_run(run_dir)
    assert math.fsum(told.time.values()) == pytest.approx(1.0)
    assert told.n_iterations > 1
    found = plan_answer(JOB, scenario_of(JOB), TERMS, told)
    shares = found.step.shares()
    known = {s: v for s, v in told.energy.items() if s in shares}
    total = sum(known.values())
    for stage, value in known.items():
        assert shares[stage] == pytest.approx(value / total)


def test_a_calibration_gives_times_and_energies(run_dir):
    fitted = calibrate(run_dir)
    told = shares_of_calibration(fitted, 300.0)
    assert told.is_absolute
    step = told.applied(priced_step(scenario_of(JOB).setting, 300.0))
    for draw in step.draws:
        if draw.stage in told.time:
            assert draw.time_s == pytest.approx(told.time[draw.stage])
            assert draw.energy_j == pytest.approx(told.energy[draw.stage])


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises((RunError, Exception), match=r"ledger|record"):
        shares_of_run(tmp_path)


@pytest.mark.parametrize("text", ["generation", "generation=x", "sleep=0.5", "reward=1.5"])
def test_texts_that_are_no_shares(text):
    with pytest.raises(ConfigError, match="--share"):
        shares_of_texts([text])


def test_told_shares():
    assert shares_of_texts([]) is None
    told = shares_of_texts(["generation=0.7", "actor_train=0.2"])
    assert told.time == {Stage.GENERATION: 0.7, Stage.ACTOR_TRAIN: 0.2}
    with pytest.raises(ConfigError, match="each stage once"):
        shares_of_texts(["reward=0.1", "reward=0.2"])


# ---------------------------------------------------------------- files


def test_a_file_may_hold_job_and_terms(tmp_path):
    (tmp_path / "p.toml").write_text('rows = 64\nkwh_price = 1\ncard = "l4"\n')
    job, terms = plan_values(
        tmp_path / "p.toml", {"rows": 32, "use": None}, (PlannedJob, PlanTerms)
    )
    assert job == {"rows": 32, "card": "l4"}
    assert terms == {"kwh_price": 1}


@pytest.mark.parametrize(
    ("key", "value"),
    [("use", 0.0), ("use", 1.5), ("years", 0.0), ("kwh_price", -1.0), ("slack", 0.5),
     ("slowdown", -0.1), ("card_price", math.nan)],
)  # fmt: skip
def test_terms_that_cannot_be(key, value):
    with pytest.raises(ConfigError, match=f"plan.{key}"):
        PlanTerms(**{key: value})


def test_a_grid_is_every_combination_and_says_what_is_missing(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text('policy_model = ["8b", "70b"]\nn_gpus = 2\nlength = [128, 256]\n')
    grid = what_if_grid(file, {"rows": 32, "card": None})
    assert [(row["policy_model"], row["length"]) for row in grid] == [
        ("8b", 128), ("8b", 256), ("70b", 128), ("70b", 256),
    ]  # fmt: skip
    rows = list(what_ifs(grid, LeverLimits()))
    assert [row.time_s is None for row in rows] == [False, False, True, True]
    assert rows[0].energy_j < rows[1].energy_j
    assert "GB" in rows[2].why
    assert rows[2].offload_saved_share is None


@pytest.mark.parametrize(
    ("text", "told"),
    [("gpus = 3", "gpus"), ("rows = []", "one value or more"), ('rows = ["x"]', "whole number"),
     ("rows = [" + ", ".join(map(str, range(1, 50))) + "]\nlength = ["
      + ", ".join(map(str, range(1, 50))) + "]", "2,000 at most")],
)  # fmt: skip
def test_grids_with_mistakes(tmp_path, text, told):
    (tmp_path / "g.toml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        what_if_grid(tmp_path / "g.toml", {})


def test_levers_are_missing_on_a_host():
    job = PlannedJob(
        gpu="host_cpu", n_gpus=1, policy_model="15m", inference_model="15m", n_cards=1, rows=16,
        length=32,
    )  # fmt: skip
    found = plan_answer(job, scenario_of(job), PlanTerms())
    assert set(found.study.missing) >= {Lever.CLOCKS, Lever.GEARS}
