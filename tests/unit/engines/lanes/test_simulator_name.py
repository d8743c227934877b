"""A process that simulates a card has a name by which telemetry leaves it out."""

import subprocess
import sys
from pathlib import Path

import pytest

from ecorl.child_process import SIMULATOR
from ecorl.engines import host_main
from ecorl.engines.fpga.card.backend import KernelBackend
from ecorl.engines.lanes.cluster import worker
from ecorl.engines.lanes.threaded import EngineSpec, StartEngine
from ecorl.records import Stage

CSIM = {"backend": KernelBackend()}
EMULATED = {"backend": KernelBackend("xrt", Path("ecorl.csim.xclbin"))}
CARD = {"backend": KernelBackend("xrt", Path("ecorl.hw.xclbin"))}


def spec_of(kind, options):
    return EngineSpec(kind, kind, Path("nowhere"), Stage.REWARD, "u55c", options)


class Link:
    """A connection of which nothing is read."""

    def send(self, message):
        """Take a message."""


@pytest.mark.parametrize(
    ("kind", "options", "names"),
    [
        ("fpga", CSIM, [SIMULATOR]),
        ("fpga", EMULATED, [SIMULATOR]),
        ("fpga", CARD, []),
        ("torch", {}, []),
        ("plugin", {}, []),
    ],
)
def test_only_the_process_of_a_simulated_card_is_named(monkeypatch, kind, options, names):
    given = []
    for module in (host_main, worker):
        monkeypatch.setattr(module, "name_process", given.append)
        monkeypatch.setattr(module, "make_engine", lambda *args, **kw: 1 / 0)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = spec_of(kind, options)
    assert host_main._load(StartEngine(spec, 0, ()), Link()) is None
    assert given == names
    # In an actor before each call: Ray names its process anew.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    actor = worker.AcceleratorWorker(spec)
    for _ in range(2):
        actor._timed(lambda: "an answer")
    assert given == 3 * names


def test_any_thread_names_the_whole_process():
    code = (
        "import threading; from ecorl.child_process import *; from pathlib import Path;"
        "one = threading.Thread(target=name_process, args=(SIMULATOR,)); one.start(); one.join();"
        "print(Path(f'/proc/{os.getpid()}/stat').read_text())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"({SIMULATOR})" in found.stdout
