"""Gears and widths of the training stage in sentences: verdict, remarks, notes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ecorl.control import SIMULATED
from ecorl.records import Provenance
from ecorl.report.render.numbers import (
    count,
    duration,
    edi_unit,
    figure,
    joules,
    scaled,
    share,
)
from ecorl.report.training_stage.model import (
    FixedStage,
    GearAccuracy,
    GearMeasurements,
    GearShifts,
    LowPrecision,
    OldLogProbs,
    PriceTable,
    ShareLimit,
    TokenBudget,
    TrainingStageFacts,
    WidthChanges,
    is_low,
)

OWN_GEAR = "as the framework has it"
"""What stands in the place of a gear that nobody named."""


def choices_words(facts: TrainingStageFacts | None) -> str:
    """How often each gear and width was chosen; nothing where no decision named any.

    Args:
        facts: of the run; None where nobody told of a gear or a width.
    """
    if facts is None or not facts.choices:
        return ""
    told = []
    for choice in facts.choices:
        gear = choice.gear
        if gear is not None and gear + SIMULATED in facts.simulated:
            gear += SIMULATED
        parts = [] if gear is None else [f"in {gear}"]
        if choice.width is not None:
            parts.append(f"on {choice.width} worker{'s' * (choice.width != 1)}")
        told.append(f"{count(choice.n)} {' '.join(parts) or 'with gear and width as they were'}")
    return f"Decisions to run: {', '.join(told)}."


def shares_words(shares: Mapping[str, float]) -> str:
    """Shares of the tokens by gear, e.g. ``BF16 60.0 %, FP8 40.0 %``.

    Args:
        shares: 0 to 1, by name of the gear.
    """
    return ", ".join(f"{gear} {share(part)}" for gear, part in shares.items())


def gear_verdict(facts: TrainingStageFacts | None) -> tuple[str, ...]:
    """What the verdict says of gears and widths.

    Args:
        facts: of the run; None where nobody told of any.
    """
    if facts is None:
        return ()
    found = []
    shares = facts.token_shares()
    if facts.shifts.n or len(shares) > 1:
        told = f"The training stage shifted gears {_times(facts.shifts.n)}"
        told += f"; tokens by gear: {shares_words(shares)}" if shares else ""
        found.append(f"{told}.{_simulated_words(facts.simulated)}")
    elif facts.simulated:
        found.append(_simulated_words(facts.simulated).strip())
    if facts.widths.n:
        found.append(f"The number of workers was changed {_times(facts.widths.n)}.")
    if facts.budget.is_kept is not None:
        found.append(_deadline_words(facts.budget))
    return tuple(found)


def _simulated_words(simulated: Sequence[str]) -> str:
    if not simulated:
        return ""
    names = " and ".join(gear.removesuffix(SIMULATED) for gear in simulated)
    return (
        f" {names} was simulated: rounded as the format rounds, on units of another one, which "
        "saved nothing on this machine."
    )


def _times(n: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(n, f"{count(n)} times")


# ---------------------------------------------------------------- remarks


def stage_lead(facts: TrainingStageFacts) -> str:
    """What the section is about, in front of its tables.

    Args:
        facts: of the run.
    """
    if not facts.rows:
        return "No step of the training stage was recorded, or none was kept."
    return (
        "A gear is the numeric format in which the training stage computes. Generation, rewards "
        "and the reference keep their own."
    )


def stage_remarks(facts: TrainingStageFacts) -> list[str]:
    """What there is to say under the tables, a paragraph each.

    Args:
        facts: of the run.
    """
    found = [
        f"{gear}: rounded like {gear.removesuffix(SIMULATED)}, on units of another format. It "
        "saved nothing here, and what it took is no price of the real format."
        for gear in facts.simulated
    ]
    found += _of_table(facts.table, facts.simulated)
    found += _of_shifts(facts.shifts)
    found += _of_widths(facts.widths)
    found += _of_fixed(facts.fixed, facts.simulated)
    found += [] if facts.low is None else [_of_low(facts.low)]
    found += [_of_accuracy(one) for one in facts.accuracy]
    found += _of_redone(facts)
    found += [f"{told[0].upper()}{told[1:]}." for told in facts.stopped]
    found += [] if facts.measurements is None else [_of_measurements(facts.measurements)]
    found += [] if facts.old_log_probs is None else [_of_old_log_probs(facts.old_log_probs)]
    found += _of_budget(facts.budget)
    return found


def fixed_words(f: FixedStage, simulated: Sequence[str]) -> str:
    """How the training stage compares with all of it in its first gear and width.

    Args:
        f: the comparison; its figures are known.
        simulated: names of the gears that were simulated.
    """
    factor, unit = edi_unit([f.j_per_token])
    told = (
        f"training drew {joules(f.drew_j)} in place of {joules(f.would_j)} at "
        f"{figure(scaled(f.j_per_token, factor))} {unit} (over {_steps(f.n_steps)})"
    )
    if f.measuring_j:
        told += f", and measuring the gears drew {joules(f.measuring_j)}"
    if f.n_changes:
        took = f"{duration(f.changes_s)} of time" if f.changes_s else "an unknown time"
        if f.changes_s and f.n_changes_timed < f.n_changes:
            took += f" for {f.n_changes_timed} of them"
        told += f"; {count(f.n_changes)} change{'s' * (f.n_changes != 1)} of the workers, with "
        told += f"{took}, {'are' if f.n_changes != 1 else 'is'} in neither"
    if f.n_left_out:
        told += f"; {_steps(f.n_left_out)} without an energy left out"
    if simulated:
        told += f"; {' and '.join(simulated)} saves nothing on this machine"
    return told


def _steps(n: int) -> str:
    return "1 step" if n == 1 else f"{count(n)} steps"


def _of_fixed(f: FixedStage | None, simulated: Sequence[str]) -> list[str]:
    if f is None or f.saved_j is None:
        return []
    gear = f"in {f.gear or OWN_GEAR}"
    wide = "" if f.width is None else f" on {f.width} worker{'s' * (f.width != 1)}"
    return [f"Against all of it {gear}{wide} ({f.provenance}): {fixed_words(f, simulated)}."]


def _of_table(table: PriceTable | None, simulated: Sequence[str]) -> list[str]:
    if table is None:
        return []
    if table.problem is not None:
        told = (
            f"Decisions went by the table of power and throughput that carbon.control.table named, "
            f"which cannot be read any more: {table.problem}."
        )
    else:
        told = (
            "Decisions went by the proportions of a table of power and throughput, not by what "
            f"the gears took here (carbon.control.table = {table.path}, {table.provenance}; its "
            f"source: {table.source})."
        )
    if simulated:
        told += (
            " With a simulated gear this is a rehearsal of what such devices would do: nothing "
            "was saved on this machine."
        )
    return [told]


def _of_shifts(shifts: GearShifts) -> list[str]:
    if not shifts.n:
        return ["The gear was never shifted."]
    told = f"The gear was shifted {_times(shifts.n)}."
    if shifts.median_extra_s is None or shifts.most_extra_s is None:
        return [f"{told} How long that took is not known."]
    # A first step that is as fast as others, or faster by chance, cost nothing that can be told.
    over = f"{_signed(shifts.median_extra_s)} at the median, {_signed(shifts.most_extra_s)} at most"
    part = "" if shifts.n_timed == shifts.n else f", over {count(shifts.n_timed)} of them"
    return [
        f"{told} The first step after a shift, less the median step of its gear: {over}{part} "
        f"({Provenance.MEASURED})."
    ]


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"


def _of_widths(widths: WidthChanges) -> list[str]:
    if not widths.n:
        return []
    told = f"The number of workers was changed {_times(widths.n)}"
    if widths.median_s is not None:
        part = "" if widths.n_timed == widths.n else f" over {count(widths.n_timed)} of them"
        told += (
            f": that took {duration(widths.total_s)} in all, {duration(widths.median_s)} at the "
            f"median, {duration(widths.most_s)} at most{part} ({Provenance.MEASURED})"
        )
    return [f"{told}.", *(f"Width: {one}." for one in dict.fromkeys(widths.told))]


def _of_low(low: LowPrecision) -> str:
    own = "unknown" if low.share is None else share(low.share)
    told = f"Share of the tokens in low precision: {own}"
    if low.low_share is None:
        return f"{told}. Without a config its limit is not known."
    if low.binds is None:
        told += "; nothing limited it"
    else:
        value = f" = {low.low_share:g}" if low.binds is ShareLimit.SHARE else ""
        told += f", of at most {share(low.limit)}; the limit that binds is {low.binds}{value}"
    if low.noise_budget is not None:
        told += f". gears.noise_budget = {low.noise_budget:g} " + (
            "had no measurement to go by"
            if low.noise_ratio is None
            else f"is held against a gradient noise ratio of {low.noise_ratio:.4g}"
        )
    if low.share is not None and low.limit is not None and low.share > low.limit + _HAIR:
        told += ". The share lies above the limit, which was higher before or fell between steps"
    return f"{told}."


_HAIR = 0.005
"""By how much a share may lie above its limit without a word: a step is as long as its rows."""


def _of_accuracy(one: GearAccuracy) -> str:
    parts = []
    if one.noise_ratio is not None:
        of = one.reference or "the gear that steps are redone in"
        parts.append(
            f"gradient noise {one.noise_ratio:.4g} times that of {of} (step {one.noise_iteration})"
        )
    if one.mismatch is not None:
        limit = ""
        if one.mismatch_limit is not None:
            word = "above" if one.mismatch > one.mismatch_limit else "within"
            limit = f", {word} gears.mismatch_limit = {one.mismatch_limit:g}"
        parts.append(
            "token probabilities off from the rollout's by a mean factor of "
            f"{one.mismatch:.4g} (step {one.mismatch_iteration}{limit})"
        )
    return f"{one.gear}, newest measurement: {'; '.join(parts)}."


def _of_redone(facts: TrainingStageFacts) -> list[str]:
    if not facts.n_redone:
        return ["No step had to be redone."] if any(is_low(r.gear) for r in facts.rows) else []
    if facts.n_redone == 1:
        return [
            "One step gave no finite gradient in a low gear and was redone. Its tokens and joules, "
            "those in vain included, count to the gear in which it was computed in the end."
        ]
    return [
        f"{count(facts.n_redone)} steps gave no finite gradient in a low gear and were redone. "
        "Their tokens and joules, those in vain included, count to the gear in which they were "
        "computed in the end."
    ]


def _of_measurements(m: GearMeasurements) -> str:
    told = f"Measuring noise and mismatch {_times(m.n)} took {duration(m.time_s)} (measured)"
    if m.energy_j is not None:
        least = "at least " if m.n_with_energy < m.n else ""
        told += f" and {least}{joules(m.energy_j)} ({m.energy_provenance})"
    if not m.n_inside:
        return f"{told}, which is in no row above."
    if m.n_inside >= m.n:
        return f"{told}, within steps that trained: the rows above hold it."
    return (
        f"{told}; {count(m.n_inside)} of them were within steps that trained, and the rows above "
        "hold those."
    )


def _of_old_log_probs(passes: OldLogProbs) -> str:
    parts = [] if passes.time_s is None else [
        f"{duration(passes.time_s)} ({passes.time_provenance})"
    ]  # fmt: skip
    if passes.energy_j is not None:
        least = "at least " if passes.n_with_energy < passes.n else ""
        parts.append(f"{least}{joules(passes.energy_j)} ({passes.energy_provenance})")
    told = f"Forward passes for old log-probabilities: {count(passes.n)}"
    return f"{', '.join([told, *parts])}, in none of the rows."


def _of_budget(budget: TokenBudget) -> list[str]:
    told = f"Steps done: {count(budget.n_steps_done)}"
    if budget.n_steps_planned is not None:
        told += f" of {count(budget.n_steps_planned)}"
    if budget.deadline_unix_s is None:
        return [f"{told}."]
    if budget.is_kept is None:
        return [f"{told}. {_due(budget.deadline_unix_s)}; the record has no end of the training."]
    return [f"{told}. {_deadline_words(budget)}"]


def _due(deadline_s: float) -> str:
    return "Deadline: " + time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(deadline_s))


def _deadline_words(budget: TokenBudget) -> str:
    deadline_s, ended_s = budget.deadline_unix_s or 0.0, budget.ended_unix_s
    if budget.is_kept and ended_s is not None:
        return f"{_due(deadline_s)}, kept with {duration(deadline_s - ended_s)} to spare."
    if ended_s is not None and ended_s <= deadline_s:
        return f"{_due(deadline_s)}; training ended before it without all of its steps."
    late = "" if ended_s is None else f" by {duration(ended_s - deadline_s)}"
    return f"{_due(deadline_s)}, missed{late}."


# ---------------------------------------------------------------- notes


def gear_notes(facts: TrainingStageFacts | None) -> tuple[str, ...]:
    """How the figures by gear came about, for the foot of the page.

    Args:
        facts: of the run; None where nobody told of any.
    """
    if facts is None:
        return ()
    m = facts.measurements
    if m is not None and m.n_inside:
        measured = "of which those within a step that trained are in its figures"
    else:
        measured = "and are in none of these figures"
    return (
        "Training stage by gear: a step with all its micro-batches counts to the gear in which it "
        "was computed in the end. J/token and tokens/s are over tokens of prompts and completions, "
        "of the steps that were not redone; EDI is over output tokens. The shares are of those "
        f"tokens. Measurements of the gears train on nothing, {measured}.",
    )
