"""Policies without training, on a batched simulation: baselines of the comparison.

Each is called with the simulation and returns one action code an episode. What the guards refuse
goes to the GPU, as for every policy. What it knows of costs is the simulation's view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ecorl.policy.planners.search import Codes, lookahead
from ecorl.records import Stage
from ecorl.scheduler.features import NAMES
from ecorl.scheduler.tables import Float64
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import Trace
from ecorl.stages.figures import CONCURRENT, FPGA, GPU
from ecorl.stages.iteration import card_done_s

FROZEN = (Stage.REWARD, Stage.REFERENCE)
PAPER_L_MAX = 2048.0
PAPER_Q_MAX = 8.0
"""The paper's Algorithm 1 leaves Q_max open; the guard's default stands in."""

SEQUENCES = tuple(
    product((GPU, CONCURRENT), *3 * [(GPU, FPGA, CONCURRENT)], *2 * [(GPU, CONCURRENT)])
)
"""The 216 distinct sequences of an iteration, codes in the order of the stages."""

THRESHOLD_LENGTHS = (0.0, 128.0, 256.0, 512.0, 1024.0, 1536.0, 2048.0, 4096.0, 1e9)
"""Tokens; 0 is never."""
THRESHOLD_WAITS = (0.0, 0.25, 1.0, 1e9)
"""Queue in units of this job's own work on the cards, reward and reference together."""

PROBES = (0, 10, 30)
"""Iterations after which a look-ahead by measured costs tries the cards again; 0 is never."""


def always_concurrent(simulation: Simulation) -> Codes:
    """a3 for reward and reference, a1 for the rest."""
    code = CONCURRENT if simulation.stage in FROZEN else GPU
    return np.full(simulation.trace.n, code, dtype=np.int64)


def always_gpu(simulation: Simulation) -> Codes:
    """a1 everywhere: 0 % of the share scale."""
    return np.zeros(simulation.trace.n, dtype=np.int64)


class Random:
    """Any action with equal chance.

    Args:
        seed: of the choice.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng([seed, 13])

    def __call__(self, simulation: Simulation) -> Codes:
        """One of three."""
        return self._rng.integers(0, 3, simulation.trace.n)


class StaticBaseline:
    """The same action at a stage always.

    Args:
        sequences: ``[n, 6]`` codes, or one sequence for all.
    """

    def __init__(self, sequences: Codes | Sequence[int]) -> None:
        self.sequences = np.atleast_2d(np.asarray(sequences, dtype=np.int64))

    def __call__(self, simulation: Simulation) -> Codes:
        """The stage's action."""
        place = self.sequences[:, simulation.place]
        return np.broadcast_to(place, (simulation.trace.n,))


class ThresholdBaseline:
    """Offload while rows and queue are short; what is not placement is fixed.

    Args:
        max_length: longest mean row that is offloaded, ``[n]`` or one, tokens.
        max_wait: longest queue, in units of this job's reward and reference on the cards.
        defer: whether the critic's step is put off, ``[n]`` or one.
    """

    def __init__(
        self, max_length: Float64 | float, max_wait: Float64 | float, defer: Float64 | float = 0.0
    ) -> None:
        self.max_length, self.max_wait, self.defer = max_length, max_wait, defer

    def __call__(self, simulation: Simulation) -> Codes:
        """a3 within both thresholds."""
        if simulation.stage is Stage.CRITIC_TRAIN:
            codes = CONCURRENT * np.asarray(self.defer, dtype=np.float64)
            return np.broadcast_to(codes.astype(np.int64), (simulation.trace.n,))
        if simulation.stage is Stage.ACTOR_TRAIN:
            return CONCURRENT * np.asarray(_waits(simulation), dtype=np.int64)
        work, carry = simulation.known_work(), simulation.known_carry()
        own_s = (work.card_s[0] + work.card_s[1]) / carry.speed
        wait_s = np.maximum(0.0, carry.base_s - carry.t_s)
        short = simulation.row_length() <= self.max_length
        return CONCURRENT * np.asarray(short & (wait_s <= self.max_wait * own_s), dtype=np.int64)


def algorithm1(simulation: Simulation) -> Codes:
    """The paper's Algorithm 1 with a policy that always asks for a3: lines 2 to 10."""
    if simulation.stage not in FROZEN:
        return CONCURRENT * np.asarray(_waits(simulation), dtype=np.int64)
    carry = simulation.known_carry()
    done_s, card_s = card_done_s(
        simulation.stage, carry, simulation.known_work(), 1.0, simulation.ops
    )
    queue = np.maximum(0.0, done_s - carry.t_s - card_s)
    short = simulation.row_length() <= PAPER_L_MAX
    return CONCURRENT * np.asarray(short & (queue < PAPER_Q_MAX * card_s), dtype=np.int64)


def lookahead_deferring(simulation: Simulation) -> Codes:
    """The look-ahead over one iteration, but the critic's step is put off wherever that may be.

    A look-ahead that ends with the iteration does not see what putting off saves in the next one.
    """
    if simulation.stage is Stage.CRITIC_TRAIN:
        return np.full(simulation.trace.n, CONCURRENT, dtype=np.int64)
    return lookahead(simulation)


class MeasuredLookahead:
    """The look-ahead over costs at the level of what was measured, which tries the cards again.

    Args:
        probe: iterations without a reading of the cards after which reward and reference are sent
            once, whatever the look-ahead says; 0: never. ``[n]`` or one.
        defer: whether the critic's step is put off wherever that may be, ``[n]`` or one.
    """

    def __init__(self, probe: Float64 | float = 0.0, defer: Float64 | float = 0.0) -> None:
        self.probe, self.defer = probe, defer

    def __call__(self, simulation: Simulation) -> Codes:
        """The best sequence's first action, or a3 to read the cards."""
        codes = lookahead(simulation)
        if simulation.stage is Stage.CRITIC_TRAIN:
            return np.asarray(np.where(np.asarray(self.defer) > 0.0, CONCURRENT, codes))
        if simulation.stage not in FROZEN or simulation.trace.diverged is None:
            return codes  # where the tables are right there is nothing to read
        _, on_card = simulation.beliefs.readings(simulation.stage)
        # Without any reading the age is that of the job.
        age = np.where(on_card.count > 0.0, on_card.age, simulation.iteration)
        probe = np.asarray(self.probe)
        due = (probe > 0.0) & (age >= probe) & (codes == GPU)
        return np.asarray(np.where(due, CONCURRENT, codes))


_GAINS = (NAMES.index("gain_a2"), NAMES.index("gain_a3"))


def gain_greedy(simulation: Simulation) -> Codes:
    """The action of the greatest gain among the inputs of a learned policy, a1 without one."""
    state, may = simulation.observation()
    gains = [np.broadcast_to(0.0, simulation.trace.n)]
    for allowed, place in zip(may, _GAINS, strict=True):
        gain = np.broadcast_to(state[place], simulation.trace.n)
        gains.append(np.where(np.asarray(allowed) > 0.0, gain, -np.inf))
    # Between equal gains a1, then a3, which is never the slower.
    picked = np.argmax(np.stack([gains[0], gains[2], gains[1]]), axis=0)
    return np.asarray(np.array([GPU, CONCURRENT, FPGA])[picked])


def _by_edi(simulation: Simulation, *, count_wait: bool) -> Codes:
    if simulation.stage not in FROZEN:
        return CONCURRENT * np.asarray(_waits(simulation), dtype=np.int64)
    work, carry = simulation.known_work(), simulation.known_carry()
    place = FROZEN.index(simulation.stage)
    done_s, card_s = card_done_s(simulation.stage, carry, work, 1.0, simulation.ops)
    card_j = work.card_active_w * card_s
    if count_wait:
        card_j = card_j + work.gpu_idle_w * np.maximum(0.0, done_s - carry.t_s)
    return CONCURRENT * np.asarray(card_j < work.gpu_j[place], dtype=np.int64)


edi_greedy = partial(_by_edi, count_wait=False)
"""The device with fewer joules a token, whatever the wait."""

edi_queue = partial(_by_edi, count_wait=True)
"""The same, with what the GPUs draw while they wait."""


def _waits(simulation: Simulation) -> Codes:
    """Where the barrier would hold: there the forward pass goes before it."""
    if simulation.stage is not Stage.ACTOR_TRAIN:
        return np.zeros(simulation.trace.n, dtype=np.int64)
    work = simulation.known_work()
    carry = simulation.known_carry()
    wait_s = carry.pending_s - carry.t_s
    return np.asarray(wait_s > work.early_s, dtype=np.int64)


def best_static(trace: Trace, groups: Codes | None = None) -> Codes:
    """The best of the 216 sequences for each group of some tuning episodes, ``[n, 6]``.

    Args:
        trace: the episodes.
        groups: ``[n] int64``: episodes of one number are tuned together; None: those of one
            scenario (the same object).
    """
    sequences = np.array(_distinct(trace), dtype=np.int64)
    best = _best(trace, groups, lambda *sequence: StaticBaseline(sequence), sequences)
    return np.asarray(best)


def best_threshold(trace: Trace, groups: Codes | None = None) -> ThresholdBaseline:
    """The best thresholds for each group of some tuning episodes.

    Args:
        trace: the episodes.
        groups: ``[n] int64``: episodes of one number are tuned together; None: those of one
            scenario (the same object).
    """
    choices = np.array(list(product(THRESHOLD_LENGTHS, THRESHOLD_WAITS, (0.0, 1.0))))
    return ThresholdBaseline(*_best(trace, groups, ThresholdBaseline, choices).T)


def best_measured(trace: Trace, groups: Codes | None = None) -> MeasuredLookahead:
    """The best probing and deferral for each group of some tuning episodes.

    Args:
        trace: the episodes.
        groups: ``[n] int64``: episodes of one number are tuned together; None: those of one
            scenario (the same object).
    """
    choices = np.array(list(product(map(float, PROBES), (0.0, 1.0))))
    return MeasuredLookahead(*_best(trace, groups, MeasuredLookahead, choices).T)


def _distinct(trace: Trace) -> list[tuple[int, ...]]:
    """Sequences that differ under the abilities of at least one scenario."""
    able = [s.abilities for s in trace.scenarios]
    fixed = (
        not any(a.stream for a in able), False, False, not any(a.offload_critic for a in able),
        not any(a.early_forward for a in able), not any(a.defer_critic for a in able),
    )  # fmt: skip
    return [s for s in SEQUENCES if not any(f and code for f, code in zip(fixed, s, strict=True))]


def _best(trace: Trace, groups: Codes | None, make: Callable[..., Any], choices: Any) -> Any:
    """Of the parameters ``[m, k]`` of a policy the best for each episode's group, ``[n, k]``."""
    scores = np.stack([play(Simulation(trace), make(*c.tolist()))[0] for c in choices])
    if groups is None:
        groups = np.array([id(s) for s in trace.scenarios])
    means = np.empty_like(scores)
    for key in np.unique(groups):
        means[:, groups == key] = scores[:, groups == key].mean(axis=1, keepdims=True)
    return choices[np.argmax(means, axis=0)]
