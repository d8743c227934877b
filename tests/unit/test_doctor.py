"""The doctor on this machine, on a bare one, and on one with (fake) GPUs."""

import io
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from ecorl import doctor
from ecorl.config import FeedConfig, parse_config
from ecorl.doctor import examination

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes" / "nvml"))

from fake_nvml import fake_nvml, fake_nvml_library  # noqa: F401

NAMES = {
    "measure GPU energy",
    "measure CPU energy",
    "measure card power",
    "score on a card",
    "C-simulation, fast build",
    "C-simulation, strict build",
    "TRL training",
}


def by_name(findings):
    return {item.name: item for item in findings.possible}


def shown(findings, **options):
    out = io.StringIO()
    doctor.render(findings, Console(file=out, **options))
    return out.getvalue()


def lines_about(word, findings):
    """The lines that hold a word, of what is shown."""
    return "\n".join(line for line in shown(findings).splitlines() if word in line.lower())


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Nothing on PATH, no Python packages, no drivers, no powercap."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("ECORL_FAKE_NVML_CONTROL", raising=False)
    for module in ("pynvml", "pyxrt"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(examination, "_version", lambda package: None)
    monkeypatch.setattr(examination.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(examination, "installed_xrt", lambda: None)
    find_zones = examination.rapl.find_zones
    monkeypatch.setattr(examination.rapl, "find_zones", lambda: find_zones(tmp_path / "none"))


def test_a_bare_machine_is_told_why(bare):
    findings = doctor.examine()
    assert findings.gpus == findings.cards == findings.rapl == ()
    assert set(by_name(findings)) >= NAMES
    for item in findings.possible:
        assert not item.possible
        assert item.why
    assert set(findings.tools.values()) == set(findings.packages.values()) == {None}
    assert findings.host.n_cores >= 1


def test_this_machine(monkeypatch):
    findings = doctor.examine()
    assert findings.host.memory_bytes > 2**28
    assert findings.packages["onnxruntime"] is None or findings.packages["onnxruntime"][0].isdigit()
    # No host path for a card exists: a yes would be untrue even with a card in the machine.
    assert not by_name(findings)["score on a card"].possible


def test_tools_and_headers_make_the_builds_possible(monkeypatch, tmp_path, bare):
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    possible = by_name(doctor.examine())
    assert possible["C-simulation, fast build"].possible
    assert not possible["C-simulation, strict build"].possible
    assert "ecorl[strict]" in possible["C-simulation, strict build"].why
    headers = tmp_path / "hls4ml" / "templates" / "vivado" / "ap_types"
    headers.mkdir(parents=True)
    (headers / "ap_int.h").touch()

    class Spec:
        submodule_search_locations = (str(tmp_path / "hls4ml"),)

    monkeypatch.setattr(examination.importlib.util, "find_spec", lambda name: Spec)
    assert by_name(doctor.examine())["C-simulation, strict build"].possible


def test_gpus_are_described(fake_nvml, told):  # noqa: F811
    findings = doctor.examine()
    assert [gpu.name for gpu in findings.gpus] == ["Fake GPU 0", "Fake GPU 1"]
    first = findings.gpus[0]
    assert (first.instrument, first.has_counter, first.limit_w, first.problem) == (
        "nvml:field186:gpu",
        True,
        600.0,
        None,
    )
    assert by_name(findings)["measure GPU energy"].possible
    told(lines_about("gpu", findings))


def test_a_gpu_that_does_not_answer_is_no_capability(fake_nvml):  # noqa: F811
    fake_nvml.set("error nvmlDeviceGetFieldValues 15", "error nvmlDeviceGetPowerUsage 15")
    findings = doctor.examine()
    ability = by_name(findings)["measure GPU energy"]
    assert not ability.possible
    assert "DeviceLost" in ability.why


def test_a_broken_gpu_beside_a_healthy_one_is_told_of_with_its_reason(fake_nvml, told):  # noqa: F811
    fake_nvml.set("error nvmlDeviceGetHandleByIndex 999 0", "error nvmlDeviceGetName 4 1")
    findings = doctor.examine()
    broken, healthy = findings.gpus
    assert broken.problem.startswith("DriverError: nvmlDeviceGetHandleByIndex: ")
    assert (healthy.instrument, healthy.problem) == ("nvml:field186:gpu", None)
    assert by_name(findings)["measure GPU energy"].possible
    told(lines_about("gpu", findings))


def test_plain_lines_without_a_terminal(bare, without_keys, told):
    vector = dict.fromkeys(doctor.VECTOR_FLAGS, False) | {"avx2": True}
    host = doctor.HostFindings("Linux 6.1 x86_64", "3.12.1", "1.2.3", "a CPU", 4, 2**34, vector)
    # One fact a line, however narrow: for grep.
    told(shown(replace(doctor.examine(), host=host), width=40))


def test_a_table_on_a_terminal(bare):
    text = shown(doctor.examine(), width=120, force_terminal=True)
    assert "\x1b[" in text
    assert "TRL training" in text


def test_json_holds_everything(bare):
    data = json.loads(doctor.to_json(doctor.examine()))
    assert {item["name"] for item in data["possible"]} >= NAMES
    assert data["host"]["vector"].keys() == set(doctor.VECTOR_FLAGS)
    assert data["packages"]["torch"] is None


KEYS = ("ELECTRICITY_MAPS_TOKEN", "WATTTIME_USER", "WATTTIME_PASSWORD")


@pytest.fixture
def without_keys(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def packages(monkeypatch):
    """All packages are there, at version 1."""
    monkeypatch.setattr(examination, "_version", lambda package: "1")


def feeds_of(findings):
    return {feed.type: feed for feed in findings.feeds}


def test_feeds_are_told_by_packages_and_keys(without_keys, packages, monkeypatch, told):
    findings = doctor.examine()
    feeds = feeds_of(findings)
    assert {kind: feed.possible for kind, feed in feeds.items()} == {
        "constant": True, "synthetic": True, "replay": True, "uk": True,
        "electricity_maps": False, "watttime": False,
    }  # fmt: skip
    assert feeds["watttime"].keys == {"WATTTIME_USER": False, "WATTTIME_PASSWORD": False}
    told(lines_about("carbon feed", findings), "without keys")
    for name in KEYS:
        monkeypatch.setenv(name, "s3cret")
    findings = doctor.examine()
    assert all(feed.possible for feed in findings.feeds)
    told(lines_about("carbon feed", findings), "with keys")
    for text in (doctor.to_json(findings), shown(findings), shown(findings, force_terminal=True)):
        assert "s3cret" not in text


def test_every_type_of_feed_of_a_config_is_told(without_keys):
    listed = {get_args(kind.model_fields["type"].annotation)[0] for kind in
              get_args(get_args(FeedConfig)[0])}  # fmt: skip
    assert feeds_of(doctor.examine()).keys() == listed


def test_feeds_without_their_packages(bare, without_keys, told):
    findings = doctor.examine()
    possible = {kind for kind, feed in feeds_of(findings).items() if feed.possible}
    assert possible == {"constant", "synthetic", "replay"}
    told(lines_about("carbon feed", findings))


CONFIGURED = """
[[carbon.feeds]]
type = "uk"
base_url = "http://127.0.0.1:9"
[[carbon.feeds]]
type = "electricity_maps"
zone = "nowhere"
[[carbon.feeds]]
type = "replay"
path = "nowhere.csv"
"""


def test_the_feeds_of_a_config_are_built_and_not_asked(without_keys, monkeypatch, told):
    monkeypatch.setenv("ELECTRICITY_MAPS_TOKEN", "s3cret")
    monkeypatch.setattr(socket, "socket", None)  # whoever asks fails
    findings = doctor.examine(parse_config(CONFIGURED, "test"))
    assert [feed.possible for feed in findings.configured_feeds] == [True, False, False]
    assert "s3cret" not in shown(findings)
    told(lines_about("carbon.feeds", findings))


def test_a_config_without_feeds_is_told(told):
    assert doctor.examine().configured_feeds is None
    findings = doctor.examine(parse_config("", "test"))
    assert findings.configured_feeds == ()
    told(lines_about("config:", findings))


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from ecorl import doctor; doctor.examine();"
        "heavy = {'torch', 'trl', 'transformers', 'onnxruntime', 'hls4ml', 'onnx'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=os.environ
    )
    assert run.stdout.strip() == "[]", run.stderr
