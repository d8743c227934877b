"""What the decisions of a run saved, and against what: by placement, gears and width, and timing.

The figures are those of the report's other parts; here they are held against one thing each.
"""

from __future__ import annotations

from dataclasses import replace

from ecorl.records import Provenance, weakest
from ecorl.report.carbon_verdict import timing_words
from ecorl.report.decisions.model import SavedAgainst
from ecorl.report.energy.carbon_model import PauseSummary, WaitOutcome
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.energy.model import Balance
from ecorl.report.render.numbers import bound, count, grams, joules
from ecorl.report.training_stage.model import FixedStage, TrainingStageFacts
from ecorl.report.training_stage.steps import LEAST_STEPS
from ecorl.report.training_stage.words import OWN_GEAR, fixed_words
from ecorl.report.verdict import card_name, left_out, unknown_beside


def savings(
    balance: Balance | None,
    geared: TrainingStageFacts | None,
    pauses: PauseSummary | None,
    *,
    is_offloaded: bool,
    path: str,
) -> tuple[SavedAgainst, ...]:
    """Make the three comparisons; none where nothing was offloaded, shifted or paused.

    Args:
        balance: all offloaded calls against the framework's devices; None when not known.
        geared: gears and widths; None where nobody told of any.
        pauses: of the run; None where nothing was decided about them.
        is_offloaded: whether a call went to a card.
        path: what the report calls the framework's devices.
    """
    fixed = None if geared is None else geared.fixed
    is_paused = pauses is not None and pauses.n > 0
    if not (is_offloaded or fixed is not None or is_paused):
        return ()
    simulated = () if geared is None else geared.simulated
    return (
        _by_placement(balance, path, is_offloaded=is_offloaded),
        _by_gears(fixed, simulated),
        _by_timing(pauses if is_paused else None),
    )


def _by_placement(balance: Balance | None, path: str, *, is_offloaded: bool) -> SavedAgainst:
    what, against = "placement", "never offloading"
    if not is_offloaded:
        told = f"no call left the {path}"
        return SavedAgainst(what, against, None, "J", "", None, told, applies=False)
    if balance is None:
        told = f"no stage has energy both on the card and on the {path}"
        return SavedAgainst(what, against, None, "J", "", None, told)
    b = balance
    told = (
        f"{card_name(b)} drew {'at least ' * b.at_most}{joules(b.card_j)} on its calls in place of "
        f"{joules(b.gpu_would_j)} on the {path}"
    )
    if b.net_j is None:
        told += f"; {unknown_beside(b)}"
    else:
        told += f", and {joules(b.idle_j)} while it stood idle"
        told += " in its modelled time" * b.in_modelled_time
        told += f", and {joules(b.paused_j)} while the run was paused" if b.paused_j else ""
    if b.left_out:
        # What they would have drawn on the other side may be more or less: that bounds nothing.
        told = f"{left_out(b)}; of the other stages: {told}"
    if b.net_j is None or b.left_out:
        return SavedAgainst(what, against, None, "J", "", b.provenance, told)
    limit = bound(b.net_j, at_most=b.net_at_most)
    return SavedAgainst(what, against, b.net_j, "J", limit, b.provenance, told)


def _by_gears(fixed: FixedStage | None, simulated: tuple[str, ...]) -> SavedAgainst:
    what = "gears and workers"
    if fixed is None:
        against = "one gear and number of workers"
        told = "they stayed the same"
        return SavedAgainst(what, against, None, "J", "", None, told, applies=False)
    f = fixed
    wide = "" if f.width is None else f" on {f.width} worker{'s' * (f.width != 1)}"
    against = f"{f.gear or OWN_GEAR}{wide} throughout"
    if f.j_per_token is not None:
        against += f" (as in {count(f.n_steps)} steps)"
    if f.saved_j is None or f.j_per_token is None:
        told = _why_unknown(f)
        return SavedAgainst(what, against, None, "J", "", f.provenance, told)
    told = fixed_words(f, ())  # the remark says it
    limit = bound(f.saved_j, at_most=f.at_most)
    saved = SavedAgainst(what, against, f.saved_j, "J", limit, f.provenance, told)
    if not simulated:
        return saved
    names = " and ".join(simulated)
    return replace(saved, remark=f"{names} saves nothing on this machine")


def _why_unknown(f: FixedStage) -> str:
    if f.drew_j is None:
        return "no step has an energy figure"
    if f.j_per_token is None:
        return (
            f"{count(f.n_steps)} step{'s' * (f.n_steps != 1)} in that gear and width "
            f"{'have' if f.n_steps != 1 else 'has'} an energy figure, the first ones left out, and "
            f"{LEAST_STEPS} are needed"
        )
    return "what measuring the gears drew is unknown"


def _by_timing(pauses: PauseSummary | None) -> SavedAgainst:
    what, against = "timing", "the same joules at the run's mean intensity"
    if pauses is None:
        told = "the run was never paused"
        return SavedAgainst(what, against, None, "gCO2e", "", None, told, applies=False)
    if not pauses.outcomes:
        told = "no intensity of the grid is known"
        return SavedAgainst(what, against, None, "gCO2e", "", None, told)
    o = pauses.outcomes[0]
    if o.kind is IntensityKind.MARGINAL:
        against = "the same joules at the run's mean marginal intensity"
    if o.net_at_mean_g is None:
        told = _unknown_emissions(o)
        return SavedAgainst(what, against, None, f"g{o.gas}", "", o.provenance, told)
    limit = bound(o.net_at_mean_g, at_most=o.at_most)
    told, origin = timing_words(o), weakest(o.provenance, Provenance.MODELLED)
    return SavedAgainst(what, against, o.net_at_mean_g, f"g{o.gas}", limit, origin, told)


def _unknown_emissions(o: WaitOutcome) -> str:
    lacking = {
        "the mean intensity": o.mean_g_per_kwh,
        "what was emitted beside the pauses": o.trained_g,
        "what was emitted in the pauses": o.paused_g,
    }
    return f"unknown is {' and '.join(name for name, value in lacking.items() if value is None)}"


def saving_line(s: SavedAgainst) -> str:
    """Say what one kind of decisions saved in one line, or why that cannot be known.

    Args:
        s: the comparison.
    """
    head = f"{s.what[0].upper()}{s.what[1:]}, against {s.against}: "
    if s.saved is None:
        return f"{head}{'cannot be said' if s.applies else 'nothing to compare'}, {s.told}."
    size = joules(abs(s.saved)) if s.unit == "J" else grams(abs(s.saved), s.unit[1:])
    change = "less" if s.saved > 0 else "more" if s.saved < 0 else "no difference"
    amount = f"{s.bound}{size} {change}" if s.saved else change
    return f"{head}{amount} ({s.provenance}){f'; {s.remark}' if s.remark else ''}."


def saving_words(s: SavedAgainst) -> str:
    """The same with how it comes about.

    Args:
        s: the comparison.
    """
    line = saving_line(s)
    return line if s.saved is None else f"{line} {s.told[0].upper()}{s.told[1:]}."
