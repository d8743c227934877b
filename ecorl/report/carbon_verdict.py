"""The verdict's sentences about emissions and about waiting for a clean window."""

from __future__ import annotations

from ecorl.report.energy.carbon_model import Footprint, IntensityFacts, PauseSummary, WaitOutcome
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.notes import intensity_label
from ecorl.report.render.numbers import duration, figure, grams, joules, share


def emitted(footprint: Footprint) -> tuple[str, ...]:
    """Say what the energy of the machines emitted, by each kind of intensity.

    Args:
        footprint: of the run.
    """
    sentences = []
    for facts in footprint.intensities:
        column = footprint.total(facts.kind)
        if column is None or column.emitted.carbon_g is None:
            continue
        known = "at least " if column.at_least else ""
        told = f"{known}{grams(column.emitted.carbon_g, facts.gas)} ({column.provenance})"
        label = intensity_label(facts)
        label = f" {label[0].upper()}{label[1:]}." if label else ""
        if facts.kind is IntensityKind.AVERAGE:
            sentences.append(
                f"That emitted {told} by the average intensity of the grid, what the data centre "
                f"needs beside the machines (PUE) included.{label}"
            )
        else:
            sentences.append(
                f"By the marginal intensity it emitted {told}; the two are never added.{label}"
            )
    return tuple(sentences)


def waited(pauses: PauseSummary | None) -> tuple[str, ...]:
    """Say for how long the run waited for a clean window, and what that brought.

    Args:
        pauses: of the run; None where nothing was decided.
    """
    if pauses is None or not pauses.n:
        return ()
    times = "once" if pauses.n == 1 else f"{pauses.n} times"
    first = (
        f"The run waited for a clean window {times}, {duration(pauses.total_s)} in all "
        f"({share(pauses.paused_share)} of the run time)."
    )
    return (first, *(outcome_sentence(outcome) for outcome in pauses.outcomes))


def outcome_sentence(o: WaitOutcome) -> str:
    """Say what waiting brought by one kind of intensity.

    Args:
        o: by that kind.
    """
    kind = f"By the {o.kind} intensity"
    if o.net_g is None:
        lacking = {
            "the intensity of the start": o.start_g_per_kwh,
            "what was emitted beside the pauses": o.trained_g,
            "what was emitted in the pauses": o.paused_g,
        }
        unknown = " and ".join(name for name, value in lacking.items() if value is None)
        return f"{kind}, what waiting brought cannot be said: unknown is {unknown}."
    start = (
        f"{kind}, the same joules at the intensity of the start would have emitted "
        f"{grams(o.trained_at_start_g, o.gas)} (modelled) in place of "
        f"{grams(o.trained_g, o.gas)} ({o.provenance}), and the devices' draw in the pauses "
        f"emitted {'at least ' * o.at_most}{grams(o.paused_g, o.gas)}"
    )
    net = grams(abs(o.net_g), o.gas)
    if o.net_g > 0:
        return f"{start}: waiting emitted {'at most ' * o.at_most}{net} less."
    if o.net_g < 0:
        return f"{start}: waiting cost more than it saved, by {'at least ' * o.at_most}{net}."
    return f"{start}: waiting changed nothing."


def timing_words(o: WaitOutcome) -> str:
    """How what was emitted compares with the same joules drawn evenly over the run time.

    Args:
        o: by one kind of intensity; its figures are known.
    """
    at_mean_g = None
    if o.net_at_mean_g is not None and o.trained_g is not None and o.paused_g is not None:
        at_mean_g = o.net_at_mean_g + o.trained_g + o.paused_g
    return (
        f"what was drawn beside the pauses emitted {grams(o.trained_g, o.gas)} ({o.provenance}) in "
        f"place of {grams(at_mean_g, o.gas)} (modelled) at {figure(o.mean_g_per_kwh)} g/kWh, the "
        f"mean over the run time, and the devices' draw in the pauses emitted "
        f"{'at least ' * o.at_most}{grams(o.paused_g, o.gas)}"
    )


def gaps(footprint: Footprint) -> list[str]:
    """Name the energy whose emissions are missing, one sentence for each kind of intensity.

    Args:
        footprint: of the run.
    """
    found = []
    for facts in footprint.intensities:
        column = footprint.total(facts.kind)
        if column is None:
            # Without a config its absence is told already.
            if facts.unknown_s and footprint.pue.mean is not None:
                found.append(f"the {facts.kind} intensity was never known: it gives no CO2e")
        elif column.is_incomplete:
            missing = joules(column.emitted.unknown_j)
            found.append(
                f"by the {facts.kind} intensity the CO2e of {missing} is missing: "
                f"{_why(facts, footprint)}"
            )
    return found


def _why(facts: IntensityFacts, footprint: Footprint) -> str:
    unknown = []
    if facts.unknown_s:
        unknown.append(f"the intensity was unknown for {duration(facts.unknown_s)}")
    if footprint.pue.unknown_s:
        unknown.append(f"the PUE was unknown for {duration(footprint.pue.unknown_s)}")
    overlap = "its time overlaps with that of stage calls, so that it cannot be placed in time"
    return " and ".join(unknown) or overlap
