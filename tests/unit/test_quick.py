"""`make quick`: what changed, which tests it reaches in which order, and when it stops."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import grimp
import psutil
import pytest

from tests import quick
from tests.quick import Outcome

TESTS = {
    "tests/conftest.py": "import ecorl.ledger.writer\n",
    "tests/fakes/__init__.py": "",
    "tests/fakes/grids.py": "from ecorl.ledger.writer import Writer\n",
    "tests/pages/__init__.py": "",
    "tests/pages/markdown.py": "",
    "tests/pages/test_pages.py": "from tests.pages.markdown import pages\n",
    "tests/kernels/test_gemm.py": "",
    "tests/integration/test_run.py": "from ecorl.ledger import writer as w\n",
    "tests/unit/test_files.py": 'SCRIPT = """\n    from ecorl.ledger.writer import Writer\n"""\n',
    "tests/unit/ledger/conftest.py": "from tests.fakes.grids import grid\n",
    "tests/unit/ledger/ledger_rows.py": "from ecorl.ledger import (\n    Ledger,\n    writer,\n)\n",
    "tests/unit/ledger/test_rows.py": "from ledger_rows import row\n",
    "tests/unit/ledger/test_writer.py": "from ecorl.ledger import Ledger\n",
    "tests/unit/report/test_text.py": "import ecorl.report\n",
    "tests/unit/report/test_colours.py": "import ecorl.report.colours\nREAD = 'table.csv'\n",
    "tests/unit/sim/test_sim.py": "import ecorl\n",
}


@pytest.fixture
def importers():
    """Packages hand on what their modules define; the report's page reads the ledger."""
    found = {
        "ecorl": set(),
        "ecorl.files": {"ecorl.ledger.writer"},
        "ecorl.ledger": {"ecorl.report.page"},
        "ecorl.ledger.ledger": {"ecorl.ledger"},
        "ecorl.ledger.writer": {"ecorl.ledger.ledger"},
        "ecorl.report": set(),
        "ecorl.report.page": {"ecorl.report"},
        "ecorl.report.colours": set(),
        "hls_kernels": set(),
        quick.READER_OF_KERNELS: set(),
    }
    quick.add_tests(found, TESTS)
    return found


def reached(importers, *changed):
    paths = quick.reached_tests(list(changed), importers, TESTS)
    return [path.removeprefix("tests/").removesuffix(".py") for path in paths]


# ---------------------------------------------------------------- which tests


def test_the_nearest_tests_come_first(importers):
    assert reached(importers, "ecorl/ledger/writer.py") == [
        "unit/ledger/test_writer",  # two imports away, and it shares two words
        "unit/ledger/test_rows",
        "unit/test_files",  # imports it in a script
        "integration/test_run",
        "unit/report/test_text",
    ]


def test_distances_count_imports_but_not_what_a_package_hands_on(importers):
    found = quick.distances(importers, {"ecorl.ledger.writer"})
    assert found["ecorl.ledger.ledger"] == found["ecorl.ledger"] == 1
    assert found["ecorl.report.page"] == found["ecorl.report"] == 2
    assert found["tests.unit.ledger.ledger_rows"] == found["tests.integration.test_run"] == 1
    assert found["tests.unit.ledger.test_rows"] == 2
    assert "ecorl.files" not in found


def test_changed_tests_and_what_they_share_count_too(importers):
    assert reached(importers, "tests/unit/sim/test_sim.py") == ["unit/sim/test_sim"]
    assert reached(importers, "tests/unit/ledger/ledger_rows.py")[0] == "unit/ledger/test_rows"
    assert set(reached(importers, "tests/fakes/grids.py")) == {
        "unit/ledger/test_rows", "unit/ledger/test_writer"
    }  # fmt: skip
    assert len(reached(importers, "tests/conftest.py")) == sum("/test_" in path for path in TESTS)


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("ecorl/report/templates/page.html", ["unit/report/test_colours", "unit/report/test_text"]),
        ("ecorl/report/gone.py", ["unit/report/test_colours", "unit/report/test_text"]),
        ("hls_kernels/gemm/gemm.hpp", ["kernels/test_gemm"]),
        ("ecorl/README.md", ["pages/test_pages"]),
        ("tests/data/table.csv", ["unit/report/test_colours"]),
        ("Makefile", []),
    ],
)
def test_files_that_are_no_modules_count_as_their_package_or_by_their_name(importers, path, tests):
    assert reached(importers, path) == tests


def test_of_several_changed_files_each_has_its_nearest_tests_first(importers):
    both = reached(importers, "ecorl/ledger/writer.py", "ecorl/report/colours.py")
    assert both[:2] == ["unit/report/test_colours", "unit/ledger/test_writer"]


def test_the_projects_own_graph_leads_to_the_rooms_own_tests():
    importers, texts = quick.project_graph(quick.ROOT)
    first = quick.reached_tests(["ecorl/ledger/writer.py"], importers, texts)[:5]
    assert all(path.startswith("tests/unit/ledger/") for path in first)
    assert {quick.READER_OF_KERNELS, quick.READER_OF_PAGES} <= importers.keys()


# ---------------------------------------------------------------- what changed


@pytest.fixture
def repository(tmp_path):
    def git(*words):
        own = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", tmp_path, *own, *words], check=True, capture_output=True)

    git("init", "-q")
    for name in ("first", "second"):
        (tmp_path / name).write_text("1\n")
        git("add", "-A")
        git("commit", "-qm", name)
    return SimpleNamespace(folder=tmp_path, git=git)


def test_what_changed_is_staged_or_not_or_unknown_to_git(repository):
    folder = repository.folder
    assert quick.changed_paths(folder) == ["second"]  # the last commit
    (folder / "first").unlink()
    assert quick.changed_paths(folder) == ["first"]
    (folder / "first").write_text("2\n")
    (folder / "staged").write_text("3\n")
    repository.git("add", "staged")
    (folder / "näw").write_text("4\n")
    assert quick.changed_paths(folder) == ["first", "näw", "staged"]
    assert quick.changed_paths(folder, "HEAD~1") == ["first", "näw", "second", "staged"]


# ---------------------------------------------------------------- running


@pytest.fixture
def write(tmp_path):
    """Write a file of tests in a project of its own; returns its path."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow:\n  deep:\n")

    def written(name, text):
        (tmp_path / f"test_{name}.py").write_text(text)
        return str(tmp_path / f"test_{name}.py")

    return written


def test_the_time_box_ends_a_file_between_two_tests(write, monkeypatch):
    clock = SimpleNamespace(now=0.0, time=lambda: clock.now)
    monkeypatch.setattr(quick, "time", clock)
    late = "    quick.time.now += 6\n"
    path = write("late", f"from tests import quick\ndef test_a():\n{late}def test_b():\n{late}")
    assert quick.run_file(path, 20.0).is_whole
    clock.now = 0.0
    cut = quick.run_file(path, 6.0)
    assert (cut.is_whole, cut.has_failed) == (False, False)
    assert clock.now == 6.0
    assert quick.run_file(path, 6.0) is None


def test_files_run_in_a_process_and_tell_what_failed(write, monkeypatch):
    monkeypatch.setattr(quick, "N_PROCESSES", 1)  # what ends it has none beside it
    files = {
        "good": "def test_a(): pass\n",
        "wrong": "def test_a(): pass\ndef test_b(): assert 0, 'why it failed'\n",
        "unread": "import no_such_module\n",
        "marked": "import pytest\n@pytest.mark.slow\ndef test_a(): assert 0\n",
        "crash": "import os\ndef test_a(): os._exit(3)\n",
        "behind": "def test_a(): pass\n",
    }
    paths = [write(name, text) for name, text in files.items()]
    end_s = time.time() + 600
    found = {outcome.name: outcome for outcome in quick.run_tests(paths, end_s, end_s)}
    assert set(found) == {*paths[:3], paths[4]}
    good, wrong, unread, crash = (found[path] for path in [*paths[:3], paths[4]])
    assert (good.is_whole, good.has_failed) == (True, False)
    assert wrong.has_failed
    assert "why it failed" in wrong.output
    assert unread.has_failed
    assert "no_such_module" in unread.output
    assert crash.has_failed


def test_what_hangs_is_killed_at_the_end(write):
    path = write("hanging", "import time\ndef test_a(): time.sleep(3600)\n")
    before, end_s = set(multiprocessing.active_children()), time.time() + 0.3
    assert list(quick.run_tests([path], end_s + 3600, end_s)) == [Outcome(path, is_whole=False)]
    # By its number: who has waited for a process elsewhere leaves its object in the dark.
    left = []
    for child in set(multiprocessing.active_children()) - before:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(child.pid))
    assert not psutil.wait_procs(left, 240)[1]


def test_the_first_failure_ends_the_rest_where_that_is_asked_for(write):
    paths = [
        write("hanging", "import time\ndef test_a(): time.sleep(3600)\n"),
        write("wrong", "def test_a(): assert 0\n"),
        write("behind", "def test_a(): pass\n"),
    ]
    end_s = time.time() + 600
    (found,) = quick.run_tests(paths, end_s, end_s, exitfirst=True)
    assert (found.name, found.has_failed) == (paths[1], True)


def test_checks_are_those_that_the_changed_files_can_fail():
    assert quick.checks(["README.md", "Makefile"]) == {}
    own = quick.checks(["tests/quick.py", "tests/gone.py", "README.md"])
    assert own["lint"] == ["ruff", "check", "tests/quick.py"]
    assert set(own) == {"format", "lint"}
    assert set(quick.checks(["ecorl/errors.py"])) == {"format", "lint", "layers", "size", "types"}


def test_checks_run_until_the_time_is_up():
    python = sys.executable.rpartition("/")[2]
    commands = {
        "good": [python, "-c", "print(1)"],
        "wrong": [python, "-c", "import sys; sys.exit('why')"],
    }
    good, wrong = quick.run_checks(commands, time.time() + 600)
    assert not good.has_failed
    assert wrong == Outcome("wrong", has_failed=True, output="why\n")
    late = {"late": [python, "-c", "import time; time.sleep(3600)"]}
    assert list(quick.run_checks(late, time.time())) == [Outcome("late", is_whole=False)]


# ---------------------------------------------------------------- the command


@pytest.fixture
def command(monkeypatch):
    """The command where two tests are reached; returns exit codes by what its parts give back."""

    def run(checked, ran, *words):
        monkeypatch.setattr(quick, "changed_paths", lambda root, since: ["ecorl/edi.py"])
        monkeypatch.setattr(quick, "project_graph", lambda root: ({}, {}))
        monkeypatch.setattr(quick, "reached_tests", lambda *graph: ["a", "b"])
        monkeypatch.setattr(quick, "run_checks", lambda commands, end_s: iter(checked))
        monkeypatch.setattr(quick, "run_tests", lambda *_, **__: iter(ran))
        return quick.main(list(words))

    return run


def test_exit_codes_and_the_last_line(command, capsys, snapshot):
    assert command([Outcome("lint")], [Outcome("a"), Outcome("b")]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    lasts = [last]
    assert command([Outcome("types", is_whole=False)], [Outcome("a")], "--minutes", "0.1") == 0
    *_, last = capsys.readouterr().out.splitlines()
    lasts.append(last)
    snapshot(re.sub(r" \d+ s", " <time> s", "\n".join(lasts)))
    assert command([], [Outcome("a", has_failed=True, output="the reason")]) == 1
    out = capsys.readouterr().out
    assert "the reason" in out
    assert "failed: a" in out.splitlines()[-1]
    assert command([Outcome("lint", has_failed=True)], []) == 1


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--minutes", "0", "above 0"),
        ("--minutes", "x", "invalid"),
        ("--since", "no-such", "revision"),
    ],
)
def test_a_wrong_option_is_exit_code_2(option, value, told, capsys):
    with pytest.raises(SystemExit) as left:
        quick.main([option, value])
    assert left.value.code == 2
    assert told in capsys.readouterr().err


def test_nothing_changed_is_said(monkeypatch, capsys, snapshot):
    monkeypatch.setattr(quick, "changed_paths", lambda root, since: [])
    assert quick.main([]) == 0
    snapshot(capsys.readouterr().out)


def test_a_module_that_cannot_be_read_is_told(monkeypatch, capsys):
    error = grimp.exceptions.SourceSyntaxError("ecorl/edi.py", 3, "x =")

    def fail(root):
        raise error

    monkeypatch.setattr(quick, "changed_paths", lambda root, since: ["ecorl/edi.py"])
    monkeypatch.setattr(quick, "project_graph", fail)
    assert quick.main([]) == 1
    assert capsys.readouterr().out.endswith(f" {error}\n")
