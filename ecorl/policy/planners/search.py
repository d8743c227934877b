"""Look-ahead over what is left of an iteration: every sequence of actions, priced at once.

Of the 3^6 = 729 sequences of an iteration 216 are distinct: generation and the training steps have
two actions (their a2 is a1), reward, reference and critic three. Sequences are expanded stage by
stage as a tree, so that what they share is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ecorl.records import Stage
from ecorl.scheduler.features import objective
from ecorl.scheduler.tables import Float64
from ecorl.sim.simulation import STAGES, CostView, Simulation
from ecorl.stages.figures import BATCH, CONCURRENT, FPGA, GPU, Between, Carry, Number, Work
from ecorl.stages.guards import Rules, gpu_only, permitted
from ecorl.stages.iteration import advance, finish

Codes = np.ndarray[Any, np.dtype[np.int64]]

Future = Callable[[Between], Float64]
"""What the state after an iteration is worth, ``[n, n_sequences] float64``."""

_TWO_ACTIONS = {Stage.GENERATION: "stream", Stage.ACTOR_TRAIN: "early", Stage.CRITIC_TRAIN: "defer"}
_INFERENCE = (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)


class Leaves(NamedTuple):
    """All sequences that are left, for each of n iterations under way.

    Attributes:
        actions: ``[n_sequences, n_stages_left] int64``: codes as proposed, before the guards.
        score: ``[n, n_sequences] float64``: Eq. 7 of the iteration.
        after: what it leaves to the next, ``[n, n_sequences]`` each.
    """

    actions: Codes
    score: Float64
    after: Between


class GuardView(NamedTuple):
    """What the guards see of a batch whose rows are not there yet.

    Attributes:
        carry: ``[n]`` each: the iteration so far.
        work: ``[n]`` each: costs.
        row_length: ``[n]``: mean tokens of a row.
    """

    carry: Carry
    work: Work
    row_length: Number


def leaves(
    stage: Stage,
    carry: Carry,
    work: Work,
    rules: Rules,
    row_length: Number,
    judged: GuardView | None = None,
) -> Leaves:
    """Every sequence of actions from a stage to the end of the iteration.

    Args:
        stage: the first stage that is left.
        carry: ``[n]`` each: iterations under way.
        work: ``[n]`` each: what their stages cost.
        rules: ``[n]`` each: what may be done; guards are applied at every step.
        row_length: ``[n]``: mean tokens of a row.
        judged: what the guards see while rows are not there: of reward and reference after a
            streaming generation or, when `stage` is one of these, in any case. None: `work`.
    """
    costs, length = Work._make(map(_column, work)), _column(row_length)
    first, allowed = Carry._make(map(_column, carry)), Rules(*map(_column, rules))
    blind = None
    if judged is not None:
        blind = GuardView(
            Carry._make(map(_column, judged.carry)),
            Work._make(map(_column, judged.work)),
            _column(judged.row_length),
        )
    grown: list[Carry] = []
    actions: list[tuple[int, ...]] = []
    codes = _options(stage, rules) if stage is Stage.GENERATION else (None,)
    for code in codes:
        at, begun, unseen = first, stage, blind
        if code is not None:
            may = permitted(stage, at, costs, allowed, length, BATCH)
            taken_code = code * may[code - 1] if code else GPU
            at, begun = advance(stage, at, costs, taken_code, BATCH), Stage.REWARD
            unseen = None
            if blind is not None and code != GPU:
                ghost = advance(stage, blind.carry, blind.work, taken_code, BATCH)
                unseen = blind._replace(carry=ghost)
        at, taken = _grow(begun, at, costs, allowed, length, unseen, rules)
        grown.append(at)
        actions += [row if code is None else (code, *row) for row in taken]
    n = max(np.shape(x)[0] for x in first)
    width = max(np.shape(x)[1] for one in grown for x in one)
    at = grown[0] if len(grown) == 1 else _joined(grown, width)
    totals = finish(at, costs, BATCH)
    score = objective(totals.booked_s, totals.booked_j, totals.bubble_s, *gpu_only(costs))
    return Leaves(
        np.array(actions, dtype=np.int64),
        _full(score, n, len(actions)),
        Between(*(_full(x, n, len(actions)) for x in totals.after)),
    )


def _grow(
    stage: Stage,
    at: Carry,
    costs: Work,
    allowed: Rules,
    length: Any,
    blind: GuardView | None,
    rules: Rules,
) -> tuple[Carry, list[tuple[int, ...]]]:
    """All branches from a stage on, and the actions that lead to each."""
    actions: list[tuple[int, ...]] = [()]
    for one in STAGES[STAGES.index(stage) :]:
        codes = _options(one, rules)
        unseen = blind if one in (Stage.REWARD, Stage.REFERENCE) else None
        if codes == (GPU,):
            may: Any = (0.0, 0.0)
        elif unseen is None:
            may = permitted(one, at, costs, allowed, length, BATCH)
        else:
            may = permitted(one, unseen.carry, unseen.work, allowed, unseen.row_length, BATCH)
        taken = [code * may[code - 1] if code else GPU for code in codes]
        grown = [advance(one, at, costs, code, BATCH) for code in taken]
        if unseen is not None and one is Stage.REWARD:
            ghosts = [advance(one, unseen.carry, unseen.work, code, BATCH) for code in taken]
            blind = unseen._replace(carry=ghosts[0] if len(ghosts) == 1 else _joined(ghosts))
        at = grown[0] if len(grown) == 1 else _joined(grown)
        actions = [(*before, code) for code in codes for before in actions]
    return at, actions


def best(actions: Codes, value: Float64) -> tuple[Codes, Float64]:
    """The best first action of each iteration, and the best value of each first action.

    Args:
        actions: ``[n_sequences, n_stages_left] int64``.
        value: ``[n, n_sequences] float64``: what each sequence is worth.

    Returns:
        Codes ``[n] int64``, and ``[n, 3] float64`` with -inf for actions that were not tried.
    """
    by_action = np.full((value.shape[0], 3), -np.inf)
    first = actions[:, 0]
    for code in (GPU, FPGA, CONCURRENT):
        if (first == code).any():
            by_action[:, code] = value[:, first == code].max(axis=1)
    return _first_best(by_action), by_action


def _first_best(by_action: Float64) -> Codes:
    """On a tie the GPU: argmax takes the first. Rounding must not decide otherwise."""
    gain = by_action - by_action[:, [GPU]]
    return np.asarray(np.argmax(np.where(np.abs(gain) < 1e-12, 0.0, gain), axis=1))


def look(
    simulation: Simulation,
    future: Future | None = None,
    supposed: Sequence[tuple[float, Work]] = (),
    view: CostView | None = None,
) -> tuple[Codes, Float64]:
    """Look ahead from where a batched simulation stands, by what a causal policy knows.

    What is decided before the rows are there is decided for every length that they may turn out
    to have; what is decided after that may differ for each. So the worth of an action is the
    best, over what is decided blindly, of the mean over lengths of the best of the rest.

    Args:
        simulation: with arrays.
        future: worth of what the iteration leaves behind; None: nothing.
        supposed: weights and costs of the lengths that the batch may have; none: as expected.
        view: where its knowledge of costs comes from; None: as the simulation's, by which the
            guards judge in any case.

    Returns:
        As `best`.
    """
    blind = simulation.stage in _BLIND_STAGES
    cases = supposed if blind and supposed else [(1.0, None)]
    values, actions = [], None
    row_length = simulation.row_length()
    judged = GuardView(simulation.known_carry(), simulation.known_work(), row_length)
    for _, work in cases:
        found = leaves(
            simulation.stage, simulation.known_carry(work, view),
            simulation.known_work(work, view), simulation.rules, row_length, judged,
        )  # fmt: skip
        actions = found.actions
        values.append(found.score if future is None else found.score + future(found.after))
    assert actions is not None  # there is at least one case
    if len(cases) == 1:
        return best(actions, values[0])
    return _best_blind(simulation, actions, values, [weight for weight, _ in cases])


_BLIND_STAGES = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE)


def _best_blind(
    simulation: Simulation, actions: Codes, values: list[Float64], weights: list[float]
) -> tuple[Codes, Float64]:
    """`best` where stages up to the reference may be decided before the lengths are known."""
    n_blind = 3 - simulation.place
    keys = [tuple(int(a) for a in row[:n_blind]) for row in actions]
    groups = sorted(set(keys))
    members = [np.array([i for i, key in enumerate(keys) if key == group]) for group in groups]
    # Of each blind choice the best rest, length by length: [n_cases, n, n_groups].
    rest = np.stack([np.stack([v[:, m].max(axis=1) for m in members], axis=1) for v in values])
    mean = np.tensordot(np.array(weights), rest, axes=1)
    first = np.array([group[0] for group in groups])
    by_action = np.full((mean.shape[0], 3), -np.inf)
    for code in sorted(set(first.tolist())):
        of_code = first == code
        blind = mean[:, of_code].max(axis=1)
        seen = np.tensordot(np.array(weights), rest[:, :, of_code].max(axis=2), axes=1)
        # Without streaming the lengths are known before reward and reference are placed.
        if simulation.stage is Stage.GENERATION:
            by_action[:, code] = blind if code == CONCURRENT else seen
        else:
            by_action[:, code] = np.where(simulation.carry.streaming > 0.0, blind, seen)
    return _first_best(by_action), by_action


def lookahead(simulation: Simulation) -> Codes:
    """The 216-way look-ahead as a policy: the best sequence of this iteration, its first action."""
    return look(simulation)[0]


def _options(stage: Stage, rules: Rules) -> tuple[int, ...]:
    if stage in _TWO_ACTIONS:
        return (GPU, CONCURRENT) if np.any(getattr(rules, _TWO_ACTIONS[stage])) else (GPU,)
    usable = rules.usable[_INFERENCE.index(stage)]
    return (GPU, FPGA, CONCURRENT) if np.any(usable) else (GPU,)


def _column(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_column, value))
    return np.asarray(value, dtype=np.float64)[..., None]


def _joined(grown: list[Carry], width: int | None = None) -> Carry:
    """Branches side by side; a figure that one branch leaves unspread is spread out."""
    width = width or max(np.shape(x)[1] for carry in grown for x in carry)
    n = max(np.shape(x)[0] for carry in grown for x in carry)
    return Carry._make(
        np.concatenate([_full(carry[i], n, width) for carry in grown], axis=1)
        for i in range(len(grown[0]))
    )


def _full(value: Any, n: int, width: int) -> Float64:
    return np.asarray(np.broadcast_to(value, (n, width)))
