"""A loop beside a GPU whose energy counter is a module's: what is billed."""

from __future__ import annotations

import contextlib
import time

import pytest

import ecorl
from ecorl.config import validate_config
from ecorl.ledger import LedgerReader
from tests.fakes.grids import until
from tests.fakes.nvml.fake_nvml import (
    PEAK_W,
    FakeNvml,
    fake_nvml,  # noqa: F401
    fake_nvml_library,  # noqa: F401
)


def test_all_steps_are_billed_by_the_gpu_s_own_power(
    fake_nvml: FakeNvml,  # noqa: F811
    monkeypatch,
    tmp_path,
    record,
):
    """Those too that had ended before the counter was found out; so are the sums of the run."""
    fake_nvml.set("devices 1", "duty 1", "counter_factor 1.7")
    for name, value in fake_nvml.child_environment().items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "run"
    power = {"gpu": {"type": "nvml"}, "stale_after_s": 600.0}
    given = {"name": "n", "run_dir": str(folder), "telemetry": power}
    with ecorl.measure(validate_config(given), total_steps=12) as run:
        history = run._runtime._monitor.sampler.history
        for step in range(12):
            time.sleep(0.4)
            if step == 11:
                until(lambda: history.foreign_counters)
            run.step(n_samples=1, n_tokens=100)
        figures = run.figures()
    results = record.results()
    # The first may begin before the first reading.
    for result in results[1:]:
        assert result.energy.energy_j == pytest.approx(PEAK_W * result.time_s, rel=0.02)
    methods = {r.energy.method for r in results}
    assert methods <= {"integral_counter_foreign", "none"}
    whole_s = results[-1].t_end_s - results[0].t_start_s
    assert figures["energy/total_j"] <= PEAK_W * (whole_s + 1.0)
    (found,) = {e.error for e in record.read("sample_errors")}
    assert found == "ForeignCounter"
    # What the ledger wrote while it was not known yet does not come back in a resume either.
    with contextlib.closing(LedgerReader(folder)) as reader:
        assert all(row.counted_s == 0 for row in reader.power_seconds())
    assert record.read("faults") == []
