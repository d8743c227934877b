"""What the card's calls saved, what it drew while idle, and its modelled timeline."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ecorl.ledger import BarrierRow, ExecutionRow
from ecorl.records import Action, Provenance, Role, StageResult, weakest
from ecorl.report.energy.evidence import Evidence, paused_time_s
from ecorl.report.energy.model import Balance, CardTimeline, Cause, EnergyPart, PathComparison
from ecorl.report.energy.readings import Span, length
from ecorl.report.energy.stages import modelled_devices, present


def card_parts(
    comparisons: Sequence[PathComparison], parts: Sequence[EnergyPart], cause: Cause
) -> list[EnergyPart]:
    """Select what the cards of these comparisons drew for one cause.

    Args:
        comparisons: both paths, by stage.
        parts: energy by device and cause.
        cause: idle, or paused.
    """
    cards = {i for c in comparisons if c.card is not None for i in c.card.device_ids}
    return [p for p in parts if p.cause is cause and not cards.isdisjoint(p.device_ids)]


def balance(
    comparisons: Sequence[PathComparison],
    parts: Sequence[EnergyPart],
    evidence: Evidence,
    timeline: CardTimeline | None,
) -> Balance | None:
    """Sum up what the offloaded calls saved, less what the cards drew beside their calls.

    Without offloading no card would have been there: all of them count, those of stages that cannot
    be compared as well.

    Args:
        comparisons: both paths, by stage.
        parts: energy by device and cause.
        evidence: what the ledger holds of the run.
        timeline: the run without the simulation's time; None without a simulated card.

    Returns:
        The balance; None when no stage has energy on both paths.
    """
    judged = [c for c in comparisons if c.saved_j is not None]
    if not judged:
        return None
    offloaded = [c for c in comparisons if c.card is not None]
    saved_j = math.fsum(present(c.saved_j for c in judged))
    idle = card_parts(offloaded, parts, Cause.IDLE)
    paused = card_parts(offloaded, parts, Cause.PAUSED)
    # A simulated card waits for its simulation: that is no time of the card's.
    replayed = timeline if timeline is not None and timeline.idle_j is not None else None
    real = idle if replayed is None else [p for p in idle if not p.simulated]
    idle_j = _known_total(real)
    if replayed is not None and replayed.idle_j is not None:
        idle_j = _both(replayed.idle_j, idle_j) if real else replayed.idle_j
    paused_j = _known_total(paused) if paused else 0.0
    held, share = _held_share(idle, evidence)
    if replayed is not None:
        share = None if real else replayed.idle_share
    known = [c.ratio_provenance for c in judged if c.ratio_provenance is not None]
    known += [p.provenance for p in (*idle, *paused) if p.provenance is not None]
    return Balance(
        card_j=math.fsum(present(c.card_j for c in judged)),
        gpu_would_j=math.fsum(present(c.gpu_would_j for c in judged)),
        saved_j=saved_j,
        at_most=any(c.card_at_least for c in judged),
        idle_j=idle_j,
        idle_share=share,
        whole_run=all(len(spans) == len(evidence.spans) for spans in held.values()),
        net_j=None if idle_j is None or paused_j is None else saved_j - idle_j - paused_j,
        provenance=weakest(*known),
        paused_j=paused_j,
        is_simulated=any(p.simulated for p in (*idle, *paused)) or timeline is not None,
        in_modelled_time=replayed is not None,
        beside_at_least=any(p.at_least for p in (*real, *paused)),
        left_out=tuple(c.role for c in offloaded if c.saved_j is None),
    )


def _both(one_j: float, other_j: float | None) -> float | None:
    return None if other_j is None else one_j + other_j


def _known_total(parts: Sequence[EnergyPart]) -> float | None:
    """Add up the energy of parts, J; None where there is none or one has no figure."""
    if not parts or any(p.energy_j is None for p in parts):
        return None
    return math.fsum(present(p.energy_j for p in parts))


def _held_share(
    idle: Sequence[EnergyPart], evidence: Evidence
) -> tuple[dict[tuple[str, ...], dict[int, Span]], float | None]:
    """When the run had these cards, and the share of that in which they ran nothing."""
    # A card read with several provenances has a part for each.
    held = {p.device_ids: evidence.held(p.device_ids) for p in idle}
    held_s = math.fsum(length(spans.values()) for spans in held.values())
    idle_s = present(p.time_s for p in idle)
    if not idle_s or len(idle_s) < len(idle) or held_s <= 0:
        return held, None
    return held, math.fsum(idle_s) / held_s


# ---------------------------------------------------------------- the run without the simulation


@dataclass(frozen=True, slots=True)
class _Wait:
    """One wait at the barrier and the call that it waited for."""

    entry_s: float
    end_s: float
    submit_s: float
    time_s: float | None


def card_timeline(evidence: Evidence) -> CardTimeline | None:
    """Compute how the run would have gone had each simulated card answered in its modelled time.

    Each wait is recomputed: the card begins a call when it was submitted and the one before it is
    done, and answers after its modelled time; the thread waits for what is left of that. Whatever
    came later moves by the difference.

    Args:
        evidence: of the whole run; its devices tell the idle power of the cards.

    Returns:
        None when no card was simulated or nothing waited for one.
    """
    simulated, barriers = _simulated(evidence.executions), evidence.barriers
    waits_s = present(b.wait_s for b in barriers)
    if not simulated or not waits_s:
        return None
    modelled, n_waits, n_kept = 0.0, 0, 0
    run_s = {attempt: length([span]) for attempt, span in evidence.spans.items()}
    for attempt in sorted({b.attempt for b in barriers}):
        for measured_s, modelled_s in _replayed(_paired(simulated, barriers, attempt)):
            n_waits += modelled_s is not None
            n_kept += modelled_s is None
            modelled += measured_s if modelled_s is None else modelled_s
            run_s[attempt] += 0.0 if modelled_s is None else modelled_s - measured_s
    if not n_waits:
        return None
    idle_j, idle_share = _idle([e.result for e in simulated], evidence, run_s)
    return CardTimeline(
        run_time_s=length(evidence.spans.values()),
        waits_s=math.fsum(waits_s),
        modelled_waits_s=modelled,
        modelled_run_time_s=math.fsum(run_s.values()),
        n_waits=n_waits,
        n_kept=n_kept,
        idle_j=idle_j,
        idle_share=idle_share,
    )


def _simulated(executions: Sequence[ExecutionRow]) -> list[ExecutionRow]:
    """Select the calls of cards whose time is modelled."""
    cards = modelled_devices(executions)
    return [
        e
        for e in executions
        if not cards.isdisjoint(e.result.device_ids)
        and e.result.time_provenance is not Provenance.MEASURED
        and e.result.action is not Action.GPU
    ]


def _paired(
    simulated: Sequence[ExecutionRow], barriers: Sequence[BarrierRow], attempt: int
) -> list[_Wait]:
    """Pair each wait of one attempt with the call of its iteration and role, in order of time."""
    calls: dict[tuple[int, Role], list[StageResult]] = defaultdict(list)
    for e in simulated:
        if e.attempt == attempt:
            calls[e.result.iteration, e.result.role].append(e.result)
    waits = []
    for b in sorted((b for b in barriers if b.attempt == attempt), key=lambda b: b.t_s):
        if b.wait_s is None:
            continue
        # Calls of one model are joined in the order in which they were sent.
        own = calls[b.iteration, b.role]
        call = own.pop(0) if own else None
        time_s = call.time_s if call is not None and call.fault is None else None
        submit_s = b.t_s - b.wait_s if call is None else call.t_start_s
        waits.append(_Wait(b.t_s - b.wait_s, b.t_s, submit_s, time_s))
    return waits


def _replayed(waits: Sequence[_Wait]) -> list[tuple[float, float | None]]:
    """Compute the measured and modelled length of each wait, s; None without a modelled time.

    Shifts are those in force when a call was submitted, so that two calls under way at once keep
    their distance.
    """
    found: list[tuple[float, float | None]] = []
    ends: list[tuple[float, float]] = []  # (end of a wait as measured, shift from then on)
    shift, free_s = 0.0, -math.inf
    for w in waits:
        measured_s = w.end_s - w.entry_s
        if w.time_s is None:
            found.append((measured_s, None))
        else:
            # A call is submitted as much earlier or later as the waits before it became shorter or
            # longer, and begins when the card is done with the call before it.
            before = next((s for end, s in reversed(ends) if end <= w.submit_s), 0.0)
            free_s = max(w.submit_s + before, free_s) + w.time_s
            modelled_s = max(0.0, free_s - (w.entry_s + shift))
            found.append((measured_s, modelled_s))
            shift += modelled_s - measured_s
        ends.append((w.end_s, shift))
    return found


def _idle(
    results: Sequence[StageResult], evidence: Evidence, run_s: dict[int, float]
) -> tuple[float | None, float | None]:
    """Idle power x the time in which the run had each card and it ran nothing, J; its share."""
    idle_w = {d.device_id: d.idle_w for d in evidence.devices}
    energy_j: float | None = 0.0
    idle_s, all_s = 0.0, 0.0
    for device_ids in {r.device_ids for r in results}:
        powers_w = [idle_w.get(device_id) for device_id in device_ids]
        known_w = present(powers_w)
        busy_s = math.fsum(present(r.time_s for r in results if r.device_ids == device_ids))
        held = evidence.held(device_ids)
        # The waits that became shorter or longer did so in the time of the cards.
        held_s = math.fsum(
            run_s[attempt] - length([evidence.spans[attempt]]) + length([span])
            for attempt, span in held.items()
        )
        # Nothing is offloaded while the run stands still by choice.
        paused_s = paused_time_s(evidence.paused(held, ()))
        own_s = max(0.0, held_s - busy_s - paused_s)
        is_known = energy_j is not None and len(known_w) == len(powers_w)
        energy_j = (energy_j or 0.0) + math.fsum(known_w) * own_s if is_known else None
        idle_s, all_s = idle_s + own_s, all_s + held_s
    return energy_j, idle_s / all_s if all_s > 0 else None
