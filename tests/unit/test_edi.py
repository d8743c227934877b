from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.edi import EdiMatrix, edi, edi_from_energy, edi_reading
from ecorl.errors import ConfigError, DataError
from ecorl.records import EdiReading, Provenance, Stage

FIGURES = st.floats(0, 1e6, allow_nan=False)
READINGS = st.builds(
    lambda stage, device, value, provenance: EdiReading(
        stage, device, None if value is None else value * 10, 10, value, provenance
    ),
    st.sampled_from(list(Stage)),
    st.sampled_from(["gpu", "u55c"]),
    st.one_of(st.none(), FIGURES),
    st.sampled_from(list(Provenance)),
)


def reading(value, provenance=Provenance.MEASURED, device="gpu"):
    return EdiReading(Stage.REWARD, device, None, 1, value, provenance)


def test_eq_4_by_hand():
    assert edi(200.0, 3.0, 1200) == 0.5
    assert edi_reading(Stage.REWARD, "gpu", 600.0, 1200, Provenance.MEASURED).edi_j_per_token == 0.5


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
    cell = matrix.cell(Stage.REWARD, "gpu", Provenance.MEASURED)
    assert cell.value_j_per_token == pytest.approx(3.0)
    assert matrix.confidence(Stage.REWARD, "gpu", Provenance.MEASURED).profiled
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
    assert matrix.best(Stage.REWARD, "gpu").provenance is Provenance.MEASURED
    assert matrix.best(Stage.REWARD, "u55c") is None


def test_confidence_of_an_empty_cell():
    c = EdiMatrix().confidence(Stage.CRITIC, "gpu", Provenance.MEASURED)
    assert (c.count, c.std_j_per_token, c.standard_error_j_per_token, c.profiled) == (
        0,
        None,
        None,
        False,
    )


@given(st.lists(FIGURES, min_size=2, max_size=60))
def test_mean_and_spread_match_the_textbook(values):
    matrix = EdiMatrix(n_profiling=1000)
    for value in values:
        matrix.update(reading(value))
    cell = matrix.cell(Stage.REWARD, "gpu", Provenance.MEASURED)
    assert cell.mean_j_per_token == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert cell.value_j_per_token == cell.mean_j_per_token
    assert cell.std_j_per_token == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-5)
    c = matrix.confidence(Stage.REWARD, "gpu", Provenance.MEASURED)
    assert c.standard_error_j_per_token == pytest.approx(
        cell.std_j_per_token / math.sqrt(len(values))
    )


@given(st.lists(READINGS, max_size=40), st.integers(0, 10), st.floats(0.01, 1))
def test_cells_stay_within_their_readings_and_round_trip(readings, n_profiling, alpha):
    matrix = EdiMatrix(alpha, n_profiling)
    for r in readings:
        matrix.update(r)
    for cell in matrix.cells():
        own = [
            r.edi_j_per_token
            for r in readings
            if (r.stage, r.device, r.provenance) == (cell.stage, cell.device, cell.provenance)
            and r.edi_j_per_token is not None
        ]
        assert cell.count == len(own)
        slack = 1e-9 * (1 + max(own))
        assert min(own) - slack <= cell.value_j_per_token <= max(own) + slack
    again = EdiMatrix.from_json(matrix.to_json())
    assert again == matrix
    assert again.to_json() == matrix.to_json()
    for r in readings:  # a restored matrix goes on exactly as the old one would
        assert again.update(r) == matrix.update(r)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 2}', '{"format":1,"alpha":0.05,"n_profiling":2,"cells":[{}]}'],
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
