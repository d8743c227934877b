"""What the boundary around foreign engines holds back, and what it lets through."""

from __future__ import annotations

import pytest

from ecorl.engines.validate import EngineBoundary
from ecorl.errors import DeviceLost, EngineCrashed, EngineTimeout


def raised_in(error):
    with EngineBoundary() as boundary:
        raise error
    return boundary


@pytest.mark.parametrize(
    "error", [KeyError("x"), MemoryError("y"), OSError(5, "z"), DeviceLost("w")]
)
def test_an_error_of_any_family_is_kept_and_becomes_a_crash_with_its_cause(error):
    boundary = raised_in(error)
    assert boundary.caught() is error
    crashed = boundary.engine_error()
    assert type(crashed) is EngineCrashed
    assert str(crashed) == f"{type(error).__name__}: {error}"
    assert crashed.__cause__ is error


def test_an_engine_s_own_error_stays_what_it_is():
    error = EngineTimeout("slow")
    assert raised_in(error).engine_error() is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), StopIteration()])
def test_what_says_nothing_of_the_state_left_behind_goes_through(error):
    with pytest.raises(type(error)):
        raised_in(error)


def test_a_block_that_ends_well_has_no_error():
    with EngineBoundary() as boundary:
        pass
    assert boundary.error is None
    with pytest.raises(ValueError, match="raised nothing"):
        boundary.engine_error()
