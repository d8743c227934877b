"""Zones that show one counter are one, and counters of their own are not, however alike."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.drivers import rapl
from ecorl.drivers.rapl import RaplZone, distinct

RANGE_J = 262_143.0
BEGIN_S = 5.0


def counter(power_w, begin_j=1000.0, refresh_s=0.001, late_s=0.0, range_j=RANGE_J):
    """A counter in steps: what was drawn up to the newest refresh, which comes late by so much."""

    def read_j(t_s):
        updated_s = refresh_s * math.floor((t_s - late_s) / refresh_s)
        drawn_j = begin_j + power_w * (updated_s - BEGIN_S)
        return round(drawn_j % range_j if range_j else drawn_j, 6)

    return read_j


def groups(counters, range_j=RANGE_J, read_s=4e-5):
    """The names that `distinct` puts together, of counters by the names of their zones."""
    clock_s = [BEGIN_S]

    def sleep(length_s):
        clock_s[0] += length_s

    def read_counter_j(one):
        clock_s[0] += read_s
        return counters[one.name](clock_s[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rapl, "time", SimpleNamespace(monotonic=lambda: clock_s[0], sleep=sleep))
        patch.setattr(rapl, "read_counter_j", read_counter_j)
        kept = distinct([RaplZone(name, name, None, range_j) for name in counters])
    return [(one.name, *one.same) for one in kept]


@pytest.mark.parametrize("late_s", [0.0, 0.0003, 0.0008])
@pytest.mark.parametrize("refresh_s", [0.001, 0.01])
def test_dies_that_show_one_counter_are_one(refresh_s, late_s):
    own = counter(68.0, refresh_s=refresh_s)
    same = counter(68.0, refresh_s=refresh_s, late_s=late_s)
    names = ["package-0-die-0", "package-0-die-1", "package-0-die-2"]
    assert groups(dict(zip(names, (own, same, own), strict=True))) == [tuple(names)]


def test_what_lies_below_dies_that_are_one_is_one_as_well():
    package, memory, other = counter(68.0), counter(9.0, 300.0), counter(67.0, 70.0)
    names = {"die-0": package, "die-1": package, "die-2": other}
    names |= {"dram-0": memory, "dram-1": memory, "dram-2": counter(9.0, 500.0)}
    assert groups(names) == [("die-0", "die-1"), ("die-2",), ("dram-0", "dram-1"), ("dram-2",)]


def test_a_counter_that_wraps_meanwhile_or_has_no_known_range():
    nearly = counter(68.0, begin_j=RANGE_J - 68.0 * 0.005)
    assert groups({"a": nearly, "b": nearly}) == [("a", "b")]
    unknown = counter(68.0, range_j=0.0)
    assert groups({"a": unknown, "b": unknown}, range_j=0.0) == [("a", "b")]


@given(
    power_w=st.floats(5, 400),
    other_share=st.floats(0.7, 1.4).filter(lambda share: abs(share - 1) > 1e-4),
    apart_j=st.sampled_from([0.0, 0.001, 0.3, 7.0, 1e5]),
    refresh_s=st.sampled_from([0.001, 0.01]),
)
def test_counters_of_their_own_are_two_however_alike(power_w, other_share, apart_j, refresh_s):
    """Two sockets under nearly the same load, from the very same start or from another one."""
    first = counter(power_w, 1000.0, refresh_s)
    other = counter(power_w * other_share, 1000.0 + apart_j, refresh_s)
    assert groups({"package-0": first, "package-1": other}) == [("package-0",), ("package-1",)]


def test_equal_loads_of_counters_with_a_lead_are_two():
    counters = {"package-0": counter(68.0), "package-1": counter(68.0, 1007.0)}
    assert groups(counters) == [("package-0",), ("package-1",)]


def test_counters_that_stand_still_tell_nothing():
    assert groups({"a": lambda t_s: 5.0, "b": lambda t_s: 5.0}) == [("a",), ("b",)]


def test_a_machine_that_stops_the_reader_in_between_does_not_matter():
    """30 ms from one reading to the next: a good deal of joules, but in the right order."""
    own = counter(68.0)
    assert groups({"a": own, "b": own}, read_s=0.03) == [("a", "b")]
    other = counter(67.5, 1000.0)
    assert groups({"a": own, "b": other}, read_s=4e-5) == [("a",), ("b",)]
