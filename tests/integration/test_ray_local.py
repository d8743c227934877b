"""The Ray cluster that a run of several groups of processes starts for itself, and leaves none of.

What joins it runs in processes of its own: this one may be part of another cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from ecorl.errors import ConfigError
from ecorl.runtime.ray.local_cluster import ADDRESS, local_cluster

pytestmark = pytest.mark.timeout(300)

JOINS = (
    "import ray; from ecorl.config import RayRuntimeConfig; "
    "from ecorl.runtime.ray.cluster import connect; "
    "assert connect(RayRuntimeConfig(address='local'), 0); "
    "print(ray.cluster_resources().get('FPGA'), ray.get_runtime_context().gcs_address)"
)
HOLDS = (
    "import time; from ecorl.runtime.ray.local_cluster import local_cluster\n"
    "with local_cluster(1): print('up', flush=True); time.sleep(300)"
)


@pytest.fixture
def unsaid(monkeypatch):
    """The user has not said how Ray's processes trust each other."""
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)


def run(code, variables):
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def below(pid):
    """Processes that one has started, and those that these have."""
    return psutil.Process(pid).children(recursive=True)


def test_processes_join_one_cluster_by_its_address_and_it_ends_with_the_block(unsaid):
    before = set(below(os.getpid()))
    with local_cluster(2) as variables:
        joined = [run(JOINS, variables) for _ in range(2)]
        for one in joined:
            assert one.stdout.split() == ["2.0", variables[ADDRESS]], one.stderr
        # Whoever does not know the token of this cluster is no part of it.
        assert variables["RAY_AUTH_MODE"] == "token"
        assert run(JOINS, {ADDRESS: variables[ADDRESS]}).returncode != 0
        started = set(below(os.getpid())) - before
        assert any("raylet" in process.name() for process in started)
    _, alive = psutil.wait_procs(started, 20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_one_that_does_not_start_is_told_in_one_line(monkeypatch, tmp_path):
    (tmp_path / "no_folder").write_text("")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "no_folder"))
    refused = pytest.raises(ConfigError, match=r"runtime\.address.*a Ray cluster that starts")
    with refused as told, local_cluster(1):
        pass
    assert "\n" not in str(told.value)


def test_it_ends_with_a_parent_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "up\n"
        # Two agents of the raylet notice by themselves, after a minute, that it is gone.
        started = [p for p in below(held.pid) if "Agent" not in " ".join(p.cmdline())]
        assert any("raylet" in process.name() for process in started)
        held.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(started, 60)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
