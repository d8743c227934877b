"""The figures of the physics benchmark. Of the card's, every id or note says bound or cycle model.

The comparison at 7 B is one row of 512 tokens: each device pays its whole board while it works
(dedicated at duty 1), the H100 at 50 % MFU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ecorl.bench.figures import Figure, Target, missing
from ecorl.bench.physics_accounts import ALWAYS, ANYWAY, BUSY_ENOUGH, HUNDREDTH, break_even_duty
from ecorl.bench.physics_audit import Check, Violation
from ecorl.bench.physics_map import SIDES, BreakEvenMap, Side, params_m
from ecorl.bench.physics_paper import Row
from ecorl.bench.physics_passes import (
    BF16,
    PRECISIONS,
    SHAPES,
    Pass,
    Precision,
    bound_pass,
    card_pass,
    gpu_pass,
    scoring,
)
from ecorl.devices import DeviceProfile
from ecorl.records import Provenance, StageWork

MODELLED = Provenance.MODELLED
MFU, N_TOKENS = 0.5, 512
AT = "7 B reward model, one row of 512 tokens"
PREFIX: dict[Side, str] = {"ours": "u55c", "bound": "u55c_bound"}
WHO: dict[Side, str] = {
    "ours": "U55C by our cycle model, not measured",
    "bound": "U55C by the bound of physics: all DSPs at 300 MHz, 65 W",
}


def figures(
    found: BreakEvenMap,
    rows: Sequence[Row],
    checks: Sequence[Check],
    broken: Sequence[Violation],
    card: DeviceProfile,
    gpu: DeviceProfile,
) -> list[Figure]:
    """All figures of the benchmark."""
    return [
        *_at_7b(card, gpu), *_break_even(found), *_map(found), *_paper(rows, checks, broken),
    ]  # fmt: skip


def break_even_mfu(
    work: StageWork, gpu: DeviceProfile, precision: Precision, card: Pass
) -> float | None:
    """The MFU below which the GPU takes more joules than the card, each paying its whole board.

    None where the GPU's launches alone take as many joules as the card. Holds where compute rules
    the GPU's pass, which it does at the low MFUs that come out here.
    """
    full = gpu_pass(work, gpu, precision, 1e-6)  # so slow that compute rules
    busy_at_peak_s = full.above_idle_j / (gpu.value("active_w") - full.idle_w) * 1e-6
    assert work.model is not None
    launches_j = full.idle_w * work.model.n_layers * gpu.value("launch_s")
    if card.energy_j <= launches_j:
        return None
    return gpu.value("active_w") * busy_at_peak_s / (card.energy_j - launches_j)


def _at_7b(card: DeviceProfile, gpu: DeviceProfile) -> list[Figure]:
    work = scoring(SHAPES["7b"], 1, N_TOKENS)
    own = card_pass(work, card)
    assert own is not None  # 7 GB fit into 16
    cards: dict[Side, Pass] = {"ours": own, "bound": bound_pass(work, card)}
    gpus = {p.name: gpu_pass(work, gpu, p, MFU) for p in PRECISIONS}
    made = [
        _per_j(f"physics.h100_{name.lower()}_tokens_per_j_7b", one,
               f"H100 {name}, roofline at 50 % MFU; {AT}")
        for name, one in gpus.items()
    ]  # fmt: skip
    for side, one in cards.items():
        prefix = f"physics.{PREFIX[side]}"
        made.append(_per_j(f"{prefix}_tokens_per_j_7b", one, f"{WHO[side]}; {AT}"))
        for name, other in gpus.items():
            gpu_j, card_j = ALWAYS.energies(other, one)
            made.append(
                Figure(f"{prefix}_vs_h100_{name.lower()}_7b", gpu_j / card_j, "1", MODELLED,
                       note=f"tokens/J over those of an H100 in {name} at 50 % MFU, each with its "
                       f"whole board; {WHO[side]}; {AT}")
            )  # fmt: skip
        made += _limits(prefix, side, work, gpu, gpus[BF16.name], one)
    return made


def _limits(
    prefix: str, side: Side, work: StageWork, profile: DeviceProfile, gpu: Pass, card: Pass
) -> list[Figure]:
    """Below which MFU, and below which duty, the card wins at 7 B."""
    mfu, duty = break_even_mfu(work, profile, BF16, card), break_even_duty(gpu, card)
    made = []
    for id, value, what, why in (
        ("break_even_mfu_7b", mfu, "MFU of an H100 in BF16 below which the card takes fewer joules "
         "a token (the H100 at its 700 W even there)", "the H100's launches alone take more"),
        ("break_even_duty_7b", duty, "share of time that an H100 kept for these passes alone may "
         "work (BF16, 50 % MFU) before it takes fewer joules than the card", "the card never wins"),
    ):  # fmt: skip
        note = f"{what}; {WHO[side]}; {AT}"
        made.append(
            missing(f"{prefix}_{id}", "1", why)
            if value is None
            else Figure(f"{prefix}_{id}", value, "1", MODELLED, note=note)
        )
    return made


def _per_j(id: str, one: Pass, note: str) -> Figure:
    return Figure(id, N_TOKENS / one.energy_j, "token/J", MODELLED, note=note)


def _break_even(found: BreakEvenMap) -> list[Figure]:
    """The largest model for which the card wins anywhere, under three conditions."""
    everywhere = "any batch, row length, precision and MFU of the map"
    conditions = (
        ("", BUSY_ENOUGH, PRECISIONS, None,
         f"{everywhere}; H100 there anyway, or dedicated at a duty of 0.1 or more"),
        ("_mfu50", (ANYWAY, ALWAYS), (BF16,), (MFU,),
         "any batch and row length; H100 in BF16 at 50 % MFU, there anyway or dedicated at duty 1"),
        ("_duty_1pct", (HUNDREDTH,), PRECISIONS, None,
         f"{everywhere}; H100 dedicated and idle 99 % of the time"),
    )  # fmt: skip
    made = []
    for side in SIDES:
        name = "break_even_params_m" if side == "ours" else "bound_break_even_params_m"
        for suffix, accountings, precisions, mfus, where in conditions:
            size = found.largest_winner(side, accountings, precisions, mfus)
            id, note = f"physics.{name}{suffix}", f"{where}; {WHO[side]}"
            if size is None:
                best = found.best_of(side, accountings, precisions, mfus)
                why = f"the card wins nowhere: at best {best.ratio:.2g} x the H100's tokens/J "
                made.append(missing(id, "M", f"{why}({best.words()}); {note}"))
            else:
                made.append(Figure(id, params_m(size), "M", MODELLED, note=note))
    return made


def _map(found: BreakEvenMap) -> list[Figure]:
    """How much of the map the card wins, and whether our model keeps to the bound."""
    over = found.card_j["ours"] < found.card_j["bound"] * (1.0 - 1e-9)
    made = [
        Figure("physics.model_above_bound", float(np.count_nonzero(over)), "1", MODELLED,
               target=Target(high=0.0),
               note=f"cells of {over.size:,} in which our cycle model needs fewer joules than the "
               "bound of physics"),
    ]  # fmt: skip
    for side in SIDES:
        ratios = found.chosen(side, BUSY_ENOUGH)
        share = float(np.count_nonzero(ratios > 1.0)) / np.count_nonzero(~np.isnan(ratios))
        best = found.best_of(side, BUSY_ENOUGH)
        made += [
            Figure(f"physics.{PREFIX[side]}_cells_won_share", share, "1", MODELLED,
                   note="cells with fewer joules a token than an H100 that is there anyway, or "
                   f"dedicated at a duty of 0.1 or more; {WHO[side]}"),
            Figure(f"physics.{PREFIX[side]}_best_ratio", best.ratio, "1", MODELLED,
                   note=f"the best of these cells: {best.words()}; {WHO[side]}"),
        ]  # fmt: skip
    return made


def _paper(
    rows: Sequence[Row], checks: Sequence[Check], broken: Sequence[Violation]
) -> list[Figure]:
    """The paper's figures, each with its bound and ours; and how many of them cannot be."""
    kinds = Counter(v.kind for v in broken)
    made = [
        Figure("physics.paper_violations", float(len(broken)), "1", Provenance.PUBLISHED,
               note=f"{kinds['bound']} printed figures above a bound of physics, "
               f"{kinds['contradiction']} that contradict other printed ones; "
               f"{sum(c.holds for c in checks)} of {len(checks)} cross-checks hold"),
    ]  # fmt: skip
    for row in rows:
        id, text = f"physics.paper_{row.id}", f"{row.text} ({row.place})"
        made.append(
            Figure(f"{id}.published", row.published, row.unit, Provenance.PUBLISHED, note=text)
        )
        made.append(_or_missing(f"{id}.bound", row.bound, row.unit, f"no bound: {row.why}",
                                f"{text}; bound, {row.sense}: {row.why}"))  # fmt: skip
        made.append(_or_missing(f"{id}.ours", row.ours, row.unit, row.note or "no such figure",
                                f"{text}; our cycle model or roofline; {row.note}"))  # fmt: skip
    for v in broken:
        id = f"physics.violation_{v.id}"
        note = f"{v.kind}: {v.text}, printed {v.printed:g} {v.unit} against {v.other:.4g} "
        made.append(
            Figure(id, v.ratio, "1", Provenance.PUBLISHED, note=f"{note}{v.unit}: {v.arithmetic}")
        )
    return made


def _or_missing(id: str, value: float | None, unit: str, why: str, note: str) -> Figure:
    if value is None:
        return missing(id, unit, why)
    return Figure(id, value, unit, MODELLED, note=note.rstrip("; "))
