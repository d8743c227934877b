"""Metrics, evaluations, waits, decisions and telemetry against figures worked out by hand."""

from __future__ import annotations

import io
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ecorl.ledger import DeviceRecord, EvaluationRow
from ecorl.records import Action, ActionCost, BarrierWait, Placement, PowerSample, Provenance, Stage
from ecorl.report.render.numbers import duration, figure, joules, share
from ecorl.report.render.page import render_html
from ecorl.report.render.text import print_report
from ecorl.report.training import paired_gains, percentile
from ecorl.statistics import wilson_interval


def test_paired_gain_by_hand(run):
    run.ledger.evaluation("reward", "before", [0.0, 1.0, 2.0, None])
    run.ledger.evaluation("reward", "after", [1.0, 1.0, 4.0, 5.0])
    (gain,) = run.report().gains
    # Differences 1, 0, 2: mean 1, standard deviation 1, over the root of three.
    assert gain.gain == pytest.approx(1.0)
    assert gain.standard_error == pytest.approx(1 / math.sqrt(3))
    assert (gain.mean_before, gain.mean_after, gain.n_pairs) == (1.0, 2.0, 3)
    assert "1 items" in gain.note


def test_gains_that_cannot_be_told(run, snapshot):
    run.ledger.evaluation("reward", "before", [1.0, 2.0])
    run.ledger.evaluation("reward", "after", [1.0])
    run.ledger.evaluation("correct", "before", [1.0, 0.0])
    unpaired, lonely = run.report().gains
    assert (unpaired.gain, unpaired.mean_before, unpaired.mean_after) == (None, 1.5, 1.0)
    assert (lonely.gain, lonely.mean_before, lonely.mean_after) == (None, 0.5, None)
    snapshot("\n".join([unpaired.note, lonely.note]))


def test_a_later_evaluation_replaces_an_earlier(run):
    run.ledger.evaluation("reward", "before", [0.0])
    run.ledger.evaluation("reward", "before", [1.0])
    run.ledger.evaluation("reward", "after", [3.0])
    (gain,) = run.report().gains
    assert (gain.gain, gain.standard_error) == (2.0, None)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30), st.floats(-10, 10))
def test_a_constant_shift_is_the_gain_without_error(values, shift):
    before = EvaluationRow(1, 0.0, "x", "before", tuple(values))
    after = EvaluationRow(1, 1.0, "x", "after", tuple(v + shift for v in values))
    (gain,) = paired_gains([before, after])
    assert gain.gain == pytest.approx(shift, abs=1e-9)
    assert gain.standard_error == pytest.approx(0.0, abs=1e-9)


def test_rank_flips_by_hand(run):
    run.ledger.evaluation("rank_flip", "held_out", [1.0, 0.0, 0.0, 0.0])
    run.ledger.evaluation("score_shift", "held_out", [-0.2, 0.1, 0.1, None])
    report = run.report()
    (flips,) = report.flips
    assert (flips.n_pairs, flips.n_flips, flips.share) == (4, 1, 0.25)
    assert flips.interval == pytest.approx((0.0456, 0.6994), abs=1e-4)  # as in tables
    assert flips.shift_mean == pytest.approx(0.0)
    assert flips.shift_abs_mean == pytest.approx(0.4 / 3)
    assert flips.shift_abs_p99 == pytest.approx(0.1 + 0.98 * 0.1)
    assert report.gains == ()


def test_no_flip_at_all_still_has_an_interval(run, snapshot):
    """0 of 40: the upper end is z^2 / (n + z^2)."""
    run.ledger.evaluation("rank_flip", "held_out", [0.0] * 40)
    report = run.report()
    assert report.flips[0].interval == (0.0, pytest.approx(3.8415 / 43.8415, abs=1e-5))
    out = io.StringIO()
    print_report(report, Console(file=out, width=100))
    snapshot("\n".join(line for line in out.getvalue().splitlines() if "of 40" in line))
    assert "8.8 %" in render_html(report)


@given(st.integers(1, 3000), st.data())
def test_wilson_s_interval_holds_the_share_and_mirrors(n, data):
    k = data.draw(st.integers(0, n))
    low, high = wilson_interval(k, n)
    assert 0 <= low <= k / n <= high <= 1
    assert low < high
    mirrored = wilson_interval(n - k, n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-12)
    # By its definition: at either end the share is z standard errors away.
    for end in {low, high} - {0.0, 1.0}:
        assert abs(k / n - end) == pytest.approx(
            1.959964 * math.sqrt(end * (1 - end) / n), rel=1e-5
        )


def test_what_stands_behind_a_plus_minus_is_named(run, snapshot):
    run.config()
    run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 0.0))
    card = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 0.5}
    for i in (1, 2, 3):
        run.ran(Stage.REWARD, (1000 + i, 1000.5 + i), 40.0 + i, iteration=i)
        run.ran(Stage.REWARD, (1000.5 + i, 1001 + i), 20.0 + i, iteration=i, **card)
    run.ledger.evaluation("reward", "before", [0.0, 1.0, 2.0])
    run.ledger.evaluation("reward", "after", [1.0, 1.0, 4.0])
    report = run.report()
    out = io.StringIO()
    print_report(report, Console(file=out, width=100))
    snapshot(out.getvalue())
    page = render_html(report)
    for sign in re.finditer(r"(?:±|\+/-) [\d.]+(.{5})", " ".join(page.split("<section")[1:3])):
        assert sign[1].strip().startswith(("(SD)", "(SE)"))
    assert "± SD" in page


def test_waits_by_hand(run):
    for i, wait in enumerate([0.1, 0.2, 0.3, 0.4, 1.0]):
        run.ledger.barrier(
            BarrierWait(i, Stage.REWARD, wait, 8, 1 if i == 4 else 0, 2 if i == 4 else 0)
        )
    b = run.report().barriers
    assert (b.n_waits, b.total_s, b.p50_s, b.max_s) == (5, pytest.approx(2.0), 0.3, 1.0)
    assert b.p95_s == pytest.approx(0.88)
    assert (b.n_rows, b.n_missing, b.n_late) == (40, 1, 2)
    assert percentile([], 50) is None


def test_metrics_skip_superseded_and_keep_gaps(run):
    for i in (1, 2, 3):
        run.ledger.metric(i, "reward", float(i))
    run.resume(2000.0, from_step=1)
    run.ledger.metric(2, "reward", 20.0)
    run.ledger.metric(3, "reward", None)
    rows = run.report().metrics["reward"]
    assert [(r.iteration, r.value) for r in rows] == [(1, 1.0), (2, 20.0), (3, None)]


def decide(run, action: Action, reason: str, gpu_j: float | None = None, iteration: int = 1):
    costs = ()
    if gpu_j is not None:
        costs = (
            ActionCost(Action.GPU, 1.0, gpu_j, 0.0),
            ActionCost(Action.CONCURRENT, 1.0, gpu_j / 4, 0.0),
        )
    run.ledger.placement(
        Placement(iteration, Stage.REWARD, Action.CONCURRENT, action, "lookahead", reason, costs)
    )


def test_decisions_are_grouped_and_summed(run, snapshot):
    decide(run, Action.CONCURRENT, "least cost 3.5 J", 100.0)
    decide(run, Action.CONCURRENT, "least cost 4 J", 200.0)
    decide(run, Action.GPU, "queue full", 40.0)
    decide(run, Action.GPU, "queue full")
    decide(run, Action.CONCURRENT, "least cost 9 J", 1e6, iteration=7)
    run.resume(2000.0, from_step=5)
    report = run.report()
    assert [(g.action, g.reason, g.n) for g in report.decisions] == [
        (Action.CONCURRENT, "least cost … J", 2),
        (Action.GPU, "queue full", 2),
    ]
    e = report.expectation
    assert (e.n, e.gpu_j, e.chosen_j) == (3, 340.0, pytest.approx(25 + 50 + 40))
    assert e.provenance is Provenance.MODELLED
    assert len(report.placements) == 5
    snapshot("\n".join(report.verdict))


def test_telemetry_by_hand(run):
    samples = []
    for i in range(40):
        # Polled every 0.1 s, a new value every 0.4 s, one reading missing.
        power = None if i == 17 else 100.0 + i // 4
        samples.append(
            PowerSample(
                device_id="gpu0",
                t_s=1000 + i / 10,
                power_w=power,
                energy_j=None,
                utilisation=None,
                provenance=Provenance.MEASURED,
                source="nvml",
                error="DriverTimeout" if power is None else None,
            )
        )
    run.ledger.samples(samples)
    run.ledger.device(
        DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 60.0, '{"tdp_w": 700}')
    )
    run.ran(Stage.GENERATION, (1000, 1002), 210.0, counter_j=200.0, integral_j=210.0)
    run.ran(Stage.GENERATION, (1002, 1004), 190.0, counter_j=200.0, integral_j=190.0)
    run.ran(Stage.GENERATION, (1004, 1005), 50.0, counter_j=None, integral_j=50.0)
    (d,) = run.report().telemetry
    assert (d.n_readings, d.n_missing, d.errors) == (39, 1, {"DriverTimeout": 1})
    assert d.reading_interval_s == pytest.approx(0.1)
    assert d.refresh_s == pytest.approx(0.4)
    assert (d.counter_gap, d.n_counter_gap) == (pytest.approx(0.0), 2)
    assert (d.idle_w, d.figures) == (60.0, {"tdp_w": 700})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (math.nan, "-"), (0.0, "0"), (1234.5, "1,234"), (0.012345, "0.0123"),
        (9.996, "10.00"), (1e-7, "1.00e-07"), (-3.14159, "-3.14"),
    ],
)  # fmt: skip
def test_figures_as_text(value, text):
    assert figure(value) == text


def test_units_as_text():
    assert [joules(v) for v in (None, 0.0, 0.5, 42.0, 123_456.0, 5e7)] == [
        "-", "0 J", "500 mJ", "42.0 J", "123 kJ", "50.0 MJ",
    ]  # fmt: skip
    assert [duration(v) for v in (None, 5.0, 125.0, 7380.0)] == [
        "-", "5.00 s", "2 min 05 s", "2 h 03 min",
    ]  # fmt: skip
    assert share(None) == "-"
