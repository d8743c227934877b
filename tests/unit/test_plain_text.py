"""Terminals and file systems without Unicode: readable lines, and paths refused by their cause."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ecorl.errors import ConfigError
from ecorl.plain_text import as_read, line_at, plain, text_refusal
from ecorl.runtime.runs.record import check_writable

ROOT = Path(__file__).parents[2]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": "dumb"}
LATIN_1 = "w\udcf6"
"""A name whose bytes are no UTF-8."""


def python(*args, cwd):
    """A process to which all text is ASCII."""
    env = {**os.environ, **ASCII, "PYTHONPATH": str(ROOT)}
    env.pop("PYTHONIOENCODING", None)
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=env,
        capture_output=True,
        encoding="ascii",
        timeout=240,
    )


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("≥ 4 µJ ± 1 … gCO₂", "ascii", ">= 4 uJ +- 1 ... gCO2"),
        ("≥ 4 µJ ± 1", "latin-1", ">= 4 µJ ± 1"),
        ("läufe", "ascii", r"l\xe4ufe"),
        ("läufe", "utf-8", "läufe"),
        ("l\udcc3\udca4ufe", "ascii", r"l\xe4ufe"),
        ("l\udcc3\udca4ufe", "utf-8", "läufe"),
        (LATIN_1, "ascii", r"w\udcf6"),
        (LATIN_1, "utf-8", r"w\udcf6"),
        ("雪 ╭─╮", "ascii", r"\u96ea +-+"),
        ("ä ≥ ₂", "cp1252", "ä >= 2"),
    ],
)
def test_what_an_encoding_lacks_has_a_plain_form(text, encoding, shown):
    assert plain(text, encoding) == shown


def test_bytes_of_utf8_are_read_as_such():
    assert as_read("l\udcc3\udca4ufe") == as_read("läufe") == "läufe"
    assert as_read(LATIN_1) == LATIN_1
    with pytest.raises(UnicodeEncodeError) as caught:
        f"a\nb {LATIN_1}\nc".encode()
    assert line_at(caught.value) == f"b {LATIN_1}"


@pytest.mark.skipif(sys.getfilesystemencoding() != "utf-8", reason="paths are no UTF-8 here")
def test_a_path_that_is_no_text_is_refused(tmp_path, monkeypatch):
    assert text_refusal("läufe") is None
    assert "UTF-8" in text_refusal(LATIN_1)
    try:
        (tmp_path / LATIN_1).mkdir()
    except OSError:
        pytest.skip("this file system takes no such name")
    monkeypatch.chdir(tmp_path / LATIN_1)
    with pytest.raises(ConfigError, match=r"run_dir = .*/runs/a': .*UTF-8"):
        check_writable(Path("runs/a"))
    assert not list(Path().iterdir())


def test_a_loop_in_a_process_of_ascii_is_refused_in_one_line(tmp_path, told):
    (tmp_path / "c.toml").write_text('name = "a"\nrun_dir = "läufe/a"\n', "utf-8")
    code = "import ecorl\nwith ecorl.measure('c.toml'): pass"
    done = python("-c", code, cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    told(last)
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_a_loop_below_a_folder_that_is_no_text_is_refused_and_leaves_nothing(tmp_path, told):
    folder = tmp_path / "läufe"
    folder.mkdir()
    (folder / "c.toml").write_text('name = "a"\n', "utf-8")
    code = "import ecorl\nwith ecorl.measure('c.toml'): pass"
    done = python("-c", code, cwd=folder)
    told(done.stderr.splitlines()[-1])
    assert [path.name for path in folder.iterdir()] == ["c.toml"]


@pytest.mark.parametrize(
    "args",
    [
        ["run", "--config", "grün.toml"],
        ["run", "--config", "demo", "--set", "run_dir=läufe"],
        ["demo", "models", "läufe"],
        ["report", "läufe"],
    ],
    ids=["config", "override", "folder", "run"],
)
def test_commands_in_a_process_of_ascii_say_the_cause_in_one_line(tmp_path, told, args):
    (tmp_path / "grün.toml").write_text('name = "a"\nrun_dir = "läufe"\n', "utf-8")
    done = python("-m", "ecorl.cli", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    told(done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["grün.toml"]
