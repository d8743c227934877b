"""The input of the learned policy's network, for any number of GPUs.

Eq. 6 has two numbers a GPU, 72 at N = 32, so a network that reads it fits one cluster
(`encode` computes it). Here power and utilisation enter by mean and spread, and
times and energies in units of the iteration that only uses the GPUs, so that one network serves any
cluster. What the cost model predicts of the actions is part of the input, at the level of what has
been measured so far; and so is what that rests on: how far the readings are from the tables, how
many there are, how they scatter, and how old they are.

`features` is a pure function on floats or arrays. The simulator and a run build its arguments by
the same functions (`ecorl.scheduler.iteration_costs`), so the network sees in a run what it saw in
training.

Eq. 6 is

    s = [p_1..p_N, u_1..u_N, q_fpga, one-hot stage (6), length]      72 numbers at N = 32

The paper calls the length that of generated sequences; here it is the mean of whole rows, prompt
and completion, the same as the guard's (`ecorl.scheduler.guards` says why). A policy that was
trained on completion lengths alone reads longer rows here than it learned from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ecorl.errors import ConfigError
from ecorl.records import SchedulerState, Stage
from ecorl.scheduler.measured.readings import UNREAD, Readings
from ecorl.stages.figures import CONCURRENT, FPGA, GPU, SCALAR, Carry, Number, Ops, Work
from ecorl.stages.guards import Rules, gpu_only, outlook
from ecorl.stages.iteration import advance, card_done_s

ENERGY_WEIGHT, TIME_WEIGHT, BUBBLE_WEIGHT = 0.40, 0.40, 0.20
"""Eq. 7: r = 0.40 throughput - 0.40 energy - 0.20 bubble."""

SCORE_WORDS = (
    f"the score weighs throughput {TIME_WEIGHT:.0%}, energy {ENERGY_WEIGHT:.0%} and the time in "
    f"which the GPUs wait {BUBBLE_WEIGHT:.0%}, each against the same job with nothing offloaded"
).replace("%", " %")
"""What `objective` is, for whom has not read the paper."""

SCHEMA = "ecorl.features/2"
"""Name of this form of input; a policy file names the form that it was trained on."""

COUNT_MIDDLE = 4.0
"""Readings that the network sees as half of what can be known. Invented."""
AGE_UNIT = 20.0
"""Batches after which a reading is a unit old for the network. Invented."""

READ_STAGE = {
    stage: Stage.REWARD if stage is Stage.GENERATION else Stage.REFERENCE
    for stage in (Stage.GENERATION, Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN)
} | {stage: stage for stage in (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)}
"""The stage whose readings are seen: one that does not leave the GPUs itself is decided by those of
one that does, before or after it."""

_INFERENCE = (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)
_PLACE = {stage: i for i, stage in enumerate(_INFERENCE)}
_ORDER = {stage: i for i, stage in enumerate(Stage)}
_LATER = {
    stage: tuple(i for i, other in enumerate(_INFERENCE) if _ORDER[other] > _ORDER[stage])
    for stage in Stage
}
_BEFORE: dict[Stage, Stage] = {
    stage: before
    for before, stage in pairwise(Stage)
    if before is not Stage.ACTOR_TRAIN and stage is not Stage.ACTOR_TRAIN
}
"""The stage before each inference stage; training steps have a barrier before them."""
ONE_HOT = {stage: tuple(float(other is stage) for other in Stage) for stage in Stage}

NAMES = (
    *(f"stage_{s}" for s in Stage),
    "may_a2", "may_a3",
    "power_mean", "power_spread", "utilisation_mean", "utilisation_spread",
    "queue_batches", "backlog", "pending", "bubble", "deferred",
    "row_length", "log_rows",
    "gpu_time", "card_time", "gpu_energy", "card_energy", "idle_power",
    "later_gpu_time", "later_card_time", "forward", "training", "generation", "critic_training",
    "slack", "streaming", "off_policy", "can_stream", "can_early", "can_defer",
    "cards_up", "speed", "heat", "slow", "late_work", "asleep", "stale", "due",
    "gpu_ratio", "gpu_j_ratio", "gpu_spread", "gpu_count", "gpu_age",
    "card_ratio", "card_j_ratio", "card_spread", "card_count", "card_age",
    "gain_a2", "gain_a3", "gain_both",
)  # fmt: skip
"""Names of the numbers, in order."""

N_FEATURES = len(NAMES)


_SIGNED = (
    "slack", "heat", "gpu_ratio", "gpu_j_ratio", "card_ratio", "card_j_ratio", "gain_a2", "gain_a3",
    "gain_both",
)  # fmt: skip

LOW = tuple(-2.0 if name in _SIGNED else 0.0 for name in NAMES)
HIGH = tuple(2.0 if name in _SIGNED else 4.0 for name in NAMES)
"""Limits of each number; beyond them the policy does not distinguish more from less."""


class Observed(NamedTuple):
    """Readings and facts of the batch that are not in the costs.

    Attributes:
        row_length: mean tokens of a row, prompt and completion.
        power_mean, power_spread: mean and standard deviation over GPUs of power over TDP.
        utilisation_mean, utilisation_spread: of utilisation.
        log_rows: completions of the batch, logarithm to base 2.
        on_gpu, on_card: what has been measured of the stage (`READ_STAGE`) on either path.
    """

    row_length: Number
    power_mean: Number
    power_spread: Number
    utilisation_mean: Number
    utilisation_spread: Number
    log_rows: Number
    on_gpu: Readings = UNREAD
    on_card: Readings = UNREAD


def objective(
    time_s: Number, energy_j: Number, bubble_s: Number, gpu_only_s: Number, gpu_only_j: Number
) -> Number:
    """Compute Eq. 7 for one iteration, each term relative to the iteration on the GPUs alone.

    ``0.40 (T0 / T - 1) - 0.40 (E / E0 - 1) - 0.20 bubble / T0``: 0.0 for that iteration itself.

    Args:
        time_s: time of the iteration, s.
        energy_j: its energy, J.
        bubble_s: time in it that the GPUs stood still, s.
        gpu_only_s: time of the iteration on the GPUs alone, s.
        gpu_only_j: its energy, J.
    """
    return (
        TIME_WEIGHT * (gpu_only_s / time_s - 1.0)
        - ENERGY_WEIGHT * (energy_j / gpu_only_j - 1.0)
        - BUBBLE_WEIGHT * (bubble_s / gpu_only_s)
    )


def features(
    stage: Stage,
    carry: Carry,
    work: Work,
    rules: Rules,
    seen: Observed,
    may: tuple[Number, Number],
    ops: Ops = SCALAR,
) -> tuple[Number, ...]:
    """Compute the network's input before a decision, without limits.

    The network itself clips each number to `LOW` and `HIGH`.

    Args:
        stage: the stage to place.
        carry: the iteration so far.
        work: what its stages cost, as far as it is known.
        rules: what may be done.
        seen: readings and facts of the batch.
        may: whether a2 and a3 pass the guards, from `ecorl.stages.guards.permitted`.
        ops: `SCALAR` for floats, `BATCH` for arrays.

    Returns:
        `N_FEATURES` numbers in the order of `NAMES`; some are floats where others are arrays.
    """
    only_s, only_j = gpu_only(work)
    later_s: Number = 0.0
    later_card_s: Number = 0.0
    for i in _LATER[stage]:
        later_s = later_s + work.gpu_s[i]
        later_card_s = later_card_s + rules.usable[i] * work.card_s[i]
    t_s = carry.t_s
    backlog_s = ops.maximum(0.0, carry.card_s - t_s)
    stage_s, stage_j, card_s, queue, done_s = _stage_figures(stage, carry, work, backlog_s, ops)
    # Every time is over that of the iteration that uses the GPUs alone, every energy over its own:
    # so one network serves clusters and models of any size.
    per_s, per_j = 1.0 / only_s, 1.0 / only_j
    return (
        *ONE_HOT[stage],
        *may,
        *seen[_READINGS],
        0.25 * queue,
        backlog_s * per_s,
        (carry.pending_s - t_s) * per_s,
        carry.bubble_s * per_s,
        carry.deferred_s * per_s,
        seen.row_length / 2048.0,
        0.1 * seen.log_rows,
        stage_s * per_s,
        card_s * per_s,
        stage_j * per_j,
        work.card_active_w * (card_s * work.card_share) * per_j,
        work.gpu_idle_w * only_s * per_j,
        later_s * per_s,
        later_card_s / carry.speed * per_s,
        work.forward_s * per_s,
        (work.forward_s + work.backward_s) * per_s,
        work.generation_s * per_s,
        work.critic_s * per_s,
        (done_s - (t_s + later_s + work.forward_s)) * per_s,
        *_conditions(carry, work, rules),
        work.late_arriving_s * per_s,
        carry.asleep,
        work.stale,
        carry.due_s * per_s,
        *measured_figures(seen.on_gpu),
        *measured_figures(seen.on_card),
        *_gains(stage, carry, work, rules, only_s, only_j, may, ops),
    )


_READINGS = slice(
    Observed._fields.index("power_mean"), Observed._fields.index("utilisation_spread") + 1
)


def measured_figures(readings: Readings) -> tuple[Number, ...]:
    """Return what was measured on a path: ``ratio`` to ``age`` in `NAMES`."""
    return (
        readings.ratio - 1.0,
        readings.j_ratio - 1.0,
        4.0 * readings.spread,
        readings.count / (readings.count + COUNT_MIDDLE),
        readings.age / AGE_UNIT,
    )


def _stage_figures(
    stage: Stage, carry: Carry, work: Work, backlog_s: Number, ops: Ops
) -> tuple[Number, Number, Number, Number, Number]:
    """Return the figures of the stage that is placed.

    These are its time (s) and energy (J) on the GPUs, its time on the cards (s), the queue before
    it (in units of that time), and when its results or those that are still awaited would come (s).
    """
    if stage is Stage.GENERATION:
        return work.generation_s, work.generation_j, 0.0, 0.0, carry.pending_s
    if stage is Stage.ACTOR_TRAIN:
        return work.forward_s + work.backward_s, work.actor_j, 0.0, 0.0, carry.pending_s
    if stage is Stage.CRITIC_TRAIN:
        return work.critic_s, work.critic_j, 0.0, 0.0, carry.pending_s
    place = _PLACE[stage]
    done_s, card_s = card_done_s(stage, carry, work, 1.0, ops)
    # A stage that the algorithm does not have takes no time on any device: its queue counts as 0.
    queue = backlog_s / ops.maximum(card_s, 1e-12) * (card_s > 0.0)
    return work.gpu_s[place], work.gpu_j[place], card_s, queue, done_s


def _conditions(carry: Carry, work: Work, rules: Rules) -> tuple[Number, ...]:
    """Return what may be done, and the state of the cards: ``streaming`` to ``slow`` in `NAMES`."""
    return (
        carry.streaming,
        work.off_policy,
        rules.stream,
        rules.early,
        rules.defer,
        work.cards_up,
        carry.speed,
        0.05 * (carry.temperature_c - work.limit_c),
        work.slow - 1.0,
    )


def _gains(
    stage: Stage,
    carry: Carry,
    work: Work,
    rules: Rules,
    gpu_s: Number,
    gpu_j: Number,
    may: tuple[Number, Number],
    ops: Ops,
) -> tuple[Number, Number, Number]:
    """Compute what offloading gains in this iteration over a1 if later stages stay on the GPUs.

    ``gain_a2``: by a2 for this stage, where it differs from a3 in more than the wait (the cards
    slow while the GPUs work), else 0; ``gain_a3``: by a3; ``gain_both``: by a3 for this stage and
    the frozen ones that follow. At generation both stand for streaming: ``gain_a3`` with reward and
    reference offloaded, ``gain_both`` with the reward alone. All are differences of Eq. 7 times 8,
    since they are small beside the other inputs.
    """

    def value(last: Stage, at: Carry) -> Number:
        time_s, energy_j, bubble_s = outlook(last, at, work, rules.early, ops)
        return objective(time_s, energy_j, bubble_s, gpu_s, gpu_j)

    def sent(one: Stage, at: Carry) -> Carry:
        return advance(one, at, work, CONCURRENT * rules.usable[_PLACE[one]], ops)

    # `outlook` keeps all stages after the one that it is asked about on the GPUs: asked about the
    # stage before this one it is the value of a1. Generation and the training steps are carried on
    # by a1 themselves: before them stands no stage, or the barrier.
    before = _BEFORE.get(stage)
    if before is None:
        base = value(stage, advance(stage, carry, work, GPU, ops))
    else:
        base = value(before, carry)
    eight = 8.0 * may[1]
    concurrent = advance(stage, carry, work, CONCURRENT, ops)
    if stage is Stage.GENERATION:
        one = sent(Stage.REWARD, concurrent)
        both = sent(Stage.REFERENCE, one)
        return (
            0.0,
            eight * (value(Stage.REFERENCE, both) - base),
            eight * (value(Stage.REWARD, one) - base),
        )
    # Without a common power cap a2 differs from a3 in the wait alone, which `slack` tells already.
    gain_a2: Number = 0.0
    if stage in _PLACE and ops.any(work.slow > 1.0):
        blocking = value(stage, advance(stage, carry, work, FPGA, ops))
        gain_a2 = 8.0 * may[0] * (work.slow > 1.0) * (blocking - base)
    gain_a3 = eight * (value(stage, concurrent) - base)
    if stage is not Stage.REWARD:
        return gain_a2, gain_a3, gain_a3
    both = sent(Stage.REFERENCE, concurrent)
    return gain_a2, gain_a3, eight * (value(Stage.REFERENCE, both) - base)


UNKNOWN_SHARE = 0.5
"""Stands for a share of which no GPU has a reading: the middle of its range. Invented: NaN would
poison a policy, and 0 would claim that the GPU is idle."""

_STAGES = list(Stage)


def state_size(n_gpus: int = 32) -> int:
    """Length of the encoded state: ``2 N + 1 + 6 + 1``."""
    return 2 * n_gpus + 1 + len(_STAGES) + 1


def encode(
    state: SchedulerState, n_gpus: int = 32, q_max: int = 8, l_max: int = 2048
) -> npt.NDArray[np.float32]:
    """Encode a state for a policy (Eq. 6).

    A missing power or utilisation becomes the mean of the GPUs that have one, or `UNKNOWN_SHARE`
    when none has. Places of GPUs that do not exist (fewer than `n_gpus`) are 0. Shares are clipped
    to 0..2 (a board may exceed its TDP for moments). Queue and length are in units of the guards'
    limits and not clipped, so that 1.0 is the limit and a policy sees how far beyond it stands.

    Args:
        state: the state to encode.
        n_gpus: GPUs that the encoding has places for.
        q_max: queue at which the guard stops offloading, batches.
        l_max: mean row length at which it does, prompt and completion, tokens.

    Returns:
        ``[2 n_gpus + 8] float32``, always finite.

    Raises:
        ConfigError: when the state has more GPUs than places, or a limit is below 1.
    """
    n_known = max(len(state.gpu_power_share), len(state.gpu_utilisation))
    if n_known > n_gpus:
        raise ConfigError("n_gpus", n_gpus, f"at least the {n_known} GPUs of the state")
    if q_max < 1 or l_max < 1:
        raise ConfigError("placement.q_max, l_max", (q_max, l_max), "1 or more each")
    encoded = np.zeros(state_size(n_gpus), dtype=np.float32)
    power, utilisation = _filled(state.gpu_power_share), _filled(state.gpu_utilisation)
    encoded[: len(power)] = power
    encoded[n_gpus : n_gpus + len(utilisation)] = utilisation
    encoded[2 * n_gpus] = state.fpga_queue / q_max
    encoded[2 * n_gpus + 1 + _STAGES.index(state.stage)] = 1.0
    encoded[-1] = state.work.mean_length / l_max
    return encoded


def _filled(shares: Sequence[float | None]) -> list[float]:
    known = [min(max(s, 0.0), 2.0) for s in shares if s is not None and math.isfinite(s)]
    stand_in = sum(known) / len(known) if known else UNKNOWN_SHARE
    return [
        min(max(s, 0.0), 2.0) if s is not None and math.isfinite(s) else stand_in for s in shares
    ]
