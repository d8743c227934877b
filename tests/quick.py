"""The checks of what changed and the tests that it reaches, in a few minutes: ``make quick``.

    python -m tests.quick [--since REV] [--minutes 3] [--exitfirst]

What changed is what differs from REV by git, with files that git does not know yet; where nothing
differs from HEAD, it is the last commit. A test file is reached where it imports a changed module,
itself or through others. All that are reached run, the nearest first, on two processes until the
time is up, without tests marked ``slow`` or ``deep``. The checks run beside them.

Exit codes: 0 all that ran has passed, 1 something has failed, 2 an option is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Set
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ecorl", "roll_adapters", "benchmarks", "hls_kernels")
N_PROCESSES = 2
LAST_START = 0.9
"""Share of the time after which no test starts: one that is not marked slow ends in the rest."""
UNKNOWN_DISTANCE = 6
"""Of a test in a room's folder that imports nothing of the room: it may start it as a command."""

# What stands for files that are no modules, where no import tells who reads them.
READER_OF_PAGES = "tests.pages.markdown"
READER_OF_KERNELS = "ecorl.engines.fpga.csim.build"

_IMPORT = re.compile(r"^ *(?:from|import) ([\w.]+)(?: import (\([^)]*\)|.*))?", re.MULTILINE)

Importers = dict[str, set[str]]
"""The modules that import a module, by its name."""


# ---------------------------------------------------------------- what changed


def changed_paths(root: Path, since: str = "HEAD") -> list[str]:
    """Files that differ from a revision, or else those of the last commit if it is HEAD.

    Raises:
        CalledProcessError: git does not know the revision, or `root` is none of its folders.
    """
    found = _git(root, "diff", "--name-only", "--no-renames", since, "--")
    found += _git(root, "ls-files", "--others", "--exclude-standard")
    if not found and since == "HEAD":
        last = ("show", "-m", "--first-parent", "--format=", "--name-only", "--no-renames")
        found = _git(root, *last, since)
    return sorted(set(found))


def _git(root: Path, *words: str) -> list[str]:
    command = ["git", "-C", str(root), "-c", "core.quotePath=false", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


# ---------------------------------------------------------------- which tests it reaches


def _module_of(path: str) -> str:
    """The module whose source a file is, by the path from the project's folder."""
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")


def add_tests(importers: Importers, texts: dict[str, str]) -> None:
    """Add the imports of the tests, also those in scripts that they write or start.

    Args:
        importers: of the modules that are tested.
        texts: of all Python files of the tests, by path.
    """
    importers |= {_module_of(path): set() for path in texts}
    # Folders without __init__.py are no packages: pytest puts them on the path.
    helpers = {
        Path(path).stem: _module_of(path)
        for path in texts
        if not path.endswith("conftest.py")
        and str(Path(path).with_name("__init__.py")) not in texts
    }
    for path, text in texts.items():
        for folder in Path(path).parents:
            if (conftest := str(folder / "conftest.py")) in texts:
                importers[_module_of(conftest)].add(_module_of(path))
        # All tests would import what the uppermost one does.
        if path != "tests/conftest.py":
            for module in _imports(text, importers.keys(), helpers):
                importers[module].add(_module_of(path))


def _imports(text: str, modules: Set[str], helpers: dict[str, str]) -> set[str]:
    found = set()
    for package, names in _IMPORT.findall(text):
        package = helpers.get(package, package)
        found |= {f"{package}.{name}" for name in re.findall(r"\w+", names)} & modules or {package}
    return found & modules


def changed_modules(path: str, importers: Importers) -> set[str]:
    """The modules as which a changed file counts: of a file that is none, those of its package."""
    module = _module_of(path)
    if path.endswith(".md"):
        return {READER_OF_PAGES}
    if path.endswith(".py") and module in importers:
        return {module}
    folders = [".".join(folder.parts) for folder in Path(path).parents]
    package = next((folder for folder in folders if folder in importers), "tests")
    if package == "tests":
        return set()
    inside = {other for other in importers if other.rpartition(".")[0] == package}
    return {package} | inside | ({READER_OF_KERNELS} if package == "hls_kernels" else set())


def distances(importers: Importers, changed: set[str]) -> dict[str, int]:
    """By how many imports each module reaches a changed one.

    A package that hands on what its modules define lies no farther off than these.
    """
    found, waiting = dict.fromkeys(changed, 0), deque(changed)
    while waiting:
        module = waiting.popleft()
        for importer in importers.get(module, ()):
            is_own = module.startswith(f"{importer}.")
            distance = found[module] + (not is_own)
            if distance < found.get(importer, distance + 1):
                found[importer] = distance
                (waiting.appendleft if is_own else waiting.append)(importer)
    return found


def reached_tests(changed: list[str], importers: Importers, texts: dict[str, str]) -> list[str]:
    """The test files that changed files reach, the nearest first.

    Args:
        changed: paths of the files.
        importers: of each module.
        texts: of all Python files of the tests, by path.
    """
    nearest: dict[str, tuple[int, int, str]] = {}
    for path in changed:
        found = distances(importers, changed_modules(path, importers))
        for test in (test for test in texts if Path(test).name.startswith("test_")):
            distance = found.get(_module_of(test))
            if not path.endswith(".py") and Path(path).name in texts[test]:
                distance = 1
            elif distance is None and _place(test)[0] == _place(path)[0]:
                distance = UNKNOWN_DISTANCE
            if distance is not None:
                rank = _rank(path, test, distance)
                nearest[test] = min(rank, nearest.get(test, rank))
    return sorted(nearest, key=lambda test: nearest[test])


def _rank(path: str, test: str, distance: int) -> tuple[int, int, str]:
    """By what tests are ordered that a changed file reaches.

    It is the distance by imports, less one for each word that the two paths share (room, folders
    and names), so that of many tests that import a module those come first that are about it. Of
    equal ones the room's own come first, and those that train or serve last.
    """
    (room, words), (tested, test_words) = _place(path), _place(test)
    later = 0 if tested == room else 1 if tested.startswith("unit") else 2
    return (-100 if test == path else distance - len(words & test_words)), later, test


def _place(path: str) -> tuple[str, set[str]]:
    """The folder of tests in which a file's own ones lie, and the words of its path."""
    top, *inside = Path(path).with_suffix("").parts
    parts = {"tests": [], "ecorl": ["unit"], "hls_kernels": ["kernels"]}.get(top, ["unit", top])
    parts = parts + [part.removeprefix("test_") for part in inside]
    room = "/".join(parts[: 2 if parts[0] == "unit" else 1])
    return room, set("_".join(parts).split("_"))


# ---------------------------------------------------------------- running them


@dataclass(frozen=True)
class Outcome:
    """How a test file or a check ended.

    Attributes:
        name: of the check, or the path of the file.
        has_failed: whether something in it did.
        is_whole: whether the time was enough for all of it.
        output: printed where it failed.
    """

    name: str
    has_failed: bool = False
    is_whole: bool = True
    output: str = ""


class TimeBox:
    """Plugin that ends a session of pytest between two tests, once the time is up."""

    def __init__(self, end_s: float) -> None:
        self._end_s = end_s
        self.has_cut = self.has_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.has_failed |= report.failed

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if nextitem is not None and time.time() >= self._end_s:
            self.has_cut = True
            item.session.shouldstop = "the time is up"


def run_file(path: str, end_s: float) -> Outcome | None:
    """Run the tests of a file that are neither slow nor deep, until a time of the clock, s.

    Returns:
        None if no test was begun.
    """
    if time.time() >= end_s:
        return None
    box, output = TimeBox(end_s), io.StringIO()
    options = ["-m", "not deep and not slow", "-p", "no:xdist", "-p", "no:cacheprovider"]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main([*options, path], plugins=[box])
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        return None
    has_failed = box.has_failed or not (code == pytest.ExitCode.OK or box.has_cut)
    return Outcome(path, has_failed, not box.has_cut, output.getvalue())


def run_tests(
    paths: list[str], last_start_s: float, end_s: float, *, exitfirst: bool = False
) -> Iterator[Outcome]:
    """Run test files in this order on several processes.

    Args:
        paths: of the files.
        last_start_s: when the last test may start, s of the clock.
        end_s: when whatever still runs is killed, with all that it started, s of the clock.
        exitfirst: whether they end with the first file in which something fails.
    """
    before = set(multiprocessing.active_children())
    # Each is the leader of a group: what its tests started can be ended with it.
    processes = ProcessPoolExecutor(
        N_PROCESSES, multiprocessing.get_context("spawn"), initializer=os.setsid
    )
    runs = {processes.submit(run_file, path, last_start_s): path for path in paths}
    left = list(paths)
    try:
        for run in as_completed(runs, timeout=max(0.0, end_s - time.time())):
            outcome = run.result()
            left.remove(runs[run])
            if outcome is not None:
                yield outcome
                if exitfirst and outcome.has_failed:
                    end_s = time.time()
                    break
    except TimeoutError:
        yield from (Outcome(path, is_whole=False) for path in left[:N_PROCESSES])
    except BrokenProcessPool:
        names = " or ".join(left[:N_PROCESSES])
        yield Outcome(names, has_failed=True, output="A test has ended the process that ran it.")
    finally:
        children = set(multiprocessing.active_children()) - before
        processes.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.join(max(0.0, end_s - time.time()))
            child.kill()
            with contextlib.suppress(ProcessLookupError):  # nothing is left of its group
                os.killpg(child.pid or 0, signal.SIGKILL)


# ---------------------------------------------------------------- the checks


def checks(changed: list[str]) -> dict[str, list[str]]:
    """The commands of the checks that changed files can fail, by what they are called."""
    sources = [path for path in changed if path.endswith(".py") and (ROOT / path).is_file()]
    found = {}
    if sources:
        found["format"] = ["ruff", "format", "--check", *sources]
        found["lint"] = ["ruff", "check", *sources]
    if any(Path(path).parts[0] in PACKAGES for path in changed):
        found["layers"] = ["lint-imports"]
        found["size"] = ["python", "-m", "tests.size"]
        found["types"] = ["mypy"]
    return found


def run_checks(commands: dict[str, list[str]], end_s: float) -> Iterator[Outcome]:
    """Run checks one behind the other, until a time of the clock, s."""
    for name, (program, *words) in commands.items():
        command = [str(Path(sys.executable).with_name(program)), *words]
        try:
            done = subprocess.run(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=max(0.0, end_s - time.time()), check=False,
            )  # fmt: skip
            yield Outcome(name, done.returncode != 0, output=done.stdout)
        except subprocess.TimeoutExpired:
            yield Outcome(name, is_whole=False)


# ---------------------------------------------------------------- the command


def project_graph(root: Path) -> tuple[Importers, dict[str, str]]:
    """The importers of each module, and the texts of all files of the tests."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    importers = {m: set(graph.find_modules_that_directly_import(m)) for m in graph.modules}
    found = sorted((root / "tests").rglob("*.py"))
    texts = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in found}
    add_tests(importers, texts)
    return importers, texts


def main(words: list[str]) -> int:
    """Run what a change reaches; returns the exit code."""
    begin_s = time.time()
    parser = argparse.ArgumentParser(prog="python -m tests.quick", description=__doc__)
    parser.add_argument("--since", default="HEAD", metavar="REV", help="what changed since it")
    parser.add_argument("--minutes", type=float, default=3.0, help="when to stop, 3 if not given")
    parser.add_argument("--exitfirst", action="store_true", help="end with the first that fails")
    options = parser.parse_args(words)
    if not options.minutes > 0:
        parser.error("--minutes must be above 0")
    try:
        changed = changed_paths(ROOT, options.since)
    except subprocess.CalledProcessError as error:
        parser.error(error.stderr.strip())
    if not changed:
        print(f"quick: nothing differs from {options.since}")
        return 0
    try:
        tests = reached_tests(changed, *project_graph(ROOT))
    except grimp.exceptions.SourceSyntaxError as error:
        print(f"quick: failed: {error}")
        return 1
    length_s = 60 * options.minutes
    last_start_s, end_s = begin_s + LAST_START * length_s, begin_s + length_s

    def run() -> list[Outcome]:
        outcomes = run_tests(tests, last_start_s, end_s, exitfirst=options.exitfirst)
        return list(map(_printed, outcomes))

    def check() -> list[Outcome]:
        return list(map(_printed, run_checks(checks(changed), end_s)))

    if options.exitfirst:
        ran = run()
        checked = [] if any(outcome.has_failed for outcome in ran) else check()
    else:
        with ThreadPoolExecutor(1) as thread:
            checking = thread.submit(check)
            ran = run()
        checked = checking.result()
    return sum_up(checked, ran, len(tests), time.time() - begin_s)


def _printed(outcome: Outcome) -> Outcome:
    """Print how a check or a file ended, with its output where it failed."""
    state = "failed" if outcome.has_failed else "passed" if outcome.is_whole else "cut off"
    print(f"{state:8}{outcome.name}", flush=True)
    if outcome.has_failed:
        print(outcome.output, flush=True)
    return outcome


def sum_up(checked: list[Outcome], ran: list[Outcome], n_reached: int, took_s: float) -> int:
    """Print all of it in one line; returns the exit code."""
    failed = [outcome.name for outcome in checked + ran if outcome.has_failed]
    cut = [outcome.name for outcome in checked + ran if not outcome.is_whole]
    parts = [f"{len(checked)} checks and {len(ran)} test files in {took_s:.0f} s"]
    passed = "none failed" if cut else "all passed"
    parts.append(f"failed: {' '.join(failed)}" if failed else passed)
    parts += [f"not to the end: {' '.join(cut)}"] if cut else []
    parts += [f"left out: {n_left} reached farther off"] if (n_left := n_reached - len(ran)) else []
    print(f"quick: {'; '.join(parts)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
