import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "fakes" / "nvml"))

from fake_nvml import fake_nvml, fake_nvml_library  # noqa: F401


@pytest.fixture
def one_gpu(fake_nvml, monkeypatch):  # noqa: F811
    """One fake GPU, for this process and those that it starts."""
    for name, value in fake_nvml.child_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("benchmarks.gpu.sensing.meter.WARM_UP_S", 0.05)
    fake_nvml.set("devices 1", "period_ms 40", "refresh_ms 0")
    return fake_nvml
