"""Peaks of memory: of the process, since a mark, and of the GPUs that PyTorch uses."""

from __future__ import annotations

import resource
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ecorl.runtime import memory
from ecorl.runtime.memory import (
    host_peak_bytes,
    peak_memory,
    record_peak_memory,
    restart_host_peak,
)

BLOCK = 120_000_000


def fill(n_bytes=BLOCK):
    """Hold some memory, and give it back."""
    return float(np.ones(n_bytes // 8).sum())


class Metrics:
    """A record of metrics alone."""

    def __init__(self):
        self.rows = []

    def metric(self, iteration, name, value):
        self.rows.append((iteration, name, value))


def fake_torch(is_initialized, peaks=()):
    cuda = SimpleNamespace(
        is_initialized=lambda: is_initialized,
        device_count=lambda: len(peaks),
        max_memory_allocated=lambda gpu: peaks[gpu],
    )
    return SimpleNamespace(cuda=cuda)


def test_the_peak_is_of_what_was_held_and_never_falls():
    before = peak_memory().host_bytes
    restart_host_peak()
    fill()
    after = peak_memory().host_bytes
    assert after >= before
    assert after >= BLOCK
    assert peak_memory().host_bytes >= after


def test_a_mark_that_was_set_back_is_of_what_came_later():
    fill()
    high = host_peak_bytes()
    if not restart_host_peak():
        pytest.skip("this system lets no process set its mark of memory back")
    low = host_peak_bytes()
    assert high - low > 0.8 * BLOCK
    fill(BLOCK // 2)
    assert 0.4 * BLOCK < host_peak_bytes() - low < 0.7 * BLOCK
    # The process's own peak is remembered.
    assert peak_memory().host_bytes >= high


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_without_proc_the_figure_is_getrusage_s(monkeypatch, tmp_path, platform, unit):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "folder" / "none")
    monkeypatch.setattr(sys, "platform", platform)
    told = SimpleNamespace(ru_maxrss=5000)
    monkeypatch.setattr(resource, "getrusage", lambda who: told)
    assert host_peak_bytes() == 5000 * unit
    assert not restart_host_peak()


def test_gpus_count_only_where_pytorch_uses_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert peak_memory().device_bytes is None
    monkeypatch.setitem(sys.modules, "torch", fake_torch(False, (1, 2)))
    assert peak_memory().device_bytes is None
    monkeypatch.setitem(sys.modules, "torch", fake_torch(True, (3_000, 4_000)))
    assert peak_memory().device_bytes == 7_000


def test_what_is_not_known_is_not_recorded(monkeypatch):
    record = Metrics()
    monkeypatch.setitem(sys.modules, "torch", None)
    record_peak_memory(record, 3)
    assert [(i, name) for i, name, _ in record.rows] == [(3, "peak_memory_host_bytes")]
    monkeypatch.setitem(sys.modules, "torch", fake_torch(True, (5,)))
    record_peak_memory(record, 4)
    assert record.rows[-1] == (4, "peak_memory_device_bytes", 5)
