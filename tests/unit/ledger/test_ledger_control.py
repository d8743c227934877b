"""Decisions about the training stage and the PUE come back from the record as they were told."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.control import Command, Gear, GearChoice, Why
from ecorl.errors import LedgerError
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader

TIMES_S = st.floats(0, 4e9)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
CHOICES = st.builds(
    GearChoice,
    decided_s=TIMES_S,
    command=st.sampled_from(Command),
    why=st.sampled_from(Why),
    controller=WORDS,
    reason=WORDS,
    look_again_s=TIMES_S,
    g_per_kwh=st.none() | st.floats(0, 2000),
    feed=st.none() | WORDS,
    threshold_g_per_kwh=st.none() | st.floats(0, 2000),
    width=st.none() | st.integers(0, 4096),
    gear=st.none() | st.sampled_from(Gear),
    price_g_per_token=st.none() | st.floats(0, 100),
    price_g_per_step=st.none() | st.floats(0, 100),
    clock_share=st.none() | st.floats(0, 100),
)
CHOICE = GearChoice(1e9, Command.PAUSE, Why.DIRTY, "threshold", "too much", 1e9 + 300)


def make(folder):
    return Ledger.create(folder / LEDGER_FILE, run_id="r", config_toml="seed = 1\n", meta={})


@given(st.lists(CHOICES, max_size=5))
def test_every_choice_comes_back_equal(tmp_path_factory, choices):
    folder = tmp_path_factory.mktemp("ledger")
    with make(folder) as ledger:
        for choice in choices:
            ledger.control.choice(choice)
    with LedgerReader(folder) as reader:
        rows = reader.choices()
        assert reader.last_times() == ({1: rows[-1].t_s} if rows else {})
    assert [row.choice for row in rows] == choices
    assert [row.t_s for row in rows] == sorted(row.t_s for row in rows)


def test_the_pue_comes_back_and_unknown_stays_unknown(tmp_path):
    with make(tmp_path) as ledger:
        ledger.control.pue(5.0, 1.25)
        ledger.control.pue(9.0, None)
    with LedgerReader(tmp_path) as reader:
        assert [(row.attempt, row.start_s, row.pue) for row in reader.pues()] == [
            (1, 5.0, 1.25), (1, 9.0, None),
        ]  # fmt: skip


@pytest.mark.parametrize("damage", ["command = 'walk'", "why = 'because'"])
def test_a_damaged_choice_is_one_clear_error(tmp_path, damage):
    with make(tmp_path) as ledger:
        ledger.control.choice(CHOICE)
    with contextlib.closing(
        sqlite3.connect(tmp_path / LEDGER_FILE, isolation_level=None)
    ) as connection:
        connection.execute(f"UPDATE gear_choice SET {damage}")
    with LedgerReader(tmp_path) as reader, pytest.raises(LedgerError, match=LEDGER_FILE):
        reader.choices()
