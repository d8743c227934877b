"""Says what a plan has found: the answer in one sentence, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator

from ecorl.cli.plan.table import LEVER_NAMES, ends
from ecorl.devices import DeviceProfile
from ecorl.operate.levers.choice import Lever
from ecorl.operate.levers.clocks import measured_clock, natural_clocks
from ecorl.operate.levers.known_timings import TIMED_ALONG
from ecorl.operate.levers.study import LeverStudy
from ecorl.operate.plan.answer import Payback, PlanAnswer, PlanTerms
from ecorl.operate.plan.offload import PAYS, OffloadAnswer, Scan
from ecorl.records import Stage
from ecorl.report.render.numbers import figure, share

_SCANNED = {
    "length": ("mean completion", "tokens"),
    "rows": ("completions a step", ""),
    "inference_model": ("reward model and critic", ""),
}
_OPTIONS = {
    "card_price": "--card-price",
    "kwh_price": "--kwh-price",
    "g_per_kwh": "--g-per-kwh",
    "card_embodied_kg": "--card-embodied-kg",
}
_NO_STEP = 5e-4
"""Share of the energy that is shown as 0."""


def sentences(answer: PlanAnswer, terms: PlanTerms) -> Iterator[str]:
    """Yield the paragraphs of an answer; the first is the answer itself.

    Args:
        answer: to a job.
        terms: prices, intensity and use.
    """
    yield f"{bought(answer.offload, terms.slowdown)} {_changed(answer, terms)}"
    if answer.offload.scans:
        yield _where(answer.offload)
    if answer.bought is not None or answer.study.together.value > 0.0:
        yield _paid(answer, terms)
    if answer.timings:
        yield _timing(answer)
    together = _together(answer)
    if together:
        yield together
    if Lever.CLOCKS in answer.study.alone:
        yield _clocks(answer.study)
    yield (
        "Intervals: what is published of clocks and FP8 and assumed of overlap at its ends, and "
        "the fitted and assumed figures of the GPUs at theirs. Queues, drift and uneven batches "
        "are in none of these figures: --thorough plays them."
    )


def bought(offload: OffloadAnswer, slowdown: float) -> str:
    """Say whether the second devices are worth having.

    Args:
        offload: what they are worth.
        slowdown: share by which a step may take longer.
    """
    named = f"{offload.n} x {offload.device}"
    if offload.n == 0:
        return "There is no second device in this plan."
    if offload.saved_share is None:
        return f"Do not buy {named} for this job: they cannot run it ({offload.why_not})."
    at = _slower(offload.slowdown)
    hangs = (
        " Whether they pay hangs on figures of the devices that are fitted or assumed."
        if offload.hangs_on_intervals
        else ""
    )
    if offload.pays:
        pay = "pay"
        if offload.slowdown is not None and offload.slowdown > slowdown:
            pay = "save energy at the price of time"
        return (
            f"{named} {pay}: the best placement takes {share(offload.saved_share)} less energy "
            f"than the GPUs alone{_saved_interval(offload)}, at {at}.{hangs}"
        )
    if offload.saved_share >= 0.0:
        return (
            f"Do not buy {named} for this job: the best placement saves less than "
            f"{share(PAYS)} of the energy{_saved_interval(offload)}, at {at}.{hangs}"
        )
    interval = ""
    if offload.low is not None and offload.high is not None and offload.low < offload.high:
        interval = f" ({_more(offload.high)} to {_more(offload.low)} %)"
    return (
        f"Do not buy {named} for this job: the best placement takes "
        f"{_more(offload.saved_share)} % more energy than the GPUs alone{interval}, standing by "
        f"included, at {at}.{hangs}"
    )


def _saved_interval(offload: OffloadAnswer) -> str:
    if offload.low is None or offload.high is None or offload.low >= offload.high:
        return ""
    return f" ({ends(offload.low, offload.high)})"


def _more(saved_share: float) -> str:
    return f"{-100 * saved_share:,.3g}"


def _slower(slowdown: float | None) -> str:
    if slowdown is None or abs(slowdown) < _NO_STEP:
        return "the same time"
    if slowdown >= 1.0:
        return f"{1.0 + slowdown:,.3g} times the time"
    return f"{abs(100 * slowdown):.2g} % {'more' if slowdown > 0 else 'less'} time"


def _changed(answer: PlanAnswer, terms: PlanTerms) -> str:
    """Say what saves energy without buying anything, in the order in which to adopt it."""
    study = answer.study
    order = [(lever, added) for lever, added in study.order if added > _NO_STEP]
    if not order:
        told = "; ".join(study.missing.values())
        return f"No lever saves energy here{f' ({told})' if told else ''}."
    parts = [f"{LEVER_NAMES[lever]} ({share(added)})" for lever, added in order]
    listed = parts[0] if len(parts) == 1 else f"{', then '.join(parts)}"
    total = ""
    if len(parts) > 1:
        saved = study.together
        total = f", together {share(saved.value)} ({ends(saved.low, saved.high)})"
    return (
        f"What would save energy instead, in this order and at most {share(terms.slowdown, 0)} "
        f"slower: {listed}{total}."
    )


def _where(offload: OffloadAnswer) -> str:
    """Say at which sizes the devices pay and stop paying."""
    known = [scan for scan in offload.scans if scan.saved]
    if not known:
        return (
            f"With {offload.n} x {offload.device} no length, batch or reward model that was tried "
            f"can be run.{_number(offload)}"
        )
    parts = [_of_scan(scan) for scan in known]
    return (
        f"Where {offload.device} would pay, all else being as it is: {'; '.join(parts)}."
        f"{_number(offload)}"
    )


def _of_scan(scan: Scan) -> str:
    what, unit = _SCANNED[scan.what]
    tried = list(scan.saved)
    reach = f"{tried[0]} to {tried[-1]}{f' {unit}' if unit else ''}"
    best = max(scan.saved, key=lambda value: scan.saved[value])
    if not scan.paying:
        nearest = f"nearest at {best}, where they take {_more(scan.saved[best])} % more"
        return f"{what} nowhere from {reach} ({nearest})"
    if len(scan.paying) == len(tried):
        return f"{what} everywhere from {reach}"
    return f"{what} {', '.join(scan.paying)} of {reach}"


def _number(offload: OffloadAnswer) -> str:
    """Say how many of them save most."""
    if not offload.by_number:
        return ""
    if not offload.best_number:
        tried = list(offload.by_number)
        return f" No number of them from {tried[0]} to {tried[-1]} pays."
    return f" Most is saved with {offload.best_number}."


def _paid(answer: PlanAnswer, terms: PlanTerms) -> str:
    """Say what it comes to in a year, and when a purchase has paid itself back."""
    used = f"In a year, at {share(terms.use, 0)} use"
    parts = [f"all levers save {_year(answer.changed)}"]
    bought = answer.bought
    if bought is not None and answer.offload.pays:
        parts.append(f"the devices save {_year(bought)}")
        parts.append(_back("money", bought.money_years, bought))
        parts.append(_back("carbon", bought.carbon_years, bought))
        if bought.embodied_share is not None:
            parts.append(
                f"making them is {share(bought.embodied_share)} of the CO2e that they save in "
                f"{terms.years:g} years"
            )
    elif bought is not None:
        lost = figure(abs(bought.kwh_per_year))
        parts.append(f"the devices take {lost} kWh more and never pay back")
    missing = (bought or answer.changed).missing
    told = ", ".join(_OPTIONS[key] for key in missing)
    unknown = f" Not known: {told}." if told else ""
    return f"{used}, {'; '.join(parts)}.{unknown}"


def _year(found: Payback) -> str:
    parts = [f"{figure(found.kwh_per_year)} kWh"]
    if found.money_per_year is not None:
        parts.append(f"{figure(found.money_per_year)} in money")
    if found.kg_per_year is not None:
        parts.append(f"{figure(found.kg_per_year)} kgCO2e")
    return ", ".join(parts)


def _back(what: str, years: float | None, found: Payback) -> str:
    if years is None:
        return f"when they have paid back in {what} is not known"
    return f"they have paid back in {what} after {figure(years)} years"


def _timing(answer: PlanAnswer) -> str:
    """Say what timing saves of the emissions; energy it saves none."""
    slack = answer.timings[0].slack
    given, wide, kept = (
        ", ".join(f"{one.grid} {share(getattr(one, name))}" for one in answer.timings)
        for name in ("saved_share", "width_saved_share", "kept_saved_share")
    )
    return (
        f"Running in cleaner hours, with {slack:g} times the time that the job needs, saves no "
        f"energy but CO2e: {given} (replayed along {TIMED_ALONG}, a week's job, machines given "
        f"back in a pause); with other widths too: {wide}; where machines are kept through "
        f"pauses: {kept}."
    )


def _together(answer: PlanAnswer) -> str:
    """Name what levers do to each other, and what cannot be priced."""
    parts = []
    for one, other, beyond in answer.study.between[:1]:
        if abs(beyond) > _NO_STEP:
            size = f"{100 * abs(beyond):.1f} points of the energy"
            verb = "more" if beyond > 0 else "less"
            why = _WHY.get(frozenset({one, other}), "")
            parts.append(
                f"{_capital(LEVER_NAMES[one])} and {LEVER_NAMES[other]} save {size} {verb} "
                f"together than each alone adds up to{why}."
            )
    for lever, why in answer.study.missing.items():
        if lever is not Lever.PLACEMENT:
            parts.append(f"Not priced: {LEVER_NAMES[lever]} ({why}).")
    return " ".join(parts)


def _clocks(study: LeverStudy) -> str:
    """Say what clocks are counted from, and what is not published of them."""
    stages: dict[str, list[str]] = {}
    for stage, clock in natural_clocks(study.step).items():
        stages.setdefault(_natural(stage, clock, study.step.gpu), []).append(str(stage))
    runs = "; ".join(f"{', '.join(names)} at {clock}" for clock, names in stages.items())
    low = ", so at the low end locks save nothing" if study.alone[Lever.CLOCKS].low == 0.0 else ""
    return (
        f"While no clock is set: {runs}. A lock at or above that changes nothing. What lower ones "
        "save is published for decoding in small batches. For a rollout's batches neither the "
        f"power nor the clock below which memory slows is published{low}."
    )


def _natural(stage: Stage, clock: float, gpu: DeviceProfile) -> str:
    if clock == 1.0:
        return "the greatest clock"
    found = measured_clock(stage, gpu)
    if found is None:
        return f"{share(clock, 0)} of the greatest under the limit on power (modelled)"
    ends = dict.fromkeys((found.low or found.value, found.high or found.value))
    told = " to ".join(f"{1e-6 * end:,.0f}" for end in ends)
    source = f"{found.provenance} for profile {gpu.name}, not for this job"
    return f"{told} MHz under the limit on power ({source})"


_WHY = {
    frozenset({Lever.CLOCKS, Lever.GEARS}): ": the time that FP8 gains is spent on lower clocks",
    frozenset({Lever.CLOCKS, Lever.OVERLAP}): (
        ": the time that overlap gains is spent on lower clocks, which make generation longer for "
        "what runs beside it"
    ),
}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
