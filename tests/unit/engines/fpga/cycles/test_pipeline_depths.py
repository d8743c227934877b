"""Depths of pipelines as the cycle model reads them from rtl/qor.json."""

from __future__ import annotations

import json

import pytest

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.cycles import kernels
from ecorl.engines.fpga.cycles.kernels import depth
from ecorl.errors import SynthesisReportError


@pytest.fixture
def qor(tmp_path, monkeypatch):
    """A qor.json that the test writes in place of the installed one."""
    monkeypatch.setattr(kernels, "kernel_root", lambda: tmp_path)
    kernels._latencies.cache_clear()
    (tmp_path / "rtl").mkdir()
    yield tmp_path / "rtl" / "qor.json"
    kernels._latencies.cache_clear()


def test_depths_are_those_of_qor():
    declared = json.loads((kernel_root() / "rtl" / "qor.json").read_text())["pipelines"]
    assert {p["name"]: depth(p["name"]) for p in declared} == {
        p["name"]: p["latency"] for p in declared
    }


def test_pipelines_after_each_other_add_up(qor):
    qor.write_text('{"pipelines": [{"name": "a", "latency": 3}, {"name": "b", "latency": 40}]}')
    assert (depth("a"), depth("a", "b", "a"), depth()) == (3, 46, 0)


def test_a_name_that_is_not_there(qor):
    qor.write_text('{"pipelines": [{"name": "a", "latency": 3}]}')
    with pytest.raises(KeyError, match="missing"):
        depth("a", "missing")


@pytest.mark.parametrize("text", ["", "{}", '{"pipelines": [{"name": "a"}]}', '{"pipelines": 3}'])
def test_a_file_that_is_damaged(qor, text):
    qor.write_text(text)
    with pytest.raises(SynthesisReportError, match=r"qor\.json"):
        depth("a")


def test_no_file(qor):
    with pytest.raises(SynthesisReportError, match=r"qor\.json"):
        depth("a")
