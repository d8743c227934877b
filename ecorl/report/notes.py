"""Notes at the foot of the report on how each figure came about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ecorl.grid import provenance_label
from ecorl.ledger import ExecutionRow
from ecorl.records import Action, Role
from ecorl.report.energy.carbon_model import Footprint, IntensityFacts, PauseSummary
from ecorl.report.energy.model import Accounting, CardTimeline, Spending
from ecorl.report.model import NodeFacts
from ecorl.report.render.numbers import duration, figure, share

_ALWAYS = (
    "Figures of different provenance never share a column; a figure derived from several has that "
    "of the weakest, in the order measured, replayed, emulated, modelled, published.",
    "A dash means missing. Missing is never counted as 0; where a total lacks a part it says "
    "'at least'.",
    "Time is time on the device. Wall-clock is what the call took on this machine; for a "
    "simulated card it is the simulation's run time, which enters neither the card's energy nor "
    "any EDI.",
    "EDI (J/token) is mean power x time over output tokens: the joules of all calls that have an "
    "energy figure and no fault, over their output tokens. In generation these are the tokens "
    "that the policy made; in other stages the completions' tokens that they computed, also "
    "what tools and environments wrote, and what a loss leaves out. The spread is the standard "
    "deviation over single calls. SD is the standard deviation of single calls, SE the standard "
    "error of a mean.",
    "Useful energy: generation, scoring and training whose results were kept, and evaluations "
    "that are a row of their own. Wasted: superseded work (done after the checkpoint, or "
    "the start, from which the next attempt went on), waits at the completion "
    "barrier, and idle draw. The rest of a device with power readings is its energy over the run "
    "minus that of its stage calls; of a device without, profile idle power x (time of the "
    "attempts that had it - busy time), which is modelled. Where the framework computes, the "
    "rest is split by time between waits and what is left; from readings that is called 'beside "
    "stages' and is neither useful nor wasted: it holds other evaluations, saving and the "
    "framework's own work as well as idle draw.",
    "Tokens per joule: output tokens of generation over the energy of the column, idle draw "
    "included.",
    "Run time: from the start of each attempt to its last record.",
)


def notes(
    executions: Sequence[ExecutionRow],
    spending: Spending,
    timeline: CardTimeline | None,
    nodes: Sequence[NodeFacts] = (),
) -> tuple[str, ...]:
    """Choose the notes that apply to this run.

    Args:
        executions: stage executions of the run.
        spending: where the joules went.
        timeline: the run without the simulation's time; None without a simulated card.
        nodes: the machines of the run; empty where there is only one.
    """
    found = list(_ALWAYS)
    found += _of_machines(executions, nodes)
    if any(p.simulated for p in spending.parts):
        found.append(
            "A card was simulated in this run. Its device times and joules are computed, its "
            "wall-clock is the simulation's. What it would have drawn stands apart: it is in no "
            "total of this machine, in neither its CO2e nor its useful and wasted shares. The "
            "run time, the waits at the barrier and all idle draw are those of this machine with "
            "the simulation in it, as are its joules as far as its instrument sees the "
            "simulation; they would differ beside a real card.",
        )
    if timeline is not None:
        found.append(
            "Modelled run time: the measured run time with each wait at the barrier replaced by "
            "the one that the card's modelled times give, one card serving its calls in the "
            "order of submission. The work of this machine itself is taken as measured, though "
            "the simulation shared it."
        )
    if any(e.result.n_rows_fallback for e in executions):
        found.append(
            "Rows that the trainer itself computed after a fault or a missed deadline count as "
            "fallback; both efforts are in the energy."
        )
    return tuple(found)


def _of_machines(executions: Sequence[ExecutionRow], nodes: Sequence[NodeFacts]) -> list[str]:
    """The notes about several machines."""
    found = []
    if nodes:
        found.append(
            "All times are in the clock of the machine on which the run was started. A device "
            "counts from when its machine joined the run until the machine left it, or until the "
            "end where no leaving was recorded. The seconds of another machine's power readings "
            "are moved as wholes, by up to half a second too far or too little; their energy is "
            "exact."
        )
    if _has_parts(executions):
        found.append(
            "A stage that ran on devices of several machines counts once on each of them: a call "
            "with that machine's joules, its share of the rows and tokens, and the time of its "
            "part, which is as long as the stage where all of them worked from begin to end."
        )
    return found


def _has_parts(executions: Sequence[ExecutionRow]) -> bool:
    """Whether a stage has executions of the GPU path on more than one machine."""
    nodes: dict[tuple[int, int, Role], set[str | None]] = defaultdict(set)
    for row in executions:
        r = row.result
        if r.action is Action.GPU:
            nodes[row.attempt, r.iteration, r.role].add(r.node)
    return any(len(found) > 1 for found in nodes.values())


# ---------------------------------------------------------------- CO2e and waiting


def carbon_notes(
    footprint: Footprint, accounting: Accounting | None, pauses: PauseSummary | None
) -> tuple[str, ...]:
    """Choose the notes about emissions and pauses that apply to this run.

    Args:
        footprint: what its energy emitted.
        accounting: the config's factors; None without a config.
        pauses: how it waited for a clean window; None where nothing was decided about that.
    """
    found = _of_emissions(footprint, accounting)
    if footprint.sci:
        found.append(_of_sci(footprint, accounting))
    if pauses is not None and pauses.n:
        found.append(
            "Paused: what the devices drew while the run stood still by choice, waiting for a "
            "clean window, and ran nothing. By their readings of that time, else profile idle "
            "power x that time. It is neither useful nor wasted: it was drawn so that the rest is "
            "drawn in cleaner hours. Output tokens per joule count it. What waiting brought "
            "compares what all else emitted with the same joules at the intensity of the start, "
            "and counts what was drawn in the pauses; the comparison is modelled, since nobody "
            "knows what the run would have drawn then."
        )
    return tuple(found)


def _of_emissions(footprint: Footprint, accounting: Accounting | None) -> list[str]:
    """How grams come about, and from what."""
    known = [facts for facts in footprint.intensities if facts.provenance is not None]
    if not known:
        return []
    end = " Operational emissions only: nothing for making the hardware."
    if footprint.is_constant and accounting is not None and len(known) == 1:
        (feed,) = known[0].feeds
        return [
            f"gCO2e = kWh x PUE x grid intensity = kWh x {footprint.pue.mean:g} x "
            f"{feed.lowest_g_per_kwh:g} g/kWh. Source: {feed.factors}.{end}"
        ]
    found = [
        "Emissions = sum over time of energy x intensity x PUE, each with what counted when the "
        "energy was drawn: the readings second by second, a stage call evenly over its time, idle "
        "power evenly over the time for which it is assumed. Energy in whose time the intensity or "
        "the PUE is unknown has no grams; the total then says 'at least'. Grams have the weakest "
        "provenance of the energy and of the intensities. PUE "
        f"{pue_words(footprint)}.{end}"
    ]
    found += [_of_intensity(facts, footprint.run_time_s) for facts in known]
    if len(footprint.intensities) > 1:
        found.append(
            "The average intensity is that of all that is generated, for inventories; the marginal "
            "one is that of the plants that would follow one more kilowatt-hour, for decisions. "
            "Figures by the two are never added."
        )
    return found


def pue_words(footprint: Footprint) -> str:
    """The PUE that counted, e.g. ``1.2`` or ``1.1 to 1.3, mean 1.21``."""
    pue = footprint.pue
    if pue.lowest is None or pue.highest is None:
        return "unknown"
    told = f"{pue.lowest:g}"
    if pue.lowest != pue.highest:
        told = f"{pue.lowest:g} to {pue.highest:g}, mean {figure(pue.mean)}"
    return f"{told}, unknown for {duration(pue.unknown_s)}" if pue.unknown_s else told


_LABELS = {
    "replayed": "replayed from a recording: not the grid's intensity at the time of the run",
    "modelled": "made up by a model: of no grid",
}


def intensity_label(facts: IntensityFacts) -> str:
    """What a reader must know of intensities that no provider told of the time; else nothing."""
    found = [
        f"the intensity of {feed.feed} is {_LABELS[feed.provenance]}"
        for feed in facts.feeds
        if feed.provenance in _LABELS
    ]
    return "; ".join(dict.fromkeys(found))


def _of_intensity(facts: IntensityFacts, run_time_s: float) -> str:
    """The feeds of one kind of intensity."""
    told = []
    for f in facts.feeds:
        estimated = ", not estimated" if f.is_estimated is False else ""
        told.append(
            f"{f.feed} for {share(f.share)} of the run time (mean {figure(f.mean_g_per_kwh)} "
            f"{f.gas}, {f.scope.replace('_', '-')} emissions, {f.basis}-based, "
            f"{provenance_label(f.provenance, f.is_estimated)}{estimated}; factors: {f.factors})"
        )
    if facts.unknown_s:
        told.append(f"unknown for {share(facts.unknown_s / run_time_s)}")
    label = intensity_label(facts)
    kind = facts.kind.capitalize()
    label = f" {label[0].upper()}{label[1:]}." if label else ""
    return f"{kind} intensity: {'; '.join(told)}.{label}"


def _of_sci(footprint: Footprint, accounting: Accounting | None) -> str:
    """What the software carbon intensity is made of."""
    made = "M, for making the hardware, is not stated: the figures are the operational part only"
    if accounting is not None and accounting.embodied_kg is not None:
        source = accounting.embodied_source or "given in the config, no source stated"
        made = (
            f"M = {accounting.embodied_kg:g} kgCO2e for making the reserved hardware x run time / "
            f"{accounting.lifetime_h:g} h for which it serves ({source})"
        )
    market = ""
    if any(sci.market_based for sci in footprint.sci):
        market = " The standard asks for location-based intensities; a market-based one is in here."
    return (
        "SCI = (E I + M) / R after ISO/IEC 21031: E is the energy of the machines with the PUE, I "
        f"the intensity of its time, R the functional unit. {made}.{market} CUE is the emissions "
        "with the PUE over the energy of the machines alone."
    )
