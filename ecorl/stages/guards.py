"""The outlook of an iteration whose rest stays on the GPUs, and the guards' arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ecorl.records import Abilities, Stage
from ecorl.stages.figures import INFERENCE, SCALAR, Carry, Number, Ops, Work
from ecorl.stages.iteration import PLACE, card_done_s, resting_w

NO_LIMIT = 1e30
"""Stands for no energy limit. Finite, since it is multiplied by 0 J where there is no stage."""

_ORDER = {stage: i for i, stage in enumerate(Stage)}
_LATER = {
    stage: tuple(i for i, other in enumerate(INFERENCE) if _ORDER[other] > _ORDER[stage])
    for stage in Stage
}
_BEFORE_BARRIER = tuple(s for s in Stage if _ORDER[s] < _ORDER[Stage.ACTOR_TRAIN])


def gpu_only(work: Work) -> tuple[Number, Number]:
    """Compute time (s) and energy (J) of an iteration on the GPUs alone, beside idle cards.

    Cards that sleep when nobody uses them sleep through it.
    """
    time_s, gpu_j = without_cards(work)
    return time_s, gpu_j + resting_w(work.sleeps, work) * time_s


def without_cards(work: Work) -> tuple[Number, Number]:
    """Compute time (s) and energy (J) of an iteration on the same GPUs without any card."""
    time_s = work.generation_s + sum(work.gpu_s) + work.forward_s + work.backward_s + work.critic_s
    return time_s, work.generation_j + sum(work.gpu_j) + work.actor_j + work.critic_j


def outlook(
    stage: Stage, carry: Carry, work: Work, early: Number = 0.0, ops: Ops = SCALAR
) -> tuple[Number, Number, Number]:
    """Compute booked time (s), energy (J) and bubble (s) if the later stages stay on the GPUs.

    The result is that of `advance` with a1 over the stages after `stage`, then `finish`, in closed
    form: a decision asks for it two to four times, a planner millions of times.

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
        # A forward pass before the barrier hides at most its own length of the wait. It goes early
        # only where that saves more time than the price of keeping its activations.
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
        owed_s = carry.pending_s + work.stale * (carry.due_s - carry.pending_s)
        wait_s = work.off_policy * ops.maximum(0.0, owed_s - t_s)
        t_s = t_s + wait_s + work.off_policy * carry.redo_s
        gpu_j = gpu_j + work.gpu_idle_w * wait_s + work.off_policy * carry.redo_j
        bubble_s = bubble_s + wait_s
    card_j = (work.card_active_w - work.card_idle_w) * carry.own_s
    idle_w = resting_w(carry.asleep, work)
    card_j = card_j + idle_w * t_s
    t_s, gpu_j = t_s - carry.brought_s, gpu_j - carry.brought_j
    if stage is Stage.CRITIC_TRAIN:
        # What is put off will be done while the cards rest as they do after this iteration.
        asleep = work.sleeps * (carry.own_s <= 0.0)
        card_j = card_j + resting_w(asleep, work) * carry.deferred_s
        t_s, gpu_j = t_s + carry.deferred_s, gpu_j + carry.deferred_j
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


class StageChoices(NamedTuple):
    """Which stages have a choice in a job: `Rules` without the guards' limits, figures alike."""

    stream: float
    early: float
    defer: float
    usable: tuple[float, float, float]


def choices(
    abilities: Abilities, card_usable: Sequence[bool], n_cards: int, *, has_critic: bool
) -> StageChoices:
    """Tell which stages have a choice, for a run and for the simulator alike.

    Args:
        abilities: of the framework.
        card_usable: whether cards can run reward, reference and critic.
        n_cards: cards; none of them: nothing is handed over.
        has_critic: whether a critic is trained.
    """
    reward, reference, critic = (float(n_cards > 0 and one) for one in card_usable)
    return StageChoices(
        stream=float(abilities.stream and n_cards > 0),
        early=float(abilities.early_forward),
        defer=float(abilities.defer_critic and has_critic),
        usable=(reward, reference, critic * abilities.offload_critic),
    )


def queue_fits(queue: Number, batch: Number, q_max: Number) -> Number:
    """Whether the work ahead is below the limit.

    Args:
        queue: work ahead on the cards, batches or s.
        batch: a batch in the same unit.
        q_max: queue at which offloading stops, batches.
    """
    return queue < q_max * batch


def length_fits(mean_length: Number, l_max: Number) -> Number:
    """Whether the rows are short enough.

    Args:
        mean_length: mean row, tokens.
        l_max: longest mean row that is offloaded, tokens.
    """
    return mean_length <= l_max


def energy_fits(energy_j: Number, gpu_energy_j: Number, energy_limit: Number) -> Number:
    """Whether an offload costs little enough.

    Args:
        energy_j: of the offload, J.
        gpu_energy_j: of the GPU path, J.
        energy_limit: of their ratio.
    """
    return energy_j <= energy_limit * gpu_energy_j


def permitted(
    stage: Stage, carry: Carry, work: Work, rules: Rules, row_length: Number, ops: Ops = SCALAR
) -> tuple[Number, Number]:
    """Whether a2 and a3 of a stage pass the guards, 1.0 or 0.0 each.

    The arithmetic of `ecorl.scheduler.guards.guard_objection`, for arrays and for an iteration
    under way: the model may leave the GPU, a card is up, queue and length are within their limits,
    and the modelled energy of the offload, waiting GPUs included, is within its limit. The wait of
    an a3 is taken as if nothing but work that is sure to stay on the GPUs hid it. What an a3 of the
    training steps costs in energy is held to the same limit.

    Args:
        stage: the stage to place.
        carry: the iteration so far.
        work: what its stages cost.
        rules: what may be done.
        row_length: mean tokens of a row, prompt and completion.
        ops: `SCALAR` for floats, `BATCH` for arrays.
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
    place = PLACE[stage]
    up = rules.usable[place] * (work.cards_up > 0.0) * length_fits(row_length, rules.l_max)
    passed = []
    for bid in offload_bids(stage, carry, work, rules, ops):
        fits = queue_fits(bid.queue_s, bid.card_s, rules.q_max) * energy_fits(
            bid.energy_j, work.gpu_j[place], rules.energy_limit
        )
        passed.append(up * fits)
    return passed[0], passed[-1]


class OffloadBid(NamedTuple):
    """Modelled time and energy of an offload of an inference stage, as the guards count them.

    Attributes:
        card_s: time on the cards, s.
        queue_s: time until the cards get to it, s.
        wait_s: time that the GPUs would stand still for it, s.
        energy_j: of the cards, of the waiting GPUs, and of what keeps cards awake for it, J.
    """

    card_s: Number
    queue_s: Number
    wait_s: Number
    energy_j: Number


def offload_bids(
    stage: Stage, carry: Carry, work: Work, rules: Rules, ops: Ops = SCALAR
) -> tuple[OffloadBid, ...]:
    """Compute time and energy of a2 and a3 of an inference stage; one bid where both are alike.

    The wait of an a3 is hidden by what is sure to run on the GPUs before the barrier: later
    inference that the cards cannot run, and forward or training work where the rules allow it.

    Args:
        stage: reward, reference or critic.
        carry: the iteration so far.
        work: what its stages cost.
        rules: what may be done.
        ops: `SCALAR` for floats, `BATCH` for arrays.
    """
    place = PLACE[stage]
    sure_s = work.off_policy * (work.forward_s + work.backward_s + work.critic_s)
    sure_s = sure_s + rules.early * (1.0 - work.off_policy) * work.forward_s
    for i in range(place + 1, len(INFERENCE)):
        sure_s = sure_s + (1.0 - rules.usable[i]) * work.gpu_s[i]
    # Then a2 and a3 differ in nothing that the guards look at: a3 finds no sure work to hide its
    # wait, and the cards are as fast beside working GPUs as beside waiting ones.
    alike = not (ops.any(sure_s) or ops.any(work.slow > 1.0))
    awake_j: Number = 0.0
    if ops.any(work.sleeps):
        # The first stage that is sent keeps the cards from sleeping for about an iteration.
        first = work.sleeps * (carry.own_s <= 0.0)
        awake_j = first * (work.card_idle_w - work.asleep_w) * without_cards(work)[0]
    bids = []
    for concurrent in (0.0,) if alike else (0.0, 1.0):
        done_s, card_s = card_done_s(stage, carry, work, concurrent, ops)
        queue_s = ops.maximum(0.0, done_s - carry.t_s - card_s)
        wait_s = ops.maximum(0.0, done_s - carry.t_s - concurrent * sure_s)
        busy_s = card_s * work.card_share
        energy_j = work.card_active_w * busy_s + work.gpu_idle_w * wait_s + awake_j
        bids.append(OffloadBid(card_s, queue_s, wait_s, energy_j))
    return tuple(bids)
