"""Models, a Ray of fake GPUs, and a plain training to compare others with.

All of it is there twice: of ROLL itself, where a checkout of it is on the path, and of its double.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.conftest import demand
from tests.frameworks.roll import harness


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """With the double, what shorter tests guard too is for `make test-all` alone."""
    for item in items:
        named = getattr(item, "callspec", None) and item.callspec.params.get("framework")
        if named == "double" and item.get_closest_marker("deep_on_double"):
            item.add_marker(pytest.mark.deep)


@pytest.fixture(scope="session", params=harness.FRAMEWORKS)
def framework(request):
    """Which of the two is trained with."""
    for tool in ("ray", "torch"):
        demand(tool)
    for module in ("dacite", "hydra", "omegaconf", "tensorboard", "transformers", "yaml"):
        pytest.importorskip(module)
    if request.param == "real":
        demand("roll")
        if harness.source() is None:
            pytest.skip("no checkout of ROLL is on the path")
    return request.param


@pytest.fixture(scope="session")
def tiny(framework, tmp_path_factory):
    from tests.frameworks.tiny import make_tiny

    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def cluster(framework):
    """A Ray node that all trainings use, one after the other."""
    # Not below pytest's folder, whose path may be too long for Ray's sockets.
    folder = Path(tempfile.mkdtemp(prefix="ecorl-"))
    try:
        with harness.cluster(folder, framework) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def plain(tiny, cluster, tmp_path_factory):
    """RLVR with critic, reference and two domains, without ecorl."""
    folder = tmp_path_factory.mktemp("plain")
    return harness.run_training(cluster, folder, harness.rlvr(tiny, folder))
