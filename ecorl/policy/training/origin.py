"""The figures that a policy was trained on, as one digest that tells when they have changed.

A policy learns in a simulator whose costs come from device profiles, the cost model, the cycle
model of the kernels and the stage function. The digest covers what these give, not their source:
the cost tables of a fixed sample of a family's training pool, and the work, states and rewards of
one short episode of each. Moving or rewriting code leaves it as it was; another figure in a
profile, another cycle count or another constant of the simulator changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.scheduler.features import NAMES
from ecorl.sim.batched import observe
from ecorl.sim.families.training import paper_scenarios, training_pool
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import Simulation
from ecorl.sim.trace import draw_trace
from ecorl.stages.figures import Work

FIGURES = "figures"
"""Key of a policy's record under which the digest stands."""

N_SAMPLED = 40
"""Scenarios of the sample. Those of ``roofline`` are of every family of the training pool; their
tables take some seconds to compute."""

_N_ITERATIONS = 6
_TABLE_DIGITS = 6
"""Significant digits of a cost that count. Processors differ in the last bits of a logarithm, which
must not make a policy stale; a changed figure moves more than one part in a million."""

_OF_RUNS_ALONE = frozenset({"card_share"})
"""Figures of `Work` that are 1 in every scenario, since only a run has others: no policy has
learned anything from them."""

_STATE_DECIMALS = 4
"""Decimals of states (limited to about 10) and rewards that count, for the same reason. Both come
from differences of costs, so their last bits are less certain than those of the costs."""


def figures_digest(family: str) -> str | None:
    """Digest of the figures that a training on a family of scenarios rests on.

    Args:
        family: of the training plan: ``roofline``, ``paper`` or ``fitted``.

    Returns:
        SHA-256 in hexadecimal; None for ``fitted``, whose costs come from a run's ledger.
    """
    if family == "fitted":
        return None
    draw = paper_scenarios if family == "paper" else training_pool
    drawn = draw(0, N_SAMPLED)
    sample = [replace(s, n_iterations=_N_ITERATIONS) for s in drawn]
    found = hashlib.sha256("\n".join(NAMES).encode())
    for part in (*_tables(sample), *_episodes(sample)):
        found.update(part.tobytes())
    return found.hexdigest()


def is_stale(record: Mapping[str, Any]) -> bool | None:
    """Whether the figures behind a policy are others than those of this program.

    Args:
        record: how the policy was made, from its file.

    Returns:
        None when that cannot be told: the policy was trained on a calibrated run.
    """
    family = str((record.get("plan") or {}).get("family", ""))
    if family not in ("roofline", "paper"):
        return None
    return record.get(FIGURES) != figures_digest(family)


def _tables(sample: Sequence[Scenario]) -> list[npt.NDArray[np.float64]]:
    """Every figure of the scenarios' cost tables, rounded to `_TABLE_DIGITS`."""
    found = []
    for scenario in sample:
        table = scenario.table
        single = (
            table.gpu_idle_w, table.card_active_w, table.card_idle_w, table.resync_s,
            table.forward_share, table.early_share, table.swap_share, table.contention,
            *table.card_usable,
        )  # fmt: skip
        found += [
            _significant(np.array(part, dtype=np.float64))
            for part in (table.lengths, table.values, single)
        ]
    return found


def _episodes(sample: Sequence[Scenario]) -> list[npt.NDArray[np.float64]]:
    """Work, states and rewards of an episode of each scenario under fixed random actions."""
    rng = np.random.default_rng(0)
    trace = draw_trace(sample, rng)
    # The drawn work holds the simulator's constants that a short episode may not act on, such as
    # those of heat.
    found = _work(trace.actual) + _work(trace.expected)
    simulation = Simulation(trace)
    while not simulation.done:
        states, may = observe(simulation)
        reward = simulation.step(rng.integers(0, 3, len(sample)), may)
        found += [_decimals(states), _decimals(np.asarray(reward))]
    return found


def _work(work: Work) -> list[npt.NDArray[np.float64]]:
    """Every figure of some iterations' work, each episode's relative to its greatest."""
    found = []
    for name, figure in zip(work._fields, work, strict=True):
        if name in _OF_RUNS_ALONE:
            continue
        for values in figure if isinstance(figure, tuple) else (figure,):
            greatest = np.abs(values).max(axis=0)
            # What is 0 but for rounding must not count by its digits.
            share = values / np.where(greatest > 0, greatest, 1.0)
            found += [_significant(greatest), np.round(share, _TABLE_DIGITS) + 0.0]
    return found


def _significant(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Values rounded to `_TABLE_DIGITS` significant digits."""
    texts = [f"{value:.{_TABLE_DIGITS - 1}e}" for value in values.ravel()]
    # Adding 0 makes a -0.0 a 0.0, here and below.
    return np.array(texts, dtype=np.float64) + 0.0


def _decimals(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Values rounded to `_STATE_DECIMALS` decimals."""
    return np.asarray(np.round(values.astype(np.float64), _STATE_DECIMALS) + 0.0)
