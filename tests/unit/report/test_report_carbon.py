"""Emissions of small runs against figures worked out by hand."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ecorl.grid import AverageIntensity, Basis, Fuel, Gas, MarginalIntensity
from ecorl.ledger import DeviceRecord
from ecorl.records import EventKind, Provenance, Stage
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.notes import intensity_label
from ecorl.report.render.carbon_tables import carbon_section
from ecorl.report.render.page import render_html, render_json
from ecorl.report.render.text import print_report

MEASURED, MODELLED, PUBLISHED = Provenance.MEASURED, Provenance.MODELLED, Provenance.PUBLISHED
AVERAGE, MARGINAL = IntensityKind.AVERAGE, IntensityKind.MARGINAL
J_PER_KWH = 3.6e6


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def terminal(report, width=80) -> list[str]:
    out = io.StringIO()
    kind = {"force_terminal": True, "no_color": True, "color_system": None, "width": width}
    print_report(report, Console(file=out, **kind))
    return out.getvalue().splitlines()


def said(report) -> str:
    return "\n".join([*report.verdict, *report.missing])


def part(report, device_id, cause):
    return next(p for p in report.spending.parts if (p.device_id, p.cause) == (device_id, cause))


def ended(run, t_s):
    run.clock(t_s)
    run.ledger.event(EventKind.FINISH, "")
    return run.report()


def dirty_half(run, **kwargs):
    """100 s at 100 W: 50 s at 200 g/kWh, 50 s at 400; generation from 30 to 70 s."""
    run.config(accounting={"pue": 1.5})
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.heard(1000.0, 200.0, **kwargs)
    run.heard(1050.0, 400.0, **kwargs)
    run.power("gpu0", range(1000, 1100), 100.0)
    run.ran(Stage.GENERATION, (1030, 1070), 4000.0)


def grams(joules, g_per_kwh, pue=1.5):
    return joules / J_PER_KWH * pue * g_per_kwh


def test_each_joule_has_the_intensity_of_its_second(run):
    dirty_half(run)
    report = ended(run, 1100.0)
    generation = part(report, "gpu0", "generation").emissions.average
    assert generation.carbon_g == pytest.approx(grams(2000, 200) + grams(2000, 400), rel=1e-9)
    beside = part(report, "gpu0", "beside stages").emissions.average
    assert beside.carbon_g == pytest.approx(grams(3000, 200) + grams(3000, 400), rel=1e-9)
    (column,) = report.spending.columns
    assert column.carbon_g == pytest.approx(grams(5000, 200) + grams(5000, 400), rel=1e-9)
    assert (column.carbon_unknown_j, column.marginal_g) == (pytest.approx(0.0, abs=1e-6), None)
    (row,) = report.stages
    assert row.emissions.average == generation
    (emitted,) = report.footprint.columns
    assert (emitted.provenance, emitted.at_least) == (PUBLISHED, False)
    # 1.5 x 300 g/kWh by the energy.
    assert emitted.cue_kg_per_kwh == pytest.approx(0.45, rel=1e-9)
    (facts,) = report.footprint.intensities
    (feed,) = facts.feeds
    assert (feed.feed, feed.share, feed.mean_g_per_kwh) == ("f", 1.0, pytest.approx(300.0))


def test_an_idle_device_without_readings_has_the_intensity_of_its_idle_time(run):
    run.config(accounting={"pue": 1.0})
    run.ledger.device(DeviceRecord("gpu0", "h100", MODELLED, "profile", 36.0))
    run.heard(1000.0, 100.0)
    run.heard(1060.0, 900.0)
    # Busy in all of the dirty time but 10 s.
    run.ran(Stage.GENERATION, (1060, 1090), 3600.0)
    report = ended(run, 1100.0)
    idle = part(report, "gpu0", "idle")
    assert idle.energy_j == pytest.approx(36.0 * 70)
    expected_g = grams(36.0 * 60, 100, 1.0) + grams(36.0 * 10, 900, 1.0)
    assert idle.emissions.average.carbon_g == pytest.approx(expected_g, rel=1e-9)


def test_a_run_whose_intensity_is_unknown_for_a_while(run, snapshot):
    dirty_half(run)
    run.heard(1080.0, None)
    report = ended(run, 1100.0)
    (column,) = report.footprint.columns
    assert column.emitted.unknown_j == pytest.approx(2000.0)
    assert column.emitted.known_j == pytest.approx(8000.0)
    assert column.at_least
    assert column.emitted.carbon_g == pytest.approx(grams(5000, 200) + grams(3000, 400))
    # The energy itself is known to the last joule.
    assert not report.spending.columns[0].at_least
    # Sequences and tokens have a bound, too.
    (sci,) = report.footprint.sci
    assert sci.at_least
    snapshot(said(report))


def test_what_is_never_known_has_no_grams(run, snapshot):
    run.config()
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.heard(1000.0, None)
    run.power("gpu0", range(1000, 1010), 100.0)
    report = ended(run, 1010.0)
    assert report.footprint.columns == ()
    assert report.spending.columns[0].carbon_g is None
    assert report.spending.columns[0].carbon_unknown_j == pytest.approx(1000.0)
    snapshot(said(report))


def test_each_attempt_has_the_intensities_of_its_own_time(run):
    dirty_half(run)
    run.clock(1100.0)
    run.ledger.event(EventKind.STOP, "")
    run.resume(5000.0, 1)
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.heard(5000.0, 50.0)
    run.power("gpu0", range(5000, 5020), 100.0)
    run.ran(Stage.GENERATION, (5000, 5010), 1000.0, iteration=2)
    report = ended(run, 5020.0)
    (column,) = report.footprint.columns
    first_g = grams(5000, 200) + grams(5000, 400)
    assert column.emitted.carbon_g == pytest.approx(first_g + grams(2000, 50), rel=1e-9)
    assert not column.at_least


def test_marginal_figures_stand_in_columns_of_their_own(run, snapshot):
    dirty_half(run)
    run.heard(1000.0, 900.0, MarginalIntensity, feed="m", gas=Gas.CO2, interval_s=200.0)
    report = ended(run, 1100.0)
    average, marginal = report.footprint.columns
    assert (average.kind, marginal.kind) == (AVERAGE, MARGINAL)
    assert marginal.emitted.carbon_g == pytest.approx(grams(10_000, 900), rel=1e-9)
    assert report.spending.columns[0].marginal_g == marginal.emitted.carbon_g
    assert [s.kind for s in report.footprint.sci] == [AVERAGE, MARGINAL]
    lines = terminal(report)
    # No figure is the sum of both.
    assert f"{average.emitted.carbon_g + marginal.emitted.carbon_g:.2f}" not in " ".join(lines)
    snapshot("\n".join(lines))
    snapshot("\n".join(column.heading for column in report.footprint.columns), "heads of the page")


def test_a_pue_series_counts_second_by_second(run, snapshot):
    dirty_half(run)
    run.pue(900.0, 1.2)
    run.pue(1050.0, 2.0)
    report = ended(run, 1100.0)
    (column,) = report.footprint.columns
    expected_g = grams(5000, 200, 1.2) + grams(5000, 400, 2.0)
    assert column.emitted.carbon_g == pytest.approx(expected_g, rel=1e-9)
    pue = report.footprint.pue
    assert (pue.lowest, pue.mean, pue.highest) == (1.2, pytest.approx(1.6), 2.0)
    snapshot("\n".join(note for note in report.notes if "PUE" in note))


def test_a_run_without_feeds_goes_by_the_constants(run, snapshot):
    accounting = {"pue": 1.5, "intensity_g_per_kwh": 400.0, "source": "test"}
    run.config(accounting=accounting)
    run.stated(**accounting)
    run.standard()
    report = run.report()
    assert report.footprint.is_constant
    (own, card) = report.footprint.columns
    assert own.emitted.carbon_g == pytest.approx(grams(1800, 400), rel=1e-9)
    assert card.emitted.carbon_g == pytest.approx(grams(430, 400), rel=1e-9)
    for p in report.spending.parts:
        assert p.emissions.average.carbon_g == pytest.approx(grams(p.energy_j, 400), rel=1e-9)
        assert p.emissions.marginal is None
    snapshot("\n".join(note for note in report.notes if "PUE" in note))


def test_without_a_config_and_without_rows_there_is_no_word_of_grams(run):
    run.standard()
    report = run.report()
    assert report.footprint.columns == ()
    assert report.spending.columns[-1].carbon_g is None
    assert not any("CO2e" in s for s in (*report.verdict, *terminal(report)))
    data = json.loads(render_json(report))
    assert data["spending"]["columns"][0]["carbon_g"] is None


@pytest.mark.parametrize("provenance", [Provenance.REPLAYED, MODELLED])
def test_a_feed_that_is_no_grid_s_of_that_time_is_labelled_wherever_grams_are(
    run, provenance, snapshot
):
    dirty_half(run, provenance=provenance)
    report = ended(run, 1100.0)
    (column,) = report.footprint.columns
    assert column.provenance is provenance
    label = intensity_label(report.footprint.intensities[0])
    snapshot(label)
    assert any(label[1:] in s for s in report.verdict)
    assert any(label[1:] in note for note in report.notes)
    section = carbon_section(report.footprint, report.stages, report.spending.parts)
    assert label[1:] in section.lead
    grams_tables = [t for t in section.tables if any("gCO2e" in c for c in t.columns)]
    assert grams_tables
    for t in grams_tables:
        assert all(f"({provenance})" in c for c in t.columns if "gCO2e" in c)
    for line in terminal(report):
        assert "published" not in line


def test_grams_have_the_weakest_provenance_and_stand_apart_by_it(run):
    """Measured and modelled energy under a replayed intensity: two columns, and their sum."""
    run.config(accounting={"pue": 1.0})
    run.heard(1000.0, 360.0, provenance=Provenance.REPLAYED)
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 10.0))
    run.ran(Stage.GENERATION, (1000, 1010), 10_000.0)
    report = ended(run, 1020.0)
    replayed, modelled, together = report.footprint.columns
    found = [(c.provenance, c.n_provenances) for c in (replayed, modelled, together)]
    assert found == [(Provenance.REPLAYED, 1), (MODELLED, 1), (MODELLED, 2)]
    assert replayed.emitted.carbon_g == pytest.approx(1.0)
    assert modelled.emitted.carbon_g == pytest.approx(0.01)
    assert together.emitted.carbon_g == pytest.approx(1.01)
    assert report.footprint.total(AVERAGE) is together


def test_feeds_of_different_provenance_stand_in_tables_of_their_own(run, snapshot):
    dirty_half(run)
    run.heard(1090.0, 500.0, feed="g", provenance=Provenance.REPLAYED, basis=Basis.MARKET)
    report = ended(run, 1100.0)
    section = carbon_section(report.footprint, report.stages, report.spending.parts)
    feeds = [t for t in section.tables if t.columns[0] == "feed"]
    snapshot("\n".join(t.caption for t in feeds))
    assert [[(row[0], row[6]) for row in t.rows] for t in feeds] == [
        [("g", "10.0 %")],
        [("f", "90.0 %")],
    ]
    # The weakest of both: nobody can say which gram came from which.
    assert report.footprint.columns[0].provenance is PUBLISHED
    assert report.footprint.sci[0].market_based
    snapshot("\n".join(note for note in report.notes if "market-based" in note), "notes")


def test_the_renewable_share_is_weighted_by_energy(run):
    run.config()
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.heard(1000.0, 100.0, mix={Fuel.WIND: 0.8, Fuel.COAL: 0.2}, interval_s=50.0)
    run.heard(1050.0, 100.0, mix={Fuel.WIND: 0.2, Fuel.COAL: 0.8}, interval_s=25.0)
    run.heard(1075.0, 100.0)
    run.power("gpu0", range(1000, 1050), 100.0)
    run.power("gpu0", range(1050, 1075), 600.0)
    run.power("gpu0", range(1075, 1100), 400.0)
    report = ended(run, 1100.0)
    expected = (0.8 * 5000 + 0.2 * 15_000) / 20_000
    assert report.footprint.renewable_share == pytest.approx(expected)
    assert report.footprint.mixed_share == pytest.approx(2 / 3)


def test_sci_with_and_without_the_making_of_the_hardware(run):
    dirty_half(run)
    report = ended(run, 1100.0)
    (sci,) = report.footprint.sci
    total_g = grams(5000, 200) + grams(5000, 400)
    assert (sci.embodied_g, sci.per_run_g) == (None, pytest.approx(total_g))
    assert sci.per_token_g == pytest.approx(total_g / 100)
    assert sci.per_sequence_g == pytest.approx(total_g / 10)
    run.config(accounting={"pue": 1.5, "embodied_kg": 438.0, "embodied_source": "data sheet"})
    report = run.report()
    (sci,) = report.footprint.sci
    # 10 g an hour, for 100 s.
    assert sci.embodied_g == pytest.approx(10.0 / 36)
    assert sci.per_run_g == pytest.approx(total_g + 10.0 / 36)
    assert any("(data sheet)" in note for note in report.notes)


def test_readings_that_executions_overlap_have_no_rest_and_no_grams_of_it(run):
    dirty_half(run)
    run.ran(Stage.REWARD, (1030, 1070), 9000.0)
    report = ended(run, 1100.0)
    beside = part(report, "gpu0", "beside stages")
    assert beside.energy_j is None
    assert beside.emissions.average is None
    assert report.footprint.columns[0].at_least


def test_a_rest_whose_grams_would_be_below_nought_is_unknown(run):
    """The execution's energy lies in the dirty time by its window, in the clean by the readings."""
    run.config(accounting={"pue": 1.0})
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.heard(1000.0, 1.0)
    run.heard(1050.0, 1000.0)
    run.power("gpu0", range(1000, 1050), 200.0)
    run.power("gpu0", range(1050, 1100), 0.0)
    run.ran(Stage.GENERATION, (1050, 1100), 9000.0)
    report = ended(run, 1100.0)
    beside = part(report, "gpu0", "beside stages")
    assert beside.energy_j == pytest.approx(1000.0)
    assert beside.emissions.average.carbon_g is None
    assert beside.emissions.average.unknown_j == pytest.approx(1000.0)
    (column,) = report.footprint.columns
    assert column.at_least
    assert any("1,000 J" in gap for gap in report.missing)


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit_the_terminal(run, width):
    """Machines and a simulated card, both kinds of intensity, three provenances."""
    run.config()
    run.heard(1000.0, 360.0, AverageIntensity, provenance=Provenance.REPLAYED)
    run.heard(1000.0, 900.0, MarginalIntensity, interval_s=200.0, provenance=MODELLED)
    run.standard()
    report = run.report()
    lines = terminal(report, width)
    assert max(map(len, lines)) <= width
    title = carbon_section(report.footprint, report.stages, report.spending.parts).title
    assert title in lines
    assert f"<h2>{title}</h2>" in render_html(report)
