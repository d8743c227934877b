"""Where a policy chooses which action, over row length and queue, for the reward stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.policy.training.network import permitted_codes
from ecorl.records import Algorithm, Stage
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.scheduler.tables import Float64
from ecorl.sim.batched import observe
from ecorl.sim.scenario import Limits, Scenario
from ecorl.sim.simulation import Simulation
from ecorl.sim.trace import draw_trace, select
from ecorl.stages import GPU

Int64 = npt.NDArray[np.int64]

REFUSED = -1
"""Code where the guards leave a1 alone, whatever the policy says."""

N_LENGTHS, N_QUEUES = 44, 25
MOST_QUEUE = 9.5
"""Batches; the guard's default stops offloading at 8, which must not be one of the points."""

_STEADY = 1e7
"""Concentration of the tasks at which every batch is the mix."""


@dataclass(frozen=True, eq=False)
class Choices:
    """A map of actions.

    Attributes:
        scenario: where.
        row_length: ``[n_lengths] float64``: mean tokens of a row, prompt and completion.
        queue: ``[n_queues] float64``: batches like this one that the cards have before it.
        codes: ``[n_queues, n_lengths] int64``: 0, 1, 2 for a1, a2, a3, or `REFUSED`.
    """

    scenario: Scenario
    row_length: Float64
    queue: Float64
    codes: Int64


def reference_scenario(family: str) -> Scenario:
    """The scenario of the picture: long rows pass its length guard up to 2,048 tokens."""
    base = Scenario(
        "reference", max_length=4096.0, prompt_length=128.0, limits=Limits(8.0, 2048.0, None)
    )
    if family == "paper":
        return replace(base, calibration="paper", sizes={Stage.GENERATION: "70b"})
    # A small policy with a large reward model, and a second device that is worth a decision.
    sizes = dict.fromkeys(Stage, "1b") | {Stage.REWARD: "8b"}
    return replace(
        base, algorithm=Algorithm.GRPO, sizes=sizes, gpu="a100_sxm", n_gpus=4, card="l4",
        n_cards=8, n_rows=512,
    )  # fmt: skip


def choices(file: PolicyFile, scenario: Scenario) -> Choices:
    """Ask a policy at every length and queue.

    Each column is an episode whose batches are all of one length, without drift, noise or other
    jobs; generation stays on the GPUs, and what the cards already have is set.

    Args:
        file: the policy.
        scenario: costs, devices, guards.
    """
    # Longer than the limit a completion cannot be; shorter than 8 tokens it says nothing.
    shortest, longest = max(8.0, scenario.max_length / 64), 0.98 * scenario.max_length
    lengths = np.geomspace(shortest, longest, N_LENGTHS)
    per_unit = scenario.nominal_length / scenario.length_scale
    steady = [_steady(scenario, float(length / per_unit)) for length in lengths]
    trace = draw_trace(steady, np.random.default_rng(0))
    queue = np.linspace(0.0, MOST_QUEUE, N_QUEUES)
    columns = np.tile(np.arange(N_LENGTHS), N_QUEUES)
    simulation = Simulation(select(trace, columns))
    simulation.step(np.full(len(columns), GPU))
    _fill(simulation, np.repeat(queue, N_LENGTHS))
    seen, may = observe(simulation)
    codes = permitted_codes(file.batch(seen), may)
    alone = np.maximum(*np.broadcast_arrays(*may)) <= 0.0
    codes = np.where(alone, REFUSED, codes).reshape(N_QUEUES, N_LENGTHS)
    row_length = np.asarray(trace.row_length[0], dtype=np.float64)
    order = np.argsort(row_length, kind="stable")
    return Choices(scenario, row_length[order], queue, codes[:, order])


def _steady(scenario: Scenario, length_scale: float) -> Scenario:
    made = replace(
        scenario,
        group_size=1,
        length_scale=length_scale,
        concentration=_STEADY,
        drift_std=0.0,
        noise_std=0.0,
        load=0.0,
        failure_rate=0.0,
        adaptive_batch=False,
        off_policy=False,
        replay=None,
        n_iterations=1,
    )
    # One table for all of them: it holds for any length.
    return replace(made, calibration="fitted", fitted=scenario.table)


def _fill(simulation: Simulation, queue: Float64) -> None:
    """Give the cards `queue` batches like the next to do first."""
    carry: Any = simulation.carry
    own_s = simulation.known_work().card_s[0] / carry.speed
    free_s = carry.t_s + queue * own_s
    simulation.carry = carry._replace(card_s=free_s, base_s=free_s)
