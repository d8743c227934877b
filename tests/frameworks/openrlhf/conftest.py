"""Models, a Ray of fake GPUs, and a plain training to compare others with."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.conftest import demand, required_tools
from tests.frameworks.openrlhf import harness
from tests.frameworks.tiny import make_tiny

# `make test` has another environment and says nothing of these; `make test-openrlhf` demands them.
if importlib.util.find_spec("openrlhf") is None and "openrlhf" not in required_tools():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    demand("openrlhf")
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def cluster():
    """A Ray node that all trainings use, one after the other."""
    demand("openrlhf")
    # Not below pytest's folder, whose path may be too long for Ray's sockets.
    folder = Path(tempfile.mkdtemp(prefix="ecorl-"))
    try:
        with harness.cluster(folder) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def plain(tiny, cluster, tmp_path_factory):
    """PPO with critic, reward model and reference, without ecorl."""
    return harness.run_training(cluster, tiny, tmp_path_factory.mktemp("plain"))
