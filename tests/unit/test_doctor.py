"""The doctor on this machine, on a bare one, and on one with (fake) GPUs."""

import io
import json
import os
import socket
import subprocess
import sys
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
    find_zones = examination.rapl.find_zones
    monkeypatch.setattr(examination.rapl, "find_zones", lambda: find_zones(tmp_path / "none"))


def test_a_bare_machine_is_told_why(bare):
    findings = doctor.examine()
    assert findings.gpus == findings.cards == findings.rapl == ()
    assert set(by_name(findings)) >= NAMES
    for item in findings.possible:
        assert not item.possible
        assert item.why
    assert "nvidia-ml-py" in findings.gpus_reason
    assert "pyxrt" in findings.cards_reason
    assert findings.rapl_reason
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


def shown_gpus(findings):
    return "\n".join(line for line in shown(findings).splitlines() if line.startswith("gpu"))


def test_gpus_are_described(fake_nvml, snapshot):  # noqa: F811
    findings = doctor.examine()
    first, _ = findings.gpus
    assert (first.instrument, first.has_counter, first.limit_w, first.problem) == (
        "nvml:field186:gpu",
        True,
        600.0,
        None,
    )
    assert by_name(findings)["measure GPU energy"].possible
    snapshot(shown_gpus(findings))


def test_a_gpu_that_does_not_answer_is_no_capability(fake_nvml):  # noqa: F811
    fake_nvml.set("error nvmlDeviceGetFieldValues 15", "error nvmlDeviceGetPowerUsage 15")
    findings = doctor.examine()
    ability = by_name(findings)["measure GPU energy"]
    assert not ability.possible
    assert "DeviceLost" in ability.why


def test_a_broken_gpu_beside_a_healthy_one_is_told_of_with_its_reason(fake_nvml, snapshot):  # noqa: F811
    fake_nvml.set("error nvmlDeviceGetHandleByIndex 999 0", "error nvmlDeviceGetName 4 1")
    findings = doctor.examine()
    broken, healthy = findings.gpus
    assert broken.problem.startswith("DriverError: nvmlDeviceGetHandleByIndex: ")
    assert (healthy.instrument, healthy.problem) == ("nvml:field186:gpu", None)
    ability = by_name(findings)["measure GPU energy"]
    assert ability.possible
    snapshot(f"{ability.why}\n{shown_gpus(findings)}")


def test_plain_lines_without_a_terminal(bare, without_keys, snapshot):
    text = shown(doctor.examine(), width=40)
    assert "\x1b" not in text
    # The other lines are facts about the machine.
    snapshot("\n".join(line for line in text.splitlines() if line.startswith(("yes ", "no "))))
    # One fact a line, however narrow: for grep.
    assert all(line.count(": ") >= 1 for line in text.splitlines())


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


def test_feeds_are_told_by_packages_and_keys(without_keys, packages, monkeypatch, snapshot):
    feeds = feeds_of(doctor.examine())
    assert {kind: feed.possible for kind, feed in feeds.items()} == {
        "constant": True, "synthetic": True, "replay": True, "uk": True,
        "electricity_maps": False, "watttime": False,
    }  # fmt: skip
    assert feeds["watttime"].keys == {"WATTTIME_USER": False, "WATTTIME_PASSWORD": False}
    why = feeds["watttime"].why
    for name in KEYS:
        monkeypatch.setenv(name, "s3cret")
    findings = doctor.examine()
    assert all(feed.possible for feed in findings.feeds)
    snapshot(f"{why}\n{feeds_of(findings)['electricity_maps'].why}")
    for text in (doctor.to_json(findings), shown(findings), shown(findings, force_terminal=True)):
        assert "s3cret" not in text


def test_every_type_of_feed_of_a_config_is_told(without_keys):
    listed = {get_args(kind.model_fields["type"].annotation)[0] for kind in
              get_args(get_args(FeedConfig)[0])}  # fmt: skip
    assert feeds_of(doctor.examine()).keys() == listed


def test_feeds_without_their_packages(bare, without_keys):
    feeds = feeds_of(doctor.examine())
    assert "requests" in feeds["uk"].why
    assert "watttime" in feeds["watttime"].why
    assert feeds["replay"].possible


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


def test_the_feeds_of_a_config_are_built_and_not_asked(without_keys, monkeypatch, snapshot):
    monkeypatch.setenv("ELECTRICITY_MAPS_TOKEN", "s3cret")
    monkeypatch.setattr(socket, "socket", None)  # whoever asks fails
    findings = doctor.examine(parse_config(CONFIGURED, "test"))
    uk, maps, replay = findings.configured_feeds
    assert (uk.possible, maps.possible, replay.possible) == (True, False, False)
    text = shown(findings)
    assert "s3cret" not in text
    snapshot("\n".join(line for line in text.splitlines() if "feeds" in line))


def test_a_config_without_feeds_is_told(snapshot):
    assert doctor.examine().configured_feeds is None
    findings = doctor.examine(parse_config("", "test"))
    assert findings.configured_feeds == ()
    snapshot("\n".join(line for line in shown(findings).splitlines() if line.startswith("config")))


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
