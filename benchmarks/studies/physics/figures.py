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
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from benchmarks.harness import Figure, FigureTable
from benchmarks.studies.physics.audit import Check, Violation, about_gpus, printed_figures
from benchmarks.studies.physics.map import SIDES, BreakEvenMap, Side, params_m, params_words
from benchmarks.studies.physics.paper import LIMITS, PaperRow
from benchmarks.studies.physics.passes import (
    ALWAYS,
    ANYWAY,
    BF16,
    BUSY_ENOUGH,
    HUNDREDTH,
    IDLE_HIGH_W,
    PRECISIONS,
    SHAPES,
    TENTH,
    ChargingRule,
    Pass,
    Precision,
    bound_pass,
    break_even_duty,
    card_pass,
    gpu_pass,
    ideal_pass,
    scoring,
)
from benchmarks.studies.physics.ranges import (
    POWERS,
    SCORING_MFU,
    Maps,
    RangedMap,
    corners,
    ends_of,
    scoring_mfus,
)
from ecorl.devices import DeviceProfile
from ecorl.records import StageWork

FIGURES = FigureTable("fpga_physics")
MFU, N_TOKENS = 0.5, 512
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
    full, full_keys = maps.full_power, ("idle_w", "mbu_decode")
    return [
        *_at_7b(card, gpu),
        *_break_even(maps.ranged),
        _above_bound(maps.ranged.found),
        *(f for side in SIDES for f in _won(maps.ranged, side, POWERS)),
        *(f for side in SIDES for f in _won(full, side, full_keys, gpu.value("active_w"))),
        *_seldom(maps.ranged, maps.idle, gpu),
        *_paper(rows, checks, broken),
    ]


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


def _at_7b(card: DeviceProfile, gpu: DeviceProfile) -> list[Figure]:
    work = scoring(SHAPES["7b"], 1, N_TOKENS)
    own = card_pass(work, card)
    assert own is not None  # 7 GB fit into 16
    cards: dict[Side, Pass] = {
        "ours": own,
        "ideal": ideal_pass(work, card),
        "bound": bound_pass(work, card),
    }
    least, most = scoring_mfus(gpu)
    mfus = [mfu for mfu in (least, MFU, most) if mfu is not None]

    def figure(
        key: str,
        number: Callable[[DeviceProfile, float], float | None],
        words: Mapping[str, object],
        *,
        judged: bool = True,
    ) -> Figure:
        """A figure by the GPU's profile and MFU, with its interval by the ends of both."""
        values = [number(*one) for one in product((gpu, *corners(gpu)), mfus)]
        value, ends = number(gpu, MFU), ends_of(values).spread("idle_w", SCORING_MFU)
        spread = None if value is None else ends
        return FIGURES.figure(key, value, spread, judged=judged, at=AT, words=words)

    def of_precision(precision: Precision) -> dict[str, str]:
        return {"precision": precision.name, "precision_id": precision.name.lower()}

    made = [
        figure(
            "physics.h100_{precision_id}_tokens_per_j_7b",
            lambda profile, mfu, p=p: N_TOKENS / gpu_pass(work, profile, p, mfu).energy_j,  # type: ignore[misc]
            of_precision(p),
        )
        for p in PRECISIONS
    ]
    for side, own in cards.items():
        words = {"card": PREFIX[side], "who": WHO[side]}
        per_j = N_TOKENS / own.energy_j
        made.append(FIGURES.figure("physics.{card}_tokens_per_j_7b", per_j, at=AT, words=words))
        for p in PRECISIONS:

            def ratio(
                profile: DeviceProfile, mfu: float, p: Precision = p, own: Pass = own
            ) -> float:
                gpu_j, card_j = ALWAYS.energies(gpu_pass(work, profile, p, mfu), own)
                return gpu_j / card_j

            is_held = side == "ours" and p is BF16
            key = "physics.{card}_vs_h100_{precision_id}_7b"
            made.append(figure(key, ratio, words | of_precision(p), judged=is_held))
        made.append(_mfu_limit(work, gpu, own, words))

        def duty(profile: DeviceProfile, mfu: float, own: Pass = own) -> float | None:
            return break_even_duty(gpu_pass(work, profile, BF16, mfu), own)

        made.append(figure("physics.{card}_break_even_duty_7b", duty, words))
    return made


def _mfu_limit(work: StageWork, gpu: DeviceProfile, card: Pass, words: dict[str, str]) -> Figure:
    """Find the MFU below which the card wins at 7 B."""
    value, *others = (break_even_mfu(work, profile, BF16, card) for profile in (gpu, *corners(gpu)))
    spread = None if value is None else ends_of([value, *others]).spread("idle_w")
    return FIGURES.figure("physics.{card}_break_even_mfu_7b", value, spread, at=AT, words=words)


def _break_even(ranged: RangedMap) -> list[Figure]:
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
    for side, (suffix, accountings, precisions, mfus, where) in product(SIDES, conditions):
        # One by one where one MFU stands for scoring's.
        each_mfus = [None] if mfus is None else [(mfu,) for mfu in ranged.scoring_mfus]
        every = list(product(ranged.all, each_mfus))
        sizes = [one.largest_winner(side, accountings, precisions, each) for one, each in every]
        ends = ends_of(None if size is None else params_m(size) for size in sizes)
        top = ends_of(one.best_of(side, accountings, precisions, each).ratio for one, each in every)
        size = ranged.found.largest_winner(side, accountings, precisions, mfus)
        best = ranged.found.best_of(side, accountings, precisions, mfus)
        largest = ""
        if ends.high is not None:
            winner = next(one for one in sizes if one is not None and params_m(one) == ends.high)
            largest = f", where it wins up to {params_words(winner)} at the high end"
        nowhere = "; nowhere at the low end of what is assumed of the H100"
        made.append(
            FIGURES.figure(
                "physics.{card}break_even_params_m{suffix}",
                None if size is None else params_m(size),
                ends.spread(*POWERS, *([] if mfus is None else [SCORING_MFU])),
                card="" if side == "ours" else f"{side}_",
                suffix=suffix,
                best=best,
                cell=best.words(),
                top=top,
                largest=largest,
                where=where,
                who=WHO[side],
                nowhere=nowhere if ends.low is None else "",
            )
        )
    return made


def _above_bound(found: BreakEvenMap) -> Figure:
    """Whether our model keeps to the silicon's bound."""
    over = found.card_j["ours"] < found.card_j["bound"] * (1.0 - 1e-9)
    return FIGURES.figure("physics.model_above_bound", float(np.count_nonzero(over)), n=over.size)


def _best(side: Side, accountings: Sequence[ChargingRule]) -> Callable[[BreakEvenMap], float]:
    return lambda one: one.best_of(side, accountings).ratio


def _won(
    ranged: RangedMap, side: Side, keys: Sequence[str], full_w: float | None = None
) -> list[Figure]:
    """How much of a map the card wins; `full_w` is the H100's power where it draws all of it."""
    best, ending = ranged.found.best_of(side, BUSY_ENOUGH), "_full_power" if full_w else ""
    words = {"card": PREFIX[side], "who": WHO[side], "cell": best.words(), "full_w": full_w}
    share = ranged.found.won_share(side, BUSY_ENOUGH)
    shares = ranged.ends(lambda one: one.won_share(side, BUSY_ENOUGH)).spread(*keys)
    ratios = ranged.ends(_best(side, BUSY_ENOUGH)).spread(*keys)
    return [
        FIGURES.figure(f"physics.{{card}}_cells_won_share{ending}", share, shares, words=words),
        FIGURES.figure(f"physics.{{card}}_best_ratio{ending}", best.ratio, ratios, words=words),
    ]


def _seldom(ranged: RangedMap, idle: RangedMap, gpu: DeviceProfile) -> list[Figure]:
    """Give the best cells at low duty, which depend on the H100's idle power."""
    idles = (
        ("", ranged, gpu.value("idle_w"), POWERS),
        (f"_idle_{IDLE_HIGH_W:.0f}w", idle, IDLE_HIGH_W, POWERS[1:]),
    )
    duties = (("10pct", TENTH), ("1pct", HUNDREDTH))
    made = []
    for side, (duty, accounting), (suffix, one, idle_w, keys) in product(SIDES, duties, idles):
        best = one.found.best_of(side, (accounting,))
        spread = one.ends(_best(side, (accounting,))).spread(*keys)
        words = {"card": PREFIX[side], "duty": duty, "idle": suffix, "idle_w": idle_w}
        words |= {"cell": best.words(), "who": WHO[side]}
        key = "physics.{card}_best_ratio_duty_{duty}{idle}"
        made.append(FIGURES.figure(key, best.ratio, spread, words=words))
    return made


def _paper(
    rows: Sequence[PaperRow], checks: Sequence[Check], broken: Sequence[Violation]
) -> list[Figure]:
    """Give the paper's figures with limit and ours, and count those that cannot be true."""
    kinds, gpus = Counter(v.kind for v in broken), about_gpus(broken)
    n_printed = printed_figures(broken)
    made = [
        FIGURES.figure(
            "physics.paper_violations",
            float(n_printed),
            n=len(broken),
            n_printed=n_printed,
            n_gpus=len(gpus),
            n_printed_gpus=printed_figures(gpus),
            above="; ".join(f"{kinds[key]} above the {words}" for key, words in LIMITS.items()),
            n_against=kinds["contradiction"],
            n_hold=sum(c.holds for c in checks),
            n_checks=len(checks),
        )
    ]
    for row in rows:
        key, ends, against = "physics.paper_{row.id}", row.ours_ends, LIMITS[row.against]
        spread = None if ends is None else ends.spread(SCORING_MFU)
        why, beside = row.note or "no such figure", f"; {row.note}" if row.note else ""
        made += [
            FIGURES.figure(f"{key}.published", row.published, row=row),
            FIGURES.figure(f"{key}.limit", row.limit, row=row, against=against),
            FIGURES.figure(f"{key}.ours", row.ours, spread, why=why, row=row, beside=beside),
        ]
    for v in broken:
        kind = v.kind if v.kind == "contradiction" else f"above the {LIMITS[v.kind]}"
        unit = "" if v.unit == "1" else f" {v.unit}"
        made.append(FIGURES.figure("physics.violation_{v.id}", v.ratio, v=v, kind=kind, unit=unit))
    return made
