"""The defects that the tests have to find: their patches apply, and what is read of pytest."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.defects.__main__ import PATCHES, ROOT, failed_tests

NAMES = [
    "energy-of-another-device",
    "fallback-row-twice",
    "forecast-reads-the-future",
    "guard-off",
    "int8-off-by-one",
    "join-by-row-order",
    "late-answer-accepted",
    "ledger-row-twice",
    "missing-as-0",
    "pause-ignored",
    "provenance-upgraded",
    "resume-from-wrong-step",
    "seed-ignored",
    "stale-feed-as-fresh",
    "temperature-dropped",
    "tokens-with-padding",
    "width-without-rebroadcast",
    "wrong-unit",
]


def test_there_are_these_defects():
    assert list(PATCHES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_patch_is_small_says_what_goes_wrong_and_applies(name):
    said, _, diff = PATCHES[name].read_text("utf-8").partition("\n\ndiff --git a/")
    assert said.endswith(".")
    assert "\n" not in said
    changed = [one for one in diff.splitlines() if re.match(r"[+-](?!\+\+|--)", one)]
    assert 1 <= len(changed) <= 6
    check = ["git", "apply", "--check", str(PATCHES[name])]
    found = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_failed_tests_are_read_from_the_summary():
    output = """
        FAILED tests/unit/test_within.py::test_text - no line of the summary
FAILED tests/unit/test_a.py::test_plain - AssertionError: assert 1 == 2
FAILED tests/unit/test_a.py::test_case[one - two] - ValueError
ERROR tests/unit/test_b.py::test_fixture
ERROR tests/unit/test_c.py - ImportError
3 failed, 1 error in 1.00s
"""
    assert failed_tests(output) == [
        "tests/unit/test_a.py::test_plain",
        "tests/unit/test_a.py::test_case[one - two]",
        "tests/unit/test_b.py::test_fixture",
        "tests/unit/test_c.py",
    ]
