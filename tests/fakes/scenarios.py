"""Scenarios that are quick to draw, and ways to look at their episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ecorl.records import Abilities, Stage
from ecorl.sim.scenario import Limits, Scenario
from ecorl.sim.simulation import Simulation
from ecorl.sim.trace import draw_trace

ALL_ABILITIES = Abilities(stream=True, early_forward=True, defer_critic=True, offload_critic=True)

SCENARIO = Scenario(
    "paper",
    "paper",
    sizes={Stage.GENERATION: "70b"},
    load=0.3,
    failure_rate=0.1,
    abilities=ALL_ABILITIES,
    limits=Limits(l_max=4096.0),
    n_iterations=12,
)
"""One in which every action is worth something at times."""


def draw(scenario=SCENARIO, seed=0, n=1, **changes):
    """A trace of `n` episodes of a scenario with some changes."""
    scenario = replace(scenario, **changes)
    return draw_trace([scenario] * n, np.random.default_rng(seed))


def with_actual(trace, index=..., **changes):
    """A trace of which some actual figures are others from iteration `index` on.

    A change is a factor, or a function of the figures.
    """
    figures = {}
    for name, change in changes.items():
        figures[name] = _changed(getattr(trace.actual, name), index, change)
    return replace(trace, actual=trace.actual._replace(**figures))


def _changed(values, index, change):
    if isinstance(values, tuple):
        return tuple(_changed(part, index, change) for part in values)
    made = values.copy()
    made[index] = change(made[index]) if callable(change) else made[index] * change
    return made


def played(trace, codes, index=0):
    """A simulation after the steps of some codes."""
    simulation = Simulation(trace, index)
    for code in codes:
        simulation.step(code)
    return simulation
