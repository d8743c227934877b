"""The network's input in a plain iteration, in floats: that of `features`, in a third of the time.

A decision of a run about reward or reference nearly always is one (`ecorl.stages.is_plain`). There
the same figures stand behind the guards' bid, the stage's own numbers and the gains, and the rest
of `features` is known. A test holds each number to that of `features`.
"""

from __future__ import annotations

from ecorl.records import Stage
from ecorl.scheduler.features import (
    BUBBLE_WEIGHT,
    ENERGY_WEIGHT,
    ONE_HOT,
    TIME_WEIGHT,
    Observed,
    measured_figures,
)
from ecorl.stages import Carry, Rules, Work
from ecorl.stages.plain import plain_ends, plain_send


def plain_features(
    stage: Stage, carry: Carry, work: Work, rules: Rules, seen: Observed, may: tuple[float, float]
) -> tuple[float, ...]:
    """Compute the network's input before a decision for which `ecorl.stages.is_plain` holds.

    Args:
        stage: reward or reference.
        carry: the iteration so far.
        work: what its stages cost, as far as it is known.
        rules: what may be done.
        seen: readings and facts of the batch.
        may: whether a2 and a3 pass the guards.

    Returns:
        `N_FEATURES` numbers in the order of `NAMES`.
    """
    generation_s, forward_s, backward_s = work.generation_s, work.forward_s, work.backward_s
    critic_s, gpu_j, idle_w = work.critic_s, work.gpu_j, work.gpu_idle_w
    first_s, second_s, third_s = work.gpu_s
    usable, card_times_s, t_s = rules.usable, work.card_s, carry.t_s
    only_s = generation_s + (first_s + second_s + third_s) + forward_s + backward_s + critic_s
    only_j = work.generation_j + sum(gpu_j) + work.actor_j + work.critic_j
    only_j = only_j + work.card_idle_w * only_s
    per_s, per_j = 1.0 / only_s, 1.0 / only_j
    later_card_s = usable[2] * card_times_s[2]
    if stage is Stage.REWARD:
        place, stage_s, later_s = 0, first_s, second_s + third_s
        later_card_s = usable[1] * card_times_s[1] + later_card_s
    else:
        place, stage_s, later_s = 1, second_s, third_s
    sent = plain_send(place, carry, work)
    card_s, done_s, _, _, _ = sent
    backlog_s = carry.card_s - t_s
    if backlog_s < 0.0:
        backlog_s = 0.0
    # A stage that the algorithm does not have takes no time on any device: its queue counts as 0.
    queue = backlog_s / (card_s if card_s > 1e-12 else 1e-12) if card_s > 0.0 else 0.0
    ends = plain_ends(stage, carry, work, rules, sent)
    base, *gains = [
        TIME_WEIGHT * (only_s / end_s - 1.0)
        - ENERGY_WEIGHT * (end_j / only_j - 1.0)
        - BUBBLE_WEIGHT * (bubble_s / only_s)
        for end_s, end_j, bubble_s in ends
    ]
    eight = 8.0 * may[1]
    return (
        *ONE_HOT[stage],
        may[0],
        may[1],
        seen.power_mean,
        seen.power_spread,
        seen.utilisation_mean,
        seen.utilisation_spread,
        0.25 * queue,
        backlog_s * per_s,
        (carry.pending_s - t_s) * per_s,
        carry.bubble_s * per_s,
        carry.deferred_s * per_s,
        seen.row_length / 2048.0,
        0.1 * seen.log_rows,
        stage_s * per_s,
        card_s * per_s,
        gpu_j[place] * per_j,
        work.card_active_w * (card_s * work.card_share) * per_j,
        idle_w * only_s * per_j,
        later_s * per_s,
        later_card_s / carry.speed * per_s,
        forward_s * per_s,
        (forward_s + backward_s) * per_s,
        generation_s * per_s,
        critic_s * per_s,
        (done_s - (t_s + later_s + forward_s)) * per_s,
        0.0,  # not streaming
        0.0,  # on policy
        rules.stream,
        0.0,  # no early forward pass
        rules.defer,
        work.cards_up,
        carry.speed,
        0.05 * (carry.temperature_c - work.limit_c),
        0.0,  # no common power cap
        work.late_arriving_s * per_s,
        0.0,  # the cards do not sleep
        work.stale,
        carry.due_s * per_s,
        *measured_figures(seen.on_gpu),
        *measured_figures(seen.on_card),
        0.0,  # a2 differs from a3 in the wait alone
        eight * (gains[0] - base),
        eight * (gains[-1] - base),
    )
