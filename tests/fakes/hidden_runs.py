"""Recorded runs of a hidden scenario, and ways to spoil their ledgers."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3

from benchmarks.studies.hidden_runs import hidden_scenario, write_ledger
from ecorl.ledger import LEDGER_FILE

PLAIN = hidden_scenario(3, n_iterations=240)
"""With a critic, which the cards can run, and every overlap."""

ROWS = "FROM execution WHERE"
REWARD_GPU = "stage = 'reward' AND action = 'gpu'"
REWARD_CARD = "stage = 'reward' AND action <> 'gpu'"


def all_but(n, what):
    kept = f"SELECT id {ROWS} {what} LIMIT {n}"
    return f"DELETE {ROWS} {what} AND id NOT IN ({kept})"


def wrote(folder, scenario=PLAIN, **kwargs):
    write_ledger(scenario, folder, **kwargs)
    return folder


def edited(source, target, *statements):
    """A copy of a run's ledger after some SQL."""
    shutil.copyfile(source / LEDGER_FILE, target / LEDGER_FILE)
    with contextlib.closing(sqlite3.connect(target / LEDGER_FILE)) as db, db:
        for statement in statements:
            db.execute(statement)
    return target
