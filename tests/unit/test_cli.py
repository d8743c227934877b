"""The command line as its user meets it: a process, its streams and its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ecorl import __version__, cli
from ecorl.config import load_config, preset_names, save_config
from ecorl.errors import LedgerError
from ecorl.ledger import LEDGER_FILE, Ledger

ROOT = Path(__file__).parents[2]


def ecorl(*args, cwd=None, **env):
    """Run the command in a process of its own, off a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "ecorl.cli", *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "60", **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def command(monkeypatch, capsys):
    """The same in this process: quicker, for what needs no process."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["ecorl", *map(str, args)])
        # `run` sets defaults for the libraries of its own process.
        for name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
            monkeypatch.setenv(name, os.environ.get(name, "1"))
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        return caught.value.code, streams.out, streams.err

    return call


def the_line(outcome):
    """The one line on standard error of a user's mistake."""
    code, out, err = outcome
    assert code == 2
    assert out == ""
    assert err.endswith("\n")
    (line,) = err.splitlines()
    assert line.startswith("ecorl: ")
    assert "Traceback" not in line
    return line


def everything_below(folder):
    return {p: p.stat().st_size for p in folder.rglob("*")}


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["run"], ["--config FILE", "--config PRESET (demo", "--resume RUN"]),
        (["run", "--config", "nope"], ["--config = 'nope'", "'demo'"]),
        (["run", "--config", "demo", "--set", "seed"], ["--set = 'seed'", "dotted.key=value"]),
        (
            ["run", "--config", "demo", "--set", "trainer.steps=0"],
            ["--set trainer.steps = 0", "a whole number of at least 1"],
        ),
        (["run", "--config", "demo", "-s", "stps=1"], ["--set stps = 1", "allowed is one of"]),
        (["run", "--config", "demo", "-s", "adapter=verl"], ["adapter = 'verl'", "'trl'"]),
        (["run", "--resume", "nowhere"], ["nowhere holds no run to resume"]),
        (["run", "--resume", "."], ["holds no run to resume", "no config.toml"]),
        (["run", "--resume", ".", "--config", "demo"], ["--resume goes alone"]),
        (["run", "--resume", ".", "--set", "seed=1"], ["--resume goes alone"]),
        (["report", "nowhere"], ["nowhere", "there is no ledger"]),
        (["report", "."], ["ledger.sqlite: there is no ledger"]),
        (["report"], ["Missing argument", "ecorl report --help"]),
        (["run", "--colour"], ["No such option", "--colour", "ecorl run --help"]),
        (["train"], ["No such command 'train'", "ecorl --help"]),
        (["run", "--config"], ["requires an argument"]),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_leaves_nothing(command, tmp_path, monkeypatch, args, parts):
    monkeypatch.chdir(tmp_path)
    line = the_line(command(*args))
    for part in parts:
        assert part in line
    assert everything_below(tmp_path) == {}


@pytest.mark.parametrize("content", [b"", b"garbage", b"SQLite format 3\x00" + b"\x01" * 4000])
def test_a_broken_ledger_is_one_line_and_stays_as_it_is(command, tmp_path, content):
    (tmp_path / LEDGER_FILE).write_bytes(content)
    save_config(load_config("demo"), tmp_path / "config.toml")
    before = everything_below(tmp_path)
    line = the_line(command("report", tmp_path))
    assert LEDGER_FILE in line
    assert everything_below(tmp_path) == before
    assert (tmp_path / LEDGER_FILE).read_bytes() == content


def test_a_broken_config_in_a_run_to_resume_names_file_and_line(command, tmp_path):
    (tmp_path / "config.toml").write_text("seed = 1\n[trainer]\nsteps = 0\n")
    line = the_line(command("run", "--resume", tmp_path))
    assert f"{tmp_path}/config.toml:3: trainer.steps = 0" in line


def test_the_process_ends_with_the_same_line_and_code():
    done = ecorl("run", "--config", "no such file " + "x" * 200)
    assert the_line((done.returncode, done.stdout, done.stderr)).endswith("['demo']")


def test_a_fault_of_ours_is_one_line_with_exit_code_1(command, monkeypatch):
    def broken(*args):
        raise LedgerError("the disk\nis gone")

    monkeypatch.setattr(cli, "load_config", broken)
    code, out, err = command("run", "--config", "demo")
    assert (code, out, err) == (1, "", "ecorl: the disk is gone\n")


def test_the_keyboard_stops_with_one_line(command, monkeypatch):
    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_config", stopped)
    code, _, err = command("run", "--config", "demo")
    assert code == cli.STOPPED
    assert len(err.splitlines()) <= 1


def test_an_adapter_without_its_framework_says_what_to_install(command, monkeypatch):
    class Point:
        name = "trl"

        def load(self):
            raise ImportError("No module named 'trl'")

    monkeypatch.setattr(cli.importlib.metadata, "entry_points", lambda group: [Point()])
    line = the_line(command("run", "--config", "demo"))
    assert "pip install trl" in line


# ---------------------------------------------------------------- what it does


def test_the_version(command):
    assert command("--version") == (0, f"ecorl {__version__}\n", "")


def test_help_names_the_commands_and_the_presets(command):
    code, out, _ = command("--help")
    assert code == 0
    for name in ("run", "report", "doctor"):
        assert re.search(rf"\b{name}\b", out)
    assert command()[1] == out  # without a command: the same, but it is a mistake
    assert command()[0] == 2
    _, out, _ = command("run", "--help")
    assert all(name in out for name in preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_show_config_prints_the_resolved_config_and_starts_nothing(
    command, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    overrides = ["trainer.steps=7", 'placement.policy={type="static"}', 'name="a-b"']
    args = [word for item in overrides for word in ("--set", item)]
    code, out, err = command("run", "--config", name, *args, "--show-config")
    assert (code, err) == (0, "")
    assert everything_below(tmp_path) == {}
    (tmp_path / "shown.toml").write_text(out)
    shown = load_config(str(tmp_path / "shown.toml"))
    assert shown == load_config(name, overrides)
    assert (shown.trainer.steps, shown.name) == (7, "a-b")


def test_show_config_of_a_run_shows_that_run(command, tmp_path):
    config = load_config("demo", ["seed=5"])
    save_config(config, tmp_path / "config.toml")
    code, out, _ = command("run", "--resume", tmp_path, "--show-config")
    (tmp_path / "shown.toml").write_text(out)
    assert (code, load_config(str(tmp_path / "shown.toml"))) == (0, config)


def test_the_adapter_gets_the_resolved_config_and_the_folder(command, tmp_path, monkeypatch):
    calls = []

    class Adapter:
        @staticmethod
        def run(config, run_dir, console):
            calls.append((config, run_dir))
            return False

        @staticmethod
        def resume(run_dir, console):
            calls.append(run_dir)
            return False

    class Point:
        name = "trl"

        def load(self):
            return Adapter

    monkeypatch.setattr(cli.importlib.metadata, "entry_points", lambda group: [Point()])
    folder = tmp_path / "runs" / ("long-" * 30)
    code, out, _ = command("run", "--config", "demo", "--set", f"run_dir={folder}")
    assert code == cli.STOPPED
    assert calls[0][1] == folder
    assert calls[0][0].name == "demo"
    assert out == f"stopped; go on with: ecorl run --resume {folder}\n"
    save_config(load_config("demo"), tmp_path / "config.toml")
    assert command("run", "--resume", tmp_path)[0] == cli.STOPPED
    assert calls[1] == tmp_path


def test_the_report_of_a_run_names_the_page(command, tmp_path):
    Ledger.create(tmp_path / LEDGER_FILE, run_id="t", config_toml="", meta={}).close()
    save_config(load_config("demo"), tmp_path / "config.toml")
    code, out, _ = command("report", tmp_path)
    assert code == 0
    assert f"report: {tmp_path / 'report.html'}" in out
    assert json.loads((tmp_path / "report.json").read_text())


def test_the_doctor_speaks_plain_lines_and_json(command):
    code, out, err = command("doctor")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert re.search(r"^(yes|no )  measure CPU energy: ", out, re.MULTILINE)
    code, out, err = command("doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["host"]["ecorl"] == __version__
    assert all({"name", "possible", "why"} <= set(item) for item in found["possible"])


# ---------------------------------------------------------------- lightness

HEAVY = ("torch", "transformers", "trl", "pynvml", "pyxrt", "onnxruntime")

PROBE = """
import sys
sys.argv = ["ecorl", *sys.argv[1:]]
from ecorl.cli import main
try:
    main()
except SystemExit as end:
    code = end.code
print(code, [name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("args", [["--help"], ["doctor", "--json"], ["report", "RUN"]])
def test_light_commands_load_no_framework(tmp_path, args):
    Ledger.create(tmp_path / LEDGER_FILE, run_id="t", config_toml="", meta={}).close()
    args = [str(tmp_path) if a == "RUN" else a for a in args]
    allowed = ("pynvml",) if args[0] == "doctor" else ()  # the doctor asks the driver
    heavy = tuple(name for name in HEAVY if name not in allowed)
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=heavy), *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.splitlines()[-1] == "0 []", done.stderr


def test_help_comes_at_once():
    ecorl("--help")  # fills the caches of the disk
    spent_s = []
    for _ in range(3):
        before_s = time.monotonic()
        assert ecorl("--help").returncode == 0
        spent_s.append(time.monotonic() - before_s)
    # 0.3 s on an idle machine; importing torch alone takes seconds.
    assert min(spent_s) < 1.5
