"""The figures of an iteration: the costs of its stages, its progress, and its totals.

All are floats, or float64 arrays that broadcast against one another; times in s since the start of
the iteration, energies in J, powers in W.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ecorl.records import Action, Stage

Number = Any
"""A float, or a float64 array; all figures of one call broadcast against one another."""

THROTTLE_SPAN_C = 10.0
"""Degrees above the limit over which a card slows. Assumed: clocks are lowered step by step."""

GPU, FPGA, CONCURRENT = range(3)
"""Codes of `Action` in arrays, in its order."""

ACTIONS = tuple(Action)
"""`ACTIONS[code]` is the action of a code."""

INFERENCE = (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)


class Ops(NamedTuple):
    """The operations whose names differ between floats and arrays."""

    maximum: Callable[[Number, Number], Number]
    minimum: Callable[[Number, Number], Number]
    exp: Callable[[Number], Number]
    any: Callable[[Number], bool]


SCALAR = Ops(max, min, math.exp, bool)
BATCH = Ops(np.maximum, np.minimum, np.exp, np.any)

_Figures = TypeVar("_Figures", bound=tuple[Any, ...])


def _by_name_only(kind: type[_Figures]) -> type[_Figures]:
    """Make a named tuple that refuses positional figures.

    With twenty or thirty numbers in a row, two that change places go unnoticed. `_make` and
    `_replace` stay as they are, for code that is tested to keep the order.
    """
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    make: Callable[[Any], _Figures] = kind._make  # type: ignore[attr-defined]

    def new(cls: type[_Figures], /, **figures: Number) -> _Figures:
        wrong = sorted(figures.keys() ^ set(fields))
        if wrong:
            raise TypeError(f"{cls.__name__}: missing or unknown figures: {', '.join(wrong)}")
        return tuple.__new__(cls, map(figures.__getitem__, fields))

    def reduce(self: Any) -> tuple[Any, ...]:
        return make, (tuple(self),)  # a tuple is unpickled by position unless it says otherwise

    new.__qualname__ = kind.__name__
    kind.__new__ = new  # type: ignore[method-assign, assignment]
    kind.__reduce__ = reduce  # type: ignore[method-assign]
    return kind


@_by_name_only
class Work(NamedTuple):
    """Costs of the stages of one iteration, and devices; times in s, energies in J, powers in W.

    It is built by name only. `ecorl.scheduler.iteration_costs` builds it from a cost table.
    Times on the cards are those of all cards at full speed, without waiting.

    Attributes:
        generation_s, generation_j: generation on the GPUs.
        handover_s: when finished rows are handed over, since the start of generation, K of them in
            rising order, the last at its end.
        tail: share of the tokens that is handed over then or later, K of them, the first 1.
        gpu_s, gpu_j: reward, reference and critic on the GPUs.
        card_s: the same on the cards, from the start of a stage to its result.
        resync_s: time to bring the critic's new weights to the cards.
        forward_s, backward_s, actor_j: the actor's training step, its two parts, and its energy.
        early_s, early_j: price of running the forward pass before the barrier.
        critic_s, critic_j: the critic's training step.
        swap_s, swap_j: price of putting it off.
        contention: share by which generation slows beside training that was put off, 0 to 1.
        gpu_idle_w: all GPUs waiting.
        card_active_w, card_idle_w: all cards, busy and waiting. Idle power is charged for this
            job's share of the cards.
        slow: factor by which cards slow while the GPUs work (a common power cap), 1 or more.
        arriving_s, late_arriving_s: other jobs' work that reaches the cards at the start of the
            iteration and at the end of generation.
        cards_up: share of the cards that is up, 0 to 1.
        lost: share of the rows on the cards that is lost to a failure, 0 to 1.
        off_policy: 1 when the iteration trains on the batch before, else 0.
        ambient_c, rise_c_per_w, tau_s, limit_c, throttle: the cards' thermal model: one pole of
            time constant ``tau_s``, rise over ambient per watt of one card, and the factor of
            speed `THROTTLE_SPAN_C` above the limit, to which it falls evenly.
        n_cards: cards.
        card_share: share of the cards that a batch keeps busy: 1 where its rows are divided among
            all of them, 1 / n where one of n cards answers it and the others go on.
        sleeps: 1 where this job's share of the cards goes to sleep (its models are unloaded) after
            an iteration in which it did not use them, else 0.
        asleep_w: all cards asleep.
        wake_s: time until sleeping cards have the models again.
        stale: 1 where results may come as late as the end of the next iteration (a staleness limit
            of two, one step off-policy), else 0.
        yielding: share of the work at the start of an iteration that other jobs take elsewhere
            where this job kept the cards busy all through the one before; in proportion below that.
        timeout_s: time after which the GPUs give a card up that does not answer.
    """

    generation_s: Number
    generation_j: Number
    handover_s: Sequence[Number]
    tail: Sequence[Number]
    gpu_s: Sequence[Number]
    gpu_j: Sequence[Number]
    card_s: Sequence[Number]
    resync_s: Number
    forward_s: Number
    backward_s: Number
    actor_j: Number
    early_s: Number
    early_j: Number
    critic_s: Number
    critic_j: Number
    swap_s: Number
    swap_j: Number
    contention: Number
    gpu_idle_w: Number
    card_active_w: Number
    card_idle_w: Number
    slow: Number
    arriving_s: Number
    late_arriving_s: Number
    cards_up: Number
    lost: Number
    off_policy: Number
    ambient_c: Number
    rise_c_per_w: Number
    tau_s: Number
    limit_c: Number
    throttle: Number
    n_cards: Number
    card_share: Number
    sleeps: Number
    asleep_w: Number
    wake_s: Number
    stale: Number
    yielding: Number
    timeout_s: Number


@cache
def idle_work() -> Work:
    """Return work whose stages cost nothing, on cards that are up and never heat."""
    ones = ("slow", "cards_up", "tau_s", "throttle", "n_cards", "card_share")
    figures: dict[str, Any] = dict.fromkeys(Work._fields, 0.0) | dict.fromkeys(ones, 1.0)
    figures |= dict.fromkeys(("gpu_s", "gpu_j", "card_s"), (0.0, 0.0, 0.0))
    return Work(**figures | {"handover_s": (0.0,), "tail": (1.0,), "limit_c": 1e9})


class Between(NamedTuple):
    """The state that one iteration leaves to the next.

    Attributes:
        backlog_s: work of other jobs that the cards still have, s.
        temperature_c: of the hottest part of a card, degrees Celsius.
        deferred_s, deferred_j: critic training that was put off.
        asleep: 1 where the cards sleep, else 0.
        due_s: when the last of its offloaded results comes that nobody has waited for, s since the
            start of the next iteration, by whose end it has to be there.
        occupancy: share of the iteration in which the cards worked for this job, 0 to 1.
    """

    backlog_s: Number
    temperature_c: Number
    deferred_s: Number
    deferred_j: Number
    asleep: Number = 0.0
    due_s: Number = 0.0
    occupancy: Number = 0.0


@_by_name_only
class Carry(NamedTuple):
    """An iteration under way; times in s since its start.

    `ecorl.stages.iteration.begin` starts one and `advance` carries it on; it is built by name only.

    Attributes:
        t_s: the GPUs' clock.
        card_s: when the cards are free of all that was sent to them.
        pending_s: when the last of this iteration's offloaded results arrives for which the GPUs
            have not waited; 0 without one.
        gpu_j: energy of the GPUs so far.
        own_s: time of all cards for this iteration's work so far.
        bubble_s: time that the GPUs stood still.
        redo_s, redo_j: rows that cards lost, to be answered by the GPUs at the barrier.
        speed: of the cards in this iteration, share of full speed.
        base_s: when the cards are free of what was there before this iteration's work.
        stretch: factor by which training that was put off stretched the generation.
        streaming: 1 when generation hands over finished rows, else 0.
        sent_s: time of all cards for what was streamed so far.
        streamed_s: when the cards are through with all that was streamed; at least the end of
            generation.
        others_s: other jobs' work that was there or arrived, time of all cards.
        temperature_c: at the start of the iteration.
        deferred_s, deferred_j: critic training: at the start what came from before, at the end
            what goes to the next iteration.
        brought_s, brought_j: what came from before, as it was booked there: its energy with that
            of the resting cards.
        asleep: 1 while the cards sleep, else 0.
        due_s: as in `Between`, of the iteration before.
    """

    t_s: Number
    card_s: Number
    pending_s: Number
    gpu_j: Number
    own_s: Number
    bubble_s: Number
    redo_s: Number
    redo_j: Number
    speed: Number
    base_s: Number
    stretch: Number
    streaming: Number
    sent_s: Number
    streamed_s: Number
    others_s: Number
    temperature_c: Number
    deferred_s: Number
    deferred_j: Number
    brought_s: Number
    brought_j: Number
    asleep: Number
    due_s: Number


class IterationTotals(NamedTuple):
    """The totals of one iteration.

    Attributes:
        time_s: its length.
        gpu_j, card_j: energy of GPUs and cards, idle power included.
        bubble_s: time that the GPUs stood still.
        booked_s, booked_j: time and energy with a step that was put off booked where it belongs:
            in the iteration of its batch, at what it takes alone. What sharing the GPUs with the
            next generation then saves is booked there. Over a run both sums are the same; Eq. 7
            takes these, since its terms are relative to the work of each iteration.
        after: what it leaves to the next.
    """

    time_s: Number
    gpu_j: Number
    card_j: Number
    bubble_s: Number
    booked_s: Number
    booked_j: Number
    after: Between

    @property
    def energy_j(self) -> Number:
        """GPUs and cards together, J."""
        return self.gpu_j + self.card_j
