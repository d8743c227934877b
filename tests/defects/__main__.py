"""Whether the tests find realistic defects in the product's code.

    python -m tests.defects [NAMES ...] [--all-tests] [--markdown]

Each patch of this folder is one defect; its first line says what goes wrong for the user. It is
applied to a copy of the last commit, where ``tests.quick`` then runs the tests that it reaches, or
``--all-tests`` those of ``make test`` up to the first failure. A table tells whether a test has
failed that passes without the patch, and which of them came first. Exit code 1 when a defect is not
found, or its patch does not apply any more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATCHES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.patch"))}

_PYTEST = (sys.executable, "-m", "pytest", "-q")
_QUICK = (sys.executable, "-m", "tests.quick", "--minutes", "3", "--exitfirst")
_ALL = (*_PYTEST, "-x", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "not deep")
_QUICK_LIMIT_S, _ALL_LIMIT_S = 1200.0, 5400.0
"""Where tests are stopped, s: several times what they take on a machine that does nothing else."""

_END_S = 10.0
"""How long interrupted tests may take to end the processes that they have started, s."""

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_NO_DEFECT = "--deselect=tests/unit/test_defects.py"
"""A patch that is applied already does not apply: that must not count as found."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests have made of a defect.

    Attributes:
        is_found: whether a test fails with it that passes without it.
        reason: the test that found it, or why none did.
        time_s: that it took, s.
    """

    is_found: bool
    reason: str
    time_s: float = 0.0


def failed_tests(output: str) -> list[str]:
    """The tests that failed by the summary of pytest, in its order.

    Args:
        output: of pytest, with reasons behind the tests or without.
    """
    return re.findall(
        r"^(?:FAILED|ERROR) (tests/\S+?(?:\[.*?\])?)(?: - .*)?$", output, re.MULTILINE
    )


def look_for(patch: Path, folder: Path, *, all_tests: bool) -> Verdict:
    """Run tests with a defect, and those that fail once more without it.

    Args:
        patch: the defect.
        folder: empty; takes the copy.
        all_tests: whether all tests run, and not those alone that the defect reaches.
    """
    copy, start_s = folder / "copy", time.monotonic()
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, copy], check=True)
    (copy / ".venv").symlink_to(sys.prefix)
    apply = ["git", "apply", str(patch)]
    applied = subprocess.run(apply, cwd=copy, capture_output=True, text=True)
    if applied.returncode:
        return Verdict(False, f"the patch does not apply: {applied.stderr.splitlines()[0]}")
    command, limit_s = (_ALL, _ALL_LIMIT_S) if all_tests else (_QUICK, _QUICK_LIMIT_S)
    code, output = _run(command, copy, limit_s)
    time_s = time.monotonic() - start_s
    if code is None:
        return Verdict(False, f"the tests were stopped after {limit_s:.0f} s", time_s)
    failed = failed_tests(output) if code else []
    subprocess.run([*apply, "--reverse"], cwd=copy, check=True)
    for test in failed:
        if _run((*_PYTEST, test), copy, limit_s)[0] == 0:
            return Verdict(True, test, time_s)
    if failed:
        return Verdict(False, f"without it the same tests fail: {failed[0]} ...", time_s)
    last = (output.splitlines() or [""])[-1]
    return Verdict(False, last if code == 0 else f"exit code {code}: {last}", time_s)


def _run(command: Sequence[str], copy: Path, limit_s: float) -> tuple[int | None, str]:
    """Run tests in a copy; the exit code, None where they were stopped, and what they print."""
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} {_NO_DEFECT}"
    own = {"PYTHONPATH": str(copy), "PYTEST_ADDOPTS": options}
    printed = copy.with_name("output.txt")
    with printed.open("w") as file:
        # A session of its own: all that the tests start can be ended with them.
        process = subprocess.Popen(
            command, cwd=copy, env=_ENVIRONMENT | os.environ | own, stdin=subprocess.DEVNULL,
            stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        code = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s)
        finally:
            if code is None:
                _end(process)
    return code, printed.read_text(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End tests and what they have started."""
    for sent in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


def row(name: str, verdict: Verdict, *, markdown: bool) -> str:
    """A row of the table.

    Args:
        name: of the defect.
        verdict: what the tests have made of it.
        markdown: whether the table is one of Markdown.
    """
    found = "found" if verdict.is_found else "NOT FOUND"
    if markdown:
        return f"| {name} | {found} | `{verdict.reason}` | {verdict.time_s:.0f} |"
    return f"{name:28}{found:12}{verdict.time_s:7.0f}  {verdict.reason}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.defects")
    parser.add_argument("names", nargs="*", metavar="NAMES", help="defects; by default all")
    parser.add_argument("--all-tests", action="store_true", help="not those alone that it reaches")
    parser.add_argument("--markdown", action="store_true", help="print a table of Markdown")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - PATCHES.keys():
        parser.error(f"no defect is called {', '.join(sorted(unknown))}: {', '.join(PATCHES)}")
    # So that the copy is removed and the tests are ended then, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    head = f"{'defect':28}{'':12}{'seconds':>7}  first test that fails"
    print(
        "| defect | | first test that fails | s |\n|---|---|---|---:|" if asked.markdown else head
    )
    names, n_found = asked.names or list(PATCHES), 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="defect-", ignore_cleanup_errors=True) as folder:
            verdict = look_for(PATCHES[name], Path(folder), all_tests=asked.all_tests)
        print(row(name, verdict, markdown=asked.markdown), flush=True)
        n_found += verdict.is_found
    print(f"\n{n_found} of {len(names)} found")
    return int(n_found < len(names))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
