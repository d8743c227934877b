"""Two runs beside each other: what was saved, and what is not compared, and why."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ecorl.control import Command, Why
from ecorl.grid import Scope
from ecorl.ledger import DeviceRecord, LedgerReader
from ecorl.records import EventKind, Provenance, Stage
from ecorl.report.comparison.compare import compare
from ecorl.report.comparison.data import BY_AVERAGE, comparison_data
from ecorl.report.comparison.sections import sections, verdict
from ecorl.report.comparison.write import (
    HTML_FILE,
    JSON_FILE,
    print_comparison,
    read_summary,
    render_comparison,
    write_comparison,
)

MEASURED, MODELLED = Provenance.MEASURED, Provenance.MODELLED
RIGHT = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]


def fill(run, *, g_per_kwh=400.0, power_w=100.0, waited_s=0, steps=2, right=RIGHT, memory=4e9,
         provenance=MEASURED, told=Provenance.PUBLISHED, **intensity):  # fmt: skip
    """A run of 40 s, of which it may wait the first."""
    run.config(accounting={"pue": 1.0})
    run.ledger.device(DeviceRecord("gpu0", "h100", provenance, "nvml", 50.0))
    run.heard(1000.0, g_per_kwh, provenance=told, **intensity)
    if waited_s:
        run.chose(1000.0, Command.PAUSE, Why.DIRTY, g_per_kwh=g_per_kwh)
        run.chose(1000.0 + waited_s, Command.RUN, Why.CLEAN, g_per_kwh=g_per_kwh, feed="f")
    if provenance is MEASURED:
        run.power("gpu0", range(1000, 1040), power_w)
    for step in range(1, steps + 1):
        start_s = 1010.0 + 5 * step
        run.ran(Stage.GENERATION, (start_s, start_s + 1), 50.0, iteration=step,
                provenance=provenance)  # fmt: skip
        run.ran(Stage.ACTOR_TRAIN, (start_s + 1, start_s + 2), 50.0, iteration=step,
                provenance=provenance)  # fmt: skip
        run.ledger.metric(step, "loss", 1.0 / step)
        run.ledger.metric(step, "peak_memory_device_bytes", memory)
    run.ledger.evaluation("correct", "after", right)
    run.clock(1040.0)
    run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()
    return run


@pytest.fixture
def two(run_of):
    """Makes the two runs of a comparison; options of the first, and of the other."""

    def make(first, other):
        runs = fill(run_of("a"), **first), fill(run_of("b"), **other)
        return compare(*(read_summary(r.folder) for r in runs))

    return make


def told(c):
    return " ".join(verdict(c))


def test_savings_are_those_of_the_totals(two):
    c = two({}, {"g_per_kwh": 100.0, "power_w": 50.0, "waited_s": 10, "memory": 2e9})
    energy, emitted = c.figure("energy"), c.figure(BY_AVERAGE)
    assert (energy.baseline, energy.other) == (pytest.approx(4000.0), pytest.approx(2000.0))
    assert energy.share == pytest.approx(0.5)
    assert emitted.share == pytest.approx(1 - 0.5 * 0.25)
    assert c.figure("peak memory of the devices").share == pytest.approx(0.5)
    assert (c.figure("waited").baseline, c.figure("waited").other) == (0.0, 10.0)
    assert not c.differences
    assert not c.refusals
    said = told(c)
    assert "emitted 87.5 % less" in said
    assert "drew 50.0 % less energy" in said
    assert "A kilowatt-hour of it emitted 75.0 % less: 100 against 400 g" in said
    assert "waited 10.0 s for cleaner electricity, the first did not wait" in said


def test_the_json_has_the_keys_of_published_comparisons(two):
    data = comparison_data(two({}, {"g_per_kwh": 100.0, "memory": 1e9}))
    kwh = 4000 / 3.6e6
    assert data["carbon_savings"]["baseline_emissions_kg"] == pytest.approx(0.4 * kwh)
    assert data["carbon_savings"]["optimized_emissions_kg"] == pytest.approx(0.1 * kwh)
    assert data["carbon_savings"]["reduction_kg"] == pytest.approx(0.3 * kwh)
    assert data["carbon_savings"]["reduction_percentage"] == pytest.approx(75.0)
    assert data["memory_savings"]["baseline_memory_mb"] == pytest.approx(4000.0)
    assert data["memory_savings"]["reduction_percentage"] == pytest.approx(75.0)
    assert data["accuracy_impact"]["baseline_accuracy"] == pytest.approx(75.0)
    assert data["same_work"] is True
    json.dumps(data, allow_nan=False)


def test_an_accuracy_is_compared_item_by_item_with_its_error(two):
    worse = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    c = two({}, {"right": worse})
    (scores,) = c.scores
    assert scores.paired
    assert scores.difference == pytest.approx(-1 / 8)
    # One of eight pairs differs by 1.
    assert scores.difference_error == pytest.approx(((7 / 8) / 7 / 8) ** 0.5)
    impact = comparison_data(c)["accuracy_impact"]
    assert impact["degradation_percentage"] == pytest.approx(12.5)
    assert impact["degradation_standard_error"] == pytest.approx(12.5)
    assert "75.0 % and 62.5 %, -12.5 ± 12.5 (SE) percentage points over the same items" in told(c)


def test_other_items_are_not_compared_in_pairs(two):
    (scores,) = two({}, {"right": RIGHT[:4]}).scores
    assert not scores.paired
    assert scores.difference == pytest.approx(0.0)
    assert scores.difference_error > 0.25


def test_runs_of_other_work_are_said_to_be(two):
    c = two({}, {"steps": 4})
    assert c.differences[0] == "2 steps in the first run, 4 in the other one (100 % more)"
    assert "did different work" in told(c)
    assert comparison_data(c)["same_work"] is False
    assert next(s for s in sections(c) if s.id == "work").lead.startswith("Not the same")


def test_figures_of_other_provenance_are_not_compared(two):
    c = two({}, {"provenance": MODELLED})
    assert c.figure("energy").reason == "measured against modelled"
    assert c.figure("energy").saved is None
    assert "energy is not compared: measured against modelled" in c.refusals
    data = comparison_data(c)
    assert data["energy_savings"]["reduction_kwh"] is None
    assert data["energy_savings"]["not_compared"] == "measured against modelled"
    assert "Their energy is not compared: measured against modelled." in told(c)
    # No table holds them.
    shown = [row[0] for t in sections(c)[0].tables for row in t.rows]
    assert "energy" not in shown
    refused = next(s for s in sections(c) if s.id == "refused")
    row = next(row for row in refused.tables[0].rows if row[0] == "energy")
    assert row[1].endswith("(measured)")
    assert row[2:] == (row[2], "measured against modelled")
    assert row[2].endswith("(modelled)")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"scope": Scope.DIRECT}, "by life-cycle against direct"),
        ({"told": MODELLED}, "by intensities that are replayed against modelled"),
    ],
)
def test_grams_of_another_kind_are_not_compared(two, other, why):
    # Energy that is modelled is the weakest: then the grams' own provenance is the same.
    alike = {"provenance": MODELLED, "told": Provenance.REPLAYED}
    c = two(alike, alike | other)
    assert c.figure(BY_AVERAGE).reason == why
    assert c.figure("energy").saved is not None


def test_what_is_missing_is_missing(two):
    c = two({"g_per_kwh": None}, {})
    assert c.figure(BY_AVERAGE).reason == "it is missing from the first run"
    assert comparison_data(c)["carbon_savings"]["reduction_kg"] is None


def test_it_is_printed_within_the_width_and_written(run_of):
    first, other = fill(run_of("a")), fill(run_of("b"), g_per_kwh=100.0)
    out = io.StringIO()
    page = write_comparison(first.folder, other.folder, Console(file=out, width=80))
    assert page == other.folder / HTML_FILE
    lines = out.getvalue().splitlines()
    # Tables are never broken; all else keeps to the width.
    assert max(len(line) for line in lines if line.startswith("- ")) <= 80
    assert json.loads((other.folder / JSON_FILE).read_text())["carbon_savings"]
    assert "<script" not in page.read_text()


def test_text_of_a_user_is_escaped(two):
    c = two({}, {})
    page = render_comparison(c, ("<b>a</b>", "b\x1b[31m"))
    assert "<b>a</b>" not in page
    assert "\x1b" not in page
    out = io.StringIO()
    print_comparison(c, ("a\x1b[31m", "b"), Console(file=out, width=80))
    assert "\x1b" not in out.getvalue()


def test_it_is_the_same_whoever_reads(run_of):
    run = fill(run_of("a"))
    with LedgerReader(run.folder) as reader:
        assert reader.run().run_id == "r<1>"
    c = compare(read_summary(run.folder), read_summary(run.folder / "ledger.sqlite"))
    assert c.figure("energy").share == 0.0
    assert "Both runs emitted the same" in told(c)
