"""What always holds of emissions: nothing is lost, invented or counted twice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.carbon.timeline import Emitted, IntensityTimeline, PueTimeline, Timelines
from ecorl.grid import AverageIntensity, Basis, Gas, MarginalIntensity, Scope
from ecorl.ledger import AttemptRow, DeviceRow, ExecutionRow, IntensityRow, PueRow
from ecorl.records import (
    Action,
    DeviceKind,
    EnergyMethod,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)
from ecorl.report.energy.causes import energy_parts
from ecorl.report.energy.emissions import (
    Draw,
    Emissions,
    IntensityKind,
    left_over,
    scaled,
    total_emissions,
    total_emitted,
)
from ecorl.report.energy.evidence import Attribution, Evidence
from ecorl.report.energy.readings import DeviceReadings, common, length, merged
from ecorl.report.energy.stages import stage_rows
from tests.examples import examples

MEASURED, MODELLED = Provenance.MEASURED, Provenance.MODELLED
LENGTH_S = 60
UNIX_S = 1.8e9
ATTEMPTS = [AttemptRow(1, 0, UNIX_S + 1000, 1000.0, 1, 2.0),
            AttemptRow(2, 1, UNIX_S + 3000, 500.0, 2, 2.0)]  # fmt: skip
SPANS = {1: (1000.0, 1000.0 + LENGTH_S), 2: (500.0, 500.0 + LENGTH_S)}


def told(kind, attempt, after_s, g_per_kwh):
    """A value that holds from a time of an attempt on, as long as the next is not told."""
    anchor = ATTEMPTS[attempt - 1]
    start_s = anchor.unix_anchor_s + after_s
    value = None
    if g_per_kwh is not None:
        value = kind("f", start_s, 0.5, g_per_kwh, Gas.CO2E, Basis.LOCATION, Scope.LIFE_CYCLE,
                     "own", None, start_s, Provenance.PUBLISHED)  # fmt: skip
    return IntensityRow(attempt, anchor.monotonic_anchor_s + after_s, kind, value)


@st.composite
def grids(draw, constant=False):
    """Both kinds of intensity and a PUE over two attempts."""
    unknown = st.none() if not constant else st.nothing()
    rows = {}
    for kind in (AverageIntensity, MarginalIntensity):
        same = draw(st.floats(1, 1000))
        rows[kind] = [
            told(kind, attempt, after_s, same if constant else draw(unknown | st.floats(1, 1000)))
            for attempt in (1, 2)
            for after_s in sorted({0.0, *draw(st.lists(st.floats(0, LENGTH_S), max_size=4))})
        ]
    ratio = draw(st.floats(1, 3))
    pues = [PueRow(a.attempt, a.unix_anchor_s - 1 + after_s,
                   ratio if constant else draw(unknown | st.floats(1, 3)))
            for a in ATTEMPTS
            for after_s in sorted({0.0, *draw(st.lists(st.floats(0, LENGTH_S), max_size=2))})
            ]  # fmt: skip
    ends_s = {a.attempt: a.unix_anchor_s + LENGTH_S for a in ATTEMPTS}
    pue = PueTimeline(pues, ATTEMPTS, None)
    lines = [IntensityTimeline(own, ATTEMPTS, ends_s, pue) for own in rows.values()]
    rates = [own[0].value.g_per_kwh * ratio if constant else None for own in rows.values()]
    return Attribution(Timelines(*lines), ATTEMPTS, SPANS), rates


@st.composite
def machines(draw):
    """Evidence of gpu0, which is read or not, and of a card that is simulated or not."""
    readings, executions = [], []
    is_read = draw(st.booleans())
    pauses = {}
    for attempt, (begin, end) in SPANS.items():
        cuts = draw(st.lists(st.floats(0, LENGTH_S), max_size=4))
        edges = sorted(begin + c for c in cuts)
        pauses[attempt] = merged(zip(edges[::2], edges[1::2], strict=False))
        watts = [draw(st.floats(50, 500)) for _ in range(6)]
        power_w = np.repeat(np.array(watts), LENGTH_S // 6)
        if is_read:
            starts_s = np.arange(begin, end)
            readings.append(
                DeviceReadings(attempt, "gpu0", MEASURED, math.fsum(power_w), float(LENGTH_S),
                               ((begin, end),), 0, 0.0, None,
                               starts_s, starts_s + 1.0, power_w)
            )  # fmt: skip
        for i in range(draw(st.integers(0, 4))):
            start = begin + draw(st.floats(0, LENGTH_S - 5))
            on_card = draw(st.booleans())
            window = (start, start + draw(st.floats(0.01, 5)))
            joules = draw(st.floats(0, 100) | st.none())
            executions.append(executed(attempt, i, window, joules, on_card))
    devices = [
        DeviceRow("gpu0", "h100", MEASURED, "nvml", 40.0, attempt=1, kind=DeviceKind.GPU),
        DeviceRow("fpga0", "u55c", MODELLED, "model", 15.0, attempt=1, kind=DeviceKind.FPGA),
        DeviceRow("gpu0", "h100", MEASURED, "nvml", 40.0, attempt=2, kind=DeviceKind.GPU),
        DeviceRow("fpga0", "u55c", MODELLED, "model", 15.0, attempt=2, kind=DeviceKind.FPGA),
    ]
    return executions, devices, readings, pauses


def executed(attempt, iteration, window, joules, on_card):
    device_id = "fpga0" if on_card else "gpu0"
    provenance = MODELLED if on_card else MEASURED
    energy = StageEnergy((device_id,), *window, joules, None, None, None, 1, 1.0,
                         EnergyMethod.INTEGRAL, provenance)  # fmt: skip
    result = StageResult(
        iteration=iteration,
        stage=Stage.REWARD if on_card else Stage.GENERATION,
        action=Action.FPGA if on_card else Action.GPU,
        device_ids=(device_id,),
        device=device_id[:-1],
        t_start_s=window[0],
        t_end_s=window[1],
        time_s=0.01 if on_card else window[1] - window[0],
        time_provenance=provenance,
        host_time_s=window[1] - window[0],
        wait_s=0.0,
        n_sequences=1,
        n_tokens=10,
        n_output_tokens=5,
        energy=energy,
    )
    return ExecutionRow(attempt, False, result)


def evidence_of(machine, grid):
    executions, devices, readings, pauses = machine
    return Evidence(executions, [], devices, readings, SPANS, pauses=pauses, grid=grid)


KINDS = tuple(IntensityKind)


@given(machines(), grids())
@settings(max_examples=examples(100), deadline=None)
def test_emissions_add_up_whatever_the_grid(machine, drawn):
    grid, _ = drawn
    evidence = evidence_of(machine, grid)
    parts = energy_parts(evidence)
    for p in parts:
        assert (p.emissions.average is None) == (p.energy_j is None)
        for kind in KINDS:
            e = p.emissions.of(kind)
            if e is not None:
                assert e.known_j + e.unknown_j == pytest.approx(p.energy_j, rel=1e-9, abs=1e-6)
                assert (e.carbon_g is None) or e.carbon_g >= 0
                assert min(e.known_j, e.unknown_j, e.facility_j) >= 0
    own = [p for p in parts if "gpu0" in p.device_ids]
    if not evidence.readings or any(p.energy_j is None and p.time_s for p in own):
        return
    whole, _ = grid.of_readings(evidence.readings)
    for kind in KINDS:
        found = [p.emissions.of(kind) for p in own if p.energy_j is not None]
        grams = math.fsum(e.carbon_g or 0.0 for e in found)
        total = whole.emissions.of(kind)
        lost = any(e.carbon_g is None and e.unknown_j for e in found)
        if not lost or total.carbon_g is None:
            # A pause at whose edge an execution ends is cut to what is left of the energy.
            assert grams == pytest.approx(total.carbon_g or 0.0, rel=1e-7)


@given(machines(), grids(constant=True))
@settings(max_examples=examples(100), deadline=None)
def test_with_constants_each_figure_is_energy_times_constants(machine, drawn):
    grid, rates = drawn
    evidence = evidence_of(machine, grid)
    parts = energy_parts(evidence)
    rows = stage_rows(evidence.executions, grid.of_executions)
    figures = [(p.energy_j, p.emissions) for p in parts] + [(r.energy_j, r.emissions) for r in rows]
    whole_j = math.fsum(j for j, _ in figures if j is not None)
    for energy_j, emissions in figures:
        for kind, rate in zip(KINDS, rates, strict=True):
            e = emissions.of(kind)
            if energy_j is None:
                assert e is None
                continue
            # A rest is a difference, exact to a billionth of what it is taken from.
            expected = energy_j * rate / 3.6e6
            slack = 1e-9 * whole_j * rate / 3.6e6
            assert e.carbon_g == pytest.approx(expected, rel=1e-9, abs=slack)
            assert e.unknown_j == pytest.approx(0.0, abs=1e-9 * whole_j)


@given(machines(), grids())
@settings(max_examples=examples(60), deadline=None)
def test_pauses_change_no_total_and_take_their_time_from_the_rest(machine, drawn):
    grid, _ = drawn
    executions, devices, readings, pauses = machine
    without = energy_parts(evidence_of((executions, devices, readings, {}), grid))
    evidence = evidence_of(machine, grid)
    with_them = energy_parts(evidence)
    for device_id in ("gpu0", "fpga0"):
        sums = [
            [p for p in found if p.device_ids == (device_id,)] for found in (without, with_them)
        ]
        if any(p.energy_j is None for own in sums for p in own if p.cause != "generation"):
            continue
        before, after = (math.fsum(p.energy_j or 0.0 for p in own) for own in sums)
        assert after == pytest.approx(before, rel=1e-9)
        paused_s = math.fsum(p.time_s for p in sums[1] if p.cause == "paused")
        all_s = math.fsum(length(own) for own in pauses.values())
        assert paused_s <= all_s + 1e-6
        if device_id == "fpga0":
            assert paused_s == pytest.approx(all_s, abs=1e-6)


# ---------------------------------------------------------------- sums and differences


def emitted(grams, known_j, unknown_j):
    return Emitted(grams, known_j, unknown_j, known_j, 0.0, 0.0)


def test_a_sum_knows_what_its_parts_know():
    assert total_emitted([]) is None
    assert total_emitted([None, emitted(None, 0.0, 5.0)]) == emitted(None, 0.0, 5.0)
    found = total_emitted([emitted(1.0, 2.0, 0.0), emitted(None, 0.0, 5.0), None])
    assert found == emitted(1.0, 2.0, 5.0)
    both = total_emissions([Emissions(emitted(1.0, 2.0, 0.0)), Emissions()])
    assert (both.average.carbon_g, both.marginal) == (1.0, None)


def test_a_part_has_its_share_of_all():
    half = scaled(Emissions(emitted(4.0, 6.0, 2.0)), 0.5)
    assert half == Emissions(emitted(2.0, 3.0, 1.0))


@pytest.mark.parametrize(
    ("whole", "gone", "left_j", "expected"),
    [
        (emitted(10.0, 10.0, 0.0), emitted(4.0, 4.0, 0.0), 6.0, (6.0, 6.0, 0.0)),
        # More was taken from the unknown time than was drawn in it: what is left is of the other.
        (emitted(10.0, 10.0, 5.0), emitted(2.0, 2.0, 5.5), 7.5, (8.0, 7.5, 0.0)),
        # Below nought, beyond rounding: unknown.
        (emitted(1.0, 10.0, 0.0), emitted(3.0, 4.0, 0.0), 6.0, (None, 0.0, 6.0)),
        (emitted(1.0, 10.0, 0.0), emitted(1.0 + 1e-12, 4.0, 0.0), 6.0, (0.0, 6.0, 0.0)),
        (emitted(None, 0.0, 9.0), emitted(None, 0.0, 4.0), 5.0, (None, 0.0, 5.0)),
        (emitted(2.0, 4.0, 9.0), emitted(2.0, 4.0, 0.0), 9.0, (None, 0.0, 9.0)),
    ],
)
def test_a_difference_is_never_below_nought(whole, gone, left_j, expected):
    energy_j = whole.known_j + whole.unknown_j
    taken = Draw(energy_j - left_j, Emissions(gone))
    found = left_over(Draw(energy_j, Emissions(whole)), [taken], left_j).average
    assert (found.carbon_g, found.known_j, found.unknown_j) == pytest.approx(expected)


def test_common_spans():
    assert common([(0, 5), (7, 9)], [(1, 2), (4, 8)]) == [(1, 2), (4, 5), (7, 8)]
    assert common([], [(0, 1)]) == []
