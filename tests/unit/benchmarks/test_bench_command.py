"""The shared command line: exit codes, where results go; device, commit."""

from __future__ import annotations

import json
import subprocess

import pytest

from benchmarks.harness import command
from benchmarks.harness.figures import Figure, Target
from ecorl.bench import machine
from ecorl.errors import BuildError, RunError
from ecorl.records import Provenance


def measure_with(value):
    def measure(options):
        figure = Figure("x.y", value, "1", Provenance.MEASURED, target=Target(high=1))
        return {"setting": 7}, [figure]

    return measure


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "repository", lambda: tmp_path)
    monkeypatch.setattr(command, "repository", lambda: tmp_path)
    return tmp_path


def test_the_result_is_kept_under_the_device(checkout, capsys):
    assert command.run_benchmark("x", measure_with(0.5), []) == 0
    (path,) = (checkout / "benchmarks" / "results").glob("*/x.json")
    data = json.loads(path.read_text())
    assert path.parent.name == data["device"]["slug"]
    assert (data["config"]["setting"], data["config"]["quick"]) == (7, False)
    assert data["figures"][0]["holds"] is True
    assert " holds" in capsys.readouterr().out


def test_a_quick_pass_is_kept_only_where_asked(checkout):
    assert command.run_benchmark("x", measure_with(0.5), ["--quick"]) == 0
    assert list(checkout.iterdir()) == []
    path = checkout / "q.json"
    assert command.run_benchmark("x", measure_with(0.5), ["--quick", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["figures"][0]["id"] == "x.y@quick"


def test_check_fails_when_a_target_falls_short(checkout):
    assert command.run_benchmark("x", measure_with(2.0), []) == 0
    assert command.run_benchmark("x", measure_with(2.0), ["--check"]) == command.FALLS_SHORT
    assert command.run_benchmark("x", measure_with(0.5), ["--check"]) == 0


@pytest.mark.parametrize(("error", "code"), [(RunError("bad folder"), 2), (BuildError("g++"), 1)])
def test_an_error_is_one_line(checkout, capsys, error, code):
    def measure(options):
        raise error

    assert command.run_benchmark("x", measure, []) == code
    assert capsys.readouterr().err.strip() == f"benchmarks.x: {error}"
    assert list(checkout.iterdir()) == []


def test_a_result_that_cannot_be_written_is_one_line(checkout, capsys, snapshot):
    (checkout / "file").write_text("")
    code = command.run_benchmark(
        "x", measure_with(0.5), ["--json", str(checkout / "file" / "x.json")]
    )
    assert code == 2
    snapshot(capsys.readouterr().err)


def git(folder, *arguments):
    names = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


def test_commit(checkout, require_tool):
    require_tool("git")
    assert machine.commit() is None
    results = checkout / "benchmarks" / "results"
    results.mkdir(parents=True)
    for path in (checkout / "a.py", results / "x.json"):
        path.write_text("1")
    git(checkout, "init", "-q")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "one")
    clean = machine.commit()
    assert clean is not None
    assert len(clean) == 40
    (results / "x.json").write_text("2")
    (checkout / "untracked").write_text("")
    assert machine.commit() == clean
    (checkout / "a.py").write_text("2")
    assert machine.commit() == f"{clean}-dirty"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("AMD EPYC", "amd-epyc"),
        ("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", "intel-xeon-platinum-8480c"),
        ("AMD EPYC 9554 64-Core Processor", "amd-epyc-9554-64-core"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("", "unknown"),
    ],
)
def test_slug(name, slug):
    assert machine._slug(name) == slug


def test_this_machine_without_a_gpu_is_named_by_its_cpu(monkeypatch):
    monkeypatch.setattr(machine, "_first_gpu", lambda: None)
    found = machine.describe_machine()
    assert found.slug.endswith(f"-{found.n_cores}core")
    assert found.memory_bytes > 0
    monkeypatch.setattr(machine, "_first_gpu", lambda: "NVIDIA L4")
    assert machine.describe_machine().slug == "nvidia-l4"
