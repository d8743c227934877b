"""Models, a Ray of fake GPUs, and a plain training to compare others with."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.conftest import demand, required_tools

# `make test` has another environment and says nothing of these; `make test-roll` demands them.
if importlib.util.find_spec("dacite") is None and "roll" not in required_tools():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    demand("roll")
    from tests.frameworks.tiny import make_tiny

    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def cluster():
    """A Ray node that all trainings use, one after the other."""
    demand("roll")
    from tests.frameworks.roll import harness

    # Not below pytest's folder, whose path may be too long for Ray's sockets.
    folder = Path(tempfile.mkdtemp(prefix="ecorl-"))
    try:
        with harness.cluster(folder) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def plain(tiny, cluster, tmp_path_factory):
    """RLVR with critic, reference and two domains, without ecorl."""
    from tests.frameworks.roll import harness

    folder = tmp_path_factory.mktemp("plain")
    return harness.run_training(cluster, folder, harness.rlvr(tiny, folder))
