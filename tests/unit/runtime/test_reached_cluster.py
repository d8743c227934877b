"""Joining a Ray cluster: it ends within the config's limit and names who gave the address."""

from __future__ import annotations

import socket

import psutil
import pytest

pytest.importorskip("ray")

import ray

from ecorl.config import RayRuntimeConfig
from ecorl.errors import ConfigError
from ecorl.runtime.ray import ADDRESS, cluster, reach

TOLD = "RAY_ADDRESS"


@pytest.fixture
def silent():
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def closed():
    """A port at which nobody listens, and that nobody else is given."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def asked(monkeypatch):
    """What Ray is asked to join, which never answers in time; a new cluster starts."""
    monkeypatch.delenv(TOLD, raising=False)
    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    asked = []

    def refusal(address, patience_s):
        asked.append((address, patience_s))
        raise TimeoutError(f"no answer within {patience_s:g} s")

    monkeypatch.setattr(cluster, "refusal", refusal)
    monkeypatch.setattr(ray, "init", lambda address, **more: asked.append((address, more)))
    return asked


@pytest.mark.parametrize("kind", ["silent", "closed"])
def test_an_address_without_a_cluster_is_given_up_within_the_limit(request, snapshot, kind):
    before = psutil.Process().children(recursive=True)
    port = request.getfixturevalue(kind)
    with pytest.raises(TimeoutError) as found:
        reach.refusal(f"127.0.0.1:{port}", 1.0)
    assert "\n" not in str(found.value)
    # What it has met so far depends on how fast it is.
    snapshot(str(found.value).partition(": ")[0])
    assert psutil.Process().children(recursive=True) == before


def test_what_ray_refuses_at_once_is_its_reason():
    reason = reach.refusal("nothing://127.0.0.1:1", 300.0)
    assert "nothing" in reason
    assert len(reason.splitlines()) == 1


def test_a_process_that_ends_is_told_by_its_last_words(monkeypatch):
    monkeypatch.setattr(reach, "__name__", "no_such_module")
    assert reach.refusal("auto", 300.0).endswith("No module named no_such_module")


def test_a_connection_says_what_it_meets(silent, closed, capsys):
    for address, told in (
        (f"127.0.0.1:{silent}", "met: what listens there does not answer as Ray's head does"),
        (f"ray://127.0.0.1:{closed}", "met: Connection refused"),
        ("auto", ""),
    ):
        reach.look(address)
        assert capsys.readouterr().out.strip() == told


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (["met: Connection refused", "Token authentication is enabled."], ": Connection refused"),
        (
            ["met: timed out", "[2026-11-28 20:05:12,466 W 15 15] gcs_client.cc:210: Invalid."],
            ": Invalid",
        ),
        (["a warning"], ""),
    ],
)
def test_only_what_was_met_is_a_cause(monkeypatch, tmp_path, printed, told):
    (tmp_path / "told.txt").write_text("\n".join(printed))
    (tmp_path / "slow_ray.py").write_text(
        "import sys, time; from multiprocessing.connection import Connection\n"
        f"print(open({str(tmp_path / 'told.txt')!r}).read(), flush=True)\n"
        "link = Connection(int(sys.argv[1])); link.send('asks'); time.sleep(600)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(reach, "__name__", "slow_ray")
    with pytest.raises(TimeoutError) as found:
        reach.refusal("auto", 0.1)
    assert str(found.value).partition("runtime.patience_s")[2] == told


def test_an_error_is_one_line_with_its_cause():
    error = ConnectionError("Failed to connect")
    error.__cause__ = RuntimeError("two\nlines")
    assert reach.one_line(error) == "Failed to connect: two lines"
    assert reach.one_line(RuntimeError()) == "RuntimeError"


def test_who_named_a_cluster_that_does_not_answer_is_named(monkeypatch, asked):
    config = RayRuntimeConfig(patience_s=5.0)
    with pytest.raises(cluster.ClusterSilent, match=r"^runtime\.address = 'auto': .*\b5 s"):
        cluster.connect(config, 1)
    named = RayRuntimeConfig(address="head:6379", patience_s=5.0)
    monkeypatch.setenv(TOLD, "other:1")
    with pytest.raises(cluster.ClusterSilent, match=r"^runtime\.address = 'head:6379': "):
        cluster.connect(named, 1)
    with pytest.raises(cluster.ClusterSilent, match=r"^RAY_ADDRESS = 'other:1': "):
        cluster.connect(config, 1)
    assert asked == [("auto", 5.0), ("head:6379", 5.0), ("other:1", 5.0)]


def test_an_address_of_another_kind_in_the_environment_is_refused_at_once(
    monkeypatch, asked, snapshot
):
    lines = []
    for address in ("http://head:8265", "head", "head:70000", "ray://head:10001"):
        monkeypatch.setenv(TOLD, address)
        with pytest.raises(ConfigError) as caught:
            cluster.connect(RayRuntimeConfig(), 0)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))
    assert asked == []


@pytest.mark.parametrize("by", ["config", "environment"])
def test_a_cluster_that_is_started_is_not_waited_for(monkeypatch, asked, by):
    monkeypatch.setenv(TOLD, "local" if by == "environment" else "other:1")
    address = "auto" if by == "environment" else "local"
    assert cluster.connect(RayRuntimeConfig(address=address), 2)
    ((address, options),) = asked
    assert (address, options["resources"]) == ("local", {"FPGA": 2})


def test_the_cluster_that_was_started_for_this_run_is_not_tried_before(monkeypatch, asked):
    monkeypatch.setenv(ADDRESS, "127.0.0.1:1")
    assert cluster.connect(RayRuntimeConfig(address="local"), 0)
    assert asked[0][0] == "127.0.0.1:1"


def test_a_refusal_of_ray_is_a_line(monkeypatch, asked):
    monkeypatch.setattr(cluster, "refusal", lambda *_: "Version mismatch: 3.11 and 3.12")
    with pytest.raises(ConfigError, match=r"Version mismatch: 3\.11 and 3\.12"):
        cluster.join("head:1", 0, 5.0)
    assert asked == []
