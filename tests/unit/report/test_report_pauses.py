"""Waiting for a clean window: what was drawn meanwhile, and what the wait brought."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ecorl.control import Command, Why
from ecorl.grid import MarginalIntensity
from ecorl.ledger import DeviceRecord
from ecorl.records import BarrierWait, EventKind, Provenance, Stage
from ecorl.report.render.carbon_tables import N_SHOWN, pauses_section
from ecorl.report.render.carbon_text import pauses_lines
from ecorl.report.render.page import render_html, render_json
from ecorl.report.render.text import print_report

MEASURED, MODELLED = Provenance.MEASURED, Provenance.MODELLED
J_PER_KWH = 3.6e6


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def terminal(report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=80, force_terminal=True, color_system=None))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    return out.getvalue()


def said(report) -> str:
    return "\n".join([*report.verdict, *report.missing])


def part(report, device_id, cause):
    (found,) = (p for p in report.spending.parts if (p.device_id, p.cause) == (device_id, cause))
    return found


def ended(run, t_s):
    run.clock(t_s)
    run.ledger.event(EventKind.FINISH, "")
    return run.report()


def waits(run, dirty=400.0, clean=100.0, idle_w=50.0, is_read=True, pue=1.0):
    """From 1000 to 1040 s paused, then 1000 J of training within 20 s, of 40 s at 100 W."""
    run.config(accounting={"pue": pue})
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", idle_w))
    run.heard(1000.0, dirty)
    run.chose(1000.0, Command.PAUSE, Why.DIRTY, g_per_kwh=dirty, threshold_g_per_kwh=200.0)
    run.heard(1040.0, clean)
    run.chose(1040.0, Command.RUN, Why.CLEAN, g_per_kwh=clean, feed="f")
    if is_read:
        run.power("gpu0", range(1000, 1040), idle_w)
        run.power("gpu0", range(1040, 1080), 100.0)
    run.ran(Stage.GENERATION, (1050, 1070), 2000.0)


def test_readings_tell_what_was_drawn_in_a_pause(run, snapshot):
    waits(run)
    report = ended(run, 1080.0)
    paused, beside = part(report, "gpu0", "paused"), part(report, "gpu0", "beside stages")
    assert (paused.energy_j, paused.time_s) == pytest.approx((2000.0, 40.0))
    assert (paused.provenance, paused.useful) == (MEASURED, False)
    assert (beside.energy_j, beside.time_s) == pytest.approx((2000.0, 20.0))
    assert paused.emissions.average.carbon_g == pytest.approx(2000 / J_PER_KWH * 400)
    assert beside.emissions.average.carbon_g == pytest.approx(2000 / J_PER_KWH * 100)
    (column,) = report.spending.columns
    assert (column.useful_j, column.other_j, column.paused_j, column.wasted_j) == pytest.approx(
        (2000.0, 2000.0, 2000.0, 0.0)
    )
    assert any(note.startswith("Paused:") for note in report.notes)
    snapshot(terminal(report))


def test_the_profile_tells_it_where_nothing_was_read(run, snapshot):
    waits(run, is_read=False)
    card = {"device": "fpga0:u55c", "provenance": MODELLED, "time_s": 5.0}
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", 10.0))
    run.ran(Stage.REWARD, (1050, 1055), 100.0, **card)
    report = ended(run, 1080.0)
    for device_id, idle_w, idle_s in (("gpu0", 50.0, 20.0), ("fpga0", 10.0, 35.0)):
        paused, idle = part(report, device_id, "paused"), part(report, device_id, "idle")
        assert (paused.energy_j, paused.time_s) == pytest.approx((40 * idle_w, 40.0))
        assert (idle.energy_j, idle.time_s) == pytest.approx((idle_s * idle_w, idle_s))
        assert paused.provenance is MODELLED
        grams = 40 * idle_w / J_PER_KWH * 400
        assert paused.emissions.average.carbon_g == pytest.approx(grams)
    assert report.spending.card.paused_j == pytest.approx(400.0)
    assert report.card_timeline is None or report.card_timeline.idle_j <= 350.0
    snapshot(said(report))


def test_a_pause_is_no_wait_at_the_barrier_and_an_execution_in_it_no_pause(run):
    waits(run)
    run.clock(1041.0)
    run.ledger.barrier(BarrierWait(1, Stage.REWARD, 5.0, 10, 0, 0))
    run.ran(Stage.REWARD, (1000, 1010), 500.0)
    report = ended(run, 1080.0)
    assert part(report, "gpu0", "barrier wait").time_s == pytest.approx(1.0)
    paused = part(report, "gpu0", "paused")
    assert (paused.energy_j, paused.time_s) == pytest.approx((1500.0, 30.0))


def test_a_pause_that_nothing_read_is_missing_and_not_nought(run, snapshot):
    waits(run, is_read=False)
    run.power("gpu0", range(1040, 1080), 100.0)
    report = ended(run, 1080.0)
    paused = part(report, "gpu0", "paused")
    assert (paused.energy_j, paused.at_least) == (None, True)
    (outcome,) = report.pauses.outcomes
    assert (outcome.paused_g, outcome.net_g) == (None, None)
    snapshot(said(report))


def test_the_edge_of_a_pause_takes_no_joule_from_an_execution(run):
    """The execution ends within a second; half of it counts to the pause by the readings."""
    run.config()
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 0.0))
    run.power("gpu0", range(1000, 1010), 500.0)
    run.ran(Stage.GENERATION, (1000, 1009.5), 4900.0)
    run.chose(1009.5, Command.PAUSE, Why.DIRTY)
    report = ended(run, 1010.0)
    assert part(report, "gpu0", "paused").energy_j == pytest.approx(100.0)
    assert report.spending.columns[0].energy_j == pytest.approx(5000.0)


# ---------------------------------------------------------------- what it brought


def test_what_a_wait_brought(run, snapshot):
    waits(run, pue=1.5)
    report = ended(run, 1080.0)
    pauses = report.pauses
    assert (pauses.n, pauses.total_s, pauses.paused_share) == (1, pytest.approx(40.0), 0.5)
    (o,) = pauses.outcomes
    means = (o.start_g_per_kwh, o.trained_g_per_kwh, o.paused_g_per_kwh)
    assert means == pytest.approx((400.0, 100.0, 400.0))
    unit = 1.5 / J_PER_KWH
    found = (o.trained_g, o.trained_at_start_g, o.paused_g)
    assert found == pytest.approx((4000 * 100 * unit, 4000 * 400 * unit, 2000 * 400 * unit))
    assert o.net_g == pytest.approx((4000 * 300 - 2000 * 400) * unit)
    snapshot(said(report))


def test_a_wait_that_cost_more_than_it_saved_is_told_plainly(run, snapshot):
    waits(run, dirty=400.0, clean=390.0)
    report = ended(run, 1080.0)
    (o,) = report.pauses.outcomes
    assert o.net_g == pytest.approx((4000 * 10 - 2000 * 400) / J_PER_KWH)
    snapshot(said(report))


def test_both_kinds_of_intensity_have_an_outcome(run):
    run.heard(1000.0, 800.0, MarginalIntensity, interval_s=300.0)
    waits(run)
    report = ended(run, 1080.0)
    average, marginal = report.pauses.outcomes
    assert (average.kind, marginal.kind) == ("average", "marginal")
    assert marginal.net_g == pytest.approx(-2000 * 800 / J_PER_KWH)
    assert len(pauses_section(report.pauses).tables) == 3


def test_an_intensity_that_is_first_known_in_the_pause_is_that_of_the_start(run):
    run.config(accounting={"pue": 1.0})
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 50.0))
    run.chose(1000.0, Command.PAUSE, Why.DIRTY)
    run.heard(1005.0, 400.0)
    run.chose(1010.0, Command.PAUSE, Why.DIRTY)
    run.heard(1020.0, 100.0)
    run.chose(1020.0, Command.RUN, Why.CLEAN)
    run.ran(Stage.GENERATION, (1020, 1030), 1000.0)
    (o,) = ended(run, 1030.0).pauses.outcomes
    assert o.start_g_per_kwh == 400.0
    # 5 s of 50 W: without an intensity, in none of the figures.
    assert o.unknown_j == pytest.approx(250.0)
    assert o.at_most


# ---------------------------------------------------------------- decisions


def test_pauses_end_with_the_next_other_decision_or_with_the_attempt(run):
    run.config()
    run.ledger.device(DeviceRecord("gpu0", "h100", MODELLED, "profile", 10.0))
    run.chose(1000.0, Command.PAUSE, Why.DIRTY)
    run.chose(1010.0, Command.PAUSE, Why.DIRTY, g_per_kwh=9.0)
    run.chose(1030.0, Command.RUN, Why.WAITED)
    run.chose(1050.0, Command.PAUSE, Why.DIRTY)
    run.chose(1060.0, Command.STOP, Why.BUDGET)
    run.chose(1070.0, Command.PAUSE, Why.DIRTY)
    run.clock(1075.0)
    run.ledger.event(EventKind.STOP, "")
    run.resume(2000.0, 0)
    report = ended(run, 2100.0)
    assert (report.pauses.n, report.pauses.total_s) == (3, pytest.approx(30.0 + 10.0 + 5.0))
    assert part(report, "gpu0", "paused").energy_j == pytest.approx(450.0)
    assert part(report, "gpu0", "idle").energy_j == pytest.approx(10.0 * (175 - 45))


def test_a_run_that_decided_nothing_has_no_section(run):
    run.config()
    run.standard()
    report = run.report()
    assert report.pauses is None
    assert "Waiting for a clean window" not in render_html(report)
    assert json.loads(render_json(report))["pauses"] is None


def test_a_run_that_never_paused_lists_its_decisions(run, snapshot):
    run.config()
    run.chose(1000.0, Command.RUN, Why.CLEAN, g_per_kwh=90.0, threshold_g_per_kwh=100.0, feed="f")
    run.standard()
    report = run.report()
    assert (report.pauses.n, report.pauses.outcomes) == (0, ())
    assert not any("waited" in s for s in report.verdict)
    (table,) = pauses_section(report.pauses).tables
    assert table.rows == (
        ("2027-01-15 08:16:40", "run", "clean", "90.0", "f", "100", "because clean"),
    )
    snapshot("\n".join(pauses_lines(report.pauses, 80)))


def test_a_controller_s_price_of_a_step_has_a_column_where_there_is_one(run, snapshot):
    run.config()
    run.chose(1000.0, Command.RUN, Why.TIMING)
    run.chose(1001.0, Command.PAUSE, Why.PRICED, g_per_kwh=300.0, price_g_per_step=0.0123)
    run.standard()
    report = run.report()
    table = pauses_section(report.pauses).tables[-1]
    assert [row[-2] for row in table.rows] == ["-", "12.3"]
    snapshot("\n".join([" | ".join(table.columns), *pauses_lines(report.pauses, 80)]))


def test_many_decisions_are_folded(run):
    run.config()
    for i in range(N_SHOWN + 5):
        run.chose(1000.0 + i, Command.PAUSE, Why.DIRTY, g_per_kwh=float(i))
    report = ended(run, 1100.0)
    shown, folded = pauses_section(report.pauses).tables[-2:]
    assert (len(shown.rows), shown.folded) == (N_SHOWN, False)
    assert (len(folded.rows), folded.folded) == (5, True)
    assert "5 decisions" in terminal(report)
    assert len(json.loads(render_json(report))["pauses"]["choices"]) == N_SHOWN + 5
