"""``ecorl runs``: what the list says of runs, beside what their reports say."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import time

import pytest

from ecorl import cli
from ecorl.cli.runs import run_list_lines
from ecorl.ledger import LEDGER_FILE
from ecorl.records import EventKind, Provenance, Stage
from ecorl.report.render.numbers import figure
from ecorl.report.run_list import UNREADABLE, list_runs


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process: exit code and both streams."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["ecorl", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        return caught.value.code, streams.out, streams.err

    return call


@pytest.fixture
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def everything_below(folder):
    """The files and when they were written; None for what SQLite's readers share of a live file."""
    return {p: None if p.name.endswith("-shm") else p.stat().st_mtime_ns for p in folder.rglob("*")}


def done(run, t_s=1020.0):
    run.clock(t_s)
    run.ledger.event(EventKind.FINISH, "")
    run.ledger.close()
    return run


def measured(run, t_s=1000.0):
    """20 s of a GPU at 100 W, of which 10 s are one generation of 100 tokens."""
    run.power("gpu0", range(int(t_s), int(t_s) + 21), 100.0)
    run.ran(Stage.GENERATION, (t_s, t_s + 10), 1000.0)
    run.ledger.metric(1, "reward", 0.5)
    return run


def row_of(lines, name):
    (line,) = [line for line in lines if line.split()[:1] == [name]]
    return line.split()


def test_a_run_has_one_line_with_the_figures_of_its_report(run_of, command, tmp_path, utc):
    run = measured(run_of("a"))
    run.recorded_config("[trainer]\nsteps = 7\n")
    run.clock(1020.0)
    run.ledger.event(EventKind.FINISH, "")
    spent = run.report().spending.columns[-1]
    run.ledger.close()
    code, out, err = command("runs", tmp_path)
    assert (code, err) == (0, "")
    heads, line = out.splitlines()
    assert heads.split() == ["run", "started", "state", "steps", "J", "measured", "tokens/J"]
    told = [figure(spent.energy_j), figure(spent.tokens_per_joule)]
    assert line.split() == ["a", "2027-01-15", "08:16", "finished", "1/7", *told]
    assert spent.energy_j == pytest.approx(2050.0)
    assert max(map(len, out.splitlines())) <= 80


def test_figures_of_two_provenances_never_share_a_column(run_of, tmp_path, utc, snapshot):
    done(measured(run_of("a")))
    run = run_of("b")
    run.ran(Stage.GENERATION, (1000, 1010), 40.0, provenance=Provenance.MODELLED)
    done(run)
    done(run_of("c"))  # of which no energy is known
    lines = run_list_lines(list_runs(tmp_path), tmp_path, 80)
    assert row_of(lines, "c")[-2:] == ["-", "-"]
    snapshot("\n".join(lines))


def test_what_is_only_a_bound_is_marked(run_of, tmp_path):
    run = run_of("a")
    run.ran(Stage.GENERATION, (1000, 1010), 40.0)
    run.ran(Stage.ACTOR_TRAIN, (1010, 1015), None)
    done(run)
    lines = run_list_lines(list_runs(tmp_path), tmp_path, 80)
    assert row_of(lines, "a")[-4:] == ["≥", "40.0", "≤", "2.50"]
    assert "at least" in lines[-1]


def test_the_newest_come_first_and_older_ones_are_counted(run_of, command, tmp_path, snapshot):
    for name in ("a", "c", "b"):
        run = run_of(name)
        done(run)
    for name, t_s in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        _begun(tmp_path / name, t_s)
    code, out, _ = command("runs", tmp_path, "--newest", 2)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["a", "c"]
    snapshot(" ".join(" ".join(out.splitlines()[3:]).split()))
    code, out, _ = command("runs", tmp_path, "--all", "--json")
    assert [run["name"] for run in json.loads(out)["runs"]] == ["a", "c", "b"]
    assert json.loads(out)["n_older"] == 0


def _begun(folder, unix_s):
    with contextlib.closing(sqlite3.connect(folder / LEDGER_FILE)) as db, db:
        db.execute("UPDATE attempt SET unix_anchor_s = ?", (unix_s,))


def test_a_run_without_an_end_and_one_that_was_stopped(run_of, tmp_path):
    run = run_of("a")
    run.ledger.event(EventKind.START, "grpo by TRL")
    run.ledger.close()
    run = run_of("b")
    run.ledger.event(EventKind.STOP, "signal 15")
    run.ledger.close()
    found = {run.name: run for run in list_runs(tmp_path).runs}
    assert (found["a"].state, found["a"].why) == ("killed", None)
    assert (found["b"].state, found["b"].why) == ("stopped", "signal 15")
    assert found["b"].energy_j is None


def test_one_broken_ledger_costs_its_own_line_alone(run_of, command, tmp_path, utc, snapshot):
    done(measured(run_of("a")))
    for name, content in (("b", b"garbage"), ("c", b"")):
        (tmp_path / name).mkdir()
        (tmp_path / name / LEDGER_FILE).write_bytes(content)
    code, out, err = command("runs", tmp_path)
    assert (code, err) == (0, "")
    assert row_of(out.splitlines(), "a")[3] == "finished"
    snapshot(out)
    found = {run["name"]: run for run in json.loads(command("runs", tmp_path, "--json")[1])["runs"]}
    assert (found["b"]["state"], found["b"]["energy_j"]) == (UNREADABLE, None)
    assert str(tmp_path) not in found["b"]["why"]


def test_runs_are_found_a_few_folders_deep_and_a_run_lists_itself(run_of, command, tmp_path):
    (tmp_path / "study" / "day").mkdir(parents=True)
    run = run_of("study/day/a")
    done(run)
    assert [r.name for r in list_runs(tmp_path).runs] == ["study/day/a"]
    code, out, _ = command("runs", run.folder)
    assert code == 0
    assert row_of(out.splitlines(), "a")
    (tmp_path / "link").symlink_to(tmp_path)  # a circle
    assert len(list_runs(tmp_path).runs) == 1


def test_the_default_folder_and_those_without_runs(command, monkeypatch, tmp_path, snapshot):
    monkeypatch.chdir(tmp_path)
    code, out, err = command("runs")
    assert (code, out) == (2, "")
    snapshot(err, "no folder")
    (tmp_path / "runs").mkdir()
    code, out, err = command("runs")
    assert (code, err) == (0, "")
    snapshot(out, "no runs")


def test_a_list_writes_nothing_not_even_beside_a_killed_run(run_of, command, tmp_path):
    done(measured(run_of("a")))
    child = os.fork()
    if child == 0:  # dies with its newest rows in the second file of its ledger
        run = measured(run_of("b"))
        run.ledger.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "b" / (LEDGER_FILE + "-wal")).is_file()
    before = everything_below(tmp_path)
    code, out, _ = command("runs", tmp_path)
    assert code == 0
    assert "2,050" in row_of(out.splitlines(), "a")
    assert row_of(out.splitlines(), "b")
    assert everything_below(tmp_path) == before
