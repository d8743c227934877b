"""Builds the fake NVML library and drives it; see fake_nvml.c for the settings."""

from __future__ import annotations

import ctypes
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
SONAME = "libnvidia-ml.so.1"
CONTROL = "ECORL_FAKE_NVML_CONTROL"

BASE_W, PEAK_W, PERIOD_S, DUTY = 100.0, 600.0, 0.2, 0.25


def build(folder: Path, *defines: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / SONAME
    flags = ["-O1", "-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{SONAME}"]
    command = ["cc", *flags, *(f"-D{d}" for d in defines), "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=240)
    return library


@dataclass
class FakeNvml:
    """The library and its control file. Settings last until the next `set`."""

    library: Path
    control: Path
    lines: list[str] = field(default_factory=list)

    def set(self, *lines: str) -> None:
        # Renamed into place: the library must never read half a file.
        new = self.control.with_suffix(".new")
        new.write_text("".join(line + "\n" for line in lines))
        new.replace(self.control)

    def child_environment(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            CONTROL: str(self.control),
        }


def true_energy_j(t_s: float, gpu: int = 0, period_s: float = PERIOD_S) -> float:
    """What the counter of an undisturbed GPU says at a monotonic time, J."""
    shifted_s = t_s - 0.25 * gpu * period_s
    whole, phase_s = divmod(shifted_s, period_s)
    peak_s = whole * DUTY * period_s + min(phase_s, DUTY * period_s)
    return BASE_W * t_s + (PEAK_W - BASE_W) * peak_s


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_nvml(require_tool, request, tmp_path, monkeypatch) -> FakeNvml:
    """The fake, loaded into this process and ready for children by `child_environment`."""
    require_tool("cc")
    pytest.importorskip("pynvml")
    fake = FakeNvml(request.getfixturevalue("fake_nvml_library"), tmp_path / "nvml.control")
    fake.set()
    monkeypatch.setenv(CONTROL, str(fake.control))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ctypes.CDLL(str(fake.library))
    assert os.environ[CONTROL]
    return fake
