"""What was known of the grid's intensity comes back from the record as it was told."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.errors import LedgerError
from ecorl.grid import AverageIntensity, Basis, Fuel, Gas, MarginalIntensity, Scope
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.records import Provenance

SHARES = st.floats(0, 1)
TIMES_S = st.floats(0, 4e9)
VALUES = {
    "feed": st.text("abc-", min_size=1),
    "start_s": TIMES_S,
    "interval_s": st.floats(1, 1e6),
    "g_per_kwh": st.floats(1, 2000),
    "gas": st.sampled_from(Gas),
    "basis": st.sampled_from(Basis),
    "scope": st.sampled_from(Scope),
    "factors": st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    "is_estimated": st.none() | st.booleans(),
    "fetched_s": TIMES_S,
    "provenance": st.sampled_from(Provenance),
    "mix": st.none() | st.dictionaries(st.sampled_from(Fuel), SHARES),
}
KINDS = (AverageIntensity, MarginalIntensity)
VALUE = AverageIntensity(
    "uk", 1e9, 1800.0, 123.0, Gas.CO2, Basis.LOCATION, Scope.DIRECT, "its own", True, 1e9 + 5,
    Provenance.PUBLISHED, {Fuel.WIND: 0.25, Fuel.GAS: 0.5, Fuel.HYDRO: 0.125},
)  # fmt: skip


def make(folder):
    return Ledger.create(folder / LEDGER_FILE, run_id="r", config_toml="seed = 1\n", meta={})


@given(st.lists(st.one_of([st.builds(kind, **VALUES) for kind in KINDS] + [st.none()]), max_size=5))
def test_every_value_comes_back_equal(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("ledger")
    kinds = [AverageIntensity if value is None else type(value) for value in values]
    with make(folder) as ledger:
        for kind, value in zip(kinds, values, strict=True):
            ledger.control.intensity(kind, value)
    with LedgerReader(folder) as reader:
        rows = reader.intensities()
    assert [(row.kind, row.value) for row in rows] == list(zip(kinds, values, strict=True))
    assert [row.t_s for row in rows] == sorted(row.t_s for row in rows)


def test_a_value_of_the_other_kind_is_dropped(tmp_path):
    with make(tmp_path) as ledger:
        ledger.control.intensity(MarginalIntensity, VALUE)
        assert not ledger.flush()
        assert ledger.dropped_rows == 1
    with LedgerReader(tmp_path) as reader:
        assert reader.intensities() == []


def test_the_renewable_share_is_that_of_the_mix():
    assert VALUE.renewable_share == 0.375
    assert VALUE.end_s == 1e9 + 1800


@pytest.mark.parametrize(
    "damage",
    [
        "kind = 'medium'",
        "gas = 'g'",
        "mix = '{'",
        "mix = '{\"hay\": 1}'",
        "scope = NULL",
        "g_per_kwh = NULL",
    ],
)
def test_a_damaged_value_is_one_clear_error(tmp_path, damage):
    with make(tmp_path) as ledger:
        ledger.control.intensity(AverageIntensity, VALUE)
    with contextlib.closing(
        sqlite3.connect(tmp_path / LEDGER_FILE, isolation_level=None)
    ) as connection:
        connection.execute(f"UPDATE intensity SET {damage}")
    with LedgerReader(tmp_path) as reader, pytest.raises(LedgerError, match=LEDGER_FILE):
        reader.intensities()
