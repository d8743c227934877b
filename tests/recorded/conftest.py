"""``pytest tests/recorded --renew`` records anew, and lists each figure that differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recorded.outputs import CLOSE, differences, renew

SHOWN = 20
"""Differences of a file that a failing test shows."""


_RENEWED = pytest.StashKey[list[str]]()


def pytest_configure(config):
    config.stash[_RENEWED] = []


def pytest_terminal_summary(terminalreporter, config):
    if config.stash[_RENEWED]:
        terminalreporter.section("recorded anew")
        for line in config.stash[_RENEWED]:
            terminalreporter.write_line(line)


@pytest.fixture
def recorded(request):
    """Compares an output with the file that holds the recorded one, or writes it there."""

    def compare(now: str, path: Path, close: float = CLOSE) -> None:
        if request.config.getoption("--renew", False):
            told = renew(path, now, close)
            request.config.stash[_RENEWED] += [f"{path.parent.name}/{line}" for line in told]
            return
        told = differences(now, path.read_text("utf-8"), path.name, close)
        assert not told, "\n".join([f"{len(told)} differ from {path}:", *told[:SHOWN]])

    return compare
