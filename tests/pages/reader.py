"""Runs commands of the pages as a reader types them: in one folder, in order."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from tests import forks
from tests.pages.markdown import ROOT, PageCommand
from tests.pages.treatment import Treatment

LIMIT_S = 900.0
"""Longest time of a command, s: one that hangs ends the pass."""

_EXAMPLES = ROOT / "roll_adapters" / "examples"


class Reader:
    """A reader's folder, and the commands that were typed in it.

    Args:
        folder: empty; the commands' files are left there.
        forks: whether a command of ecorl is a fork of a process that has loaded the framework.

    Attributes:
        outputs: standard output of each command by its text, or its errors where there is none.
        times_s: how long each took, s.
    """

    def __init__(self, folder: Path, *, forks: bool = False) -> None:
        self._folder, self._forks = folder, forks
        self._running: list[tuple[PageCommand, subprocess.Popen[str], IO[str]]] = []
        self.outputs: dict[str, str] = {}
        self.times_s: dict[str, float] = {}
        own = {"COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._environment = os.environ | own | {"PATH": path}
        for name in ("openrlhf", "roll"):
            files = shutil.ignore_patterns("*.py", "__pycache__")
            shutil.copytree(_EXAMPLES / name, folder / "examples" / name, ignore=files)

    def type(self, command: PageCommand, treatment: Treatment | None, more: str = "") -> str:
        """Run a command; returns what is wrong with how it ended, empty if nothing is.

        Args:
            command: of a page.
            treatment: what it must do.
            more: further options.
        """
        words = shlex.split(f"{command.text} {more}")
        if words[0] == "export":
            self._environment |= dict(word.split("=", 1) for word in words[1:])
            return ""
        folder = ROOT if treatment.at_root else self._folder_of(command)
        begun = time.monotonic()
        if treatment.waits_for:
            return self._start(command, words, folder, treatment.waits_for)
        try:
            done = self._run(words, folder)
        except FileNotFoundError:
            return f"{words[0]} is not there"
        except subprocess.TimeoutExpired:
            return f"did not end in {LIMIT_S:.0f} s"
        self.times_s[command.text] = time.monotonic() - begun
        self.outputs[command.text] = done.stdout or done.stderr  # progress is on the latter
        wrong = _wrong(done.returncode, done.stderr, treatment)
        return wrong and f"{wrong}\n{done.stdout}{done.stderr}"

    def _run(self, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        if self._forks and words[0] == "ecorl":
            command = ("-m", "ecorl.cli", *words[1:])
            return forks.run(*command, cwd=folder, env=self._environment, timeout=LIMIT_S)
        return subprocess.run(
            words, cwd=folder, env=self._environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def end_page(self) -> list[str]:
        """End the commands that still run; returns what is wrong with how they ended."""
        found = []
        for command, process, output in self._running:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            output.seek(0)
            self.outputs[command.text] = output.read()
            output.close()
            if code:
                found.append(f"{command}: exit code {code}\n{self.outputs[command.text]}")
        self._running.clear()
        return found

    def _start(self, command: PageCommand, words: list[str], folder: Path, mark: str) -> str:
        path = self._folder / f"output-{len(self._running)}.txt"
        output = path.open("w+", encoding="utf-8")
        process = subprocess.Popen(
            words, cwd=folder, env=self._environment, stdout=output, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._running.append((command, process, output))
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            if mark in path.read_text("utf-8"):
                return ""
            time.sleep(0.05)
        return f"printed no {mark!r}:\n{path.read_text('utf-8')}"

    def _folder_of(self, command: PageCommand) -> Path:
        """The folder of a page on which commands are typed, else the reader's own."""
        inside = "roll_adapters/examples/"
        if command.page.startswith(inside):
            return self._folder / "examples" / Path(command.page).parent.name
        return self._folder


def _wrong(code: int, errors: str, treatment: Treatment) -> str:
    if code == 0 and treatment.or_succeeds:
        return ""
    if code != treatment.code:
        return f"exit code {code}, and not {treatment.code}"
    if treatment.line and not re.search(treatment.line, errors):
        return f"no line on standard error matches {treatment.line!r}"
    return ""
