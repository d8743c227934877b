"""Notes at the foot of the report on how each figure came about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ecorl.ledger import ExecutionRow
from ecorl.records import Action, Role
from ecorl.report.energy.model import CardTimeline, Spending
from ecorl.report.head import HOST_PATH
from ecorl.report.model import NodeFacts

_ALWAYS = (
    "Provenance. measured: read from an instrument or a clock in this run; replayed: from a "
    "recording; emulated: from the C-simulation; modelled: computed from a device profile, a "
    "cycle model or a roofline; published: as printed in a paper or data sheet. Figures of "
    "different provenance never share a column; a figure derived from several has that of the "
    "weakest.",
    "A dash means missing. Missing is never counted as 0; where a total lacks a part it says "
    "'at least'.",
    "Time is time on the device. Host time is the wall-clock of the call on this machine; for a "
    "simulated card it is the simulation's run time, which enters neither the card's energy nor "
    "any EDI.",
    "EDI (J/token) is mean power x time over output tokens: the joules of all calls that have an "
    "energy figure and no fault, over their output tokens. The spread is the standard deviation "
    "over single calls. SD is the standard deviation of single calls, SE the standard error of a "
    "mean.",
    "Useful energy: generation, scoring and training whose results were kept. Wasted: superseded "
    "work (done after the checkpoint from which the run was resumed), waits at the completion "
    "barrier, and idle draw. The rest of a device with power readings is its energy over the run "
    "minus that of its stage calls; of a device without, profile idle power x (time of the "
    "attempts that had it - busy time), which is modelled. On the path of the framework the rest "
    "is split by time between waits and what is left; from readings that is called 'beside stages' "
    "and is neither useful nor wasted: it holds evaluations, saving and the framework's own work "
    "as well as idle draw.",
    "Tokens per joule: output tokens of generation over the energy of the column, idle draw "
    "included.",
    "Run time: from the start of each attempt to its last record.",
)


def notes(
    executions: Sequence[ExecutionRow],
    spending: Spending,
    timeline: CardTimeline | None,
    path: str,
    nodes: Sequence[NodeFacts] = (),
) -> tuple[str, ...]:
    """Choose the notes that apply to this run.

    Args:
        executions: stage executions of the run.
        spending: where the joules went.
        timeline: the run without the simulation's time; None without a simulated card.
        path: what the report calls the framework's devices.
        nodes: the machines of the run; empty where there is only one.
    """
    found = list(_ALWAYS)
    found += _of_machines(executions, nodes)
    a = spending.accounting
    if a is not None:
        found.append(
            f"gCO2e = kWh x PUE x grid intensity = kWh x {a.pue:g} x {a.intensity_g_per_kwh:g} "
            f"g/kWh. Source: {a.source}. Operational emissions only: nothing for making the "
            "hardware."
        )
    if any(p.simulated for p in spending.parts):
        found.append(
            "A card was simulated in this run. Its device times and joules are computed, its host "
            "times are the simulation's. What it would have drawn stands apart: it is in no total "
            "of this machine, in neither its CO2e nor its useful and wasted shares. The run time, "
            "the waits at the barrier and all idle draw are those of this host with the simulation "
            "in it, as are the joules of this host as far as its instrument sees the simulation; "
            "they would differ beside a real card.",
        )
    if timeline is not None:
        found.append(
            "Modelled run time: the measured run time with each wait at the barrier replaced by "
            "the one that the card's modelled times give, one card serving its calls in the order "
            "of submission. The host's own work is taken as measured, though the simulation shared "
            "the machine with it."
        )
    if path == HOST_PATH:
        found.append(
            "The host path is what decisions and their reasons call the GPU: the device on which "
            "the framework runs, here the processor of this host."
        )
    if any(e.result.n_rows_fallback for e in executions):
        found.append(
            "Rows answered by the exact path after a fault or a missed deadline count as "
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
