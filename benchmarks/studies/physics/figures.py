"""Figures of the physics benchmark; each of the card's says which level of the card it is.

The comparison at 7 B is one row of 512 tokens: each device pays its whole board while it works
(dedicated at duty 1), the H100 at 50 % MFU.

What rests on a figure of the H100 that is assumed or fitted with an interval has as its spread the
interval that the ends of that figure give (`benchmarks.studies.physics.ranges`), and names it
there. The H100's 700 W and its launches are assumed without an interval, and the card's figures
have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from benchmarks.harness.figures import Figure, Target, missing
from benchmarks.studies.physics.accounts import (
    ALWAYS,
    ANYWAY,
    BUSY_ENOUGH,
    HUNDREDTH,
    TENTH,
    ChargingRule,
    break_even_duty,
)
from benchmarks.studies.physics.audit import Check, Violation, about_gpus, printed_figures
from benchmarks.studies.physics.map import SIDES, BreakEvenMap, Side, params_m, params_words
from benchmarks.studies.physics.paper import LIMITS, PaperRow
from benchmarks.studies.physics.passes import (
    BF16,
    IDLE_HIGH_W,
    PRECISIONS,
    SHAPES,
    Pass,
    Precision,
    bound_pass,
    card_pass,
    gpu_pass,
    ideal_pass,
    scoring,
)
from benchmarks.studies.physics.ranges import (
    POWERS,
    SCORING_MFU,
    Ends,
    Maps,
    RangedMap,
    corners,
    ends_of,
    scoring_mfus,
)
from ecorl.devices import DeviceProfile
from ecorl.records import Provenance, StageWork

MODELLED = Provenance.MODELLED
MFU, N_TOKENS = 0.5, 512
LEAST_OF_AN_H100 = 0.031
"""Of an H100's tokens per joule in BF16, what the kernels are held to at 7 B."""
AT = "7 B reward model, one row of 512 tokens"
PREFIX: dict[Side, str] = {"ours": "u55c", "ideal": "u55c_ideal", "bound": "u55c_bound"}
WHO: dict[Side, str] = {
    "ours": "U55C by our cycle model, not measured",
    "ideal": "U55C as an ideal HLS design: all DSPs at 300 MHz, 65 W (assumed)",
    "bound": "U55C by the bound of the silicon: all DSPs at the data sheet's 775 MHz; at 65 W "
    "(assumed), which flatters it",
}


def figures(
    maps: Maps,
    rows: Sequence[PaperRow],
    checks: Sequence[Check],
    broken: Sequence[Violation],
    card: DeviceProfile,
    gpu: DeviceProfile,
) -> list[Figure]:
    """Make all figures of the benchmark.

    Args:
        maps: the break-even maps.
        rows: the paper's figures.
        checks: its cross-checks.
        broken: its violations.
        card: profile of the U55C.
        gpu: profile of the H100.
    """
    return [
        *_at_7b(card, gpu), *_break_even(maps.ranged), *_map(maps.ranged),
        *_at_full_power(maps.full_power, gpu), *_seldom(maps.ranged, maps.idle, gpu),
        *_paper(rows, checks, broken),
    ]  # fmt: skip


def break_even_mfu(
    work: StageWork, gpu: DeviceProfile, precision: Precision, card: Pass
) -> float | None:
    """Find the MFU below which the GPU takes more joules than the card, each with its whole board.

    None where the GPU's launches alone take as many joules as the card. Holds where compute rules
    the GPU's pass, which it does at the low MFUs that come out here.

    Args:
        work: a scoring pass.
        gpu: profile of the GPU.
        precision: of the GPU.
        card: the card's pass.
    """
    full = gpu_pass(work, gpu, precision, 1e-6)  # so slow that compute rules
    busy_at_peak_s = full.above_idle_j / (gpu.value("active_w") - full.idle_w) * 1e-6
    assert work.model is not None
    launches_j = full.idle_w * work.model.n_layers * gpu.value("launch_s")
    if card.energy_j <= launches_j:
        return None
    return gpu.value("active_w") * busy_at_peak_s / (card.energy_j - launches_j)


Number = Callable[[DeviceProfile, float], float | None]
"""Computes a figure from a profile of the GPU and its MFU."""


def _spread_at_7b(gpu: DeviceProfile, number: Number) -> dict[str, object]:
    """The interval of a figure of the comparison at 7 B, where compute rules the GPU's pass."""
    least, most = scoring_mfus(gpu)
    mfus = [mfu for mfu in (least, MFU, most) if mfu is not None]
    values = [number(*one) for one in product((gpu, *corners(gpu)), mfus)]
    return ends_of(values).spread("idle_w", SCORING_MFU)


def _at_7b(card: DeviceProfile, gpu: DeviceProfile) -> list[Figure]:
    work = scoring(SHAPES["7b"], 1, N_TOKENS)
    own = card_pass(work, card)
    assert own is not None  # 7 GB fit into 16
    cards: dict[Side, Pass] = {
        "ours": own,
        "ideal": ideal_pass(work, card),
        "bound": bound_pass(work, card),
    }
    made = []
    for p in PRECISIONS:

        def per_j(profile: DeviceProfile, mfu: float, p: Precision = p) -> float:
            return N_TOKENS / gpu_pass(work, profile, p, mfu).energy_j

        one = _per_j(f"physics.h100_{p.name.lower()}_tokens_per_j_7b", gpu_pass(work, gpu, p, MFU),
                     f"H100 {p.name}, roofline at 50 % MFU; {AT}")  # fmt: skip
        made.append(replace(one, spread=_spread_at_7b(gpu, per_j)))
    for side, own in cards.items():
        made.append(_per_j(f"physics.{PREFIX[side]}_tokens_per_j_7b", own, f"{WHO[side]}; {AT}"))
        made += [_ratio_at_7b(side, work, gpu, p, own) for p in PRECISIONS]
        made += _limits(side, work, gpu, own)
    return made


def _ratio_at_7b(
    side: Side, work: StageWork, gpu: DeviceProfile, precision: Precision, card: Pass
) -> Figure:
    def ratio(profile: DeviceProfile, mfu: float) -> float:
        gpu_j, card_j = ALWAYS.energies(gpu_pass(work, profile, precision, mfu), card)
        return gpu_j / card_j

    name, is_ours = precision.name, side == "ours" and precision is BF16
    return Figure(
        f"physics.{PREFIX[side]}_vs_h100_{name.lower()}_7b", ratio(gpu, MFU), "1", MODELLED,
        spread=_spread_at_7b(gpu, ratio),
        target=Target(low=LEAST_OF_AN_H100) if is_ours else None,
        note=f"tokens/J over those of an H100 in {name} at 50 % MFU, each with its whole board; "
        f"{WHO[side]}; {AT}",
    )  # fmt: skip


def _limits(side: Side, work: StageWork, gpu: DeviceProfile, card: Pass) -> list[Figure]:
    """Find the MFU and the duty below which the card wins at 7 B."""

    def mfu_of(profile: DeviceProfile) -> float | None:
        return break_even_mfu(work, profile, BF16, card)

    def duty_of(profile: DeviceProfile, mfu: float) -> float | None:
        return break_even_duty(gpu_pass(work, profile, BF16, mfu), card)

    mfus = ends_of(mfu_of(profile) for profile in (gpu, *corners(gpu))).spread("idle_w")
    made = []
    for id, value, spread, what, why in (
        ("break_even_mfu_7b", mfu_of(gpu), mfus, "MFU of an H100 in BF16 below which the card "
         "takes fewer joules a token (the H100 at its 700 W even there)",
         "the H100's launches alone take more"),
        ("break_even_duty_7b", duty_of(gpu, MFU), _spread_at_7b(gpu, duty_of), "share of time that "
         "an H100 kept for these passes alone may work (BF16, 50 % MFU) before it takes fewer "
         "joules than the card", "the card never wins"),
    ):  # fmt: skip
        id, note = f"physics.{PREFIX[side]}_{id}", f"{what}; {WHO[side]}; {AT}"
        made.append(
            missing(id, "1", why)
            if value is None
            else Figure(id, value, "1", MODELLED, spread, note=note)
        )
    return made


def _per_j(id: str, one: Pass, note: str) -> Figure:
    return Figure(id, N_TOKENS / one.energy_j, "token/J", MODELLED, note=note)


def _break_even(ranged: RangedMap) -> list[Figure]:
    """The largest model for which the card wins anywhere, under three conditions."""
    found = ranged.found
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
        name = "break_even_params_m" if side == "ours" else f"{side}_break_even_params_m"
        for suffix, accountings, precisions, mfus, where in conditions:
            every = [
                one.largest_winner(side, accountings, precisions, each)
                for one, each in product(ranged.all, _mfus_of(ranged, mfus))
            ]
            ends = ends_of(None if size is None else params_m(size) for size in every)
            keys = POWERS if mfus is None else (*POWERS, SCORING_MFU)
            size = found.largest_winner(side, accountings, precisions, mfus)
            id, note = f"physics.{name}{suffix}", f"{where}; {WHO[side]}"
            if size is None:
                best = found.best_of(side, accountings, precisions, mfus)
                top = ends_of(
                    one.best_of(side, accountings, precisions, each).ratio
                    for one, each in product(ranged.all, _mfus_of(ranged, mfus))
                )
                why = (
                    f"the card wins nowhere: at best {best.ratio:.2g} x the H100's tokens/J "
                    f"({best.words()}), {top.low:.2g} to {top.high:.2g} x by the ends of what is "
                    f"assumed of the H100{_largest(ends, every)}; {note}"
                )
                made.append(replace(missing(id, "M", why), spread=ends.spread(*keys)))
            else:
                if ends.low is None:
                    note += "; nowhere at the low end of what is assumed of the H100"
                made.append(
                    Figure(id, params_m(size), "M", MODELLED, ends.spread(*keys), note=note)
                )
    return made


def _mfus_of(ranged: RangedMap, mfus: Sequence[float] | None) -> list[tuple[float, ...] | None]:
    """The MFUs at which to find the largest winner: one by one where one stands for scoring's."""
    return [None] if mfus is None else [(mfu,) for mfu in ranged.scoring_mfus]


def _largest(ends: Ends, sizes: Sequence[str | None]) -> str:
    if ends.high is None:
        return ""
    size = next(one for one in sizes if one is not None and params_m(one) == ends.high)
    return f", where it wins up to {params_words(size)} at the high end"


def _won(side: Side) -> Callable[[BreakEvenMap], float]:
    return lambda one: one.won_share(side, BUSY_ENOUGH)


def _best(side: Side, accountings: Sequence[ChargingRule]) -> Callable[[BreakEvenMap], float]:
    return lambda one: one.best_of(side, accountings).ratio


def _map(ranged: RangedMap) -> list[Figure]:
    """How much of the map the card wins, and whether our model keeps to the silicon's bound."""
    found = ranged.found
    over = found.card_j["ours"] < found.card_j["bound"] * (1.0 - 1e-9)
    made = [
        Figure("physics.model_above_bound", float(np.count_nonzero(over)), "1", MODELLED,
               target=Target(high=0.0),
               note=f"cells of {over.size:,} in which our cycle model needs fewer joules than the "
               "bound of the silicon"),
    ]  # fmt: skip
    for side in SIDES:
        share = found.won_share(side, BUSY_ENOUGH)
        best = found.best_of(side, BUSY_ENOUGH)
        made += [
            Figure(f"physics.{PREFIX[side]}_cells_won_share", share, "1", MODELLED,
                   ranged.ends(_won(side)).spread(*POWERS),
                   note="cells with fewer joules a token than an H100 that is there anyway, or "
                   f"dedicated at a duty of 0.1 or more; {WHO[side]}"),
            Figure(f"physics.{PREFIX[side]}_best_ratio", best.ratio, "1", MODELLED,
                   ranged.ends(_best(side, BUSY_ENOUGH)).spread(*POWERS),
                   note=f"the best of these cells: {best.words()}; {WHO[side]}"),
        ]  # fmt: skip
    return made


def _at_full_power(ranged: RangedMap, gpu: DeviceProfile) -> list[Figure]:
    """How much of the map the card wins when the H100 draws its full power throughout."""
    found, keys = ranged.found, ("idle_w", "mbu_decode")
    watts = f"{gpu.value('active_w'):.0f} W where memory rules too, which is kind to the card"
    made = []
    for side in SIDES:
        name, best = f"physics.{PREFIX[side]}", found.best_of(side, BUSY_ENOUGH)
        won = found.won_share(side, BUSY_ENOUGH)
        made += [
            Figure(f"{name}_cells_won_share_full_power", won, "1", MODELLED,
                   ranged.ends(_won(side)).spread(*keys),
                   note=f"as {name}_cells_won_share, the H100 at {watts}; {WHO[side]}"),
            Figure(f"{name}_best_ratio_full_power", best.ratio, "1", MODELLED,
                   ranged.ends(_best(side, BUSY_ENOUGH)).spread(*keys),
                   note=f"the best of these cells: {best.words()}; the H100 at {watts}; "
                   f"{WHO[side]}"),
        ]  # fmt: skip
    return made


def _seldom(ranged: RangedMap, idle: RangedMap, gpu: DeviceProfile) -> list[Figure]:
    """Give the best cells at low duty, which depend on the H100's idle power."""
    made = []
    idles = (
        ("", ranged, gpu.value("idle_w"), POWERS),
        (f"_idle_{IDLE_HIGH_W:.0f}w", idle, IDLE_HIGH_W, POWERS[1:]),
    )
    for side in SIDES:
        for name, accounting in (("10pct", TENTH), ("1pct", HUNDREDTH)):
            for suffix, one, idle_w, keys in idles:
                best = one.found.best_of(side, (accounting,))
                spread = one.ends(_best(side, (accounting,))).spread(*keys)
                note = (
                    f"the best cell with an H100 that idles at {idle_w:.0f} W (assumed): "
                    f"{best.words()}; {WHO[side]}"
                )
                id = f"physics.{PREFIX[side]}_best_ratio_duty_{name}{suffix}"
                made.append(Figure(id, best.ratio, "1", MODELLED, spread, note=note))
    return made


def _paper(
    rows: Sequence[PaperRow], checks: Sequence[Check], broken: Sequence[Violation]
) -> list[Figure]:
    """Give the paper's figures with limit and ours, and count those that cannot be true."""
    kinds, gpus = Counter(v.kind for v in broken), about_gpus(broken)
    n_printed = printed_figures(broken)
    above = "; ".join(f"{kinds[key]} above the {words}" for key, words in LIMITS.items())
    made = [
        Figure("physics.paper_violations", float(n_printed), "1", Provenance.PUBLISHED,
               note=f"distinct printed figures above a limit or against another: {len(broken)} "
               f"findings on {n_printed} printed figures ({len(gpus)} findings on "
               f"{printed_figures(gpus)} of them are of GPUs). {above}; {kinds['contradiction']} "
               f"contradict other printed ones; {sum(c.holds for c in checks)} of {len(checks)} "
               "cross-checks hold"),
    ]  # fmt: skip
    for row in rows:
        id, text = f"physics.paper_{row.id}", f"{row.text} ({row.place})"
        made.append(
            Figure(f"{id}.published", row.published, row.unit, Provenance.PUBLISHED, note=text)
        )
        made.append(
            _or_missing(f"{id}.limit", row.limit, row.unit, f"no limit: {row.why}",
                        f"{text}; {row.sense} the {LIMITS[row.against]}: {row.why}")
        )  # fmt: skip
        own = _or_missing(f"{id}.ours", row.ours, row.unit, row.note or "no such figure",
                          f"{text}; our cycle model or roofline; {row.note}")  # fmt: skip
        spread = None if row.ours_ends is None else row.ours_ends.spread(SCORING_MFU)
        made.append(replace(own, spread=spread))
    for v in broken:
        id = f"physics.violation_{v.id}"
        kind = v.kind if v.kind == "contradiction" else f"above the {LIMITS[v.kind]}"
        unit = "" if v.unit == "1" else f" {v.unit}"
        note = f"{kind}: {v.text}, printed {v.printed:g}{unit} against {v.other:.4g}{unit}"
        made.append(Figure(id, v.ratio, "1", Provenance.PUBLISHED, note=f"{note}: {v.arithmetic}"))
    return made


def _or_missing(id: str, value: float | None, unit: str, why: str, note: str) -> Figure:
    if value is None:
        return missing(id, unit, why)
    return Figure(id, value, unit, MODELLED, note=note.rstrip("; "))
