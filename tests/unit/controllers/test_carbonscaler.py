"""CarbonScaler takes the best pairs of an hour and a worker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.carbon.series import Series
from ecorl.control import Gear, Why
from ecorl.controllers.problem.table import GearTable, TrainingAction
from ecorl.controllers.problem.training import Progress
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import play
from ecorl.controllers.rules.carbonscaler import CarbonScaler, HourlyExpectation
from ecorl.controllers.step import action_of
from ecorl.kinds import Provenance
from tests.examples import examples
from tests.fakes.scripted_feed import average
from tests.fakes.training_problems import DAY_S, HOUR_S, NOW_S, ahead, past, problem, seen, table

# -------------------------------------------------------------------- CarbonScaler


def foreseeing(truth):
    """Forecasts that are right, until the end of the series."""

    class Right:
        def after(self, n_known):
            start_s = truth.start_s + truth.step_s * n_known
            return ahead(truth.values[n_known:], start_s, truth.step_s)

    return Right()


def least_g(of, gear, truth):
    """Emissions of the best widths in one gear, if a part of an hour could have a width."""
    row = of.table.gears.index(gear)
    rates = np.concatenate(([0.0], of.table.tokens_per_s[row]))
    power = np.concatenate(([0.0], of.table.power_w[row]))
    tokens = (np.diff(rates) * truth.step_s)[None, :].repeat(len(truth.values), axis=0)
    grams = np.diff(power) / 1000.0 * truth.values[:, None] * truth.step_s / HOUR_S
    order = np.argsort((grams / tokens).ravel())
    before = np.cumsum(tokens.ravel()[order]) - tokens.ravel()[order]
    parts = np.clip((of.tokens - before) / tokens.ravel()[order], 0.0, 1.0)
    return float(np.sum(parts * grams.ravel()[order]))


@settings(deadline=None, max_examples=examples(40))
@given(
    exponent=st.floats(0.5, 1.0),
    share=st.floats(0.1, 0.95),
    values=st.lists(st.floats(20.0, 900.0), min_size=24, max_size=24),
)
def test_with_a_right_forecast_it_emits_the_least(exponent, share, values):
    p = problem(table(exponent=exponent), hours=24.0, share=share)
    truth = Series(NOW_S, HOUR_S, np.array(values))
    found = play(CarbonScaler(p), p, Knowledge(truth, foresight=foreseeing(truth)))
    assert found.deficit == 0.0
    least = least_g(p, Gear.BF16, truth)
    # Whole hours have a width; the bound may divide one of them.
    one_hour_g = 8 * 1000.0 / 1000.0 * max(values)
    assert least * (1 - 1e-9) <= found.carbon_g <= least + one_hour_g


def test_no_step_of_the_width_is_taken_before_the_one_below_it():
    # The second worker adds little, the third and fourth much: two workers are never best.
    of = GearTable(
        gears=(Gear.BF16,),
        widths=(1, 2, 4),
        power_w=np.array([[1000.0, 2000.0, 4000.0]]),
        tokens_per_s=np.array([[1e4, 1.1e4, 3.5e4]]),
        provenance=Provenance.MODELLED,
        source="made up",
    )
    p = problem(of, share=0.6)
    rng = np.random.default_rng(1)
    truth = Series(NOW_S, HOUR_S, 300.0 + 200.0 * rng.random(48))
    widths = set()
    play(
        CarbonScaler(p),
        p,
        Knowledge(truth, foresight=foreseeing(truth)),
        watch=lambda _now_s, found, _progress: widths.add(found.width),
    )
    assert 2 not in widths
    assert 4 in widths


def test_its_width_is_elastic_and_its_gear_is_one():
    p = problem(table(exponent=0.6), share=0.6)
    hours = np.arange(48)
    truth = Series(NOW_S, HOUR_S, 300.0 + 250.0 * np.sin(2 * np.pi * hours / 24))
    choices = []
    play(
        CarbonScaler(p, Gear.FP8),
        p,
        Knowledge(truth, foresight=foreseeing(truth)),
        watch=lambda _now_s, found, _progress: choices.append(found),
    )
    assert {c.gear for c in choices if c.width} == {Gear.FP8}
    assert len({c.width for c in choices}) > 2
    cleanest, dirtiest = choices[18], choices[6]
    assert cleanest.width > dirtiest.width


def test_the_plan_of_an_hour_is_kept_for_the_hour():
    p = problem(epoch_s=300.0)
    scaler, known = CarbonScaler(p), past([300.0] * 48, NOW_S)
    first = scaler.decide(NOW_S, seen(p, 50.0, past=known))
    assert (first.width, first.why) == (8, Why.PRICED)
    later = scaler.decide(NOW_S + 3300.0, seen(p, 900.0, NOW_S + 3300.0, past=known))
    assert later.width == 8
    next_hour = scaler.decide(NOW_S + HOUR_S, seen(p, 900.0, NOW_S + HOUR_S, past=known))
    assert next_hour.width == 0


def test_the_price_is_that_of_the_dearest_token_of_the_plan():
    p = problem(share=0.25)
    forecast = ahead([400.0] * 36 + [200.0] * 12)
    found = CarbonScaler(p).decide(NOW_S, seen(p, 400.0, forecast=forecast))
    # A worker draws 1 kW and trains 36 million tokens an hour, in the 12 clean hours.
    assert found.price_g_per_token == pytest.approx(200.0 / 36e6)
    assert found.width == 0


def test_a_used_up_cap_changes_the_gear_within_the_hour():
    p = problem(low_share=0.5, epoch_s=300.0)
    scaler, known = CarbonScaler(p, Gear.FP8), past([300.0] * 48)
    assert scaler.decide(NOW_S, seen(p, 50.0, past=known)).gear is Gear.FP8
    used_up = Progress(p.tokens / 2, 0.0)
    later = scaler.decide(NOW_S + 300.0, seen(p, 50.0, past=known, progress=used_up))
    assert (later.gear, later.width) == (Gear.BF16, 8)


def test_a_cap_lets_the_plan_take_more_hours():
    free, capped = problem(share=0.5), problem(share=0.5, low_share=0.2)
    forecast = ahead(np.linspace(100.0, 500.0, 48))

    def price(of):
        found = CarbonScaler(of, Gear.FP8).decide(NOW_S, seen(of, 100.0, forecast=forecast))
        return found.price_g_per_token

    assert price(capped) > price(free)


@pytest.mark.parametrize("known", [None, past([]), past([np.nan] * 48), past([300.0] * 23)])
def test_without_a_day_of_the_past_and_a_forecast_it_runs_at_full_width(known):
    p = problem()
    found = CarbonScaler(p).decide(NOW_S, seen(p, 500.0, past=known))
    assert (action_of(found), found.why) == (TrainingAction(8, Gear.BF16), Why.UNKNOWN)


def test_it_plans_on_where_the_present_is_unknown():
    p = problem()
    found = CarbonScaler(p).decide(NOW_S, seen(p, past=past([900.0] * 6 + [100.0] * 18)))
    assert (found.width, found.why) == (0, Why.PRICED)


# -------------------------------------------------------------------- what is expected


def expected(now_s=NOW_S, hours=48, **what):
    p = problem()
    what = {"g_per_kwh": None, **what}
    found = HourlyExpectation(NOW_S, DAY_S).until(
        NOW_S + hours * HOUR_S, now_s, seen(p, what.pop("g_per_kwh"), now_s, **what)
    )
    return None if found is None else found[0]


def test_a_forecast_is_continued_by_the_mean_day():
    known = past(np.concatenate((np.full(24, 100.0) + np.arange(24), np.full(24, 200.0))))
    found = expected(past=known, forecast=ahead([500.0, np.nan, 600.0]), g_per_kwh=444.0)
    mean_day = (300.0 + np.arange(24)) / 2
    assert found[:4].tolist() == [444.0, mean_day[1], 600.0, mean_day[3]]
    assert found[4:24] == pytest.approx(mean_day[4:])
    assert found[24:] == pytest.approx(mean_day)


def test_the_mean_day_is_of_the_last_days_alone():
    found = expected(past=past([10.0] * 24 * 9 + [300.0] * 24 * 7))
    assert found.tolist() == [300.0] * 48


def test_hours_that_the_past_lacks_are_expected_at_its_mean():
    values = np.full(48, np.nan)
    values[:24] = [100.0, 300.0] * 12
    values[[0, 1]], values[[24, 25]] = np.nan, [100.0, 300.0]
    values[5], values[29] = np.nan, np.nan
    values[30] = 100.0
    found = expected(past=past(values))
    assert np.isfinite(found).all()
    known = np.delete(np.array([100.0, 300.0] * 12), 5)
    assert found[5] == pytest.approx(known.mean())


@pytest.mark.parametrize("step_s", [300.0, 1800.0, HOUR_S])
def test_steps_of_any_length_make_the_same_hours(step_s):
    hourly = np.repeat(100.0 + 10.0 * np.arange(24), round(HOUR_S / step_s))
    found = expected(hours=24, past=past(hourly, step_s=step_s))
    assert found == pytest.approx(100.0 + 10.0 * np.arange(24))
    told = expected(hours=24, forecast=ahead(hourly, step_s=step_s))
    assert told == pytest.approx(100.0 + 10.0 * np.arange(24))


def test_a_longer_step_of_a_forecast_counts_for_each_hour_of_it():
    found = expected(hours=6, forecast=ahead([100.0, 400.0], step_s=3 * HOUR_S))
    assert found.tolist() == [100.0] * 3 + [400.0] * 3


def test_an_old_value_is_not_that_of_now():
    old = average("uk", NOW_S - 2 * HOUR_S, 900.0)
    p = problem()
    what = Seen(old, past=past([300.0] * 24), progress=p.begin())
    found = HourlyExpectation(NOW_S, DAY_S).until(NOW_S + DAY_S, NOW_S, what)
    assert found is not None
    assert found[0][0] == 300.0


def test_the_hour_under_way_has_its_rest_and_the_last_one_ends_with_the_deadline():
    p = problem()
    found = HourlyExpectation(NOW_S, DAY_S).until(
        NOW_S + 3.25 * HOUR_S, NOW_S + 600.0, seen(p, past=past([300.0] * 24))
    )
    assert found is not None
    assert found[1] == pytest.approx([3000.0, 3600.0, 3600.0, 900.0])


def test_a_faster_day_has_shorter_hours():
    day_s = 2400.0
    known = past(100.0 + np.arange(24), step_s=100.0)
    found = HourlyExpectation(NOW_S, day_s).until(NOW_S + 300.0, NOW_S, Seen(None, past=known))
    assert found is not None
    assert found[0].tolist() == [100.0, 101.0, 102.0]
    assert found[1].tolist() == [100.0] * 3
