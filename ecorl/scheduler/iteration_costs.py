"""The iteration in which a decision is made: what its stages cost, and how far it has come.

The simulator builds thousands of iterations side by side from the tables of its scenarios, in
arrays; a run builds one at each decision, in floats. Both call `iteration_costs` for the costs and
`begin` and `advance` of `ecorl.stages.iteration` for the progress (a run by `iteration_before`), so
a policy sees in a run what it saw in training.

What a run cannot know stands at the defaults of `Circumstances` and at `REST_C` and `USUAL_SHARES`.
Each is what a scenario of the simulator has when nothing happens in it: cards in air of
`AMBIENT_C` that have not heated up, no other job, no failure, no common power cap. A run does not
know either how the ends of its rows will be spread: rows that are handed over while generation goes
on count as handed over at its end, so that an offload is never made to look better than it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ecorl.records import Action, Stage
from ecorl.scheduler.tables import COLUMN, LONG, SHORT, CostTable, Float64
from ecorl.stages.figures import ACTIONS, GPU, Between, Carry, Number, Work
from ecorl.stages.iteration import advance, begin

AMBIENT_C = 23.0
"""Temperature of the air where it is not known, degrees Celsius: that of the paper's Table 2."""

REST_C = AMBIENT_C
"""Temperature of a card of which nothing is known: it has not heated up."""

FULL_RISE_C = 71.0 - AMBIENT_C
"""The paper's Table 2: 71 degrees at full load and 23 degrees of air. Cards of other power are
taken to have coolers to match."""

THERMAL_TAU_S = 120.0
"""Time constant of a card and its cooler, s. Assumed: cards of this size settle in minutes."""

TEMPERATURE_LIMIT_C = 80.0
"""Where a card begins to slow: it is halfway down at the 85 degrees of the paper's Table 2."""

THROTTLE = 0.5
"""Speed of a card well above the limit. Assumed: half the clock."""

USUAL_SHARES = (0.40, 0.25, 0.20, 0.15)
"""Tasks of a batch's prompts where they are not known: the mix of the paper (section 3.5)."""


class TableConstants(NamedTuple):
    """The figures of a `CostTable` that do not depend on the length; floats or arrays.

    Attributes:
        forward_share, early_share, swap_share, contention: as in `CostTable`.
        gpu_idle_w, card_active_w, card_idle_w: powers of all GPUs and of all cards, W.
        resync_s: time to bring the critic's new weights to the cards, s.
        card_share: as in `CostTable`.
    """

    forward_share: Number
    early_share: Number
    swap_share: Number
    contention: Number
    gpu_idle_w: Number
    card_active_w: Number
    card_idle_w: Number
    resync_s: Number
    card_share: Number

    @classmethod
    def of(cls, table: CostTable) -> TableConstants:
        """The constants of one table."""
        return cls._make(getattr(table, name) for name in cls._fields)


class Circumstances(NamedTuple):
    """What an iteration's costs depend on beside its table; floats, or arrays side by side.

    The defaults are those of an undisturbed iteration, and what a run has where it knows no better.

    Attributes:
        longest_over_mean: longest completion over the mean one, 1 or more.
        tail: `Work.tail`; its length is the number of times that rows are handed over.
        slow: factor by which cards slow while the GPUs work, 1 or more.
        arriving_s, late_arriving_s: other jobs' work that reaches the cards at the start of the
            iteration and at the end of generation, s.
        cards_up: share of the cards that is up, 0 to 1.
        lost: share of the rows on the cards that is lost to a failure, 0 to 1.
        off_policy: 1 when the iteration trains on the batch before, else 0.
        n_cards: cards.
        ambient_c: temperature of the air, degrees Celsius.
        full_rise_c: rise of a busy card's temperature over the air, degrees.
        tau_s, limit_c, throttle: the cards' thermal model, as in `Work`.
        sleeps: as in `Work`.
        asleep_share: power of sleeping cards over that of idle ones, 0 to 1.
        wake_s, stale, yielding, timeout_s: as in `Work`.
    """

    longest_over_mean: Number = 1.0
    tail: Sequence[Number] = (1.0,)
    slow: Number = 1.0
    arriving_s: Number = 0.0
    late_arriving_s: Number = 0.0
    cards_up: Number = 1.0
    lost: Number = 0.0
    off_policy: Number = 0.0
    n_cards: Number = 1.0
    ambient_c: Number = AMBIENT_C
    full_rise_c: Number = FULL_RISE_C
    tau_s: Number = THERMAL_TAU_S
    limit_c: Number = TEMPERATURE_LIMIT_C
    throttle: Number = THROTTLE
    sleeps: Number = 0.0
    asleep_share: Number = 1.0
    wake_s: Number = 0.0
    stale: Number = 0.0
    yielding: Number = 0.0
    timeout_s: Number = 0.0


def iteration_costs(
    *, row: Sequence[Number] | Float64, constants: TableConstants, around: Circumstances
) -> Work:
    """Compute what the stages of an iteration cost, from a row of a cost table.

    Args:
        row: one figure for each of `ecorl.scheduler.tables.COLUMNS`, floats or arrays of one shape;
            s and J.
        constants: of the same table; floats, or arrays of the shape of the figures of `row`.
        around: what else is going on; likewise.
    """
    ratio, active_w = around.longest_over_mean, constants.card_active_w
    generation_s = at_ratio(row[_SHORT_S], row[_LONG_S], ratio)
    actor_s, actor_j = row[_ACTOR_S], row[_ACTOR_J]
    critic_s, critic_j = row[_CRITIC_S], row[_CRITIC_J]
    forward, early, swap = constants.forward_share, constants.early_share, constants.swap_share
    n_cards, n_handovers = around.n_cards, len(around.tail)
    # A card without power does not heat; the added 1 W keeps the division finite there.
    card_w = active_w / n_cards + (active_w <= 0.0)
    # By place, in the order of `Work`: this is on the path of every decision, and so many figures
    # by name cost 2 us. A test holds each figure to its name.
    return Work._make(
        (
            generation_s,
            at_ratio(row[_SHORT_J], row[_LONG_J], ratio),
            tuple([generation_s * ((j + 1) / n_handovers) for j in range(n_handovers)]),
            around.tail,
            tuple(row[_GPU_S]),
            tuple(row[_GPU_J]),
            tuple(row[_CARD_S]),
            constants.resync_s,
            actor_s * forward,
            actor_s * (1.0 - forward),
            actor_j,
            actor_s * forward * early,
            actor_j * forward * early,
            *(critic_s, critic_j, critic_s * swap, critic_j * swap),
            constants.contention,
            *(constants.gpu_idle_w, active_w, constants.card_idle_w),
            around.slow,
            around.arriving_s,
            around.late_arriving_s,
            around.cards_up,
            around.lost,
            around.off_policy,
            around.ambient_c,
            around.full_rise_c / card_w * (active_w > 0.0),
            around.tau_s,
            around.limit_c,
            around.throttle,
            n_cards,
            constants.card_share,
            around.sleeps,
            constants.card_idle_w * around.asleep_share,
            around.wake_s,
            around.stale,
            around.yielding,
            around.timeout_s,
        )
    )


def iteration_before(
    stage: Stage, work: Work, before: Between, decided: Mapping[Stage, Action]
) -> Carry:
    """Carry an iteration on to a stage: its start, then every stage before it as decided.

    Args:
        stage: the stage that is decided next.
        work: what the stages cost, in floats.
        before: what the iteration before left.
        decided: actions of the stages so far; one that is not in it ran on the GPU.
    """
    carry = begin(work, before)
    for earlier in _BEFORE[stage]:
        action = decided.get(earlier)
        carry = advance(earlier, carry, work, GPU if action is None else ACTION_CODE[action])
    return carry


def at_ratio(short: Number, long: Number, ratio: Number) -> Number:
    """Interpolate generation's time or energy to a longest row of `ratio` times the mean one.

    Args:
        short: at `SHORT` times the mean.
        long: at `LONG` times the mean.
        ratio: longest completion over the mean one; linear in it, also beyond both.
    """
    return short + (long - short) * ((ratio - SHORT) / (LONG - SHORT))


ACTION_CODE = {action: code for code, action in enumerate(ACTIONS)}
"""Code of an action in the stage function."""

_ORDER = tuple(Stage)
_BEFORE = {stage: _ORDER[:place] for place, stage in enumerate(_ORDER)}

_SHORT_S, _LONG_S = COLUMN["generation_short_s"], COLUMN["generation_long_s"]
_SHORT_J, _LONG_J = COLUMN["generation_short_j"], COLUMN["generation_long_j"]
_ACTOR_S, _ACTOR_J = COLUMN["actor_train_s"], COLUMN["actor_train_j"]
_CRITIC_S, _CRITIC_J = COLUMN["critic_train_s"], COLUMN["critic_train_j"]
_GPU_S = slice(COLUMN["reward_s"], COLUMN["critic_s"] + 1)
_GPU_J = slice(COLUMN["reward_j"], COLUMN["critic_j"] + 1)
_CARD_S = slice(COLUMN["reward_card_s"], COLUMN["critic_card_s"] + 1)
