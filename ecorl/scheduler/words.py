"""The sentences that say why a stage runs where it runs, as the record holds them.

Who reads them may never have seen the paper. Where the framework itself computes has one name in a
run, `GPU` or `host` (see `ecorl.records.place_name`); energies that are compared stand in one unit,
for each output token where tokens are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.records import Action, PathCost, Provenance, Stage

_GPU, _FPGA = Action.GPU, Action.FPGA
_OTHERWISE = {
    Stage.GENERATION: "finished rows handed over early",
    Stage.ACTOR_TRAIN: "forward pass before the barrier",
    Stage.CRITIC_TRAIN: "put off into the next generation",
}
"""What `Action.CONCURRENT` means of the stages that never leave the framework's devices."""

_PREFIXES = ((1e3, 1e-3, "k"), (0.1, 1.0, ""), (1e-4, 1e3, "m"), (0.0, 1e6, "µ"))
"""From how many joules on a prefix is used, the factor that it stands for, and its letter."""


def action_name(action: Action, place: str, stage: Stage | None = None) -> str:
    """Name an action for a reader.

    Args:
        action: the action.
        place: where the framework computes, ``GPU`` or ``host``.
        stage: what is placed; some stages have a choice that is no offload.
    """
    if action is _GPU:
        return place
    if action is _FPGA:
        return "card"
    return (stage and _OTHERWISE.get(stage)) or f"card beside {place}"


def joules(values: tuple[float, ...], n_tokens: int) -> tuple[list[str], str]:
    """Write energies in one unit.

    Args:
        values: the energies, J.
        n_tokens: output tokens that they are for; 0 where that is not known.

    Returns:
        The numbers, and the unit: joules a token, or joules without tokens.
    """
    if n_tokens > 0:
        values = tuple([value / n_tokens for value in values])
    largest = max([abs(value) for value in values])
    # A figure that is no number is above none of them.
    factor, letter = next((f, name) for least, f, name in _PREFIXES if not largest < least)
    numbers = [f"{value * factor:.3g}" for value in values]
    return numbers, f"{letter}J a token" if n_tokens > 0 else f"{letter}J"


def against(energy_j: float, other_j: float, n_tokens: int) -> str:
    """Write two energies beside each other, as ``2.3 against 0.4 mJ a token``.

    Args:
        energy_j: the first, J.
        other_j: the second, J.
        n_tokens: output tokens that they are for; 0 where that is not known.
    """
    (one, other), unit = joules((energy_j, other_j), n_tokens)
    return f"{one} against {other} {unit}"


def basis(card: Provenance, own: Provenance, place: str) -> str:
    """Say where the two energies of a comparison come from.

    Args:
        card: provenance of the card's.
        own: provenance of the energy where the framework computes.
        place: where the framework computes, ``GPU`` or ``host``.
    """
    return str(card) if card is own else f"card {card}, {place} {own}"


def adjusted(seen: Sequence[PathCost], place: str) -> str:
    """Say which computed costs were adjusted to what the run itself has seen, and by which figures.

    Args:
        seen: what a stage has cost, at most one entry a path.
        place: where the framework computes, ``GPU`` or ``host``.

    Returns:
        A clause, as ``adjusted to this run: GPU measured, card measured time``; empty where
        nothing was.
    """
    told = []
    for path in seen:
        name = "card" if path.on_card else place
        what = " time" if path.recent_j_per_token is None else ""
        told.append(f"{name} {path.provenance}{what}")
    return f"adjusted to this run: {', '.join(told)}" if told else ""


def stays(place: str) -> str:
    """Say that a stage has no choice.

    Args:
        place: where the framework computes, ``GPU`` or ``host``.
    """
    return f"always on the {place}: its model is being trained"


def kept(place: str, why: str) -> str:
    """Say that a stage was not offloaded though a policy may have wanted it.

    Args:
        place: where the framework computes, ``GPU`` or ``host``.
        why: one clause.
    """
    return f"kept on the {place}: {why}"
