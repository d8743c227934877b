"""The benchmark of the sampler, on windows and waits that are shorter than its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import sampler
from ecorl.records import Provenance


@pytest.mark.deep
def test_each_device_has_its_cost_and_its_errors_in_both_arms(one_gpu, monkeypatch):
    monkeypatch.setattr(sampler, "_fake", lambda folder: one_gpu)
    for name, value in {"QUICK": (2, 0.3), "WINDOW_S": 0.3, "GAP_S": 0.02, "KNOWN_S": 0.1}.items():
        monkeypatch.setattr(sampler, name, value)
    monkeypatch.setattr(sampler, "DEVICES", {"fast": sampler.DEVICES["fast"]})
    monkeypatch.setattr(sampler, "WAVES_S", {"fast": 0.004})
    _, figures = sampler.measure(SimpleNamespace(quick=True))
    found = {f.id: f for f in figures}
    assert len(found) == 6
    assert {f.provenance for f in figures} == {Provenance.EMULATED}
    assert found["sampler.fast.now.cpu_share"].target.high == 0.005
    assert found["sampler.fast.before.cpu_share"].target is None
    assert found["sampler.fast.wave_fast.now.counter_error"].value < 0.02
    assert found["sampler.fast.wave_fast.before.integral_error"].value >= 0
