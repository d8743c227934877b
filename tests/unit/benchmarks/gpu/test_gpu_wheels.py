"""Wheels for a machine without a network: which fit, which are needed, and what is unpacked."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import requires

import pytest

from benchmarks.gpu.run import wheels
from benchmarks.gpu.run.parts import PARTS
from benchmarks.gpu.run.wheels import Platform, choose, fits, normalised, pins, read_wheels, unpack

HERE = Platform(12, "x86_64", (2, 39))


def make_wheel(folder, name, version="1.0", files=None, requires=(), tags="py3-none-any"):
    path = folder / f"{name}-{version}-{tags}.whl"
    metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files or {f"{name}/__init__.py": ""}).items():
            archive.writestr(file, text)
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(metadata) + "\n\n")
    return path


@pytest.mark.parametrize(
    "tags",
    ["py3-none-any", "py2.py3-none-any", "py312-none-any", "cp312-cp312-manylinux_2_28_x86_64",
     "cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64", "cp312-cp312-linux_x86_64",
     "cp36-abi3-manylinux1_x86_64"],
)  # fmt: skip
def test_wheels_that_fit(tags):
    assert fits(f"name-1.0-{tags}.whl", HERE)


@pytest.mark.parametrize(
    "tags",
    ["py2-none-any", "py313-none-any", "cp311-cp311-manylinux_2_28_x86_64", "cp311-none-any",
     "cp313-abi3-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_28_aarch64",
     "cp312-cp312-manylinux_2_40_x86_64", "cp312-cp312-musllinux_1_2_x86_64",
     "cp312-cp312-win_amd64", "cp312-cp312-macosx_11_0_arm64", "none-any", "cp312-cp312t-any"],
)  # fmt: skip
def test_wheels_that_do_not_fit(tags):
    assert not fits(f"name-1.0-{tags}.whl", HERE)


def test_this_interpreter_takes_its_own_wheels():
    where = wheels.here()
    assert fits(f"x-1-cp3{sys.version_info.minor}-none-linux_{where.machine}.whl", where)
    assert where.glibc > (2, 0)


def test_what_does_not_fit_or_cannot_be_read_is_named(tmp_path):
    make_wheel(tmp_path, "one", "1.9")
    make_wheel(tmp_path, "one", "1.10")
    make_wheel(tmp_path, "other", tags="cp39-cp39-win_amd64")
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"not a zip file")
    found, skipped = read_wheels(tmp_path, HERE)
    assert {name: wheel.version for name, wheel in found.items()} == {"one": "1.10"}
    assert len(skipped) == 2
    assert skipped[0].startswith("broken-1.0")
    assert skipped[1].startswith("other-1.0-cp39-cp39-win_amd64.whl ")
    assert " 3.12 " in skipped[1]


def test_only_what_is_missing_is_chosen_with_all_that_it_requires(tmp_path, monkeypatch):
    for name in ("is_found", "is_installed"):
        monkeypatch.setattr(wheels, name, {"there"}.__contains__)
    make_wheel(tmp_path, "wanted", requires=(
        "needed>=1", "there", "Some.Thing ; extra == 'all'", "elsewhere ; sys_platform == 'win32'",
    ))  # fmt: skip
    make_wheel(tmp_path, "needed", files={"needed.py": ""}, requires=("wanted", "absent>2"))
    make_wheel(tmp_path, "there")
    make_wheel(tmp_path, "unasked")
    found, _ = read_wheels(tmp_path, HERE)
    chosen, lacking = choose(("wanted", "there", "nowhere"), found)
    assert sorted(wheel.name for wheel in chosen) == ["needed", "wanted"]
    assert lacking == ["nowhere", "absent"]


def test_nothing_that_is_there_is_unpacked(tmp_path):
    files = {"zz_missing/__init__.py": "", "json/__init__.py": "x", "zz_native.cpython-312.so": "y"}
    make_wheel(tmp_path, "mixed", files=files)
    found, _ = read_wheels(tmp_path, HERE)
    assert found["mixed"].modules == {"zz_missing", "json", "zz_native"}
    unpack(found.values(), tmp_path / "out")
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {"zz_missing", "zz_native.cpython-312.so", "mixed-1.0.dist-info"}


def test_what_is_fetched_is_all_that_the_parts_need():
    """Every requirement of what is fetched is fetched as well, or too large and there already."""
    known = {*wheels.FETCHED, *wheels.LARGE}
    for name in wheels.FETCHED:
        needs = wheels._requires(requires(name) or ())
        assert {n for n, is_always in needs.items() if is_always} <= known, name
    assert set(wheels.FETCHED) <= set(pins())
    modules = {module for part in PARTS for module in part.imports}
    assert {"nvidia-ml-py" if m == "pynvml" else normalised(m) for m in modules} <= known


def test_fetching_calls_pip_and_looks_at_the_size(tmp_path, monkeypatch, capsys):
    commands = []

    def run(command, check):
        commands.append(command)
        make_wheel(tmp_path, "one")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(wheels.subprocess, "run", run)
    assert wheels.main([str(tmp_path)]) == 0
    assert "pydantic==" + pins()["pydantic"] in commands[0]
    assert "--python-version=3.12" in commands[0]
    assert "pyarrow" in capsys.readouterr().out
    monkeypatch.setattr(wheels, "LIMIT_BYTES", 10)
    assert wheels.main([str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "more than" in line
    (tmp_path / "file").write_text("")
    for given in ([], [""], [str(tmp_path / "file")]):
        assert wheels.main(given) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "WHEELS" in line
