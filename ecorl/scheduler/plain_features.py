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
    TIME_WEIGHT,
    DecisionFigures,
    Observed,
    in_order,
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
    gpu_s, gpu_j, usable, card_times_s = work.gpu_s, work.gpu_j, rules.usable, work.card_s
    first_s, second_s, third_s = gpu_s
    only_s = work.generation_s + (first_s + second_s + third_s)
    only_s = only_s + work.forward_s + work.backward_s + work.critic_s
    only_j = work.generation_j + sum(gpu_j) + work.actor_j + work.critic_j
    only_j = only_j + work.card_idle_w * only_s
    later_card_s = usable[2] * card_times_s[2]
    if stage is Stage.REWARD:
        place, later_s = 0, second_s + third_s
        later_card_s = usable[1] * card_times_s[1] + later_card_s
    else:
        place, later_s = 1, third_s
    sent = plain_send(place, carry, work)
    card_s, done_s, _, _, _ = sent
    backlog_s = carry.card_s - carry.t_s
    if backlog_s < 0.0:
        backlog_s = 0.0
    # A stage that the algorithm does not have takes no time on any device: its queue counts as 0.
    queue = backlog_s / (card_s if card_s > 1e-12 else 1e-12) if card_s > 0.0 else 0.0
    base, *gains = [
        TIME_WEIGHT * (only_s / end_s - 1.0)
        - ENERGY_WEIGHT * (end_j / only_j - 1.0)
        - BUBBLE_WEIGHT * (bubble_s / only_s)
        for end_s, end_j, bubble_s in plain_ends(stage, carry, work, rules, sent)
    ]
    eight = 8.0 * may[1]
    figures = DecisionFigures(
        only_s, only_j, backlog_s, later_s, later_card_s, gpu_s[place], gpu_j[place], card_s, queue,
        done_s,
    )  # fmt: skip
    # a2 differs from a3 in the wait alone.
    ends = (0.0, eight * (gains[0] - base), eight * (gains[-1] - base))
    return in_order(stage, carry, work, rules, seen, may, figures, ends)
