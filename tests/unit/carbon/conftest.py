"""A local server in the place of a provider, for the feeds that ask one."""

from __future__ import annotations

import pytest

from tests.fakes.grid_server import GridServer


@pytest.fixture
def server(monkeypatch):
    """Answers what a test scripts; no proxy and no login of this user's comes between."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    for name in ("WATTTIME_USER", "WATTTIME_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    server = GridServer()
    yield server
    server.close()
