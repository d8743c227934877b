"""The stage function: what a placement does to time, power, energy, queue and barrier.

`advance` maps an iteration under way (`Carry`), the costs of its stages (`Work`) and an action to
the iteration after that stage; `begin` starts an iteration and `finish` ends it. All three are
pure functions. Everything that prices a placement calls them: the look-ahead of a run
(`ecorl.scheduler.costs.placement_cost`), the simulator's environments, the 216-way look-ahead, the
planner, the dynamic programme and ``ecorl plan``. All figures are floats, or float64 arrays that
broadcast against one another; `SCALAR` and `BATCH` are the two sets of operations.

Two clocks run in an iteration, both in s since its start: ``t_s`` of the GPUs, which work one stage
after another, and ``card_s``, when the cards will be free of all that was sent to them. The cards
are one FIFO server, which other jobs may share. Where a batch keeps only a share of the cards busy
(`Work.card_share`), the server turns to the next batch that much earlier, and the result comes when
the batch is through: more cards shorten the queue, not a batch. With ``g`` and ``f`` the times of a
stage on GPUs and cards, and ``done`` the end of its work on the cards:

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
iteration, which then trains on the batch before; with a staleness limit of two it waits there for
the results of the iteration before alone. Rows that a failing card loses are answered by the GPUs
at the barrier, once its silence has lasted the time-out. Cards that sleep wake up for the first
stage that is sent, or for the first rows that are streamed. A stage that an algorithm does not have
has costs of 0.
"""

from __future__ import annotations

from ecorl.records import Stage
from ecorl.stages.figures import (
    CONCURRENT,
    FPGA,
    GPU,
    INFERENCE,
    SCALAR,
    THROTTLE_SPAN_C,
    Between,
    Carry,
    IterationTotals,
    Number,
    Ops,
    Work,
)

PLACE = {stage: i for i, stage in enumerate(INFERENCE)}
"""Place of each inference stage in `Work.gpu_s`, `gpu_j` and `card_s`."""

_INSTANT_S = 1e-300
"""Shorter than any time; keeps a division finite."""

# Places of the figures in `Carry`, in its order. A decision of a run carries an iteration on some
# four times, and a copy that is changed by place takes a third of the time of `_replace`.
(
    _T_S, _CARD_S, _PENDING_S, _GPU_J, _OWN_S, _BUBBLE_S, _REDO_S, _REDO_J, _SPEED, _BASE_S,
    _STRETCH, _STREAMING, _SENT_S, _STREAMED_S, _OTHERS_S, _TEMPERATURE_C, _DEFERRED_S,
    _DEFERRED_J, _BROUGHT_S, _BROUGHT_J, _ASLEEP, _DUE_S,
) = range(len(Carry._fields))  # fmt: skip


def begin(work: Work, before: Between) -> Carry:
    """Start an iteration.

    Args:
        work: what its stages cost.
        before: what the iteration before left: backlog of the cards, their temperature, and
            training that was put off.
    """
    arrived_s = before.backlog_s + work.arriving_s * (1.0 - work.yielding * before.occupancy)
    zero = 0.0 * arrived_s
    figures = [zero] * len(Carry._fields)
    figures[_CARD_S] = figures[_BASE_S] = figures[_OTHERS_S] = arrived_s
    figures[_SPEED] = cards_speed(work, before.temperature_c)
    figures[_STRETCH] = zero + 1.0
    figures[_TEMPERATURE_C] = before.temperature_c
    figures[_DEFERRED_S] = figures[_BROUGHT_S] = before.deferred_s
    figures[_DEFERRED_J] = before.deferred_j
    rest_j = resting_w(before.asleep, work) * before.deferred_s
    figures[_BROUGHT_J] = before.deferred_j + rest_j
    figures[_ASLEEP] = zero + before.asleep
    figures[_DUE_S] = before.due_s
    return Carry._make(figures)


def cards_speed(work: Work, temperature_c: Number) -> Number:
    """Compute the cards' speed in an iteration, share of full speed.

    Args:
        work: how many are up, and their thermal model.
        temperature_c: of the cards at its start.
    """
    # The cards slow evenly over the degrees above their limit, down to `throttle`.
    above = (temperature_c - work.limit_c) / THROTTLE_SPAN_C
    hot = 0.5 * (abs(above) - abs(above - 1.0) + 1.0)  # within 0 and 1, for floats and arrays
    speed = work.cards_up * (1.0 - hot * (1.0 - work.throttle))
    # Without a card nothing is sent; a tiny speed keeps the arithmetic finite.
    return speed + 1e-9 * (speed <= 0.0)


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
    return _inference(PLACE[stage], carry, work, action, ops)


def finish(carry: Carry, work: Work, ops: Ops = SCALAR) -> IterationTotals:
    """End an iteration and sum up its time and energy.

    Args:
        carry: the iteration after its last stage.
        work: what its stages cost.
        ops: `SCALAR` for floats, `BATCH` for arrays.
    """
    # One step off-policy nothing in the iteration needs the offloaded results, so its barrier and
    # the repetition of lost rows stand here; on policy both are in the actor's step.
    owed_s = carry.pending_s + work.stale * (carry.due_s - carry.pending_s)
    wait_s = work.off_policy * ops.maximum(0.0, owed_s - carry.t_s)
    time_s = carry.t_s + wait_s + work.off_policy * carry.redo_s
    gpu_j = carry.gpu_j + work.gpu_idle_w * wait_s + work.off_policy * carry.redo_j
    above_w = work.card_active_w - work.card_idle_w
    asleep = work.sleeps * (carry.own_s <= 0.0)
    idle_w, next_idle_w = resting_w(carry.asleep, work), resting_w(asleep, work)
    backlog_s = ops.maximum(0.0, carry.card_s - time_s)
    # What stands in the queue at the end has not been worked off, whoever sent it.
    busy = (carry.others_s + carry.own_s - backlog_s) / time_s
    busy = ops.minimum(1.0, busy)
    power_w = (idle_w + (work.card_active_w - idle_w) * busy) / work.n_cards
    # One pole: the temperature nears its end value exponentially, at the iteration's mean power.
    target_c = work.ambient_c + work.rise_c_per_w * power_w
    kept = ops.exp(-time_s / work.tau_s)
    card_j = above_w * carry.own_s + idle_w * time_s
    # A step that was put off is booked here at what it would take alone, and one that came from the
    # iteration before is not: so Eq. 7 compares the work of one batch.
    more_s = carry.deferred_s - carry.brought_s
    more_j = carry.deferred_j + next_idle_w * carry.deferred_s - carry.brought_j
    return IterationTotals(
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
            asleep=asleep,
            due_s=work.stale * ops.maximum(0.0, carry.pending_s - time_s),
            occupancy=ops.minimum(1.0, carry.own_s / time_s),
        ),
    )


def resting_w(asleep: Number, work: Work) -> Number:
    """Compute the power of all cards while none of them works, W.

    Args:
        asleep: 1 where they sleep, else 0.
        work: what they draw awake and asleep.
    """
    return work.card_idle_w + asleep * (work.asleep_w - work.card_idle_w)


def with_deferred_done(totals: IterationTotals, work: Work, ops: Ops = SCALAR) -> IterationTotals:
    """Add the training that was put off to the end of an episode's last iteration.

    Results that may come as late as the next iteration are waited for as well.

    Args:
        totals: of that iteration.
        work: what its stages cost.
        ops: `SCALAR` for floats, `BATCH` for arrays.
    """
    after = totals.after
    wait_s = ops.maximum(0.0, after.due_s - after.deferred_s)
    rest_w, wait_j = resting_w(after.asleep, work), work.gpu_idle_w * wait_s
    return totals._replace(
        time_s=totals.time_s + after.deferred_s + wait_s,
        gpu_j=totals.gpu_j + after.deferred_j + wait_j,
        card_j=totals.card_j + rest_w * (after.deferred_s + wait_s),
        bubble_s=totals.bubble_s + wait_s,
        booked_s=totals.booked_s + wait_s,
        booked_j=totals.booked_j + wait_j + rest_w * wait_s,
        after=after._replace(
            deferred_s=0.0 * after.deferred_s,
            deferred_j=0.0 * after.deferred_j,
            due_s=0.0 * after.due_s,
        ),
    )


def card_done_s(
    stage: Stage, carry: Carry, work: Work, concurrent: Number, ops: Ops = SCALAR
) -> tuple[Number, Number]:
    """Return when the cards would be done with an inference stage, and their time for it, s.

    Args:
        stage: reward, reference or critic.
        carry: the iteration so far.
        work: what the stages cost.
        concurrent: 1 when the GPUs work meanwhile, else 0.
        ops: `SCALAR` for floats, `BATCH` for arrays.
    """
    place = PLACE[stage]
    card_s = work.card_s[place] / carry.speed * (1.0 + concurrent * (work.slow - 1.0))
    if stage is Stage.CRITIC:
        card_s = card_s + work.resync_s
    return _done_s(place, carry, work, card_s, ops), card_s


def queue_s(n_batches: float, batch_s: Number, card_share: Number) -> Number:
    """Compute how long the cards work on batches that wait for them, s.

    Args:
        n_batches: open batches.
        batch_s: time of each on the cards, s.
        card_share: share of the cards that each keeps busy, as in `Work`.
    """
    return n_batches * batch_s * card_share


def _done_s(place: int, carry: Carry, work: Work, card_s: Number, ops: Ops) -> Number:
    # Without streaming the cards start when their queue is empty and the rows are there. Only
    # reward and reference are streamed.
    queued = ops.maximum(carry.card_s, carry.t_s) + carry.asleep * work.wake_s + card_s
    if INFERENCE[place] is Stage.CRITIC or not ops.any(carry.streaming):
        return queued
    return queued + carry.streaming * (_stream_done_s(carry, work, card_s, ops) - queued)


def _served_s(
    place: int, carry: Carry, work: Work, card_s: Number, done_s: Number, ops: Ops
) -> Number:
    """Compute when the cards turn to what is sent after an inference stage, s.

    That is when its result comes (`done_s`), but where others of the cards go on meanwhile.
    """
    if not ops.any(1.0 - work.card_share):
        return done_s
    return _done_s(place, carry, work, card_s * work.card_share, ops)


def _stream_done_s(carry: Carry, work: Work, card_s: Number, ops: Ops) -> Number:
    """Compute by Reich's formula when what was streamed and `card_s` more is done, s.

    The work of a FIFO server ends at the greatest of its arrivals' times plus all work that arrived
    then or later. Every stage's work is spread over the hand-overs as the tokens are.
    """
    sent_s = carry.sent_s + card_s
    done_s = carry.base_s + carry.asleep * work.wake_s + sent_s
    for handover_s, tail in zip(work.handover_s, work.tail, strict=True):
        done_s = ops.maximum(done_s, handover_s * carry.stretch + sent_s * tail)
    return done_s


def _generation(carry: Carry, work: Work, action: Number, ops: Ops) -> Carry:
    shared_s = ops.minimum(carry.deferred_s, work.generation_s)
    # Training that was put off shares the GPUs with generation for as long as both last; what does
    # not fit beside it runs afterwards. A run may not know the time of generation: it is 0 then.
    stretch = 1.0 + work.contention * shared_s / ops.maximum(work.generation_s, _INSTANT_S)
    end_s = work.generation_s * stretch
    free_s = ops.maximum(carry.card_s, end_s)
    figures = [*carry]
    figures[_T_S] = end_s + (carry.deferred_s - shared_s)
    figures[_CARD_S] = free_s + work.late_arriving_s
    figures[_GPU_J] = work.generation_j + carry.deferred_j
    figures[_STRETCH] = stretch
    figures[_STREAMING] = 1.0 * (action == CONCURRENT) + 0.0 * end_s
    figures[_STREAMED_S] = free_s
    figures[_OTHERS_S] = carry.others_s + work.late_arriving_s
    figures[_DEFERRED_S] = figures[_DEFERRED_J] = 0.0 * end_s
    return Carry._make(figures)


def _inference(place: int, carry: Carry, work: Work, action: Number, ops: Ops) -> Carry:
    # Never in place: of many episodes side by side the figures are arrays that `carry` keeps.
    figures = [*carry]
    if isinstance(action, int) and action == GPU:
        # The same as below, without what the cards would do.
        figures[_T_S] = carry.t_s + work.gpu_s[place]
        figures[_GPU_J] = carry.gpu_j + work.gpu_j[place]
        return Carry._make(figures)
    stage = INFERENCE[place]
    # Products with 0 or 1 in place of branches: in arrays every episode has an action of its own.
    blocking, concurrent = 1.0 * (action == FPGA), 1.0 * (action == CONCURRENT)
    off = blocking + concurrent
    on = 1.0 - off
    done_s, card_s = card_done_s(stage, carry, work, concurrent, ops)
    wait_s = blocking * ops.maximum(0.0, done_s - carry.t_s)
    free_s = served_s = _served_s(place, carry, work, card_s, done_s, ops)
    own_s = card_s * work.card_share
    if stage is not Stage.CRITIC and ops.any(carry.streaming):
        # The streamed work grows by this stage's, in front of the queue: what was queued after it
        # ends that much later.
        streamed = carry.streaming * off
        free_s = served_s + streamed * (carry.card_s - carry.streamed_s)
        figures[_SENT_S] = carry.sent_s + streamed * own_s
        figures[_STREAMED_S] = carry.streamed_s + streamed * (served_s - carry.streamed_s)
    figures[_T_S] = carry.t_s + on * work.gpu_s[place] + wait_s
    figures[_CARD_S] = carry.card_s + off * (free_s - carry.card_s)
    figures[_PENDING_S] = ops.maximum(carry.pending_s, concurrent * done_s)
    figures[_GPU_J] = carry.gpu_j + on * work.gpu_j[place] + work.gpu_idle_w * wait_s
    figures[_OWN_S] = carry.own_s + off * own_s
    figures[_BUBBLE_S] = carry.bubble_s + wait_s
    if ops.any(work.lost):
        # How long the GPUs wait for a card that fails before they give it up. The barrier has one
        # deadline, so the first stage that is lost in an iteration pays for all.
        silent_s = off * ((work.lost > 0.0) * (carry.redo_s <= 0.0) * work.timeout_s)
        figures[_BUBBLE_S] = figures[_BUBBLE_S] + silent_s
        lost_j = off * work.lost * work.gpu_j[place]
        figures[_REDO_S] = carry.redo_s + off * work.lost * work.gpu_s[place] + silent_s
        figures[_REDO_J] = carry.redo_j + lost_j + silent_s * work.gpu_idle_w
    if ops.any(carry.asleep):
        woken_s = off * carry.asleep * work.wake_s
        figures[_BASE_S] = carry.base_s + woken_s
        figures[_OTHERS_S] = carry.others_s + woken_s
        figures[_ASLEEP] = carry.asleep * on
    return Carry._make(figures)


def _actor_train(carry: Carry, work: Work, action: Number, ops: Ops) -> Carry:
    # On policy the barrier stands before the backward pass, which needs the rewards. An early
    # forward pass runs while the GPUs would wait for it.
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
