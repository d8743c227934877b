"""Answers to a plan: arithmetic, limits, shares of a run, and what is refused."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from dataclasses import replace

import pytest

from ecorl.devices import load_profile
from ecorl.errors import ConfigError, RunError
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.operate.levers.choice import Lever, LeverLimits
from ecorl.operate.levers.step import priced_step
from ecorl.operate.plan.answer import PlanTerms, payback, plan_answer, what_if_grid, what_ifs
from ecorl.operate.plan.job import PlannedJob, plan_values
from ecorl.operate.plan.offload import best_saved_share
from ecorl.operate.plan.own_stages import (
    MeasuredStages,
    stages_of_calibration,
    stages_of_run,
    told_shares,
)
from ecorl.policy.calibration.calibrate import calibrate
from ecorl.records import Action, Provenance, Stage, StageResult
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


def executed(iteration, stage, time_s, role_name=""):
    """An execution on the host whose energy nobody has read."""
    return StageResult(
        iteration, stage, Action.GPU, ("cpu0",), "host_cpu", 0.0, time_s, time_s,
        Provenance.MEASURED, time_s, 0.0, 4, 400, 200, None, role_name=role_name,
    )  # fmt: skip


def a_record(folder, results):
    folder.mkdir()
    with Ledger.create(folder / LEDGER_FILE, run_id="t", config_toml="", meta={}) as ledger:
        for result in results:
            ledger.result(result)
    return folder


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
    assert by_length.saved["1,024"] == pytest.approx(own)
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


def step_of(job=JOB):
    return priced_step(scenario_of(job).setting, job.length)


def test_the_stages_of_a_run_replace_those_of_the_model(run_dir):
    own = stages_of_run(run_dir)
    found = plan_answer(JOB, scenario_of(JOB), TERMS, own)
    draws = {draw.stage: draw for draw in found.step.draws}
    before = step_of()
    assert found.step.energy_j == pytest.approx(before.energy_j)
    assert found.step.time_s == pytest.approx(before.time_s)
    one, other = Stage.GENERATION, Stage.ACTOR_TRAIN
    assert draws[one].time_s / draws[other].time_s == pytest.approx(
        own.time_s[one] / own.time_s[other]
    )
    assert draws[one].energy_j / draws[other].energy_j == pytest.approx(
        own.energy_j[one] / own.energy_j[other]
    )


def test_all_figures_of_the_devices_go_by_the_stages_of_the_run(run_dir):
    """The job itself is among the sizes and numbers that are tried, and within the interval."""
    found = plan_answer(JOB, scenario_of(JOB), TERMS, stages_of_run(run_dir)).offload
    assert found.low <= found.saved_share <= found.high
    scans = {scan.what: scan.saved for scan in found.scans}
    for what, value in (("length", "1,024"), ("rows", "256"), ("inference_model", "8b")):
        assert scans[what][value] == pytest.approx(found.saved_share)
    assert found.by_number[8] == pytest.approx(found.saved_share)


def test_what_a_run_has_measured_is_as_sql_has_it(run_dir):
    own = stages_of_run(run_dir)
    with contextlib.closing(sqlite3.connect(run_dir / LEDGER_FILE)) as db:
        rows = db.execute(
            "SELECT stage, iteration, sum(time_s) FROM execution WHERE action = 'gpu' AND "
            "iteration > (SELECT min(iteration) FROM execution) GROUP BY stage, iteration"
        ).fetchall()
    for stage, mean_s in own.time_s.items():
        times = [s for name, _, s in rows if name == stage]
        assert mean_s == pytest.approx(sum(times) / len(times))


def test_a_stage_that_was_never_measured_keeps_its_size():
    """A run that always offloads its rewards says nothing of them on the GPUs."""
    before = step_of()
    model = {draw.stage: draw for draw in before.draws}
    known = [stage for stage in model if stage is not Stage.REWARD]
    own = MeasuredStages(
        {s: 3.0 * model[s].time_s for s in known}, {}, "a run", None
    )  # the same sizes as the model's
    after = {draw.stage: draw for draw in own.applied(before).draws}
    for stage, draw in model.items():
        assert after[stage].time_s == pytest.approx(draw.time_s)
        assert after[stage].energy_j == pytest.approx(draw.energy_j)


def test_an_unknown_energy_goes_with_the_time():
    before = step_of()
    generation = next(d for d in before.draws if d.stage is Stage.GENERATION)
    own = MeasuredStages({d.stage: 1.0 for d in before.draws}, {}, "a run", None)
    after = {draw.stage: draw for draw in own.applied(before).draws}
    for draw in before.draws:
        ratio = draw.power_w / generation.power_w
        told = after[draw.stage].power_w / after[Stage.GENERATION].power_w
        assert told == pytest.approx(ratio)
    assert "time alone" in own.told


def test_evaluations_and_the_first_iteration_are_no_stages_of_a_step(tmp_path):
    run = a_record(tmp_path / "r", [
        executed(0, Stage.GENERATION, 50.0, role_name="evaluation"),
        executed(1, Stage.GENERATION, 40.0),
        executed(2, Stage.GENERATION, 4.0),
        executed(3, Stage.GENERATION, 6.0),
        executed(3, Stage.GENERATION, 50.0, role_name="evaluation"),
        executed(3, Stage.ACTOR_TRAIN, 2.0),
    ])  # fmt: skip
    own = stages_of_run(run)
    assert own.time_s == {Stage.GENERATION: 5.0, Stage.ACTOR_TRAIN: 2.0}
    assert own.energy_j == {}
    assert own.provenance is None


def test_a_calibration_gives_times_and_energies(run_dir):
    own = stages_of_calibration(calibrate(run_dir), 300.0)
    assert own.is_own_step
    step = own.applied(priced_step(scenario_of(JOB).setting, 300.0))
    for draw in step.draws:
        if draw.stage in own.time_s:
            assert draw.time_s == pytest.approx(own.time_s[draw.stage])
            assert draw.energy_j == pytest.approx(own.energy_j[draw.stage])


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=str(tmp_path)):
        stages_of_run(tmp_path)


def test_a_source_without_any_stage_of_the_job_is_refused(snapshot):
    own = MeasuredStages({Stage.CRITIC: 1.0}, {}, "a run", None)
    with pytest.raises(ConfigError) as caught:
        own.applied(step_of())
    snapshot(str(caught.value))


@pytest.mark.parametrize("text", ["generation", "generation=x", "sleep=0.5", "reward=1.5"])
def test_texts_that_are_no_shares(text):
    with pytest.raises(ConfigError, match="--share"):
        told_shares([text])


def test_shares_that_a_person_tells(snapshot):
    assert told_shares([]) is None
    own = told_shares(["generation=0.7", "actor_train=0.2"])
    assert own.shares == {Stage.GENERATION: 0.7, Stage.ACTOR_TRAIN: 0.2}
    assert own.applied(step_of()).shares()[Stage.GENERATION] == pytest.approx(0.7)
    with pytest.raises(ConfigError) as caught:
        told_shares(["reward=0.1", "reward=0.2"])
    snapshot(str(caught.value))


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


def test_grids_with_mistakes(tmp_path, snapshot):
    many, lines = list(range(1, 50)), []
    for text in ("gpus = 3", "rows = []", 'rows = ["x"]', f"rows = {many}\nlength = {many}"):
        (tmp_path / "g.toml").write_text(text)
        with pytest.raises(ConfigError) as caught:
            what_if_grid(tmp_path / "g.toml", {})
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_levers_are_missing_on_a_host():
    job = PlannedJob(
        gpu="host_cpu", n_gpus=1, policy_model="15m", inference_model="15m", n_cards=1, rows=16,
        length=32,
    )  # fmt: skip
    found = plan_answer(job, scenario_of(job), PlanTerms())
    assert set(found.study.missing) >= {Lever.CLOCKS, Lever.GEARS}
