"""The one pure stage function: what a placement does to time, power, joules, queue and barrier.

`advance` takes an iteration under way (`Carry`), what its stages cost (`Work`) and an action, and
returns the iteration after that stage; `begin` and `finish` are its two ends. Everything that
prices a placement goes through it: `ecorl.stages.stage` for one decision of a run, the simulator's
environments, the 216-way look-ahead, the planner, the dynamic programme and ``ecorl plan``. All
figures are floats, or float64 arrays that broadcast against one another; `SCALAR` and `BATCH` are
the two sets of operations.

Two clocks run in an iteration, both in s since its start: ``t_s`` of the GPUs, which work one stage
after another, and ``card_s``, when the cards will be free of all that was sent to them. The cards
are one FIFO server, which other jobs may share. With ``g`` and ``f`` the times of a stage on GPUs
and cards, and ``done`` the end of its work on the cards:

    action             GPU clock             result
    a1 gpu             t + g                 at once
    a2 fpga            max(t, done)          the GPUs wait, idle
    a3 concurrent      t                     at ``done``; joined at the barrier

    generation a3      finished rows are handed over K times while generation goes on, and what
                       reward and reference send to the cards starts then (Reich's formula):
                       done = max(base + F, max_j (handover_j + F tail_j)),  F = card work sent
    actor_train a3     its forward pass runs before the barrier, at a price (``early_s``)
    critic_train a3    put off into the next generation, where it shares the GPUs: the generation
                       takes ``contention`` x the shared time longer; what does not fit runs after

The barrier stands before the actor's backward pass, or, one step off-policy, at the end of the
iteration, which then trains on the batch before. Rows that a failing card loses are answered by
the GPUs at the barrier. A stage that an algorithm does not have has costs of 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
_PLACE = {stage: i for i, stage in enumerate(INFERENCE)}
_ORDER = {stage: i for i, stage in enumerate(Stage)}
_LATER = {
    stage: tuple(i for i, other in enumerate(INFERENCE) if _ORDER[other] > _ORDER[stage])
    for stage in Stage
}
_BEFORE_BARRIER = tuple(s for s in Stage if _ORDER[s] < _ORDER[Stage.ACTOR_TRAIN])


class Ops(NamedTuple):
    """What floats and arrays spell differently."""

    maximum: Callable[[Number, Number], Number]
    minimum: Callable[[Number, Number], Number]
    exp: Callable[[Number], Number]
    any: Callable[[Number], bool]


SCALAR = Ops(max, min, math.exp, bool)
BATCH = Ops(np.maximum, np.minimum, np.exp, np.any)


class Work(NamedTuple):
    """What the stages of one iteration cost, and on what; times in s, energies in J, powers in W.

    Times on the cards are those of all cards at full speed, without waiting.

    Attributes:
        generation_s, generation_j: generation on the GPUs.
        handover_s: when finished rows are handed over, since the start of generation, K of them in
            rising order, the last at its end.
        tail: share of the tokens that is handed over then or later, K of them, the first 1.
        gpu_s, gpu_j: reward, reference and critic on the GPUs.
        card_s: the same on the cards.
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


def idle_work() -> Work:
    """Work of which every stage costs nothing, on cards that are up and never heat."""
    zero = 0.0
    none = (0.0, 0.0, 0.0)
    return Work(
        generation_s=zero, generation_j=zero, handover_s=(zero,), tail=(1.0,), gpu_s=none,
        gpu_j=none, card_s=none, resync_s=zero, forward_s=zero, backward_s=zero, actor_j=zero,
        early_s=zero, early_j=zero, critic_s=zero, critic_j=zero, swap_s=zero, swap_j=zero,
        contention=zero, gpu_idle_w=zero, card_active_w=zero, card_idle_w=zero, slow=1.0,
        arriving_s=zero, late_arriving_s=zero, cards_up=1.0, lost=zero, off_policy=zero,
        ambient_c=zero, rise_c_per_w=zero, tau_s=1.0, limit_c=1e9, throttle=1.0, n_cards=1.0,
    )  # fmt: skip


class Between(NamedTuple):
    """What one iteration leaves to the next.

    Attributes:
        backlog_s: work of other jobs that the cards still have, s.
        temperature_c: of the hottest part of a card, degrees Celsius.
        deferred_s, deferred_j: critic training that was put off.
    """

    backlog_s: Number
    temperature_c: Number
    deferred_s: Number
    deferred_j: Number


class Carry(NamedTuple):
    """An iteration under way; times in s since its start.

    Attributes:
        t_s: the GPUs' clock.
        card_s: when the cards are free of all that was sent to them.
        pending_s: when the last own result arrives that nobody waited for; 0 without one.
        gpu_j: energy of the GPUs so far.
        own_s: card time of own work so far.
        bubble_s: time that the GPUs stood still.
        redo_s, redo_j: rows that cards lost, to be answered by the GPUs at the barrier.
        speed: of the cards in this iteration, share of full speed.
        base_s: when the cards are free of what was there before this iteration's own work.
        stretch: factor by which training that was put off stretched the generation.
        streaming: 1 when generation hands over finished rows, else 0.
        sent_s: card time of what was streamed so far.
        streamed_s: when all that was streamed is done; at least the end of generation.
        others_s: other jobs' work that was there or arrived, card time.
        temperature_c: at the start of the iteration.
        deferred_s, deferred_j: critic training: at the start what came from before, at the end
            what goes to the next iteration.
        brought_s, brought_j: what came from before.
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


_FIRST_UNTOUCHED = Carry._fields.index("others_s")
_FIRST_KEPT = Carry._fields.index("speed")


class Totals(NamedTuple):
    """One iteration, finished.

    Attributes:
        time_s: its length.
        gpu_j, card_j: energy of GPUs and cards, idle power included.
        bubble_s: time that the GPUs stood still.
        booked_s, booked_j: time and energy with a step that was put off booked where it belongs:
            in the iteration of its batch, at what it takes alone. What sharing the GPUs with the
            next generation then saves is booked there. Over a run both sums are the same; Eq. 7
            takes these, since its terms are relative to each iteration's own work.
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


def begin(work: Work, before: Between) -> Carry:
    """An iteration at its start."""
    above = (before.temperature_c - work.limit_c) / THROTTLE_SPAN_C
    hot = 0.5 * (abs(above) - abs(above - 1.0) + 1.0)  # within 0 and 1, for floats and arrays
    speed = work.cards_up * (1.0 - hot * (1.0 - work.throttle))
    # Without a card nothing is sent; a tiny speed keeps the arithmetic finite.
    speed = speed + 1e-9 * (speed <= 0.0)
    arrived_s = before.backlog_s + work.arriving_s
    zero = 0.0 * arrived_s
    return Carry(
        t_s=zero, card_s=arrived_s, pending_s=zero, gpu_j=zero, own_s=zero, bubble_s=zero,
        redo_s=zero, redo_j=zero, speed=speed, base_s=arrived_s, stretch=zero + 1.0,
        streaming=zero, sent_s=zero, streamed_s=zero, others_s=arrived_s,
        temperature_c=before.temperature_c, deferred_s=before.deferred_s,
        deferred_j=before.deferred_j, brought_s=before.deferred_s, brought_j=before.deferred_j,
    )  # fmt: skip


def advance(stage: Stage, carry: Carry, work: Work, action: Number, ops: Ops = SCALAR) -> Carry:
    """The iteration after one stage under one action; see the module's table.

    Args:
        stage: the stage; stages come in the order of the enum.
        carry: the iteration so far.
        work: what the stages cost.
        action: code of the action (0, 1, 2), one or an array of them. Where an action means
            nothing for a stage (a2 of generation and training), it is a1.
        ops: `SCALAR` for floats, `BATCH` for arrays.
    """
    if stage is Stage.GENERATION:
        return _generation(carry, work, action, ops)
    if stage is Stage.ACTOR_TRAIN:
        return _actor_train(carry, work, action, ops)
    if stage is Stage.CRITIC_TRAIN:
        return _critic_train(carry, work, action)
    return _inference(_PLACE[stage], carry, work, action, ops)


def finish(carry: Carry, work: Work, ops: Ops = SCALAR) -> Totals:
    """The end of an iteration: the last barrier of an off-policy one, idle power, what is left."""
    wait_s = work.off_policy * ops.maximum(0.0, carry.pending_s - carry.t_s)
    time_s = carry.t_s + wait_s + work.off_policy * carry.redo_s
    gpu_j = carry.gpu_j + work.gpu_idle_w * wait_s + work.off_policy * carry.redo_j
    above_w = work.card_active_w - work.card_idle_w
    backlog_s = ops.maximum(0.0, carry.card_s - time_s)
    busy = (carry.others_s + carry.own_s - backlog_s) / time_s
    power_w = (work.card_idle_w + above_w * ops.minimum(1.0, busy)) / work.n_cards
    target_c = work.ambient_c + work.rise_c_per_w * power_w
    kept = ops.exp(-time_s / work.tau_s)
    card_j = above_w * carry.own_s + work.card_idle_w * time_s
    more_s = carry.deferred_s - carry.brought_s
    more_j = carry.deferred_j - carry.brought_j + work.card_idle_w * more_s
    return Totals(
        time_s=time_s,
        gpu_j=gpu_j,
        card_j=card_j,
        bubble_s=carry.bubble_s + wait_s,
        booked_s=time_s + more_s,
        booked_j=gpu_j + card_j + more_j,
        after=Between(
            backlog_s=backlog_s,
            temperature_c=target_c + (carry.temperature_c - target_c) * kept,
            deferred_s=carry.deferred_s,
            deferred_j=carry.deferred_j,
        ),
    )


def settled(totals: Totals, work: Work) -> Totals:
    """A last iteration after which nothing follows: what it put off is done at its end."""
    after = totals.after
    return totals._replace(
        time_s=totals.time_s + after.deferred_s,
        gpu_j=totals.gpu_j + after.deferred_j,
        card_j=totals.card_j + work.card_idle_w * after.deferred_s,
        after=after._replace(deferred_s=0.0 * after.deferred_s, deferred_j=0.0 * after.deferred_j),
    )


def card_done_s(
    stage: Stage, carry: Carry, work: Work, concurrent: Number, ops: Ops = SCALAR
) -> tuple[Number, Number]:
    """When the cards would be done with an inference stage, and their time for it, s.

    Args:
        stage: reward, reference or critic.
        carry: the iteration so far.
        work: what the stages cost.
        concurrent: 1 when the GPUs work meanwhile, else 0.
        ops: `SCALAR` for floats, `BATCH` for arrays.
    """
    place = _PLACE[stage]
    card_s = work.card_s[place] / carry.speed * (1.0 + concurrent * (work.slow - 1.0))
    if stage is Stage.CRITIC:
        card_s = card_s + work.resync_s
    return _done_s(place, carry, work, card_s, ops), card_s


def _done_s(place: int, carry: Carry, work: Work, card_s: Number, ops: Ops) -> Number:
    queued = ops.maximum(carry.card_s, carry.t_s) + card_s
    if INFERENCE[place] is Stage.CRITIC or not ops.any(carry.streaming):
        return queued
    return queued + carry.streaming * (_stream_done_s(carry, work, card_s, ops) - queued)


def _stream_done_s(carry: Carry, work: Work, card_s: Number, ops: Ops) -> Number:
    """Reich's formula for what was streamed and `card_s` more, spread alike over the hand-overs."""
    sent_s = carry.sent_s + card_s
    done_s = carry.base_s + sent_s
    for handover_s, tail in zip(work.handover_s, work.tail, strict=True):
        done_s = ops.maximum(done_s, handover_s * carry.stretch + sent_s * tail)
    return done_s


def _generation(carry: Carry, work: Work, action: Number, ops: Ops) -> Carry:
    shared_s = ops.minimum(carry.deferred_s, work.generation_s)
    stretch = 1.0 + work.contention * shared_s / work.generation_s
    end_s = work.generation_s * stretch
    free_s = ops.maximum(carry.card_s, end_s)
    return carry._replace(
        t_s=end_s + (carry.deferred_s - shared_s),
        card_s=free_s + work.late_arriving_s,
        gpu_j=work.generation_j + carry.deferred_j,
        stretch=stretch,
        streaming=1.0 * (action == CONCURRENT) + 0.0 * end_s,
        streamed_s=free_s,
        others_s=carry.others_s + work.late_arriving_s,
        deferred_s=0.0 * end_s,
        deferred_j=0.0 * end_s,
    )


def _inference(place: int, carry: Carry, work: Work, action: Number, ops: Ops) -> Carry:
    if isinstance(action, int) and action == GPU:
        # The same as below, without what the cards would do.
        return carry._replace(
            t_s=carry.t_s + work.gpu_s[place], gpu_j=carry.gpu_j + work.gpu_j[place]
        )
    stage = INFERENCE[place]
    if ops is SCALAR and action == CONCURRENT and not carry.streaming:
        return _concurrent(stage, place, carry, work)
    blocking, concurrent = 1.0 * (action == FPGA), 1.0 * (action == CONCURRENT)
    off = blocking + concurrent
    on = 1.0 - off
    done_s, card_s = card_done_s(stage, carry, work, concurrent, ops)
    streamed = 0.0 * off if stage is Stage.CRITIC else carry.streaming * off
    wait_s = blocking * ops.maximum(0.0, done_s - carry.t_s)
    # What came after the streamed work is pushed back by as much as that takes longer.
    free_s = done_s + streamed * (carry.card_s - carry.streamed_s)
    # Written out in order: this is the innermost call of every search.
    return Carry(
        carry.t_s + on * work.gpu_s[place] + wait_s,
        carry.card_s + off * (free_s - carry.card_s),
        ops.maximum(carry.pending_s, concurrent * done_s),
        carry.gpu_j + on * work.gpu_j[place] + work.gpu_idle_w * wait_s,
        carry.own_s + off * card_s,
        carry.bubble_s + wait_s,
        carry.redo_s + off * work.lost * work.gpu_s[place],
        carry.redo_j + off * work.lost * work.gpu_j[place],
        carry.speed,
        carry.base_s,
        carry.stretch,
        carry.streaming,
        carry.sent_s + streamed * card_s,
        carry.streamed_s + streamed * (done_s - carry.streamed_s),
        *carry[_FIRST_UNTOUCHED:],
    )


def _concurrent(stage: Stage, place: int, carry: Carry, work: Work) -> Carry:
    """`_inference` for an a3 in floats without streaming: what a decision of a run asks most."""
    done_s, card_s = card_done_s(stage, carry, work, 1.0)
    pending_s = carry.pending_s
    return Carry(
        carry.t_s,
        done_s,
        done_s if done_s > pending_s else pending_s,
        carry.gpu_j,
        carry.own_s + card_s,
        carry.bubble_s,
        carry.redo_s + work.lost * work.gpu_s[place],
        carry.redo_j + work.lost * work.gpu_j[place],
        *carry[_FIRST_KEPT:],
    )


def _actor_train(carry: Carry, work: Work, action: Number, ops: Ops) -> Carry:
    joins = 1.0 - work.off_policy
    early = joins * (action == CONCURRENT)
    before_s = carry.t_s + early * (work.forward_s + work.early_s)
    wait_s = joins * ops.maximum(0.0, carry.pending_s - before_s)
    rest_s = work.backward_s + (1.0 - early) * work.forward_s
    return carry._replace(
        t_s=before_s + wait_s + joins * carry.redo_s + rest_s,
        gpu_j=carry.gpu_j
        + work.actor_j
        + early * work.early_j
        + work.gpu_idle_w * wait_s
        + joins * carry.redo_j,
        bubble_s=carry.bubble_s + wait_s,
    )


def _critic_train(carry: Carry, work: Work, action: Number) -> Carry:
    later = 1.0 * (action == CONCURRENT)
    return carry._replace(
        t_s=carry.t_s + work.critic_s + later * (work.swap_s - work.critic_s),
        gpu_j=carry.gpu_j + work.critic_j + later * (work.swap_j - work.critic_j),
        deferred_s=later * work.critic_s,
        deferred_j=later * work.critic_j,
    )


def gpu_only(work: Work) -> tuple[Number, Number]:
    """Time (s) and energy (J, idle cards included) of an iteration that only uses the GPUs."""
    time_s = work.generation_s + sum(work.gpu_s) + work.forward_s + work.backward_s + work.critic_s
    gpu_j = work.generation_j + sum(work.gpu_j) + work.actor_j + work.critic_j
    return time_s, gpu_j + work.card_idle_w * time_s


def outlook(
    stage: Stage, carry: Carry, work: Work, early: Number = 0.0, ops: Ops = SCALAR
) -> tuple[Number, Number, Number]:
    """Booked time (s) and energy (J), and bubble (s), if the later stages stay on the GPUs.

    The same as `advance` with a1 over the stages after `stage`, then `finish`; in closed form.

    Args:
        stage: the last stage that was done.
        carry: the iteration after it.
        work: what the stages cost.
        early: 1 where the forward pass may go before the barrier; it does where that is faster.
        ops: `SCALAR` for floats, `BATCH` for arrays.
    """
    t_s, gpu_j, bubble_s = carry.t_s, carry.gpu_j, carry.bubble_s
    for i in _LATER[stage]:
        t_s, gpu_j = t_s + work.gpu_s[i], gpu_j + work.gpu_j[i]
    if stage in _BEFORE_BARRIER:
        joins = 1.0 - work.off_policy
        wait_s = joins * ops.maximum(0.0, carry.pending_s - t_s)
        # Beside the barrier the forward pass hides up to its own length, and costs its price.
        goes_early = ops.any(early)
        if goes_early:
            hidden_s = ops.minimum(wait_s, work.forward_s + work.early_s)
            early = early * (hidden_s > work.early_s)
            wait_s = wait_s - early * hidden_s
        t_s = t_s + wait_s + joins * carry.redo_s + work.forward_s + work.backward_s
        gpu_j = gpu_j + work.actor_j
        if goes_early:
            t_s, gpu_j = t_s + early * work.early_s, gpu_j + early * work.early_j
        gpu_j = gpu_j + work.gpu_idle_w * wait_s + joins * carry.redo_j
        bubble_s = bubble_s + wait_s
    if stage is not Stage.CRITIC_TRAIN:
        t_s, gpu_j = t_s + work.critic_s, gpu_j + work.critic_j
    if ops.any(work.off_policy):
        wait_s = work.off_policy * ops.maximum(0.0, carry.pending_s - t_s)
        t_s = t_s + wait_s + work.off_policy * carry.redo_s
        gpu_j = gpu_j + work.gpu_idle_w * wait_s + work.off_policy * carry.redo_j
        bubble_s = bubble_s + wait_s
    brought = stage is not Stage.CRITIC_TRAIN
    t_s = t_s - carry.brought_s + (0.0 if brought else carry.deferred_s)
    gpu_j = gpu_j - carry.brought_j + (0.0 if brought else carry.deferred_j)
    card_j = (work.card_active_w - work.card_idle_w) * carry.own_s + work.card_idle_w * t_s
    return t_s, gpu_j + card_j, bubble_s


class Rules(NamedTuple):
    """What may be done at all, as numbers: abilities of the framework, and the guards.

    Attributes:
        stream, early, defer: 1 where generation, actor_train and critic_train have an a3.
        usable: 1 where the cards can run reward, reference and critic.
        q_max: queue at which offloading stops, batches like the one at hand.
        l_max: longest mean row that is offloaded, tokens.
        energy_limit: an offload's energy over the GPU path's, at most; infinite without a limit.
    """

    stream: Number
    early: Number
    defer: Number
    usable: Sequence[Number]
    q_max: Number
    l_max: Number
    energy_limit: Number


def permitted(
    stage: Stage, carry: Carry, work: Work, rules: Rules, row_length: Number, ops: Ops = SCALAR
) -> tuple[Number, Number]:
    """Whether a2 and a3 of a stage pass the guards, 1.0 or 0.0 each.

    The guards of Algorithm 1 (`ecorl.scheduler.algorithm1`) on an iteration under way: the model
    may leave the GPU, a card is up, queue and length are within their limits, and the modelled
    energy of the offload, waiting GPUs included, is within its limit. The wait of an a3 is taken
    as if nothing but work that is sure to stay on the GPUs hid it. What an a3 of the training steps
    costs in energy is held to the same limit.
    """
    if stage is Stage.GENERATION:
        return 0.0 * rules.stream, rules.stream + 0.0
    if stage is Stage.ACTOR_TRAIN:
        # What the early pass costs, less what the GPUs would draw while they wait for it.
        wait_s = ops.maximum(0.0, carry.pending_s - carry.t_s)
        hidden_s = ops.minimum(wait_s, work.forward_s + work.early_s)
        more_j = work.early_j - work.gpu_idle_w * hidden_s
        fits = more_j <= (rules.energy_limit - 1.0) * work.actor_j
        return 0.0 * rules.early, rules.early * (1.0 - work.off_policy) * fits
    if stage is Stage.CRITIC_TRAIN:
        fits = work.swap_j <= (rules.energy_limit - 1.0) * work.critic_j
        return 0.0 * rules.defer, rules.defer * fits
    place = _PLACE[stage]
    sure_s = work.off_policy * (work.forward_s + work.backward_s + work.critic_s)
    sure_s = sure_s + rules.early * (1.0 - work.off_policy) * work.forward_s
    for i in range(place + 1, len(INFERENCE)):
        sure_s = sure_s + (1.0 - rules.usable[i]) * work.gpu_s[i]
    up = rules.usable[place] * (work.cards_up > 0.0) * (row_length <= rules.l_max)
    alike = not (ops.any(sure_s) or ops.any(work.slow > 1.0))
    passed = []
    for concurrent in (0.0,) if alike else (0.0, 1.0):
        done_s, card_s = card_done_s(stage, carry, work, concurrent, ops)
        queue_s = ops.maximum(0.0, done_s - carry.t_s - card_s)
        wait_s = ops.maximum(0.0, done_s - carry.t_s - concurrent * sure_s)
        energy_j = work.card_active_w * card_s + work.gpu_idle_w * wait_s
        fits = (queue_s < rules.q_max * card_s) * (
            energy_j <= rules.energy_limit * work.gpu_j[place]
        )
        passed.append(up * fits)
    return passed[0], passed[-1]
