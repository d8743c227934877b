"""What is handed on of a run: footprint.json, emissions.csv, model card, Annex XI."""

from __future__ import annotations

import csv
import io
import json
import tomllib

import pytest
from rich.console import Console

from ecorl.control import Command, Why
from ecorl.grid import MarginalIntensity
from ecorl.ledger import DeviceRecord, LedgerReader
from ecorl.records import EventKind, Provenance, Stage
from ecorl.report.render.gear_tables import beside_lines
from ecorl.report.render.page import render_html
from ecorl.report.render.text import print_report
from ecorl.report.run_config import read_config
from ecorl.report.sharing.files import (
    EMISSIONS_FILE,
    FOOTPRINT_FILE,
    footprint_texts,
    over_time,
    write_footprint,
)
from ecorl.report.sharing.printing import printed
from ecorl.telemetry.beside.codecarbon import Beside

MEASURED = Provenance.MEASURED
KWH_J = 3.6e6
SPENT_J = 40 * 50 + 40 * 100.0


def waits(run, **accounting):
    """40 s paused at 50 W under 400 g/kWh, then 40 s at 100 W under 100 g/kWh; PUE 1.5."""
    run.config(accounting={"pue": 1.5, **accounting})
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 50.0))
    run.heard(1000.0, 400.0)
    run.chose(1000.0, Command.PAUSE, Why.DIRTY, g_per_kwh=400.0, threshold_g_per_kwh=200.0)
    run.heard(1040.0, 100.0)
    run.chose(1040.0, Command.RUN, Why.CLEAN, g_per_kwh=100.0, feed="f")
    run.power("gpu0", range(1000, 1040), 50.0)
    run.power("gpu0", range(1040, 1080), 100.0)
    run.ran(Stage.GENERATION, (1050, 1060), 1000.0, tokens=500)
    run.ran(Stage.ACTOR_TRAIN, (1060, 1070), 1000.0, tokens=500)
    for step, loss in enumerate((2.0, 1.0), start=1):
        run.ledger.metric(step, "loss", loss)
        run.ledger.metric(step, "peak_memory_host_bytes", 1000.0 * step)
    run.ledger.metric(1, "peak_memory_device_bytes", 7e9)
    run.ledger.evaluation("correct", "before", [0.0, 0.0, 1.0, 0.0])
    run.ledger.evaluation("correct", "after", [1.0, 0.0, 1.0, None])
    run.clock(1080.0)
    run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()


def texts(run):
    with LedgerReader(run.folder) as reader:
        return footprint_texts(reader, read_config(reader.run(), run.folder))


def footprint(run):
    return json.loads(texts(run)[FOOTPRINT_FILE])


def rows(run):
    return list(csv.DictReader(io.StringIO(texts(run)[EMISSIONS_FILE])))


GRAMS = (2000 * 400 + 4000 * 100) * 1.5 / KWH_J


def test_the_footprint_has_what_a_model_card_needs(run):
    waits(run)
    told = footprint(run)
    assert told["energy"]["energy_j"] == pytest.approx(SPENT_J)
    assert told["energy"]["energy_kwh"] == pytest.approx(SPENT_J / KWH_J)
    assert told["energy"]["mean_power_w"] == pytest.approx(75.0)
    assert told["energy"]["provenance"] == "measured"
    average = told["emissions"]["average"]
    assert average["carbon_g"] == pytest.approx(GRAMS)
    assert (average["unknown_j"], average["feeds"][0]["feed"]) == (0.0, "f")
    assert "marginal" not in told["emissions"]
    assert told["pue"]["mean"] == 1.5
    assert told["waiting"] == {
        "wait_s": 40.0, "n_pauses": 1, "first_g_per_kwh": 400.0,
        "training_g_per_kwh": pytest.approx(100.0),
    }  # fmt: skip
    assert told["memory"] == {"peak_device_bytes": 7_000_000_000, "peak_host_bytes": 2000}
    assert told["run"]["final_loss"] == 1.0
    assert told["run"]["tokens"] == 500
    assert told["batch"]["effective_batch_size"] == 64  # of the config, which says nothing else
    assert told["codecarbon"] is None


def test_what_is_unknown_is_null_and_never_0(run):
    run.config()
    run.ran(Stage.GENERATION, (1000, 1010), None)
    run.heard(1000.0, None)
    run.clock(1010.0)
    run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()
    told = footprint(run)
    assert told["energy"] is None
    assert told["emissions"] is None
    assert told["waiting"] is None
    assert told["memory"] == {"peak_device_bytes": None, "peak_host_bytes": None}
    assert told["run"]["final_loss"] is None
    assert told["missing"]
    assert rows(run) == []


def test_the_table_over_time_adds_up_to_the_report(run):
    waits(run)
    with LedgerReader(run.folder) as reader:
        intervals = over_time(reader, read_config(reader.run(), run.folder))
    assert sum(interval.carbon_g for interval in intervals) == pytest.approx(GRAMS)
    table = rows(run)
    assert [row["duration_s"] for row in table] == ["60", "20"]
    assert sum(float(row["energy_j"]) for row in table) == pytest.approx(SPENT_J)
    assert sum(float(row["carbon_g"]) for row in table) == pytest.approx(GRAMS)
    # Weighted by the energy: 2000 J at 400 and 2000 J at 100 g/kWh.
    assert float(table[0]["intensity_g_per_kwh"]) == pytest.approx(250.0)
    assert {row["pue"] for row in table} == {"1.5"}
    assert {row["marginal_g"] for row in table} == {""}
    assert [row["start"] for row in table] == [
        "2027-01-15T08:16:40+00:00", "2027-01-15T08:17:40+00:00",
    ]  # fmt: skip


def test_an_interval_of_which_a_part_is_unknown_has_no_grams(run):
    run.config(accounting={"pue": 1.5})
    run.heard(1000.0, 400.0, MarginalIntensity)
    run.heard(1000.0, None)
    run.heard(1070.0, 200.0)
    run.power("gpu0", range(1000, 1140), 100.0)
    run.clock(1140.0)
    run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()
    table = rows(run)
    assert [row["carbon_g"] for row in table] == ["", "", pytest.approx("0.166666667")]
    assert all(float(row["marginal_g"]) > 0 for row in table)
    assert table[0]["intensity_g_per_kwh"] == ""


def test_a_day_has_a_row_a_minute_at_most(run):
    run.config()
    run.heard(1000.0, 100.0)
    run.power("gpu0", range(1000, 1000 + 3 * 86_400, 600), 100.0)
    run.clock(1000.0 + 3 * 86_400)
    run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()
    table = rows(run)
    assert 0 < len(table) <= 1441
    assert {float(row["duration_s"]) <= 180.0 for row in table} == {True}


# ---------------------------------------------------------------- files


def test_the_files_lie_in_the_run_folder_and_beside_the_weights(run, tmp_path):
    waits(run)
    weights = tmp_path / "weights"
    weights.mkdir()
    written = write_footprint(run.folder, [weights, tmp_path / "not there"])
    assert written == [
        folder / name
        for folder in (run.folder, weights)
        for name in (FOOTPRINT_FILE, EMISSIONS_FILE)
    ]
    assert all(path.stat().st_size for path in written)


def test_a_disk_that_is_full_costs_a_warning(run, monkeypatch, caplog, snapshot):
    waits(run)

    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ecorl.report.sharing.files.write_whole", full)
    assert write_footprint(run.folder) == []
    snapshot("\n".join(caplog.messages))


def test_a_record_that_is_gone_costs_a_warning(tmp_path, caplog, snapshot):
    assert write_footprint(tmp_path) == []
    snapshot("\n".join(caplog.messages))


# ---------------------------------------------------------------- texts


def test_the_model_card_has_metadata_and_a_section(run, snapshot):
    waits(run)
    card = printed(run.folder, as_card=True)
    assert f" {GRAMS:.6g} " in card
    snapshot(card)


def test_the_metadata_is_what_a_reader_of_yaml_expects(run):
    waits(run)
    yaml = pytest.importorskip("yaml")
    metadata = printed(run.folder, as_card=True).split("---\n")[1]
    emissions = yaml.safe_load(metadata)["co2_eq_emissions"]
    assert emissions["emissions"] == pytest.approx(GRAMS, rel=1e-5)
    assert emissions["hardware_used"] == "gpu0: h100"


def test_annex_xi_says_how_the_energy_was_obtained_and_what_is_missing(run, snapshot):
    waits(run)
    text = printed(run.folder, as_card=False)
    assert max(map(len, text.splitlines())) <= 110
    snapshot(text)


def test_a_run_without_energy_says_so_in_both(run, snapshot):
    run.config()
    run.ran(Stage.GENERATION, (1000, 1010), None)
    run.clock(1010.0)
    run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()
    snapshot(printed(run.folder, as_card=True), "model card")
    snapshot(printed(run.folder, as_card=False), "Annex XI")


# ---------------------------------------------------------------- the instrument beside


def test_what_codecarbon_found_stands_beside(run, snapshot):
    waits(run)
    found = Beside("3.3.2", 80.0, 7000.0, {"cpu": 2000.0, "gpu": 5000.0}, 1.0)
    run.ledger.event(EventKind.BESIDE, found.to_json())
    assert run.ledger.flush()
    assert footprint(run)["codecarbon"]["energy_j"] == 7000.0
    beside = run.report().beside
    gpu = next(part for part in beside.parts if part.name == "gpu")
    assert (gpu.theirs_j, gpu.ours_j) == (5000.0, pytest.approx(SPENT_J))
    assert gpu.difference == pytest.approx(5000.0 / SPENT_J - 1)
    # No device of the run is a processor.
    assert next(part for part in beside.parts if part.name == "cpu").ours_j is None
    out = io.StringIO()
    print_report(run.report(), Console(file=out, width=100))
    lines = beside_lines(beside, 100)
    assert "\n".join(lines) in out.getvalue()
    assert "CodeCarbon, J" in render_html(run.report())
    snapshot("\n".join(lines))


def test_toml_of_the_config_is_still_toml(run):
    # The metadata quotes what users write: a source with a quote must not end the string.
    waits(run, source='my "own" grid')
    card = printed(run.folder, as_card=True)
    line = next(line for line in card.splitlines() if line.startswith("  source:"))
    tomllib.loads(f"source = {line.split(': ', 1)[1]}")


def test_whatever_goes_wrong_the_end_of_a_training_does_not_fail_for_it(
    run, monkeypatch, caplog, snapshot
):
    waits(run)

    def broken(*args):
        raise ZeroDivisionError("a mistake in a figure")

    monkeypatch.setattr("ecorl.report.sharing.files.build_report", broken)
    assert write_footprint(run.folder) == []
    snapshot("\n".join(caplog.messages))
