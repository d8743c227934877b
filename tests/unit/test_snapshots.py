"""Recorded texts belong to tests that there are, and a text that has changed is seen."""

from __future__ import annotations

import ast

import pytest

from tests.snapshots import FOLDER, TESTS, difference, neutral, read, write


def test_each_recorded_text_is_of_a_test():
    files = sorted(FOLDER.rglob("*.txt"))
    for path in files:
        source = (TESTS / path.relative_to(FOLDER)).with_suffix(".py")
        tree = ast.parse(source.read_text("utf-8"))
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        tests = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
        named = {name.split("[")[0].split(" ")[0] for name in read(path)}
        assert named <= tests, path
    assert files


def test_texts_are_read_as_they_were_written(tmp_path):
    texts = {"test_b": "one\n\ntwo\n", "test_a[x y] about": "=== is no head in a line\n"}
    texts["test_a[x y] about"] = "of its own\n"
    write(tmp_path / "below" / "test_x.txt", texts)
    assert read(tmp_path / "below" / "test_x.txt") == texts
    assert read(tmp_path / "none.txt") == {}


def test_what_differs_between_runs_is_hidden_and_spaces_at_the_end_are_no_words(tmp_path):
    run = tmp_path / "run"
    text = f"\nin {run}:  \n  a\n"
    assert neutral(text, {"tmp_path": tmp_path, "run": run}) == "in <run>:\n  a\n"


def test_a_changed_text_and_one_that_nobody_has_recorded_are_told(tmp_path):
    path = tmp_path / "test_x.txt"
    write(path, {"test_a": "a\nb\n"})
    assert difference(path, "test_a", "a\nb\n") == ""
    assert "-b\n+c" in difference(path, "test_a", "a\nc\n")
    assert difference(path, "test_b", "a\n") == "no text is recorded for 'test_b'"


@pytest.mark.parametrize(
    ("now", "before", "is_same"),
    [
        ("saves 12.4 % or 1,204 g", "saves 12.3 % or 1,205 g", True),
        ("saves 10.0 %", "saves  9.9 %", True),
        ("until 00:08", "until 00:07", True),
        ("saves 12.5 %", "saves 12.3 %", False),
        ("saves 12.4 g", "saves 12.4 %", False),
        ("12.4 % saved", "saved 12.4 %", False),
        ("12 rows are late", "11 rows are late", False),
        ("gpu1 is lost", "gpu2 is lost", False),
        ("of v0.11.3", "of v0.11.2", False),
    ],
)
def test_figures_may_be_one_off_in_their_last_digit_and_words_nothing(
    tmp_path, now, before, is_same
):
    write(tmp_path / "test_x.txt", {"test_a": f"{before}\n"})
    assert (difference(tmp_path / "test_x.txt", "test_a", f"{now}\n") == "") == is_same


def test_a_text_is_the_one_that_was_recorded(snapshot, tmp_path):
    snapshot(f"in {tmp_path}\n", "of a folder")
    snapshot("counts: 3", count=3)
