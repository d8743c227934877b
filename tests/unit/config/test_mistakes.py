from __future__ import annotations

import pytest

from ecorl.config.mistakes import NOT_GIVEN, Mistake, line_of

CASES = [
    ("[ledger]\nx = 1\n[[trainer]]\nsteps = 1", ("trainer",), 3),
    ("a = 1\n[b]\nx = 1\n\n# c\n[[t]]\nsteps = 1\n[[t]]\nsteps = 2\n", ("t",), 6),
    ("a = 1\n[b]\nx = 1\n\n# c\n[[t]]\nsteps = 1\n[[t]]\nsteps = 2\n", ("t", 1, "steps"), 9),
    ("a = 1\n[b]\nx = 1\n[trainer]\n", ("trainer",), 4),
    ("[e]\nx = 1\n[[e.f]]\nk = 1\n[l]\n[[e.f]]\nk = 2", ("e", "f", 1, "k"), 7),
    ("a = 1\ntask.type = 'f'\ntask.n = 1", ("task", "policy"), 2),
    ("a = 1\ntask.a.b = 'f'\ntask.n = 1", ("task", "a"), 2),
    ("[p]\nq = 1\npolicy.type = 's'\npolicy.x = 2", ("p", "policy", "x"), 4),
    ("[p]\nq = 1\npolicy.type = 's'\npolicy.x = 2", ("p", "policy", "name"), 3),
    ("[p.policy]\ntype = 'x'\n[l]\n[p]\nq = 0", ("p", "q"), 5),
    ("[t]\n[t.x]\n", ("t", "x"), 2),
    ("t = {}", ("t", "x"), 1),
    ("f = [\n {k = 1},\n {k = 2, c = [1,\n  'x']},\n]", ("f", 1, "c", 1), 4),
    ("f = [\n {k = 1},\n {k = 2},\n]", ("f", 1), 3),
    ("f = [\n {k = 1},\n {k = 2},\n]", ("f",), 1),
    ("a = 1\n'q.r' = 2", ("q.r",), 2),
    ("a = 1", ("b",), None),
    ("a = 1", ("b", "c"), None),
    ("a = 1", ("a", "c"), 1),
    ("a = 1\ntask.type = 'f'", ("task", "policy"), 2),
    ("a = 1\n[t.gpu]\nx = 1", ("t",), 2),
    ("", ("a",), None),
    ("not toml", ("a",), None),
]


@pytest.mark.parametrize(("text", "parts", "line"), CASES)
def test_the_line_of_a_key_or_of_the_innermost_table_around_it(text, parts, line):
    assert line_of(text, parts) == line


def test_a_key_is_dotted_and_what_does_not_print_is_quoted():
    assert Mistake(("a", 1, "b"), 0, "").key == "a.1.b"
    assert Mistake(("a", "", "b\n"), 0, "").key == "a.''.'b\\n'"
    assert repr(NOT_GIVEN) == "(not given)"
