"""Two runs beside each other: what was saved, and what is not compared, and why."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3

import pytest
from rich.console import Console

from ecorl.control import Command, Why
from ecorl.grid import Scope
from ecorl.ledger import LEDGER_FILE, DeviceRecord, LedgerReader
from ecorl.records import DeviceKind, EventKind, Provenance, Stage
from ecorl.report.comparison.compare import compare
from ecorl.report.comparison.sections import BY_AVERAGE, comparison_data, verdict
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


def said(c):
    return "\n".join(verdict(c))


def printed(c):
    out = io.StringIO()
    print_comparison(c, ("a", "b"), Console(file=out, width=100))
    return out.getvalue()


def test_savings_are_those_of_the_totals(two, snapshot):
    c = two({}, {"g_per_kwh": 100.0, "power_w": 50.0, "waited_s": 10, "memory": 2e9})
    energy, emitted = c.figure("energy"), c.figure(BY_AVERAGE)
    assert (energy.baseline, energy.other) == (pytest.approx(4000.0), pytest.approx(2000.0))
    assert energy.share == pytest.approx(0.5)
    assert emitted.share == pytest.approx(1 - 0.5 * 0.25)
    assert c.figure("peak memory of the devices").share == pytest.approx(0.5)
    assert (c.figure("waited").baseline, c.figure("waited").other) == (0.0, 10.0)
    assert not c.differences
    assert not c.refusals
    snapshot(printed(c))


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


def test_an_accuracy_is_compared_item_by_item_with_its_error(two, snapshot):
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
    snapshot(verdict(c)[-1])


def test_other_items_are_not_compared_in_pairs(two):
    (scores,) = two({}, {"right": RIGHT[:4]}).scores
    assert not scores.paired
    assert scores.difference == pytest.approx(0.0)
    assert scores.difference_error > 0.25


def test_runs_of_other_work_are_said_to_be(two, snapshot):
    c = two({}, {"steps": 4})
    assert comparison_data(c)["same_work"] is False
    snapshot(printed(c))


def test_figures_of_other_provenance_are_not_compared(two, snapshot):
    c = two({}, {"provenance": MODELLED})
    energy = c.figure("energy")
    assert (energy.baseline_provenance, energy.other_provenance) == (MEASURED, MODELLED)
    assert energy.saved is None
    assert any(energy.reason in refusal for refusal in c.refusals)
    data = comparison_data(c)
    assert data["energy_savings"]["reduction_kwh"] is None
    assert data["energy_savings"]["not_compared"] == energy.reason
    # No table of figures holds them.
    snapshot(printed(c))


@pytest.mark.parametrize("other", [{"scope": Scope.DIRECT}, {"told": MODELLED}])
def test_grams_of_another_kind_are_not_compared(two, other, snapshot):
    # Energy that is modelled is the weakest: then the grams' own provenance is the same.
    alike = {"provenance": MODELLED, "told": Provenance.REPLAYED}
    c = two(alike, alike | other)
    assert c.figure(BY_AVERAGE).saved is None
    assert c.figure("energy").saved is not None
    snapshot(c.figure(BY_AVERAGE).reason)


def test_what_is_missing_is_missing(two, snapshot):
    c = two({"g_per_kwh": None}, {})
    assert comparison_data(c)["carbon_savings"]["reduction_kg"] is None
    snapshot(c.figure(BY_AVERAGE).reason)


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


def test_it_is_the_same_whoever_reads(run_of, snapshot):
    run = fill(run_of("a"))
    with LedgerReader(run.folder) as reader:
        assert reader.run().run_id == "r<1>"
    c = compare(read_summary(run.folder), read_summary(run.folder / "ledger.sqlite"))
    assert c.figure("energy").share == 0.0
    snapshot(said(c))


# ---------------------------------------------------------------- work and instruments


def configured(run, text="", *, source="nvml", profile="h100", host="a", kind=None, **filled):
    """A run whose ledger holds a config, with a device read by an instrument."""
    fill(run, **filled)
    run.ledger.device(DeviceRecord("gpu0", profile, MEASURED, source, 50.0, kind=kind))
    run.recorded_config(text)
    with contextlib.closing(sqlite3.connect(run.folder / LEDGER_FILE)) as db, db:
        db.execute("INSERT INTO meta VALUES ('host', ?)", (host,))
    return run.folder


@pytest.fixture
def pair(run_of):
    """Makes two runs with configs, and compares them."""

    def make(first, other):
        folders = configured(run_of("a"), **first), configured(run_of("b"), **other)
        return compare(*map(read_summary, folders))

    return make


def withheld(c):
    return {f.name for f in c.figures if f.saved is None and f.reason}


def test_the_same_work_by_the_same_instruments_is_said_first(pair, snapshot):
    c = pair({}, {"power_w": 50.0})
    snapshot(said(c))
    assert c.figure("energy").share == pytest.approx(0.5)
    data = comparison_data(c)
    assert (data["same_work"], data["same_instruments"]) == (True, True)


@pytest.mark.parametrize(
    "other",
    [
        {"text": 'algorithm = "rloo"'},
        {"text": "[trainer]\nmax_completion_length = 32"},
        {"text": "[trainer]\nnum_generations = 2"},
        {"text": "[trainer]\nbeta = 0.0"},
        {"text": '[task]\ntype = "files"\npolicy = "/p"\nreward = "/r"\nprompts = "/q.jsonl"'},
        {"profile": "h200"},
        {"source": "replay"},
    ],
)
def test_a_difference_that_explains_a_saving_leaves_no_saving(pair, other, snapshot):
    c = pair({}, {"power_w": 50.0, **other})
    assert {"energy", "energy per token", "mean power", "run time", BY_AVERAGE} <= withheld(c)
    snapshot(said(c))
    data = comparison_data(c)
    assert (data["same_work"] and data["same_instruments"]) is False
    assert data["energy_savings"]["reduction_percentage"] is None
    assert data["per_token"]["reduction_percentage"] is None


def test_runs_of_another_amount_are_compared_per_token_alone(pair, snapshot):
    c = pair({}, {"steps": 4, "power_w": 50.0})
    assert {"energy", "mean power", "run time", BY_AVERAGE} <= withheld(c)
    rate = c.figure("energy per token")
    assert (rate.baseline, rate.other) == (pytest.approx(20.0), pytest.approx(5.0))
    assert c.figure("emissions per 1,000 tokens").share == pytest.approx(0.75)
    snapshot(said(c))


def test_an_unfinished_run_is_compared_per_token_alone(run_of, snapshot):
    first = configured(run_of("a"))
    run = run_of("b")
    other = configured(run)
    with contextlib.closing(sqlite3.connect(other / LEDGER_FILE)) as db, db:
        db.execute("DELETE FROM event WHERE kind = 'finish'")
    c = compare(read_summary(first), read_summary(other))
    assert "energy" in withheld(c)
    assert c.figure("energy per token").saved is not None
    snapshot(verdict(c)[0])


def test_runs_that_differ_in_their_seeds_alone_have_no_interval(pair, snapshot):
    c = pair({"text": "seed = 1"}, {"text": "seed = 2", "power_w": 90.0})
    assert c.likeness.same_work
    assert c.figure("energy").share == pytest.approx(0.1)
    snapshot(said(c))
    snapshot(said(compare(c.baseline, c.baseline)), "of one seed")


@pytest.mark.parametrize("kind", [DeviceKind.GPU, DeviceKind.CPU])
def test_another_host_explains_a_saving_of_its_processor_alone(pair, kind, snapshot):
    c = pair({"kind": kind}, {"kind": kind, "host": "b"})
    snapshot(verdict(c)[1])
    # GPUs of one profile that are read alike are alike, a host's processors are not known to be.
    assert ("energy" in withheld(c)) == (kind is DeviceKind.CPU)


def test_the_joules_of_a_simulated_card_are_missed_where_one_run_alone_used_it(run_of, snapshot):
    first = configured(run_of("a"))
    run = fill(run_of("b"))
    run.ran(Stage.REWARD, (1030, 1031), 1.0, device="fpga0:u55c", provenance=MODELLED)
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", 20.0))
    assert run.ledger.flush()
    c = compare(read_summary(first), read_summary(run.folder))
    assert "energy" in withheld(c)
    snapshot(verdict(c)[1])
