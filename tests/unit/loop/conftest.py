"""What the record of a loop says, and a loop to measure."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from ecorl.ledger import LedgerReader
from tests.fakes.grids import patient, turning_grid  # noqa: F401


class Record:
    """The record of a run in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def read(self, what):
        with contextlib.closing(LedgerReader(self.folder)) as reader:
            return getattr(reader, what)()

    def results(self):
        return [row.result for row in self.read("executions") if not row.superseded]

    def steps(self):
        return [result.iteration for result in self.results()]

    def states(self):
        told = ("start", "resume", "stop", "failure", "finish")
        return [event.kind for event in self.read("events") if event.kind in told]

    def ending(self):
        return self.read("events")[-1].detail

    def metrics(self, name):
        rows = [m for m in self.read("metrics") if m.name == name and not m.superseded]
        return {row.iteration: row.value for row in rows}


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path / "run")


def descend(weights, rows):
    """A step of NumPy: gradient descent on a quadratic."""
    gradient = rows.T @ (rows @ weights - 1.0) / len(rows)
    return weights - 0.1 * gradient


@pytest.fixture
def descent():
    """Trains with NumPy for some steps, each told to `done`; gives the weights."""

    def train(n_steps, done=lambda loss: True):
        rng, weights = np.random.default_rng(3), np.zeros(8)
        for _ in range(n_steps):
            rows = rng.normal(size=(16, 8))
            weights = descend(weights, rows)
            if not done(float(np.square(rows @ weights - 1.0).mean())):
                break
        return weights

    return train
