"""CodeCarbon beside a run: its figures when it has some, and one line when it fails."""

from __future__ import annotations

import importlib.util
import time

import pytest

from ecorl.config import validate_config
from ecorl.errors import ConfigError
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.records import EventKind, FaultKind
from ecorl.runtime.control.governor import Governor
from ecorl.telemetry.beside import codecarbon
from ecorl.telemetry.beside.codecarbon import Beside, CodeCarbonProcess

FOUND = """
from types import SimpleNamespace
class OfflineEmissionsTracker:
    def __init__(self, country_iso_code, **options):
        assert options["save_to_file"] is False
        self.country, self.final_emissions_data = country_iso_code, None
    def start(self):
        pass
    def stop(self):
        self.final_emissions_data = SimpleNamespace(
            codecarbon_version="9.9", duration=2.0, energy_consumed=0.5, emissions=0.25,
            cpu_energy=0.25, gpu_energy=0.0, ram_energy=0.25)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Puts a package of this name before all others, for the process that imports it."""

    def write(text):
        (tmp_path / "codecarbon.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return write


def measured():
    process = CodeCarbonProcess("GBR")
    process.start()
    return process.stop()


def test_its_figures_come_in_joules_and_grams(package):
    package(FOUND)
    found = measured()
    assert found == Beside("9.9", 2.0, 1.8e6, {"cpu": 9e5, "gpu": 0.0, "ram": 9e5}, 250.0)
    assert Beside.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_this_name", "cannot be imported"),
        (FOUND.replace("pass", "raise RuntimeError('no RAPL')"), "RuntimeError: no RAPL"),
        (FOUND.replace("self.final_emissions_data =", "unused ="), "found nothing"),
        (FOUND.replace("duration=2.0", "duration=float('nan')"), "no amounts"),
        (FOUND.replace("energy_consumed=0.5", "energy_consumed=-1"), "no amounts"),
        (FOUND.replace("duration=2.0,", ""), "AttributeError"),
        ("import os; os._exit(7)", "exit code 7"),
    ],
)
def test_a_failure_of_it_is_one_line(package, text, told):
    package(text)
    found = measured()
    assert isinstance(found, str)
    assert told in found
    assert "\n" not in found


def test_one_that_hangs_is_not_waited_for(package, monkeypatch):
    monkeypatch.setattr(codecarbon, "PATIENCE_S", 0.5)
    found = "self.final_emissions_data = Simple"
    package(FOUND.replace(found, f"__import__('time').sleep(600); {found}"))
    assert isinstance(measured(), str)  # behind its 600 s it would be figures


@pytest.mark.parametrize(("text", "works"), [(FOUND, True), ("raise SystemExit(3)", False)])
def test_a_run_records_what_it_found_or_that_it_failed(package, tmp_path, text, works):
    package(text)
    config = validate_config({"accounting": {"beside": "codecarbon", "country": "GBR"}})
    faults = []
    with Ledger.create(tmp_path / LEDGER_FILE, run_id="r", config_toml="", meta={}) as ledger:
        governor = Governor(config, ledger, lambda *fault: faults.append(fault))
        governor.start()
        governor.close()
        governor.close()
    with LedgerReader(tmp_path) as reader:
        told = [e.detail for e in reader.events() if e.kind is EventKind.BESIDE]
    assert [Beside.from_json(text).energy_j for text in told] == ([1.8e6] if works else [])
    assert [kind for kind, _, _ in faults] == ([] if works else [FaultKind.BESIDE_FAILED])


def test_it_needs_a_country():
    with pytest.raises(ConfigError) as caught:
        validate_config({"accounting": {"beside": "codecarbon"}})
    assert caught.value.key == "accounting.country"


@pytest.mark.skipif(
    importlib.util.find_spec("codecarbon") is None, reason="codecarbon is not installed"
)
def test_the_real_one_measures_this_machine():
    process = CodeCarbonProcess("GBR")
    process.start()
    time.sleep(3.0)
    found = process.stop()
    assert isinstance(found, Beside), found
    assert found.energy_j > 0
