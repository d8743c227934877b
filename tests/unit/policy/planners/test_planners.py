"""Look-ahead, planner, clairvoyant optimum and the simple rules, held against one another."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ecorl.policy.planners.heuristics import (
    SEQUENCES,
    Random,
    StaticBaseline,
    algorithm1,
    always_gpu,
    best_static,
    best_threshold,
    edi_greedy,
    edi_queue,
)
from ecorl.policy.planners.planner import Clairvoyant, Planner, grid_for
from ecorl.policy.planners.search import best, leaves, look, lookahead
from ecorl.records import Stage
from ecorl.sim.families.training import hypothetical_scenarios, paper_scenarios
from ecorl.sim.simulation import STAGES, Simulation, play
from ecorl.stages.figures import BATCH, Between
from ecorl.stages.guards import permitted
from ecorl.stages.iteration import advance, finish
from tests.fakes.scenarios import SCENARIO, draw

HARD = replace(paper_scenarios(5, 1, harder=True)[0], n_iterations=30)


def test_there_are_216_distinct_sequences():
    assert len(SEQUENCES) == len(set(SEQUENCES)) == 216
    simulation = Simulation(draw(n=2))
    found = leaves(Stage.GENERATION, simulation.carry, simulation.actual, simulation.rules, 500.0)
    assert sorted(map(tuple, found.actions.tolist())) == sorted(SEQUENCES)


@pytest.mark.parametrize("place", range(6))
def test_every_leaf_is_what_playing_its_sequence_comes_to(place):
    """The tree shares what sequences have in common; here each is played alone."""
    simulation = Simulation(draw(n=3, seed=place))
    for _ in range(2 * 6 + place):
        simulation.step(np.full(3, 2))
    stage, rules = simulation.stage, simulation.rules
    work, length = simulation.actual, simulation.row_length()
    found = leaves(stage, simulation.carry, work, rules, length)
    for i in range(0, len(found.actions), max(1, len(found.actions) // 12)):
        carry = simulation.carry
        for one, code in zip(STAGES[place:], found.actions[i], strict=True):
            may = permitted(one, carry, work, rules, length, BATCH)
            allowed = code * may[code - 1] if code else 0.0 * may[0]
            carry = advance(one, carry, work, allowed, BATCH)
        totals = finish(carry, work, BATCH)
        assert found.after.backlog_s[:, i] == pytest.approx(totals.after.backlog_s, rel=1e-9)
        assert found.after.deferred_s[:, i] == pytest.approx(totals.after.deferred_s, rel=1e-9)


def test_on_a_tie_the_gpu():
    actions = np.array([[0], [1], [2]])
    codes, worth = best(actions, np.array([[1.0, 1.0, 1.0 + 1e-15], [0.0, 1.0, 2.0]]))
    assert codes.tolist() == [0, 2]
    assert worth[1].tolist() == [0.0, 1.0, 2.0]


def test_the_look_ahead_is_never_worse_in_its_first_iteration_than_any_sequence():
    trace = draw(n=4, noise_std=0.0, drift_std=0.0, failure_rate=0.0, load=0.0, n_iterations=1)
    ahead = play(Simulation(trace), lookahead)[0]
    for sequence in SEQUENCES[::7]:
        assert (play(Simulation(trace), StaticBaseline(sequence))[0] <= ahead + 1e-9).all()


@pytest.mark.parametrize("n_iterations", [12, pytest.param(30, marks=pytest.mark.deep)])
def test_nobody_beats_the_optimum_and_the_planner_beats_the_rules(n_iterations):
    trace = draw(replace(HARD, n_iterations=n_iterations), n=6, seed=3)
    optimum = play(Simulation(trace), Clairvoyant(trace))[0]
    planner = play(Simulation(trace), Planner(trace.scenarios))[0]
    rules = {
        "random": Random(),
        "look-ahead": lookahead,
        "algorithm 1": algorithm1,
        "edi": edi_greedy,
        "edi with queue": edi_queue,
        "static": StaticBaseline(best_static(trace)),
        "threshold": best_threshold(trace),
        "gpu": always_gpu,
    }
    scores = {name: play(Simulation(trace), policy)[0] for name, policy in rules.items()}
    # The optimum's table is interpolated: a hundredth is its error.
    slack = 0.01 * optimum.mean()
    assert (planner <= optimum + slack).all()
    for name, score in scores.items():
        assert (score <= optimum + slack).all(), name
        assert score.mean() <= planner.mean() + slack, name
    assert planner.mean() > 0.9 * optimum.mean()
    assert scores["gpu"].tolist() == pytest.approx([0.0] * 6, abs=1e-9)


def test_the_optimum_of_a_short_episode_is_that_of_trying_everything():
    """Two iterations without choice but the frozen stages': 9 x 9 sequences, one by one."""
    scenario = replace(
        HARD, n_iterations=2, abilities=type(HARD.abilities)(), failure_rate=0.0, drift_std=0.0
    )
    trace = draw(scenario, n=3, seed=11)
    optimum = play(Simulation(trace), Clairvoyant(trace))[0]
    tried = []
    for first, second in product(product(range(3), repeat=2), repeat=2):
        simulation, score = Simulation(trace), 0.0
        for a, b in (first, second):
            for code in (0, a, b, 0, 0, 0):
                score = score + simulation.step(np.full(3, code))
        tried.append(score)
    assert optimum == pytest.approx(np.max(tried, axis=0), abs=2e-3)


def test_the_table_of_values_is_met_at_its_points():
    trace = draw(n=3)
    grid = grid_for(trace)
    values = np.random.default_rng(0).normal(size=(3, grid.size))
    assert grid.interpolate(values, grid.points()) == pytest.approx(values, abs=1e-9)
    beyond = Between(*(np.full((3, 2), 1e9) for _ in Between._fields))
    assert np.isfinite(grid.interpolate(values, beyond)).all()


def test_the_planner_knows_nothing_of_later_iterations():
    trace = draw(HARD, n=2, seed=4)
    other = draw(HARD, n=2, seed=5)
    planner = Planner(trace.scenarios)
    simulation = Simulation(trace)
    mixed = replace(
        trace,
        actual=trace.actual._replace(
            arriving_s=np.concatenate([trace.actual.arriving_s[:1], other.actual.arriving_s[1:]])
        ),
    )
    assert planner(simulation).tolist() == planner(Simulation(mixed)).tolist()


def test_look_prices_every_action_that_may_be_taken():
    simulation = Simulation(draw(SCENARIO, n=2))
    simulation.step(np.zeros(2, dtype=np.int64))
    codes, worth = look(simulation)
    assert worth.shape == (2, 3)
    assert np.isfinite(worth).all()
    assert (worth[np.arange(2), codes] == worth.max(axis=1)).all()


@pytest.mark.parametrize("held_out", [False, True])
def test_physical_scenarios_keep_what_training_must_not_see_apart(held_out):
    for scenario in hypothetical_scenarios(3, 6, held_out=held_out):
        assert (scenario.gpu == "a100_sxm") is held_out
        assert ("3b" in scenario.sizes.values()) is held_out or not held_out
        assert scenario.limits.energy_margin == 0.0
