"""The command line as its user meets it: a process, its streams and its exit code."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ecorl import __version__, cli
from ecorl.cli import commands
from ecorl.cli.exits import NOTHING_RECORDED, STOPPED_TEXT
from ecorl.config import config_toml, load_config, preset_names
from ecorl.errors import LedgerError, RunError
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.runtime import adapters

ROOT = Path(__file__).parents[3]


def ecorl(*args, cwd=None, **env):
    """Run the command in a process of its own, off a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "ecorl.cli", *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "60", **env},
        capture_output=True,
        text=True,
        timeout=240,
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
    return one_line(err)


def one_line(err):
    (line,) = err.splitlines()
    assert line.startswith("ecorl: ")
    assert "Traceback" not in line
    return line


def a_run(folder, config=""):
    """The record of a run in which nothing happened yet."""
    folder.mkdir(exist_ok=True)
    Ledger.create(folder / LEDGER_FILE, run_id="t", config_toml=config, meta={}).close()


def everything_below(folder):
    return {p: p.stat().st_size for p in folder.rglob("*")}


# ---------------------------------------------------------------- mistakes


def test_a_mistake_is_one_line_and_leaves_nothing(command, tmp_path, monkeypatch, snapshot):
    monkeypatch.chdir(tmp_path)
    lines = []
    for args in (
        ["run"],
        ["run", "--config", "nope"],
        ["run", "--config", "demo", "--set", "seed"],
        ["run", "--config", "demo", "--set", "trainer.steps=0"],
        ["run", "--config", "demo", "-s", "stps=1"],
        ["run", "--config", "demo", "-s", "adapter=verl"],
        ["run", "--resume", "nowhere"],
        ["run", "--resume", "."],
        ["run", "--resume", ".", "--config", "demo"],
        ["run", "--resume", ".", "--set", "seed=1"],
        ["report", "nowhere"],
        ["report", "."],
        ["report"],
        ["run", "--colour"],
        ["train"],
        ["run", "--config"],
    ):
        lines.append(the_line(command(*args)))
        assert everything_below(tmp_path) == {}
    snapshot("\n".join(lines))


@pytest.mark.parametrize("content", [b"", b"garbage", b"SQLite format 3\x00" + b"\x01" * 4000])
def test_a_broken_ledger_is_one_line_and_stays_as_it_is(command, tmp_path, content):
    (tmp_path / LEDGER_FILE).write_bytes(content)
    (tmp_path / "config.toml").write_text(config_toml(load_config("demo")), encoding="utf-8")
    before = everything_below(tmp_path)
    for args in (("report", tmp_path), ("report", tmp_path / LEDGER_FILE)):
        assert LEDGER_FILE in the_line(command(*args))
    assert LEDGER_FILE in the_line(command("run", "--resume", tmp_path))
    assert everything_below(tmp_path) == before
    assert (tmp_path / LEDGER_FILE).read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE run SET config_toml = CAST(x'ff66' AS TEXT)",
        "UPDATE run SET config_toml = 5, run_id = x'00'",
        "DELETE FROM run",
        "DROP TABLE meta",
    ],
)
def test_damage_within_a_ledger_is_one_line_too(command, tmp_path, change):
    a_run(tmp_path, config_toml(load_config("demo")))
    with contextlib.closing(sqlite3.connect(tmp_path / LEDGER_FILE)) as db, db:
        db.execute(change)
    for args in (("report", tmp_path), ("run", "--resume", tmp_path)):
        assert LEDGER_FILE in the_line(command(*args))


def test_a_ledger_that_the_adapter_cannot_go_on_with_is_the_user_s(command, tmp_path, monkeypatch):
    class Adapter:
        @staticmethod
        def resume(run_dir, console):
            raise LedgerError(f"{run_dir}: cannot be read")

        @staticmethod
        def run(config, run_dir, console):
            raise LedgerError("the disk is gone")

    monkeypatch.setattr(commands, "_adapter", lambda name, function: getattr(Adapter, function))
    a_run(tmp_path, config_toml(load_config("demo")))
    assert "cannot be read" in the_line(command("run", "--resume", tmp_path))
    # A fresh record that fails is no mistake of the user.
    assert command("run", "--config", "demo", "-s", f"run_dir={tmp_path / 'new'}")[0] == 1


def test_a_run_has_a_folder_of_its_own_time_and_none_when_it_is_refused(
    command, tmp_path, monkeypatch
):
    seen = []

    class Adapter:
        @staticmethod
        def run(config, run_dir, console):
            seen.append((config.resolved_run_dir(), run_dir))
            raise RunError("refused")

    monkeypatch.setattr(commands, "_adapter", lambda name, function: getattr(Adapter, function))
    words = ("run", "--config", "demo", "-s", f"run_dir={tmp_path}/{{name}}-{{time}}")
    assert "refused" in the_line(command(*words))
    ((config_s, given),) = seen
    assert config_s == given
    assert given.name.startswith("demo-2")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_config_in_a_run_to_resume_names_place_and_line(command, tmp_path):
    a_run(tmp_path, "seed = 1\n[trainer]\nsteps = 0\n")
    line = the_line(command("run", "--resume", tmp_path))
    assert f"the ledger of {tmp_path}:3: trainer.steps = 0" in line


def test_the_process_ends_with_the_same_line_and_code():
    done = ecorl("run", "--config", "no such file " + "x" * 200)
    assert the_line((done.returncode, done.stdout, done.stderr)).endswith(
        "['demo', 'demo-all', 'demo-carbon']"
    )


def test_a_fault_of_ours_is_one_line_with_exit_code_1(command, monkeypatch):
    def broken(*args):
        raise LedgerError("the disk\nis gone")

    monkeypatch.setattr(commands, "load_config", broken)
    code, out, err = command("run", "--config", "demo")
    assert (code, out, err) == (1, "", "ecorl: the disk is gone\n")


def test_the_keyboard_stops_with_one_line(command, monkeypatch):
    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "load_config", stopped)
    code, _, err = command("run", "--config", "demo")
    assert (code, err) == (cli.STOPPED, f"ecorl: {STOPPED_TEXT}; {NOTHING_RECORDED}\n")


HIDING = """
import sys
names = set(sys.argv[1].split(","))

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
sys.argv = ["ecorl", *sys.argv[2:]]
from ecorl.cli import main
main()
"""
"""Runs the command as if some packages were not installed."""


def test_without_trl_one_line_names_the_extra(tmp_path):
    """The packages of the extra are hidden from the process; nothing is begun."""
    folder = tmp_path / "run"
    command = ["run", "--config", "demo", "--set", f"run_dir={folder}"]
    done = subprocess.run(
        [sys.executable, "-c", HIDING, "trl,accelerate,datasets", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    line = the_line((done.returncode, done.stdout, done.stderr))
    assert "ecorl[trl]" in line
    assert not folder.exists()


def test_an_adapter_of_another_s_names_its_framework(command, monkeypatch):
    point = EntryPoint("absent", "absent_adapter.run", "ecorl.adapters")
    monkeypatch.setattr(adapters.importlib.metadata, "entry_points", lambda group: [point])
    line = the_line(command("run", "--config", "demo", "-s", "adapter=absent"))
    assert "pip install absent" in line


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
    a_run(tmp_path, config_toml(config))
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

    monkeypatch.setattr(adapters.importlib.metadata, "entry_points", lambda group: [Point()])
    folder = tmp_path / "runs" / ("long-" * 30)
    code, out, _ = command("run", "--config", "demo", "--set", f"run_dir={folder}")
    assert code == cli.STOPPED
    assert calls[0][1] == folder
    assert calls[0][0].name == "demo"
    assert out.endswith(f" ecorl run --resume {folder}\n")
    a_run(tmp_path, config_toml(load_config("demo")))
    assert command("run", "--resume", tmp_path)[0] == cli.STOPPED
    assert calls[1] == tmp_path


def test_the_report_of_a_run_names_the_page(command, tmp_path):
    a_run(tmp_path)
    (tmp_path / "config.toml").write_text(config_toml(load_config("demo")), encoding="utf-8")
    code, out, _ = command("report", tmp_path)
    assert code == 0
    assert f"report: {tmp_path / 'report.html'}" in out
    assert json.loads((tmp_path / "report.json").read_text())


def test_a_report_can_be_asked_for_by_the_name_of_the_ledger(command, tmp_path):
    a_run(tmp_path)
    code, out, err = command("report", tmp_path / LEDGER_FILE)
    assert (code, err) == (0, "")
    assert f"report: {tmp_path / 'report.html'}" in out
    assert (tmp_path / "report.json").is_file()


@pytest.fixture
def unwritable(tmp_path):
    """A run folder in which neither file of the report can be written."""
    a_run(tmp_path)
    for name in ("report.html", "report.json"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_report_that_cannot_be_written_is_shown_with_a_warning(unwritable, snapshot):
    done = ecorl("report", unwritable)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 2
    snapshot(done.stdout + done.stderr)


def test_a_finished_run_ends_well_though_its_report_cannot_be_written(
    command, unwritable, monkeypatch
):
    class Adapter:
        @staticmethod
        def run(config, run_dir, console):
            return True

    monkeypatch.setattr(commands, "_adapter", lambda name, function: getattr(Adapter, function))
    code, out, _ = command("run", "--config", "demo", "--set", f"run_dir={unwritable}")
    assert code == 0
    assert out.startswith("t ")


def test_a_reader_who_leaves_early_does_not_cost_the_page(tmp_path):
    """As `ecorl report RUN | head -1`, with a pipe that nobody reads."""
    a_run(tmp_path)
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "ecorl.cli", "report", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with os.fdopen(write, "w") as out:
        subprocess.run(command, stdout=out, env=env, timeout=240, check=False)
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "report.json").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", [["report", "RUN"], ["--version"], ["doctor", "--json"]])
def test_a_full_disk_behind_the_output_is_one_line(tmp_path, args, unbuffered):
    a_run(tmp_path)
    command = [sys.executable, "-m", "ecorl.cli"]
    command += [str(tmp_path) if a == "RUN" else a for a in args]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, text=True, env=env, timeout=240
        )
    assert done.returncode == 1
    line = one_line(done.stderr)
    assert os.strerror(errno.ENOSPC) in line
    assert (tmp_path / "report.html").is_file() == (args[0] == "report")


def test_an_error_of_a_file_is_not_taken_for_one_of_the_output(command, monkeypatch):
    def broken(*args):
        raise OSError(28, "No space left on device", "weights.bin")

    monkeypatch.setattr(commands, "load_config", broken)
    with pytest.raises(OSError, match=r"weights\.bin"):
        command("run", "--config", "demo")


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux alone")
def test_a_folder_whose_name_is_no_text_can_be_reported(tmp_path):
    folder = tmp_path / os.fsdecode(b"a\xff")
    a_run(folder)
    done = ecorl("report", folder, PYTHONIOENCODING="utf-8:strict")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"a\udcff/report.html" in done.stdout


def test_an_override_that_is_no_text_is_one_line(tmp_path):
    done = ecorl(
        "run", "--config", "demo", "--set", os.fsdecode(b"run_dir=/tmp/\xff"), cwd=tmp_path
    )
    line = the_line((done.returncode, done.stdout, done.stderr))
    assert line.startswith(r"ecorl: --set = 'run_dir=/tmp/\udcff': ")
    assert line.endswith("UTF-8")


def test_the_doctor_speaks_plain_lines_and_json(command):
    code, out, err = command("doctor")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert re.search(r"^(yes|no )  \w", out, re.MULTILINE)
    code, out, err = command("doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["host"]["ecorl"] == __version__
    assert all({"name", "possible", "why"} <= set(item) for item in found["possible"])


def on_a_terminal(*args, **env):
    """What the command writes to a terminal."""
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ecorl.cli", *map(str, args)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **env},
    )
    os.close(terminal)
    shown = b""
    try:
        while select.select([main], [], [], 60)[0]:
            try:
                shown += os.read(main, 65536)
            except OSError:  # the other end is closed: the process has ended
                break
        process.wait(timeout=240)
    finally:
        process.kill()
        os.close(main)
    return shown.decode()


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["doctor"], ["report", "RUN"], []])
def test_no_colour_means_no_escape(tmp_path, args):
    a_run(tmp_path)
    args = [str(tmp_path) if a == "RUN" else a for a in args]
    shown = on_a_terminal(*args, NO_COLOR="1")
    assert len(shown) > 200
    assert "\x1b" not in shown
    assert "\x1b" in on_a_terminal("report", tmp_path, NO_COLOR="")


# ---------------------------------------------------------------- Ctrl-C


def interrupted(code, *args, ready="ready", **env):
    """A process that gets SIGINT as soon as it has said that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )
    try:
        assert select.select([process.stdout], [], [], 60)[0]
        assert process.stdout.readline().strip() == ready
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    finally:
        process.kill()
    return process.returncode, err


RUN_UNTIL_STOPPED = """
import sys, time
when, folder = sys.argv[1:]
from ecorl import cli
from ecorl.cli import commands
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.records import EventKind

class Adapter:
    @staticmethod
    def run(config, run_dir, console):
        if when in ("begun", "complete"):
            run_dir.mkdir()
            made = Ledger.create(run_dir / LEDGER_FILE, run_id="t", config_toml="", meta={})
            if when == "complete":
                made.event(EventKind.FINISH, "the run is complete")
            made.close()
        print("ready", flush=True)
        time.sleep(600)

commands._adapter = lambda name, function: getattr(Adapter, function)
sys.argv = ["ecorl", "run", "--config", "demo", "--set", "run_dir=" + folder]
cli.main()
"""


@pytest.mark.parametrize("when", ["preparing", "begun", "complete", "another's"])
@pytest.mark.parametrize("name", ["run", "my run"])
def test_ctrl_c_ends_with_one_line_that_says_how_to_go_on(tmp_path, when, name):
    folder = tmp_path / name
    if when == "another's":
        a_run(folder)
    code, err = interrupted(RUN_UNTIL_STOPPED, when, folder)
    assert code == cli.STOPPED
    named = f"'{folder}'" if " " in name else str(folder)
    hint = {"begun": f"ecorl run --resume {named}", "complete": f"ecorl report {named}"}
    line = one_line(err)
    assert line.startswith(f"ecorl: {STOPPED_TEXT}; ")
    assert hint.get(when, NOTHING_RECORDED) in line


def test_ctrl_c_while_the_libraries_come_in_is_one_line(tmp_path):
    """A stand-in for a library that takes its time."""
    (tmp_path / "typer.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    code = "import sys; sys.argv = ['ecorl', *sys.argv[1:]]; from ecorl.cli import main; main()"
    for words, told in (
        (("doctor",), STOPPED_TEXT),
        (("run", "--config", "demo"), NOTHING_RECORDED),
        (("run", "--resume", "my run"), "ecorl run --resume 'my run'"),
        (("run", "--resume=run"), "ecorl run --resume=run"),
    ):
        ended, err = interrupted(code, *words, PYTHONPATH=f"{tmp_path}:{ROOT}")
        assert ended == cli.STOPPED
        line = one_line(err)
        assert line.startswith(f"ecorl: {STOPPED_TEXT}")
        assert line.endswith(told)


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
    a_run(tmp_path)
    args = [str(tmp_path) if a == "RUN" else a for a in args]
    allowed = ("pynvml",) if args[0] == "doctor" else ()  # the doctor asks the driver
    heavy = tuple(name for name in HEAVY if name not in allowed)
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=heavy), *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stderr.splitlines()[-1] == "0 []", done.stderr


def test_ctrl_c_inside_of_compiled_text_ends_with_the_exit_code_and_not_by_the_signal(tmp_path):
    code = (
        "from ecorl.cli.exits import end_stopped\n"
        "try:\n"
        "    exec('raise KeyboardInterrupt')\n"
        "except KeyboardInterrupt:\n"
        "    {end}\n"
    )
    codes = []
    for end in ("end_stopped()", "raise SystemExit(130)"):
        (tmp_path / "stopped.py").write_text(code.format(end=end))
        path = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[3]}"}
        done = subprocess.run([sys.executable, "-m", "stopped"], env=path, check=False)
        codes.append(done.returncode)
    assert codes == [130, -signal.SIGINT]  # the second is what it is for
