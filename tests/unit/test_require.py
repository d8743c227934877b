"""ECORL_REQUIRE turns a skip for want of a tool into a failure."""

from __future__ import annotations

import pytest

from tests.conftest import demand


def test_absent_tool_skips_with_its_name(monkeypatch):
    monkeypatch.delenv("ECORL_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-tool"):
        demand("no-such-tool")


def test_absent_required_tool_fails(monkeypatch):
    monkeypatch.setenv("ECORL_REQUIRE", "gxx,no-such-tool")
    with pytest.raises(pytest.fail.Exception, match="ECORL_REQUIRE"):
        demand("no-such-tool")


def test_present_tool_passes(monkeypatch):
    monkeypatch.setenv("ECORL_REQUIRE", "python3")
    demand("python3")
