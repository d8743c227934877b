"""Bytes that changed on the disk: one clear error or a report, never anything else."""

from __future__ import annotations

import contextlib
import io
import random
import sqlite3

import pytest
from rich.console import Console

from ecorl.errors import LedgerError
from ecorl.ledger import LEDGER_FILE, LedgerReader
from ecorl.records import (
    Action,
    ActionCost,
    FaultEvent,
    FaultKind,
    Placement,
    Stage,
)
from ecorl.report import build_report, read_config
from ecorl.report.render.text import print_report


def fill(run):
    run.config()
    run.standard()
    run.power("gpu0", range(1000, 1300), 110.0, lambda t: 110.0 * (t - 1000))
    costs = (ActionCost(Action.GPU, 1.0, 2.0, 0.0),)
    for i in range(1, 20):
        run.ran(Stage.GENERATION, (1020 + i, 1020.5 + i), 60.0, iteration=i)
        run.ledger.metric(i, "reward", 0.1 * i)
        run.ledger.placement(
            Placement(i, Stage.REWARD, Action.GPU, Action.GPU, "lookahead", f"cost {i} J", costs)
        )
    run.ledger.evaluation("reward", "before", [0.0, 1.0])
    run.ledger.evaluation("reward", "after", [1.0, 3.0])
    run.ledger.fault(FaultEvent(2, FaultKind.ENGINE_TIMEOUT, "fpga0", "no answer", 3))
    run.ledger.checkpoint(3, "checkpoint-3")
    run.ledger.close()


def told(folder) -> str:
    """The text of a report, or the error in place of it."""
    out = io.StringIO()
    try:
        with LedgerReader(folder) as reader:
            report = build_report(reader, read_config(reader.run(), folder))
            print_report(report, Console(file=out, width=100))
    except LedgerError as error:
        return f"LedgerError: {error}"
    return out.getvalue()


def flipped(data: bytes, draw: random.Random) -> bytes:
    """Single bits, and in one case of five a whole stretch; the header stays."""
    damaged = bytearray(data)
    for _ in range(draw.choice([1, 5, 50])):
        damaged[draw.randrange(100, len(data))] ^= 1 << draw.randrange(8)
    if draw.random() < 0.2:
        at = draw.randrange(100, len(data) - 300)
        damaged[at : at + 300] = draw.randbytes(300)
    return bytes(damaged)


@pytest.mark.filterwarnings("error")
def test_whatever_bytes_change_it_is_a_report_or_one_clear_error(run):
    fill(run)
    file = run.folder / LEDGER_FILE
    data = file.read_bytes()
    whole = told(run.folder)
    outcomes = []
    for seed in range(150):
        file.write_bytes(flipped(data, random.Random(seed)))
        text = told(run.folder)
        outcomes.append(text.startswith("LedgerError"))
        # An error is one line, and holds nothing that a terminal would obey.
        assert text.isprintable() == outcomes[-1]
    assert 15 < sum(outcomes) < 150, "the damage is too small, or too large, to say anything"
    file.write_bytes(data)
    assert told(run.folder) == whole


CHANGES = {
    "a text that is no UTF-8": "UPDATE event SET kind = CAST(x'ff66696e' AS TEXT)",
    "a number that became a text": "UPDATE execution SET start_t_s = 'soon'",
    "a number that became a blob": "UPDATE metric SET value = x'0102'",
    "a word that is none": "UPDATE execution SET stage = 'generatiqn'",
    "a provenance that is none": "UPDATE series SET provenance = 'measurdd'",
    "costs that are no JSON": "UPDATE placement SET costs = '[{'",
    "costs without a key": "UPDATE placement SET costs = '[{\"actioN\": 1}]'",
    "values that are no numbers": "UPDATE evaluation SET item_values = '[\"a\"]'",
    "a table that is gone": "DROP TABLE fault",
    "a column that is gone": "ALTER TABLE barrier RENAME COLUMN wait_s TO waid_s",
    "a block that is none": (
        "INSERT INTO power_block SELECT 99, 1, min(id), 0, 9, 10, x'789c00' FROM series"
    ),
    "an empty record": "DELETE FROM run",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_damage_that_sqlite_does_not_see_is_one_clear_error(run, change):
    fill(run)
    assert "LedgerError" not in told(run.folder)
    with contextlib.closing(sqlite3.connect(run.folder / LEDGER_FILE)) as db, db:
        db.execute(change)
    assert told(run.folder).startswith("LedgerError")


def test_an_error_quotes_nothing_that_a_terminal_obeys(run):
    fill(run)
    with contextlib.closing(sqlite3.connect(run.folder / LEDGER_FILE)) as db, db:
        db.execute("UPDATE execution SET stage = ?", ("\x1b[2J\nx",))
    with LedgerReader(run.folder) as reader, pytest.raises(LedgerError) as caught:
        reader.executions()
    assert str(caught.value).isprintable()
    assert r"\x1b[2J" in str(caught.value)
