"""What the pass over the parts runs, keeps and leaves out, and how it ends; parts are stand-ins."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.run import part as part_process
from benchmarks.gpu.run import runner
from benchmarks.gpu.run.parts import PARTS, Part
from benchmarks.gpu.run.runner import last_error
from benchmarks.harness.figures import Figure
from ecorl.records import Provenance
from tests.unit.benchmarks.gpu.test_gpu_wheels import make_wheel

ROOT = Path(__file__).resolve().parents[4]

SCRIPT = """
import argparse, json, os, subprocess, sys, time
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("name")
for option in ("out", "seconds", "begin", "commit"):
    parser.add_argument("--" + option)
parser.add_argument("--rehearse", action="store_true")
given = parser.parse_args()
folder, does = Path(given.out), os.environ.get("DOES_" + given.name, "measure")
with Path(os.environ["RUN_LIST"]).open("a") as file:
    file.write(given.name + "\\n")
result = {
    "benchmark": "gpu_" + given.name, "commit": given.commit, "device": {"gpu": "Fake GPU 0"},
    "config": {"driver": "999.0-fake", "rehearsal": given.rehearse, "seconds": given.seconds},
    "figures": [{"id": "gpu_" + given.name + ".x"}],
}
if does == "import":
    code = "import zz_probe; print(zz_probe.__file__)"
    result["grandchild"] = subprocess.check_output([sys.executable, "-P", "-c", code], text=True)
if does == "hang":
    (folder / (".gpu_" + given.name + ".json.1a2b.part")).write_text("half")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             start_new_session=True)
    Path(os.environ["RUN_LIST"]).with_name("pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
if does == "lose":
    control = Path(os.environ["ECORL_FAKE_NVML_CONTROL"])
    control.write_text("devices 1\\nerror nvmlDeviceGetPowerUsage 15\\n"
                       "error nvmlDeviceGetFieldValues 15\\n")
if does in ("lose", "fail"):
    raise OSError("the measurement broke\\nand more of it")
if does == "no_cuda":
    print("PyTorch does not reach a GPU on this machine: nothing to measure", file=sys.stderr)
    sys.exit(3)
(folder / ("gpu_" + given.name + ".json")).write_text(json.dumps(result))
"""


def stand_in(name, seconds=20.0, imports=("json",)):
    return Part(name, f"gpu_{name}", seconds, f"what {name} is", imports)


A, B, C = (stand_in(name) for name in "abc")


class Pass:
    """Runs the pass in this process; `ran` are the parts that were begun, over all calls."""

    def __init__(self, folder):
        self.out, self.list = folder / "results", folder / "ran"
        self.script = folder / "part.py"
        self.script.write_text(SCRIPT)

    def __call__(self, *options, parts=(A, B, C), commit="c1", out=None):
        given = [*options, "--out", str(out or self.out)]
        given += ["--commit", commit] if commit else []
        return main(given, parts, (str(self.script),))

    @property
    def ran(self):
        return self.list.read_text().split() if self.list.exists() else []

    @property
    def files(self):
        return sorted(path.name for path in self.out.iterdir())

    def result(self, name):
        return json.loads((self.out / f"gpu_{name}.json").read_text())


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("RUN_LIST", str(tmp_path / "ran"))
    return Pass(tmp_path)


def outcomes(capfd):
    """What a pass says of each part in the end, without how long it took."""
    table = capfd.readouterr().out.rpartition("\n\n")[2]
    return re.sub(r"(done in|and) [\d.]+ s\b", r"\1 <time> s", table)


def test_without_a_gpu_it_is_one_line_and_nothing_is_made(run, monkeypatch, capsys, snapshot):
    monkeypatch.delenv("ECORL_FAKE_NVML_CONTROL", raising=False)
    assert run() == 2
    said = capsys.readouterr()
    assert said.out == ""
    snapshot(said.err)
    assert not run.out.exists()


def test_a_gpu_that_pytorch_does_not_reach_is_one_line_too(one_gpu, run, monkeypatch, capfd):
    monkeypatch.setenv("DOES_a", "no_cuda")
    assert run() == 2
    assert run.ran == ["a"]
    assert not run.out.exists()
    assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [(("--minutes", "soon"), ("MINUTES", "'soon'")), (("--minutes", "0"), ("MINUTES", "'0'")),
     (("--minutes", "nan"), ("MINUTES", "'nan'")), (("--wheels", "/no"), ("WHEELS", "'/no'")),
     (("--only", "d"), ("--only", "'d'", "a, b, c"))],
)  # fmt: skip
def test_a_wrong_value_is_one_line(one_gpu, run, capsys, options, told):
    assert run(*options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in (*told, "allowed is"))
    assert not run.out.exists()


def test_a_folder_that_cannot_be_written_is_one_line(one_gpu, run, tmp_path, capsys, snapshot):
    (tmp_path / "file").write_text("")
    assert run(out=tmp_path / "file" / "under") == 2
    snapshot(capsys.readouterr().err)
    assert main(["--rehearse"], (A,)) == 2
    assert "OUT" in capsys.readouterr().err


def test_a_second_start_goes_on_with_what_is_missing(one_gpu, run, monkeypatch, capfd, snapshot):
    monkeypatch.setenv("DOES_b", "fail")
    assert run() == 1
    snapshot(outcomes(capfd), "first")
    assert run.ran == ["a", "b", "c"]
    assert run.files == ["gpu_a.json", "gpu_c.json"]
    monkeypatch.delenv("DOES_b")
    assert run() == 0
    assert run.ran == ["a", "b", "c", "b"]
    assert run.files == ["gpu_a.json", "gpu_b.json", "gpu_c.json"]
    snapshot(outcomes(capfd), "second")


@pytest.mark.parametrize(
    "change",
    [{"commit": "c0"}, {"device": {"gpu": "Other"}},
     {"config": {"driver": "1", "rehearsal": False}}, {"figures": []},
     {"config": {"driver": "999.0-fake", "rehearsal": True}}],
    ids=["commit", "gpu", "driver", "figures", "rehearsal"],
)  # fmt: skip
def test_a_file_of_something_else_is_measured_anew(
    one_gpu, run, monkeypatch, capfd, change, snapshot
):
    assert run(parts=(A,)) == 0
    path = run.out / "gpu_a.json"
    path.write_text(json.dumps({**run.result("a"), **change}))
    before = path.read_bytes()
    monkeypatch.setenv("DOES_a", "fail")
    assert run(parts=(A,)) == 1
    assert path.read_bytes() == before, "it stays until there is a better one"
    monkeypatch.delenv("DOES_a")
    assert run(parts=(A,)) == 0
    (line,) = {line for line in capfd.readouterr().out.splitlines() if "anew" in line}
    snapshot(line)
    assert run.result("a")["commit"] == "c1"


def test_a_checkout_with_changes_keeps_nothing(one_gpu, run):
    for _ in range(2):
        assert run(parts=(A,), commit="c1-dirty") == 0
    assert run.ran == ["a", "a"]


def test_what_does_not_fit_is_left_out_and_what_is_shorter_is_tried(one_gpu, run, capfd, snapshot):
    parts = (A, replace(B, seconds=70.0), C)
    assert run("--minutes", "1", parts=parts) == 0
    assert run.ran == ["a", "c"]
    snapshot(outcomes(capfd))


def test_only_what_is_named_is_run(one_gpu, run):
    assert run("--only", "c", "a") == 0
    assert run.ran == ["a", "c"]


def test_a_part_that_does_not_end_is_ended_with_all_that_it_started(
    one_gpu, run, monkeypatch, tmp_path, capfd, snapshot
):
    monkeypatch.setenv("DOES_a", "hang")
    assert run(parts=(replace(A, seconds=2.5), B)) == 1
    assert run.files == ["gpu_b.json"]
    snapshot(outcomes(capfd))
    assert not any(map(is_alive, pids(tmp_path)))
    monkeypatch.delenv("DOES_a")
    assert run(parts=(A, B)) == 0
    assert run.ran == ["a", "b", "a"]


def test_behind_a_lost_gpu_nothing_is_tried(one_gpu, run, monkeypatch, capfd, snapshot):
    monkeypatch.setenv("DOES_a", "lose")
    assert run() == 1
    assert run.ran == ["a"]
    snapshot(outcomes(capfd))


def test_a_part_whose_modules_are_missing_is_left_out(one_gpu, run, capfd, snapshot):
    lacking = stand_in("b", imports=("json", "zz_probe"))
    assert run(parts=(A, lacking)) == 0
    assert run.ran == ["a"]
    snapshot(outcomes(capfd))
    assert run(parts=(lacking,)) == 2
    assert "zz_probe" in capfd.readouterr().err


def test_wheels_bring_what_is_missing_and_go_again(one_gpu, run, monkeypatch, tmp_path, capfd):
    folder = tmp_path / "wheels"
    folder.mkdir()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    make_wheel(folder, "zz_probe", files={"zz_probe/__init__.py": "import psutil"})
    make_wheel(folder, "psutil", files={"psutil/__init__.py": "1 / 0"})
    make_wheel(folder, "zz_other", tags="cp39-cp39-win_amd64")
    monkeypatch.setenv("DOES_a", "import")
    part = stand_in("a", imports=("psutil", "zz_probe"))
    assert run("--wheels", str(folder), parts=(part,)) == 0
    out = capfd.readouterr().out
    assert ": zz-probe 1.0\n" in out
    assert "zz_other-1.0-cp39-cp39-win_amd64.whl " in out
    assert run.result("a")["grandchild"].startswith(str(temporary))
    assert list(temporary.iterdir()) == []


def test_a_table_that_is_whole_is_not_measured_again(
    one_gpu, run, monkeypatch, tmp_path, capfd, snapshot
):
    kept = tmp_path / "checkout" / "benchmarks" / "results" / "fake-gpu-0"
    kept.mkdir(parents=True)
    monkeypatch.setattr(runner, "repository", lambda: tmp_path / "checkout")
    whole = {"benchmark": "gpu_a", "commit": "older", "device": {"gpu": "Fake GPU 0"},
             "config": {"quick": False}, "figures": [{"id": "gpu_a.x"}]}  # fmt: skip
    path = kept / "gpu_a.json"
    path.write_text(json.dumps(whole))
    assert run(parts=(A, B)) == 0
    assert run.ran == ["b"]
    snapshot(outcomes(capfd))
    for other in ({"figures": [{"id": "gpu_a.x@quick"}]}, {"device": {"gpu": "Other"}}):
        path.write_text(json.dumps({**whole, **other}))
        assert run(parts=(A,), commit=str(other)) == 0
    assert run.ran == ["b", "a", "a"]


DRIVER = """
import signal, sys
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.run.parts import Part
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
part = Part("a", "gpu_a", 50.0, "a", ("json",))
sys.exit(main(["--out", sys.argv[1], "--commit", "c"], (part,), (sys.argv[2],)))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_can_be_stopped(one_gpu, run, monkeypatch, tmp_path, number, code):
    monkeypatch.setenv("DOES_a", "hang")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-c", DRIVER, str(run.out), str(run.script)]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)}, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    while not (tmp_path / "pids").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == code
    assert "stopped" in out
    assert not any(map(is_alive, pids(tmp_path)))
    assert list(temporary.iterdir()) == []
    assert not run.out.exists()


def pids(folder):
    return [int(text) for text in (folder / "pids").read_text().split()]


def is_alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_full_disk_is_one_line_and_the_old_file_stays(one_gpu, tmp_path, monkeypatch, capsys):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    figure = Figure("gpu_facts.x", 1.0, "1", Provenance.MEASURED)
    module = type(sys)("benchmarks.gpu.facts")
    module.measure = lambda setting: ({}, [figure])
    monkeypatch.setitem(sys.modules, "benchmarks.gpu.facts", module)
    out = tmp_path / "out"
    out.mkdir()
    given = ["facts", "--out", str(out), "--seconds", "20", "--commit", "c", "--rehearse"]
    assert part_process.main(given) == 0
    before = (out / "gpu_facts.json").read_bytes()
    assert json.loads(before)["config"]["driver"] == "999.0-fake"
    capsys.readouterr()
    monkeypatch.setattr("ecorl.files.os.fsync", full)
    assert part_process.main(given) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert os.strerror(errno.ENOSPC) in line
    assert [path.name for path in out.iterdir()] == ["gpu_facts.json"]
    assert (out / "gpu_facts.json").read_bytes() == before


def test_the_time_of_the_imports_counts(one_gpu, tmp_path, monkeypatch):
    seen = []
    module = type(sys)("benchmarks.gpu.facts")
    module.measure = lambda setting: (seen.append(setting.left_s()), ({}, []))[1]
    monkeypatch.setitem(sys.modules, "benchmarks.gpu.facts", module)
    begin_s = time.monotonic() - 10.0
    assert part_process.main(["facts", "--out", str(tmp_path), "--seconds", "20", "--rehearse",
                              "--begin", str(begin_s)]) == 0  # fmt: skip
    assert seen[0] < 20.0 - 10.0 - part_process.RESERVE_S + 0.1


def test_the_line_that_says_why():
    trace = ["warning", "Traceback (most recent call last):", "  File x", "ValueError: first", "",
             "During handling of it:", "", "Traceback (most recent call last):", "  File y",
             "    call()", "torch.AcceleratorError: CUDA error: x", "Search it.", ""]  # fmt: skip
    assert last_error(trace) == "torch.AcceleratorError: CUDA error: x"
    assert last_error(["a warning", "facts: DeviceLost: gone", ""]) == "facts: DeviceLost: gone"
    assert last_error([])


def test_the_parts_fit_into_nine_minutes():
    assert sum(part.seconds for part in PARTS) <= 9 * 60 - 5
    assert len({part.benchmark for part in PARTS}) == len(PARTS)
    for module in ("run.parts", "run.wheels", "__main__"):
        code = f"import sys, benchmarks.gpu.{module}; print(sorted(sys.modules))"
        command = [sys.executable, "-c", code]
        loaded = subprocess.check_output(command, cwd=ROOT, text=True)
        assert not any(f"'{name}'" in loaded for name in ("ecorl", "psutil", "torch", "pydantic"))


def test_no_call_that_sets_something_on_the_gpu_is_named_anywhere():
    sources = [*(ROOT / "benchmarks" / "gpu").rglob("*.py"), *(ROOT / "ecorl").rglob("*.py")]
    assert len(sources) > 500
    setters = re.compile(r"nvml\w*(?:Set|Reset|Clear)[A-Z]|nvidia-smi|set_clock|lock_clock")
    found = [f"{path}: {hit[0]}" for path in sources
             if (hit := setters.search(path.read_text("utf-8")))]  # fmt: skip
    assert found == []
