"""Names of reward models in roles: told apart whatever their folders are called."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("trl")

from roll_adapters.trl.reward import OTHER, role_names


@given(st.lists(st.sampled_from(["a", "a-0", "a-1", "other", "other-0", "b:c", " ", "ä"])))
def test_each_model_has_a_name_of_its_own_that_a_role_can_hold(names):
    found = role_names(names)
    assert len(set(found)) == len(names)
    assert OTHER not in found
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", name) for name in found)


def test_a_name_that_no_one_else_has_stays():
    assert role_names(["math", "code", "code"]) == ["math", "code-0", "code-1"]
    assert role_names(["a", "a", "a-1"]) == ["a-0", "a-2", "a-1"]
