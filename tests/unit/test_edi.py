from __future__ import annotations

import dataclasses
import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.edi import EdiMatrix, edi, edi_from_energy, edi_reading
from ecorl.errors import ConfigError, DataError
from ecorl.records import (
    Action,
    EdiReading,
    EnergyMethod,
    PathCost,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)

FIGURES = st.floats(0, 1e6, allow_nan=False)
READINGS = st.builds(
    lambda stage, device, value, provenance, time_s, role_name, variant, rows, batch: EdiReading(
        stage,
        device,
        None if value is None else value * 10,
        10,
        value,
        provenance,
        time_s,
        role_name,
        variant,
        rows,
        batch,
    ),
    st.sampled_from(list(Stage)),
    st.sampled_from(["gpu", "u55c"]),
    st.one_of(st.none(), FIGURES),
    st.sampled_from(list(Provenance)),
    st.one_of(st.none(), FIGURES),
    st.sampled_from(["", "math", "code"]),
    st.sampled_from(["", "FP32", "BF16"]),
    st.integers(0, 10),
    st.none() | st.integers(0, 100),
)


def cell_of(matrix, stage, device, provenance, *, role_name="", variant=""):
    """One cell, or None while it has no reading."""
    key = (stage, role_name, device, provenance, variant)
    return next((cell for cell in matrix.cells() if cell.key == key), None)


def executed(energy_j=10.0, n_output_tokens=10, **changes):
    """One execution of the reward on the GPUs, measured unless told otherwise."""
    energy = StageEnergy(
        ("gpu0",), 0.0, 1.0, energy_j, None, None, None, 5, 1.0, EnergyMethod.INTEGRAL,
        changes.pop("provenance", Provenance.MEASURED),
    )  # fmt: skip
    fields = {
        "iteration": 1, "stage": Stage.REWARD, "action": Action.GPU, "device_ids": ("gpu0",),
        "device": "gpu", "t_start_s": 0.0, "t_end_s": 1.0, "time_s": 1.0,
        "time_provenance": Provenance.MEASURED, "host_time_s": 1.0, "wait_s": 0.0,
        "n_sequences": 1, "n_tokens": 20, "n_output_tokens": n_output_tokens, "energy": energy,
    }  # fmt: skip
    return StageResult(**(fields | changes))


def reading(value, provenance=Provenance.MEASURED, device="gpu"):
    return EdiReading(Stage.REWARD, device, None, 1, value, provenance)


def test_eq_4_by_hand():
    assert edi(200.0, 3.0, 1200) == 0.5
    assert edi_reading(executed(600.0, 1200)).edi_j_per_token == 0.5


def test_a_reading_says_which_model_ran_and_how():
    seen = edi_reading(executed(role_name="math", gear="BF16", provenance=Provenance.MODELLED))
    assert (seen.role, seen.variant, seen.time_s) == ("reward:math", "BF16", 1.0)
    assert seen.provenance is Provenance.MODELLED
    assert edi_reading(executed()).variant == ""
    unknown = edi_reading(executed(energy=None))
    assert unknown.energy_j is None
    assert unknown.edi_j_per_token is None


@pytest.mark.parametrize(
    "parts",
    [
        (None, 1.0, 10),
        (1.0, None, 10),
        (1.0, 1.0, None),
        (1.0, 1.0, 0),
        (math.nan, 1.0, 10),
        (math.inf, 1.0, 10),
        (-1.0, 1.0, 10),
        (-1.0, -1.0, 10),
        (1.0, math.nan, 10),
    ],
)
def test_a_missing_part_makes_the_figure_missing(parts):
    assert edi(*parts) is None


def test_energy_of_nothing_is_zero_only_when_measured_as_zero():
    assert edi_from_energy(0.0, 5) == 0.0
    assert edi_from_energy(None, 5) is None


def test_eq_5_after_a_running_mean():
    matrix = EdiMatrix(alpha=0.05, n_profiling=3)
    for value in (1.0, 2.0, 6.0):
        matrix.update(reading(value))
    cell = cell_of(matrix, Stage.REWARD, "gpu", Provenance.MEASURED)
    assert cell.value_j_per_token == pytest.approx(3.0)
    after = matrix.update(reading(13.0))
    assert after.value_j_per_token == pytest.approx(0.95 * 3.0 + 0.05 * 13.0)
    assert after.mean_j_per_token == pytest.approx(5.5)
    assert after.count == 4


def test_without_profiling_the_first_reading_starts_the_cell():
    matrix = EdiMatrix(alpha=0.5, n_profiling=0)
    assert matrix.update(reading(4.0)).value_j_per_token == 4.0
    assert matrix.update(reading(8.0)).value_j_per_token == 6.0


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -1.0])
def test_a_missing_reading_touches_no_cell(value):
    matrix = EdiMatrix()
    assert matrix.update(reading(value)) is None
    assert matrix.cells() == ()
    matrix.update(reading(2.0))
    before = matrix.to_json()
    matrix.update(reading(value))
    assert matrix.to_json() == before


def test_provenances_never_share_a_cell():
    matrix = EdiMatrix()
    matrix.update(reading(1.0, Provenance.MODELLED))
    matrix.update(reading(9.0, Provenance.MEASURED))
    assert [c.value_j_per_token for c in matrix.cells()] == [9.0, 1.0]


@given(st.lists(FIGURES, min_size=2, max_size=60))
def test_mean_and_spread_match_the_textbook(values):
    matrix = EdiMatrix(n_profiling=1000)
    for value in values:
        matrix.update(reading(value))
    cell = cell_of(matrix, Stage.REWARD, "gpu", Provenance.MEASURED)
    assert cell.mean_j_per_token == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert cell.value_j_per_token == cell.mean_j_per_token
    assert cell.std_j_per_token == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-5)


@given(st.lists(READINGS, max_size=40), st.integers(0, 10), st.floats(0.01, 1))
def test_cells_stay_within_their_readings_and_round_trip(readings, n_profiling, alpha):
    matrix = EdiMatrix(alpha, n_profiling)
    for r in readings:
        matrix.update(r)
    for cell in matrix.cells():
        own = [
            r.edi_j_per_token
            for r in readings
            if (r.stage, r.role_name, r.device, r.provenance, r.variant) == cell.key
            and r.edi_j_per_token is not None
        ]
        assert cell.count == len(own)
        slack = 1e-9 * (1 + max(own))
        assert min(own) - slack <= cell.value_j_per_token <= max(own) + slack
    again = EdiMatrix.from_json(matrix.to_json())
    assert again == matrix
    assert again.to_json() == matrix.to_json()
    assert [c.key for c in matrix.cells()] == sorted(
        (c.key for c in matrix.cells()),
        key=lambda k: (
            list(Stage).index(k[0]),
            k[1],
            k[2],
            list(Provenance).index(k[3]),
            k[4],
        ),
    )
    for r in readings:  # a restored matrix goes on exactly as the old one would
        assert again.update(r) == matrix.update(r)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 3}',
        '{"format": 4}',
        '{"format": true}',
        '{"format": [1]}',
        '{"format":3,"alpha":0.05,"n_profiling":2,"cells":[{}],"times":[]}',
    ],
)
def test_a_broken_file_is_refused(text):
    with pytest.raises(DataError):
        EdiMatrix.from_json(text)


def test_impossible_cells_are_refused():
    matrix = EdiMatrix()
    matrix.update(reading(2.0))
    with pytest.raises(DataError, match="impossible"):
        EdiMatrix.from_json(matrix.to_json().replace('"count": 1', '"count": 0'))


def test_arguments_are_checked():
    with pytest.raises(ConfigError):
        EdiMatrix(alpha=0)
    with pytest.raises(ConfigError):
        EdiMatrix(n_profiling=-1)


def test_models_and_variants_have_cells_of_their_own():
    matrix = EdiMatrix()
    for energy_j, changes in (
        (10.0, {}),
        (20.0, {"role_name": "math"}),
        (30.0, {"role_name": "math", "gear": "BF16"}),
    ):
        matrix.update(edi_reading(executed(energy_j, **changes)))
    at = (Stage.REWARD, "gpu", Provenance.MEASURED)
    assert cell_of(matrix, *at).value_j_per_token == 1.0
    assert cell_of(matrix, *at, role_name="math").value_j_per_token == 2.0
    assert cell_of(matrix, *at, role_name="math", variant="BF16").value_j_per_token == 3.0
    assert cell_of(matrix, *at, variant="BF16") is None
    assert cell_of(matrix, *at, role_name="math", variant="BF16").value_j_per_token == 3.0
    assert cell_of(matrix, *at, role_name="math").count == 1
    assert cell_of(matrix, *at, role_name="code") is None


def test_path_costs_are_one_a_model():
    matrix = EdiMatrix()
    matrix.update(edi_reading(executed(10.0, time_s=2.0)))
    matrix.update(edi_reading(executed(90.0, provenance=Provenance.MODELLED)))
    matrix.update(edi_reading(executed(99.0, device="u55c")))
    math_runs = {"role_name": "math", "gear": "BF16"}
    for energy_j, time_s in ((20.0, 4.0), (40.0, 8.0)):
        matrix.update(edi_reading(executed(energy_j, time_s=time_s, **math_runs)))
    matrix.update(edi_reading(executed(60.0, time_s=3.0, role_name="math")))
    found = matrix.path_costs("gpu")
    assert found == (
        PathCost(Stage.REWARD, 0.2, 1.0, 1, Provenance.MEASURED),
        PathCost(
            Stage.REWARD,
            pytest.approx(0.5),
            pytest.approx(4.0),
            3,
            Provenance.MEASURED,
            "math",
            # Of two in BF16 the second; of the one in the framework's own way none.
            recent_s_per_token=0.8,
            recent_j_per_token=4.0,
            n_recent=1,
            mean_length=10.0,
            later_s_per_token=0.8,
        ),
    )


def test_a_model_without_times_has_no_path_cost():
    matrix = EdiMatrix()
    matrix.update(edi_reading(executed(10.0, time_s=None)))
    assert matrix.path_costs("gpu") == ()


@pytest.mark.parametrize("of_format", [2, 4])
def test_another_format_is_refused_in_one_line(of_format, snapshot):
    text = EdiMatrix().to_json().replace('"format": 3', f'"format": {of_format}')
    with pytest.raises(DataError) as caught:
        EdiMatrix.from_json(text)
    snapshot(str(caught.value), of_format=of_format)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [('"count": 1', '"count": 1, "zone": "x"', "'zone'"), ('"m2": 0.0, ', "", "'m2'")],
)
def test_a_cell_of_another_form_is_refused(old, new, named):
    matrix = EdiMatrix()
    matrix.update(edi_reading(executed()))
    assert old in matrix.to_json()
    with pytest.raises(DataError, match=named):
        EdiMatrix.from_json(matrix.to_json().replace(old, new))


def test_times_are_kept():
    matrix = EdiMatrix()
    for time_s in (1.0, 3.0):
        cell = matrix.update(edi_reading(executed(time_s=time_s)))
    assert cell.mean_time_s_per_token == pytest.approx(0.2)
    assert EdiMatrix.from_json(matrix.to_json()) == matrix
    matrix.update(edi_reading(executed(time_s=None)))
    assert matrix.cells()[0].mean_time_s_per_token is None
    assert EdiMatrix.from_json(matrix.to_json()) == matrix


# ---------------------------------------------------------------- after the first reading


def steps(*times_s, j_per_s=10.0, n_sequences=2):
    """A cell of executions in turn, of one batch each; ten tokens in two rows."""
    matrix = EdiMatrix()
    for batch, time_s in enumerate(times_s):
        one = executed(j_per_s * time_s, time_s=time_s, n_sequences=n_sequences)
        matrix.update(edi_reading(one, batch))
    return matrix, matrix.cells()[0]


def test_the_first_reading_counts_in_none_of_the_recent_figures():
    _, cell = steps(90.0)
    assert (cell.recent_s_per_token, cell.recent_j_per_token, cell.n_recent) == (None, None, 0)
    assert (cell.mean_length, cell.later_s_per_token, cell.spread) == (None, None, 0.0)
    assert cell.last_batch == 0
    _, cell = steps(90.0, 1.0)
    assert (cell.recent_s_per_token, cell.recent_j_per_token, cell.n_recent) == (0.1, 1.0, 1)
    assert (cell.mean_length, cell.spread, cell.last_batch) == (5.0, 0.0, 1)
    _, cell = steps(90.0, 1.0, 2.0, 3.0)
    assert cell.recent_s_per_token == pytest.approx(0.2)
    assert cell.later_s_per_token == pytest.approx(0.2)
    assert cell.spread == pytest.approx(0.5)
    assert cell.mean_time_s_per_token == pytest.approx(2.4)


def test_recent_figures_follow_a_change_and_plain_means_do_not():
    _, cell = steps(5.0, *[1.0] * 40, *[2.0] * 8)
    assert cell.recent_s_per_token == pytest.approx(0.2 - 0.1 * 0.7**8)
    assert cell.recent_j_per_token == pytest.approx(2.0 - 0.7**8)
    assert cell.later_s_per_token == pytest.approx(0.1 * (40 + 16) / 48)


@given(st.lists(st.floats(0.01, 1e3), min_size=3, max_size=30))
def test_the_spread_is_that_of_the_textbook_and_recent_means_stay_within_readings(times_s):
    _, cell = steps(*times_s)
    later = [time_s / 10 for time_s in times_s[1:]]
    assert cell.later_s_per_token == pytest.approx(statistics.fmean(later))
    assert cell.spread == pytest.approx(
        statistics.stdev(later) / statistics.fmean(later), rel=1e-6, abs=1e-7
    )
    slack = 1e-9 * max(later)
    assert min(later) - slack <= cell.recent_s_per_token <= max(later) + slack


def test_lengths_are_those_of_the_recent_readings():
    matrix = EdiMatrix()
    for n_sequences in (1, 5, 2, 0):
        matrix.update(edi_reading(executed(n_sequences=n_sequences)))
    # After the first: 2 and 5 tokens a row; the rows of the last are not known.
    assert matrix.cells()[0].mean_length == pytest.approx(3.5)
    assert matrix.cells()[0].last_batch is None


def test_a_reading_without_a_time_changes_no_recent_figure():
    matrix, before = steps(3.0, 1.0)
    after = matrix.update(edi_reading(executed(50.0, time_s=None), 7))
    assert after.count == 3
    assert after.last_batch == 7
    for name in ("recent_s_per_token", "recent_j_per_token", "n_recent", "mean_length", "spread"):
        assert getattr(after, name) == getattr(before, name)


def test_path_costs_say_how_sure_and_how_old_they_are():
    matrix, cell = steps(9.0, 1.0, 2.0, 3.0)
    (cost,) = matrix.path_costs("gpu", 8, on_card=True)
    assert cost == PathCost(
        Stage.REWARD, cell.mean_time_s_per_token, cell.mean_j_per_token, 4, Provenance.MEASURED,
        recent_s_per_token=cell.recent_s_per_token, recent_j_per_token=cell.recent_j_per_token,
        n_recent=3, spread=cell.spread, age=5, mean_length=5.0, on_card=True,
        later_s_per_token=cell.later_s_per_token,
    )  # fmt: skip
    assert [matrix.path_costs("gpu", batch)[0].age for batch in (None, 2, 3, 4)] == [0, 0, 0, 1]


def test_variants_are_pooled_by_their_readings():
    matrix = EdiMatrix()
    for gear, times_s in (("BF16", (9.0, 1.0, 3.0)), ("FP32", (9.0, 5.0)), ("FP16", (9.0,))):
        for time_s in times_s:
            matrix.update(edi_reading(executed(time_s=time_s, gear=gear)))
    (cost,) = matrix.path_costs("gpu")
    assert cost.n_recent == 3
    assert cost.recent_s_per_token == pytest.approx((0.2 * 2 + 0.5) / 3)
    assert cost.later_s_per_token == cost.recent_s_per_token
    assert cost.spread == pytest.approx(math.sqrt(0.02) / 0.3)


def test_recent_figures_round_trip_and_impossible_counts_are_refused():
    matrix, cell = steps(9.0, 1.0, 2.0)
    assert EdiMatrix.from_json(matrix.to_json()).cells() == (cell,)
    for wrong in ('"n_recent": 3', '"n_recent": -1', '"n_recent": 2, "m2_time": -1.0'):
        text = matrix.to_json().replace('"n_recent": 2', wrong)
        if "m2_time" in wrong:
            text = text.replace(f'"m2_time": {cell.m2_time}, ', "")
        with pytest.raises(DataError, match="impossible"):
            EdiMatrix.from_json(text)


# ---------------------------------------------------------------- times without energy


def timed(*times_s, energies_j=(), **changes):
    """A matrix of executions in turn, of one batch each; those beyond `energies_j` have none."""
    matrix = EdiMatrix()
    for batch, time_s in enumerate(times_s):
        energy_j = energies_j[batch] if batch < len(energies_j) else None
        one = executed(energy_j, time_s=time_s, n_sequences=2, **changes)
        matrix.update(edi_reading(one, batch))
    return matrix


def test_a_reading_without_energy_is_learnt_as_a_time_and_is_no_cell():
    matrix = EdiMatrix()
    assert matrix.update(edi_reading(executed(None, time_s=9.0, n_sequences=2), 0)) is None
    assert matrix.cells() == ()
    (times,) = matrix.times()
    assert (times.count, times.mean_time_s_per_token, times.last_batch) == (1, 0.9, 0)
    assert (times.recent_s_per_token, times.n_recent, times.mean_length) == (None, 0, None)


def test_times_without_energy_have_the_figures_of_those_with_it():
    times_s = (9.0, 1.0, 2.0, 3.0, 2.5)
    (alone,) = timed(*times_s).times()
    (cell,) = timed(*times_s, energies_j=times_s).cells()
    for field in dataclasses.fields(alone):
        assert getattr(alone, field.name) == getattr(cell, field.name), field.name
    assert alone.spread == cell.spread > 0


@pytest.mark.parametrize(
    "changes",
    [{"time_s": None}, {"time_s": math.nan}, {"time_s": -1.0}, {"n_output_tokens": 0}],
)
def test_without_a_time_over_tokens_nothing_is_learnt(changes):
    matrix = EdiMatrix()
    matrix.update(edi_reading(executed(None, **changes)))
    assert matrix == EdiMatrix()


def test_an_unknown_energy_says_nothing_of_where_a_time_is_from():
    unmetered = executed(None, provenance=Provenance.MODELLED)
    assert unmetered.energy.provenance is Provenance.MODELLED
    for one in (unmetered, dataclasses.replace(unmetered, energy=None)):
        assert edi_reading(one).provenance is Provenance.MEASURED


def test_a_path_cost_of_times_alone_has_no_energy():
    matrix = timed(9.0, 1.0, 2.0, 3.0)
    (times,) = matrix.times()
    (cost,) = matrix.path_costs("gpu", 8, on_card=True)
    assert cost == PathCost(
        Stage.REWARD, pytest.approx(0.375), None, 4, Provenance.MEASURED,
        recent_s_per_token=times.recent_s_per_token, recent_j_per_token=None, n_recent=3,
        spread=times.spread, age=5, mean_length=5.0, on_card=True,
        later_s_per_token=times.later_s_per_token,
    )  # fmt: skip
    assert matrix.path_costs("u55c") == ()


def test_variants_of_times_are_pooled_and_the_strongest_provenance_counts():
    matrix = timed(9.0, 1.0, 3.0, gear="BF16")
    for time_s in (9.0, 5.0):
        matrix.update(edi_reading(executed(None, time_s=time_s, gear="FP32")))
    matrix.update(edi_reading(executed(None, time_s=99.0, time_provenance=Provenance.MODELLED)))
    (cost,) = matrix.path_costs("gpu")
    assert (cost.provenance, cost.energy_j_per_token, cost.count) == (Provenance.MEASURED, None, 5)
    assert cost.recent_s_per_token == pytest.approx((0.2 * 2 + 0.5) / 3)


def test_a_cell_with_energy_counts_before_times_unless_it_has_no_recent_ones():
    with_both = timed(9.0, 1.0, 5.0, 7.0, energies_j=(90.0, 10.0))
    (cost,) = with_both.path_costs("gpu")
    assert (cost.recent_s_per_token, cost.recent_j_per_token, cost.count) == (0.1, 1.0, 2)
    first_alone = timed(9.0, 5.0, 7.0, energies_j=(90.0,))
    (cost,) = first_alone.path_costs("gpu")
    assert (cost.recent_s_per_token, cost.energy_j_per_token) == (0.7, None)
    one_of_each = timed(9.0, 5.0, energies_j=(90.0,))
    (cost,) = one_of_each.path_costs("gpu")
    assert (cost.time_s_per_token, cost.energy_j_per_token, cost.n_recent) == (0.9, 9.0, 0)
    # A cell of which one reading came without its time has no cost of its own.
    without_time = timed(None, 5.0, energies_j=(90.0,))
    (cost,) = without_time.path_costs("gpu")
    assert (cost.time_s_per_token, cost.energy_j_per_token) == (0.5, None)


def test_models_with_and_without_energy_stand_side_by_side():
    matrix = timed(9.0, 1.0, role_name="math")
    for time_s in (9.0, 2.0):
        matrix.update(edi_reading(executed(10.0, time_s=time_s, role_name="code")))
    found = {c.role_name: c.recent_j_per_token for c in matrix.path_costs("gpu")}
    assert found == {"math": None, "code": 1.0}


def test_times_round_trip():
    matrix = timed(9.0, 1.0, 2.0, energies_j=(90.0,))
    again = EdiMatrix.from_json(matrix.to_json())
    assert again == matrix
    assert again != timed(9.0, energies_j=(90.0,))
    again.update(edi_reading(executed(None, time_s=4.0), 3))
    assert again != matrix


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"n_recent": 3}, "impossible"),
        ({"count": 0}, "impossible"),
        ({"m2_time": -1.0}, "impossible"),
        ({"recent_s_per_token": -0.1}, "impossible"),
        ({"mean_time_s_per_token": None}, "not as written"),
        ({"recent_j_per_token": 1.0}, "recent_j_per_token"),
    ],
)
def test_impossible_times_are_refused(wrong, words):
    data = json.loads(timed(9.0, 1.0, 2.0).to_json())
    data["times"][0] |= wrong
    with pytest.raises(DataError, match=words):
        EdiMatrix.from_json(json.dumps(data))
