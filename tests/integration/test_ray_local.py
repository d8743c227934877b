"""The Ray cluster that a run of several groups of processes starts for itself, and leaves none of.

What joins it runs in processes of its own: this one may be part of another cluster.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from ecorl.child_process import start_module
from ecorl.errors import ConfigError
from ecorl.runtime.ray import ADDRESS
from ecorl.runtime.ray import local_cluster as local
from ecorl.runtime.ray.local_cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.timeout(900)

JOINS = (
    "import ray; from ecorl.config import RayRuntimeConfig; "
    "from ecorl.runtime.ray.cluster import connect; "
    "assert connect(RayRuntimeConfig(address='local'), 0); "
    "print(ray.cluster_resources().get('FPGA'), ray.get_runtime_context().gcs_address)"
)
HOLDS = (
    "import time; from ecorl.runtime.ray.local_cluster import local_cluster\n"
    "with local_cluster(1): print('up', flush=True); time.sleep(900)"
)


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary ones, whose name is short enough for Ray's sockets in it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)


@pytest.fixture
def unsaid(monkeypatch):
    """The user has not said how Ray's processes trust each other."""
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)


def run(code, variables):
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip


def below(pid):
    """Processes that one has started, and those that these have."""
    return psutil.Process(pid).children(recursive=True)


def assert_gone(processes, limit_s=50):  # raylets end by themselves after a minute
    _, alive = psutil.wait_procs(processes, limit_s)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def within(limit_s, is_so):
    """Wait until something is so."""
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_processes_join_one_cluster_by_its_address_and_it_ends_with_the_block(unsaid, temporary):
    before = set(below(os.getpid()))
    with local_cluster(2) as cluster:
        variables = cluster.variables
        joined = [run(JOINS, variables) for _ in range(2)]
        for one in joined:
            assert one.stdout.split() == ["2.0", variables[ADDRESS]], one.stderr
        # Whoever does not know the token of this cluster is no part of it.
        assert variables["RAY_AUTH_MODE"] == "token"
        assert run(JOINS, {ADDRESS: variables[ADDRESS]}).returncode != 0
        started = set(below(os.getpid())) - before
        assert any("raylet" in process.name() for process in started)
        (folder,) = temporary.iterdir()
        assert list(folder.glob("session_*"))
    assert_gone(started)
    assert list(temporary.iterdir()) == []


def test_signals_of_others_do_not_end_it():
    others = psutil.Process().children()
    with local_cluster(1) as cluster:
        (own,) = (p for p in psutil.Process().children() if p not in others)
        for number in (signal.SIGTERM, signal.SIGINT):
            own.send_signal(number)
        time.sleep(1.0)  # longer than its process looks away
        assert not cluster.is_lost()
        assert run(JOINS, cluster.variables).returncode == 0


@pytest.mark.parametrize(
    "who",
    [
        "raylet",
        pytest.param("itself", marks=pytest.mark.deep),
        pytest.param("gcs_server", marks=pytest.mark.deep),
    ],
)
def test_one_that_is_lost_is_noticed_and_another_one_takes_its_place(unsaid, temporary, who):
    others = below(os.getpid())  # of another test of this process
    with local_cluster(1) as cluster:
        before = cluster.variables
        started = [p for p in below(os.getpid()) if p not in others]
        (own,) = (p for p in psutil.Process().children() if p not in others)
        (killed,) = [p for p in started if p.name() == who] if who != "itself" else [own]
        assert not cluster.is_lost()
        killed.kill()
        within(240, cluster.is_lost)
        cluster.renew()
        assert_gone(started)
        assert len(list(temporary.iterdir())) == 1
        assert not cluster.is_lost()
        # Whoever is told its address and token joins it; those of before are of no use.
        assert cluster.variables.keys() == before.keys()
        assert cluster.variables["RAY_AUTH_TOKEN"] != before["RAY_AUTH_TOKEN"]
        joined = run(JOINS, cluster.variables)
        assert joined.stdout.split() == ["1.0", cluster.variables[ADDRESS]], joined.stderr
    assert list(temporary.iterdir()) == []


def test_ctrl_c_before_it_is_up_ends_it_at_once_and_without_a_trace(temporary):
    held = subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with held:
        # It has begun to write: Ray starts its servers.
        within(240, lambda: list(temporary.glob("*/session_*")))
        started = below(held.pid)
        held.send_signal(signal.SIGINT)
        output, errors = held.communicate(timeout=240)
    assert output == ""
    # The only trace is this script's own, which lets the keyboard end it.
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert_gone(started)
    assert list(temporary.iterdir()) == []


def test_a_socket_that_breaks_in_the_moment_it_is_up_leaves_no_trace():
    own, theirs = socket.socketpair()
    with theirs, tempfile.TemporaryFile() as printed:
        process = start_module(local.__name__, theirs.fileno(), output=printed, own_session=True)
        own.close()
        assert process.wait(240) == 1
        printed.seek(0)
        assert b"Traceback" not in printed.read()


@pytest.mark.parametrize("error", [OSError("no more processes"), BrokenPipeError("broken")])
def test_what_the_system_refuses_is_told_in_one_line(monkeypatch, temporary, error):
    def refuse(*told, **more):
        raise error

    monkeypatch.setattr(local, "start_module", refuse)
    with pytest.raises(ConfigError, match=rf"a Ray cluster that starts.*{error}"):
        LocalCluster(1).start()
    assert list(temporary.iterdir()) == []


def test_its_folder_s_name_leaves_room_for_sockets(monkeypatch, tmp_path):
    long = tmp_path / ("long" * 10)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = local._own_folder()
    folder.rmdir()
    assert folder.parent == Path("/tmp")
    # What the user has told Ray holds as it is.
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    assert local._own_folder() is None


def test_one_that_does_not_start_is_told_in_one_line(monkeypatch, tmp_path):
    (tmp_path / "no_folder").write_text("")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "no_folder"))
    refused = pytest.raises(ConfigError, match=r"runtime\.address.*a Ray cluster that starts")
    with refused as told, local_cluster(1):
        pass
    assert "\n" not in str(told.value)


def test_it_ends_with_a_parent_that_is_killed(temporary):
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "up\n"
        # Two agents of the raylet notice by themselves, after a minute, that it is gone.
        started = [p for p in below(held.pid) if "Agent" not in " ".join(p.cmdline())]
        assert any("raylet" in process.name() for process in started)
        held.send_signal(signal.SIGKILL)
    assert_gone(started, 60)
    assert list(temporary.iterdir()) == []
