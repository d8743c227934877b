"""What every controller of the catalogue promises, whatever the grid does."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.control import Command, Gear, Why
from ecorl.controllers.catalogue import CONTROLLERS, build
from ecorl.controllers.problem.table import PAUSE, GearTable
from ecorl.controllers.problem.training import Kept, TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import Training, play
from ecorl.controllers.step import action_of, control_step
from ecorl.errors import ConfigError
from ecorl.kinds import Provenance
from tests.examples import examples
from tests.fakes.spot_prices import hourly_prices
from tests.oracles.clairvoyant import idle_of, table_of

HOUR_S, DAY_H = 3600.0, 24
START_S = 19_730 * 86400.0
PAST_H, AHEAD_H = 3 * DAY_H, 3 * DAY_H
BEGIN_S = START_S - PAST_H * HOUR_S

NAMES = sorted(CONTROLLERS)
EACH = pytest.mark.parametrize("name", NAMES)


class LastDayAgain:
    """Forecasts that repeat the last day of what is known, with its holes."""

    def __init__(self, series):
        self._series = series

    def after(self, n_known):
        series = self._series
        if n_known < DAY_H:
            return None
        middle = np.resize(series.values[n_known - DAY_H : n_known], 2 * DAY_H)
        start_s = series.start_s + n_known * series.step_s
        return Forecast("last day again", start_s, start_s, series.step_s, middle)


def series_of(kind, seed):
    """Six days of hours, of which training may begin in the fourth."""
    n, rng = PAST_H + AHEAD_H, np.random.default_rng(seed)
    hours = np.arange(n)
    values = {
        "constant": np.full(n, 300.0),
        "day": 300.0 + 100.0 * np.sin(2 * np.pi * hours / DAY_H) + rng.normal(0.0, 15.0, n),
        "walk": np.maximum(20.0, 300.0 + np.cumsum(rng.normal(0.0, 30.0, n))),
        "spikes": np.where(rng.random(n) < 0.1, 1500.0, 60.0),
        "falling": np.linspace(800.0, 0.0, n),
    }[kind]
    return Series(BEGIN_S, HOUR_S, values)


def changed(series, values):
    return Series(series.start_s, series.step_s, values)


def problem_of(table, hours, slack, **terms):
    """A budget for which that many hours are by the slack more than enough."""
    terms = {"epoch_s": HOUR_S, **terms}
    probe = TrainingProblem(table, 1.0, START_S, START_S + 1e9, **terms)
    tokens = probe.most_tokens(hours * HOUR_S) / slack * (1.0 - 1e-12)
    return TrainingProblem(table, tokens, START_S, START_S + hours * HOUR_S, **terms)


def usual(epoch_s=HOUR_S, **terms):
    gears, widths = (Gear.FP32, Gear.BF16, Gear.FP8), (1, 2, 4, 8)
    n = np.array(widths, np.float64)
    rates = np.outer([0.5e4, 1e4, 1.3e4], n**0.9)
    table = GearTable(gears, widths, 7750.0 * np.tile(n, (3, 1)), rates, Provenance.MODELLED, "-")
    return problem_of(table, 48, 1.7, epoch_s=epoch_s, width_change_s=60.0, **terms)


def prices(seed=3):
    return hourly_prices(BEGIN_S, PAST_H + AHEAD_H, 2.0, seed)


def knowledge_of(series, *, late=0, foreseen=False):
    return Knowledge(series, late=late, foresight=LastDayAgain(series) if foreseen else None)


def played(name, problem, knowledge, truth=None, spot=None):
    """What became of a training, and its choices."""
    choices = []
    result = play(
        build(name, problem),
        problem,
        knowledge,
        truth,
        spot=spot or prices(),
        watch=lambda _now_s, found, _progress: choices.append(found),
    )
    return result, choices


def assert_is_met(result, problem):
    assert result.deficit == 0.0
    assert result.done_s is not None
    assert result.done_s <= problem.deadline_s + 1e-6


# -------------------------------------------------------------------- what it may look at


@EACH
@pytest.mark.parametrize("foreseen", [False, True])
@pytest.mark.parametrize("known_h", [0, 7, 30])
def test_what_comes_later_changes_no_decision(name, foreseen, known_h):
    problem, series, spot = usual(), series_of("day", 1), prices()
    other, other_spot = series_of("spikes", 2), prices(4)
    is_known = np.arange(len(series.values)) <= PAST_H + known_h
    changed_series = changed(series, np.where(is_known, series.values, other.values))
    changed_spot = changed(spot, np.where(is_known, spot.values, other_spot.values))
    _, choices = played(name, problem, knowledge_of(series, foreseen=foreseen), spot=spot)
    _, others = played(
        name, problem, knowledge_of(changed_series, foreseen=foreseen), spot=changed_spot
    )
    n = known_h + 1
    assert choices[:n] == others[:n]


@EACH
def test_the_same_is_decided_of_the_same(name):
    problem, series = usual(low_share=0.4), series_of("walk", 5)
    first, choices = played(name, problem, knowledge_of(series))
    second, others = played(name, problem, knowledge_of(series))
    assert choices == others
    assert first == second


# -------------------------------------------------------------------- the budget


@st.composite
def problems(draw):
    gears = draw(st.sampled_from([
        (Gear.BF16,), (Gear.FP8,), (Gear.BF16, Gear.FP8), (Gear.FP8, Gear.FP32), tuple(Gear),
    ]))  # fmt: skip
    widths = draw(st.sampled_from([(1,), (3,), (1, 2, 4, 8), (2, 5), tuple(range(1, 17))]))
    all_low = all(gear.is_low for gear in gears)
    low_share = 1.0 if all_low else draw(st.sampled_from([0.0, 0.05, 0.37, 0.8, 1.0]))
    table = table_of(gears, widths, draw(st.integers(0, 1000)))
    return problem_of(
        table,
        hours=draw(st.sampled_from([6, 23.3, 36, 60])),
        slack=draw(st.sampled_from([1.0, 1.0 + 1e-9, 1.02, 1.3, 2.5])),
        width_change_s=draw(st.sampled_from([0.0, 45.0, 900.0, 3600.0])),
        gear_change_s=draw(st.sampled_from([0.0, 20.0])),
        base_w=draw(st.sampled_from([0.0, 300.0])),
        idle_w=idle_of(table, draw(st.sampled_from([0.0, 0.4, 1.0]))),
        kept=draw(st.sampled_from(Kept)),
        low_share=low_share,
    )


GRIDS = st.builds(
    series_of, st.sampled_from(["constant", "day", "walk", "spikes", "falling"]), st.integers(0, 99)
)


@EACH
@settings(deadline=None, max_examples=examples(25))
@given(
    problem=problems(),
    series=GRIDS,
    foreseen=st.booleans(),
    late=st.sampled_from([0, 2]),
)
def test_the_budget_is_met_by_the_deadline(name, problem, series, foreseen, late):
    result, _ = played(name, problem, knowledge_of(series, late=late, foreseen=foreseen))
    assert_is_met(result, problem)


@EACH
def test_the_budget_is_met_under_a_cap_on_low_precision(name):
    table = table_of((Gear.BF16, Gear.FP8), (1, 2, 4, 8), 5)
    problem = problem_of(table, 6, 1.0, low_share=0.5)
    result, _ = played(name, problem, knowledge_of(series_of("day", 7)))
    assert_is_met(result, problem)


@EACH
@settings(deadline=None, max_examples=8)
@given(low_share=st.sampled_from([0.0, 0.05, 0.3, 0.77, 1.0]), series=GRIDS, foreseen=st.booleans())
def test_the_cap_on_low_precision_is_kept(name, low_share, series, foreseen):
    problem = usual(low_share=low_share)
    result, _ = played(name, problem, knowledge_of(series, foreseen=foreseen))
    low = sum(tokens for gear, tokens in result.tokens_by_gear.items() if gear.is_low)
    assert low <= (low_share + 1e-9) * problem.tokens


@EACH
def test_the_budget_is_met_in_short_epochs_and_before_a_soft_deadline(name):
    problem = usual(epoch_s=1200.0)
    problem = replace(problem, soft_deadline_s=problem.deadline_s - 6 * HOUR_S, late_g_per_h=1e4)
    result, _ = played(name, problem, knowledge_of(series_of("day", 8)))
    assert_is_met(result, problem)


# -------------------------------------------------------------------- what feeds do


@EACH
@pytest.mark.parametrize("foreseen", [False, True])
def test_a_feed_that_never_answers_is_got_over(name, foreseen):
    problem, truth = usual(), series_of("day", 9)
    silent = changed(truth, np.full_like(truth.values, np.nan))
    result, _ = played(name, problem, knowledge_of(silent, foreseen=foreseen), truth)
    assert_is_met(result, problem)


@EACH
@pytest.mark.parametrize("foreseen", [False, True])
@pytest.mark.parametrize("late", [0, 2])
def test_a_hole_in_what_is_told_is_got_over(name, foreseen, late):
    problem, truth = usual(), series_of("day", 10)
    values = truth.values.copy()
    values[PAST_H + 5 : PAST_H + 20] = np.nan
    values[40] = np.nan
    knowledge = knowledge_of(changed(truth, values), late=late, foreseen=foreseen)
    result, _ = played(name, problem, knowledge, truth)
    assert_is_met(result, problem)


@EACH
def test_nothing_known_at_all_is_got_over(name):
    problem = usual()
    found = build(name, problem).decide(START_S, Seen(None, progress=problem.begin()))
    assert action_of(found) in problem.table.actions()


# -------------------------------------------------------------------- going on from a memory


def driven(name, problem, knowledge, resumed_after=None):
    """The choices of a training; after some epochs a new controller goes on from the memory."""
    controller, training, spot = build(name, problem), Training(problem, knowledge.series), prices()
    choices, waited_s = [], 0.0
    while not training.is_over:
        if training.n_epochs == resumed_after:
            kept = json.loads(json.dumps(controller.memory()))
            controller = build(name, problem)
            controller.recall(kept)
        view = knowledge.at(training.now_s)
        rate = problem.rate(problem.fastest(training.progress))
        seen = Seen(
            intensity=view.intensity,
            forecast=view.forecast,
            past=view.past,
            progress=training.progress,
            spot_price=spot.at(training.now_s),
            waited_s=waited_s,
            has_begun=training.running_s > 0.0,
            left_s=training.progress.tokens_left / rate,
        )
        found = control_step(controller, problem, training.now_s, seen)
        choices.append(found)
        waited_s += problem.epoch_s if found.command is Command.PAUSE else 0.0
        training.run(action_of(found))
    return choices


@EACH
@pytest.mark.parametrize("foreseen", [False, True])
def test_it_goes_on_from_its_memory(name, foreseen):
    problem = usual(low_share=0.4)
    knowledge = knowledge_of(series_of("walk", 11), foreseen=foreseen)
    whole = driven(name, problem, knowledge)
    assert whole == played(name, problem, knowledge)[1]
    for n_epochs in (1, 10, len(whole) // 2, len(whole) - 3):
        assert driven(name, problem, knowledge, n_epochs) == whole


@EACH
def test_it_goes_on_from_its_memory_within_an_hour(name):
    problem = usual(epoch_s=1200.0)
    problem = replace(problem, soft_deadline_s=problem.deadline_s - 10 * HOUR_S, late_g_per_h=5e3)
    knowledge = knowledge_of(series_of("walk", 11))
    whole = driven(name, problem, knowledge)
    for n_epochs in (1, 11, 49, len(whole) - 5):
        assert driven(name, problem, knowledge, n_epochs) == whole


@EACH
def test_an_empty_memory_is_that_of_a_new_one(name):
    controller = build(name, usual())
    controller.recall(json.loads(json.dumps(build(name, usual()).memory())))
    assert controller.memory() == build(name, usual()).memory()


# -------------------------------------------------------------------- the record


@EACH
@pytest.mark.parametrize("kind", ["day", "spikes"])
def test_its_choices_are_of_the_table(name, kind):
    problem = usual(low_share=0.5)
    _, choices = played(name, problem, knowledge_of(series_of(kind, 12), foreseen=True))
    now_s = START_S
    for found in choices:
        assert found.controller == name
        assert found.decided_s == now_s < found.look_again_s
        assert action_of(found) in (PAUSE, *problem.table.actions())
        assert (found.command is Command.PAUSE) == (found.width == 0)
        assert found.reason
        now_s += problem.epoch_s


@EACH
def test_a_gear_that_is_not_low_precision_alone_needs_no_other(name):
    problem = usual().of(gears=(Gear.BF16,))
    result, _ = played(name, problem, knowledge_of(series_of("day", 13)))
    assert_is_met(result, problem)
    assert set(result.tokens_by_gear) == {Gear.BF16}


def test_a_name_that_nobody_has_is_refused():
    with pytest.raises(ConfigError, match=r"carbon.control.controller = 'best': .*static"):
        build("best", usual())


def test_what_is_done_is_done_by_none():
    problem = usual()
    seen = Seen(None, progress=replace(problem.begin(), tokens_left=0.0))
    for name in NAMES:
        assert control_step(build(name, problem), problem, START_S, seen).why is Why.DONE
