"""Figures, targets and the record: nothing missing looks like a number, and no file is half."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.harness.figures import Figure, Result, Target, as_quick, write_result
from ecorl.bench.machine import Machine
from ecorl.records import Provenance

MACHINE = Machine("a-1core", "A", 1, 1 << 30, None)


def figure(value=2.0, target=None, **kwargs):
    return Figure("x.y", value, "s", Provenance.MEASURED, target=target, **kwargs)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match=r"x\.y"):
        figure(value)


def test_a_value_needs_a_provenance_and_a_gap_needs_a_reason():
    with pytest.raises(ValueError, match="provenance"):
        Figure("x.y", 0.0, "s")
    with pytest.raises(ValueError, match="reason"):
        Figure("x.y", None, "s")
    with pytest.raises(ValueError, match="limit"):
        Target()


@pytest.mark.parametrize(
    ("value", "holds"), [(0.0499, False), (0.05, True), (0.3, True), (0.3001, False)]
)
def test_both_limits_of_a_target_count(value, holds):
    assert figure(value, Target(0.05, 0.3)).holds is holds


def test_without_target_or_value_nothing_holds_or_falls_short():
    assert figure().holds is None
    assert Figure("x.y", None, "s", target=Target(high=1), note="no clock").holds is None


def test_lines(snapshot):
    ends = {"low": 1.5, "high": 2.25, "of": ["idle_w"]}
    without = Figure("x.y", None, "s", target=Target(high=1), note="no clock")
    shown = [
        figure(2.0, Target(high=3)),
        figure(2.0, Target(low=3)),
        figure(0.0),
        figure(2.0, spread=ends),
        figure(2.0, spread=ends | {"low": None}),
        # An interval of a measurement is no interval of what a model assumes.
        figure(2.0, spread={"low": 1.5, "high": 2.25, "n": 5}),
        without,
        replace(without, target=None, spread={"low": None, "high": None, "of": []}),
    ]
    snapshot("\n".join(one.line() for one in shown))


def test_a_quick_pass_has_ids_of_its_own_and_no_targets():
    (quick,) = as_quick([figure(5.0, Target(high=1))])
    assert (quick.id, quick.value, quick.holds) == ("x.y@quick", 5.0, None)


def test_the_record_has_the_agreed_keys(tmp_path):
    path = tmp_path / "deep" / "r.json"
    gap = Figure("x.z", None, "1", target=Target(low=1), note="no card")
    figures = [figure(2.0, Target(high=1), spread={"mad": 0.1}), gap]
    write_result(Result("x", "c0ffee", MACHINE, figures, {"n": 3}), path)
    data = json.loads(path.read_text())
    assert set(data) == {"benchmark", "commit", "device", "config", "figures"}
    assert (data["benchmark"], data["commit"], data["config"]) == ("x", "c0ffee", {"n": 3})
    first, second = data["figures"]
    assert first == {
        "id": "x.y", "value": 2.0, "unit": "s", "provenance": "measured", "spread": {"mad": 0.1},
        "target": "<= 1", "holds": False, "note": None,
    }  # fmt: skip
    assert (second["value"], second["holds"], second["provenance"]) == (None, None, None)


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    write_result(Result("x", None, MACHINE, [figure(1.0)]), path)
    before = path.read_text()
    with pytest.raises(ValueError, match="range"):
        write_result(Result("x", None, MACHINE, [], {"bad": float("nan")}), path)

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr("ecorl.files.os.fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        write_result(Result("x", None, MACHINE, [figure(9.0)]), path)
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
