"""A plain iteration in floats: the same figures as those of the general functions, sooner.

A run knows of nothing that goes on beside its own whole batches (`ecorl.scheduler.iteration_costs`
says what that leaves out): the rows are not streamed, the trainer is on policy, no card sleeps,
fails, or slows under a common power cap. Then what a decision about reward or reference asks of
`advance`, `outlook` and `offload_bids` comes down to a few sums. A decision waits on the training
thread, and by these functions it takes a third of the time. Tests hold them to the general ones.
"""

from __future__ import annotations

from typing import NamedTuple

from ecorl.records import Stage
from ecorl.stages.figures import Carry, Work
from ecorl.stages.guards import OffloadBid, Rules

_REWARD, _REFERENCE = Stage.REWARD, Stage.REFERENCE


def is_plain(stage: Stage, carry: Carry, work: Work, rules: Rules) -> bool:
    """Whether the functions of this module hold for a decision, all of whose figures are floats.

    Args:
        stage: the stage to place.
        carry: the iteration so far.
        work: what its stages cost.
        rules: what may be done.
    """
    if stage is not _REWARD and stage is not _REFERENCE:
        return False
    return work.slow == 1.0 and not (
        carry.streaming
        or carry.asleep
        or carry.redo_s
        or carry.redo_j
        or carry.brought_s
        or carry.brought_j
        or work.off_policy
        or work.lost
        or work.sleeps
        or rules.early
    )


def after_generation(work: Work, backlog_s: float, temperature_c: float, speed: float) -> Carry:
    """Return an iteration after a generation on which nothing was put off, rows not streamed.

    It is what `begin` and `advance` make of it where no other job's work arrives meanwhile.

    Args:
        work: what the stages cost; its generation takes 0 s or more.
        backlog_s: work that the cards have at the start, s.
        temperature_c: of the cards at the start.
        speed: of the cards, share of full speed.
    """
    end_s = work.generation_s
    free_s = backlog_s if backlog_s > end_s else end_s
    # By place: 22 figures by name take four times as long. A test holds each to its name.
    return Carry._make(
        (
            end_s, free_s, 0.0, work.generation_j, 0.0, 0.0, 0.0, 0.0, speed, backlog_s, 1.0, 0.0,
            0.0, free_s, backlog_s, temperature_c, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
        )
    )  # fmt: skip


def plain_bids(
    stage: Stage, carry: Carry, work: Work, rules: Rules
) -> tuple[OffloadBid, OffloadBid]:
    """Compute time and energy of a2 and a3, as `ecorl.stages.offload_bids` does.

    Args:
        stage: reward or reference.
        carry: the iteration so far.
        work: what its stages cost.
        rules: what may be done.
    """
    usable, gpu_s, t_s, card_free_s = rules.usable, work.gpu_s, carry.t_s, carry.card_s
    sure_s = (1.0 - usable[2]) * gpu_s[2]
    if stage is _REWARD:
        place, sure_s = 0, (1.0 - usable[1]) * gpu_s[1] + sure_s
    else:
        place = 1
    card_s = work.card_s[place] / carry.speed
    done_s = (card_free_s if card_free_s > t_s else t_s) + card_s
    wait_s = done_s - t_s
    queue_s = wait_s - card_s
    if queue_s < 0.0:
        queue_s = 0.0
    card_j, idle_w = work.card_active_w * (card_s * work.card_share), work.gpu_idle_w
    blocking = OffloadBid(card_s, queue_s, wait_s, card_j + idle_w * wait_s)
    if sure_s == 0.0:
        return blocking, blocking
    wait_s = wait_s - sure_s
    if wait_s < 0.0:
        wait_s = 0.0
    return blocking, OffloadBid(card_s, queue_s, wait_s, card_j + idle_w * wait_s)


class PlainSend(NamedTuple):
    """An a3 of a stage, and what it leaves.

    Attributes:
        card_s: time on the cards, s.
        done_s: when its result comes, s.
        card_free_s: when the cards turn to what is sent next, s.
        own_s, pending_s: of the iteration after it, as in `Carry`.
    """

    card_s: float
    done_s: float
    card_free_s: float
    own_s: float
    pending_s: float


def plain_send(place: int, carry: Carry, work: Work) -> PlainSend:
    """Send a stage to the cards as the next of an iteration, as `advance` does by a3.

    Args:
        place: 0 for the reward, 1 for the reference.
        carry: the iteration so far.
        work: what its stages cost.
    """
    t_s, card_free_s, share = carry.t_s, carry.card_s, work.card_share
    card_s = work.card_s[place] / carry.speed
    start_s = card_free_s if card_free_s > t_s else t_s
    done_s, pending_s = start_s + card_s, carry.pending_s
    return PlainSend(
        card_s,
        done_s,
        done_s if share == 1.0 else start_s + card_s * share,
        carry.own_s + card_s * share,
        done_s if done_s > pending_s else pending_s,
    )


Ends = tuple[tuple[float, float, float], ...]
"""Booked time (s), energy (J) and bubble (s) of iterations, as `ecorl.stages.outlook` has them."""


def plain_ends(stage: Stage, carry: Carry, work: Work, rules: Rules, sent: PlainSend) -> Ends:
    """Compute how an iteration ends by a1 of a stage, and by a3, if later stages stay on the GPUs.

    It is what `ecorl.stages.outlook` says of what `advance` makes of the iteration.

    Args:
        stage: reward or reference.
        carry: the iteration so far.
        work: what its stages cost.
        rules: what may be done.
        sent: a3 of the stage.

    Returns:
        By a1; by a3; and of a reward, where the cards can run the reference, with both by a3.
    """
    gpu_s, gpu_j, t_s, energy_j = work.gpu_s, work.gpu_j, carry.t_s, carry.gpu_j
    forward_s, backward_s, critic_s = work.forward_s, work.backward_s, work.critic_s
    actor_j, critic_j, idle_w = work.actor_j, work.critic_j, work.gpu_idle_w
    resting_w, so_far_s = work.card_idle_w, carry.bubble_s
    above_w = work.card_active_w - resting_w

    def end(t_s: float, gpu_j: float, pending_s: float, own_s: float) -> tuple[float, float, float]:
        wait_s = pending_s - t_s
        if wait_s < 0.0:
            wait_s = 0.0
        t_s = t_s + wait_s + forward_s + backward_s + critic_s
        gpu_j = gpu_j + actor_j + idle_w * wait_s + critic_j
        return t_s, gpu_j + (above_w * own_s + resting_w * t_s), so_far_s + wait_s

    _, _, card_free_s, own_s, pending_s = sent
    if stage is _REFERENCE:
        return (
            end(
                t_s + gpu_s[1] + gpu_s[2], energy_j + gpu_j[1] + gpu_j[2],
                carry.pending_s, carry.own_s,
            ),
            end(t_s + gpu_s[2], energy_j + gpu_j[2], pending_s, own_s),
        )  # fmt: skip
    by_gpu = end(
        t_s + gpu_s[0] + gpu_s[1] + gpu_s[2], energy_j + gpu_j[0] + gpu_j[1] + gpu_j[2],
        carry.pending_s, carry.own_s,
    )  # fmt: skip
    alone = end(t_s + gpu_s[1] + gpu_s[2], energy_j + gpu_j[1] + gpu_j[2], pending_s, own_s)
    if not rules.usable[1]:
        return by_gpu, alone
    card_s = work.card_s[1] / carry.speed
    done_s = (card_free_s if card_free_s > t_s else t_s) + card_s
    if done_s > pending_s:
        pending_s = done_s
    own_s = own_s + card_s * work.card_share
    return by_gpu, alone, end(t_s + gpu_s[2], energy_j + gpu_j[2], pending_s, own_s)
