from __future__ import annotations

import inspect
import re

import pytest

from ecorl import errors
from ecorl.errors import ConfigError, EcorlError, UserError

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, EcorlError)
}


def drawn_tree():
    """Class and parent as the module's docstring draws them."""
    found, above = {}, []
    for line in errors.__doc__.splitlines():
        match = re.match(r"^    ([│ ]*(?:[├└]── )?)([A-Z]\w+)(?:\s|$)", line)
        if not match or (not match[1] and match[2] != "EcorlError"):
            continue
        depth = len(match[1]) // 4
        above = [*above[:depth], match[2]]
        found[match[2]] = above[depth - 1] if depth else None
    return found


def test_the_drawn_tree_is_the_tree():
    drawn = drawn_tree()
    assert set(drawn) == set(CLASSES)
    for name, parent in drawn.items():
        if parent is not None:
            assert CLASSES[name].__bases__ == (CLASSES[parent],)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_each_error_is_documented(name):
    assert CLASSES[name].__doc__


@pytest.mark.parametrize(
    ("where", "start"),
    [
        ((), "a.b = 'x'"),
        (("f.toml",), "f.toml: a.b = 'x'"),
        (("f.toml", 3), "f.toml:3: a.b = 'x'"),
        ((None, 3), "a.b = 'x'"),
    ],
)
def test_a_config_error_names_all_that_is_known(where, start):
    error = ConfigError("a.b", "x", "a number", *where)
    assert str(error) == f"{start}: allowed is a number"
    assert isinstance(error, UserError)
    assert (error.key, error.value, error.allowed) == ("a.b", "x", "a number")


def test_a_value_with_line_breaks_stays_on_one_line():
    assert "\n" not in str(ConfigError("a", "x\ny", "text"))
