"""A loop beside a GPU that NVML cannot ask: what is billed, and what is said."""

from __future__ import annotations

import contextlib
import time

import pytest

import ecorl
from ecorl.config import validate_config
from ecorl.ledger import LedgerReader
from ecorl.records import EventKind
from tests.fakes.nvml.fake_nvml import (
    PEAK_W,
    FakeNvml,
    fake_nvml,  # noqa: F401
    fake_nvml_library,  # noqa: F401
)


def bare(device_ids):
    return [device_id.rpartition("/")[2] for device_id in device_ids]


@pytest.mark.parametrize("n_gpus", [1, 2])
def test_the_healthy_gpu_is_measured_and_never_passes_for_both(
    fake_nvml: FakeNvml,  # noqa: F811
    monkeypatch,
    caplog,
    tmp_path,
    record,
    snapshot,
    n_gpus,
):
    fake_nvml.set("duty 1", "error nvmlDeviceGetHandleByIndex 999 1")
    for name, value in fake_nvml.child_environment().items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "run"
    given = {
        "name": "n",
        "run_dir": str(folder),
        "telemetry": {"gpu": {"type": "nvml"}, "stale_after_s": 30.0},
        "devices": {"n_gpus": n_gpus},
    }
    with ecorl.measure(validate_config(given), total_steps=2) as run:
        for _ in range(2):
            time.sleep(0.4)
            run.step(n_samples=1, n_tokens=100)
    last = record.results()[-1]
    if n_gpus == 1:
        assert last.energy.energy_j == pytest.approx(PEAK_W * last.time_s, rel=0.02)
    else:
        assert (bare(last.energy.device_ids), last.energy.energy_j) == (["gpu0", "gpu1"], None)
    with contextlib.closing(LedgerReader(folder)) as reader:
        unread = [e.detail for e in reader.events() if e.kind is EventKind.POWER_UNREAD]
        read = {row.device_id for row in reader.power_seconds() if row.mean_w}
    assert bare(read) == ["gpu0"]
    assert [message for message in caplog.messages if "gpu1" in message] == unread
    snapshot("\n".join(unread))
