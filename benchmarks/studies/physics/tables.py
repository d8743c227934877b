"""The physics benchmark's tables for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

import numpy as np
from rich.table import Table

from benchmarks.studies.physics.accounts import ACCOUNTINGS, ALWAYS, ChargingRule
from benchmarks.studies.physics.audit import Check, Violation, about_gpus, printed_figures
from benchmarks.studies.physics.map import SIDES, Side, params_m, params_words
from benchmarks.studies.physics.paper import LIMITS, PaperRow
from benchmarks.studies.physics.passes import BF16, PRECISIONS, Precision
from benchmarks.studies.physics.ranges import Ends, RangedMap, ends_of, scoring_mfus
from ecorl.devices import DeviceProfile, cheapest, dearest
from ecorl.devices.gpu_pass import streaming_w

WIDTH = 100

CARD: dict[Side, str] = {
    "ours": "our kernels, cycle model",
    "ideal": "ideal HLS design",
    "bound": "bound of the silicon, at 65 W",
}

_CARD_AND_CHARGES = (
    "U55C, published: what the paper prints. Three levels are modelled, none is measured:",
    "ours, the cycle model of our kernels: 2,048 DSPs in the array of products, 245 MHz, launches,",
    "PCIe, 73 W;",
    "the ideal HLS design: all 9,024 DSPs busy at 300 MHz, two INT8 products each (10.8 TOPS),",
    "the weights once at 460 GB/s, PCIe at 31.5 GB/s, 65 W (assumed): what HLS reaches at best;",
    "the bound of the silicon: the same with the DSPs at the data sheet's 775 MHz (28.0 TOPS).",
    "No design that makes its products in DSPs takes less time. Its joules are at the same 65 W,",
    "which flatters the card.",
    "Ratio: tokens/J of the card over tokens/J of the H100; the card wins above 1.",
    "GPU there anyway: training pays the H100's idle power; a pass on it costs what it draws",
    "above idle, one on the card costs the card's whole board.",
    "Dedicated at duty d: the H100 is kept for these passes and works the share d of the time.",
    "Both sides pay their idle power until the next pass.",
)


def how(card: DeviceProfile, gpu: DeviceProfile) -> tuple[str, ...]:
    """What all ratios rest on, in lines for a terminal.

    Args:
        card: profile of the U55C.
        gpu: profile of the H100.
    """
    full_w, idle_w = gpu.value("active_w"), gpu.value("idle_w")
    of_gpu = (
        "H100, modelled: the longer of compute at the stated MFU and memory traffic at "
        f"{100 * gpu.value('mbu_decode'):.0f} % of {gpu.value('memory_bytes_per_s') / 1e12:.3g} "
        "TB/s (weights and cache once a pass), and an assumed "
        f"{1e6 * gpu.value('launch_s'):.0f} us of launches a layer. {full_w:.0f} W where compute "
        f"rules, {streaming_w(gpu):.0f} W where memory does, {idle_w:.0f} W during launches. Where "
        "memory rules the stated MFU is not reached. At 10 % MFU a real H100 draws less than "
        f"{full_w:.0f} W: low MFUs flatter the card."
    )
    idle = f"Idle power: {idle_w:.0f} W of the H100, {card.value('idle_w'):.1f} W of the card."
    return (*wrap(of_gpu, WIDTH - 4), *wrap(_assumed(gpu), WIDTH - 4), *_CARD_AND_CHARGES, idle)


def _assumed(gpu: DeviceProfile) -> str:
    """Which assumed figures have an interval, and which have none."""
    ends = cheapest(gpu), dearest(gpu)
    idle, power, share = (
        sorted(of(end) for end in ends)
        for of in (lambda p: p.value("idle_w"), streaming_w, lambda p: p.value("mbu_decode"))
    )
    mfus = scoring_mfus(gpu)
    return (
        "Intervals: the least and the most of a figure, with the H100's idle power at "
        f"{idle[0]:.0f} and {idle[1]:.0f} W (assumed) and, where memory rules, {power[0]:.0f} W "
        f"and {100 * share[1]:.0f} % of the bandwidth or {power[1]:.0f} W and "
        f"{100 * share[0]:.0f} % (fitted to published decoding). Where one MFU stands "
        "for scoring, at 50 %, also with "
        f"{percent_words(mfus)} (assumed). Its {gpu.value('active_w'):.0f} W and its launches are "
        "assumed without an interval, and nothing of the card has one."
    )


def percent_words(ends: Ends) -> str:
    """Two shares in percent."""
    assert ends.low is not None
    assert ends.high is not None
    return f"{100 * ends.low:.0f} to {100 * ends.high:.0f} %"


def paper_table(rows: Sequence[PaperRow]) -> Table:
    """Printed figures beside their limits and ours."""
    table = Table(title="The paper's card figures (published) beside their limits and our model",
                  width=WIDTH)  # fmt: skip
    for name in ("", "figure"):
        table.add_column(name, overflow="fold")
    table.add_column("published", justify="right", no_wrap=True)
    table.add_column("limit", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in ("x limit", "ours", "x ours"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    last = ""
    for row in rows:
        table.add_row(
            row.place if row.place != last else "",
            f"{row.text}, {row.unit}" if row.unit != "1" else row.text,
            number(row.published),
            "none" if row.limit is None else number(row.limit),
            "" if row.limit is None else row.against[0].upper(),
            times(row.beyond(row.limit)),
            "none" if row.ours is None else _with_ends(number(row.ours), row.ours_ends),
            times(row.beyond(row.ours)),
            "ABOVE" if row.flagged else "",
        )
        last = row.place
    table.caption = (
        "x limit, x ours: how many times the published figure is as large, of times as short.\n"
        + "".join(f"{key[0].upper()}: {words}.\n" for key, words in LIMITS.items())
        + "ours: cycle model (modelled); none: it has no such figure, or takes the published one.\n"
        "Below ours: at the ends of the MFU that is assumed of scoring.\n"
        "ABOVE: beyond the limit."
    )
    return table


def violation_table(found: Sequence[Violation], checks: Sequence[Check]) -> Table:
    """List what cannot be true, with the arithmetic.

    Args:
        found: what cannot be true.
        checks: all checks, for their count.
    """
    holds = sum(c.holds for c in checks)
    gpus = about_gpus(found)
    title = (
        f"{len(found)} findings on {printed_figures(found)} printed figures that cannot be true, "
        "or not together"
    )
    table = Table(title=title, width=WIDTH)
    table.add_column("printed", overflow="fold", ratio=4)
    table.add_column("against", justify="right", no_wrap=True)
    table.add_column("apart", justify="right", no_wrap=True)
    table.add_column("how", overflow="fold", ratio=5)
    kind = ""
    kinds = [*LIMITS, "contradiction"]
    for v in sorted(found, key=lambda v: kinds.index(v.kind)):
        if v.kind != kind:
            kind = v.kind
            table.add_section()
            table.add_row(f"[b]{_against(v)}[/b]")
        value = "" if v.kind == "contradiction" else f": {number(v.printed)} {v.unit}"
        unit = "" if v.unit == "1" else f" {v.unit}"
        table.add_row(f"{v.text}{value}", f"{number(v.other)}{unit}", times(v.ratio), v.arithmetic)
    table.caption = (
        f"{len(gpus)} of the findings, on {printed_figures(gpus)} printed figures, are of GPUs. "
        f"{holds} of {len(checks)} cross-checks hold."
    )
    return table


def _against(v: Violation) -> str:
    return "against one another" if v.kind == "contradiction" else f"above the {LIMITS[v.kind]}"


def break_even_table(ranged: RangedMap, side: Side) -> Table:
    """Show the share of batches and models that the card wins, and its best ratio, by MFU.

    Args:
        ranged: the map with its intervals.
        side: level of the card.
    """
    title = f"Where the card takes fewer joules a token: {CARD[side]}"
    table = Table(title=title, width=WIDTH, padding=0)
    table.add_column("who pays idle power", overflow="fold")
    table.add_column("H100")
    for mfu in ranged.found.axes.mfus:
        table.add_column(f"{100 * mfu:.0f} % MFU", justify="right", no_wrap=True)
    table.add_column("largest", justify="right", no_wrap=True)
    for accounting in ACCOUNTINGS:
        for i, precision in enumerate(PRECISIONS):
            cells = [
                _share_and_best(ranged, side, accounting, precision, mfu)
                for mfu in ranged.found.axes.mfus
            ]
            largest = _largest(ranged, side, accounting, precision)
            table.add_row("" if i else accounting.title, precision.name, *cells, largest)
        table.add_section()
    table.caption = (
        "share of cells (model, rows, tokens a row) that the card wins; below it its best ratio;\n"
        "largest: the largest model that wins in some cell of the row; below each its interval\n"
        "at the MFU of the column, where there is more than one value"
    )
    return table


def _share_and_best(
    ranged: RangedMap, side: Side, accounting: ChargingRule, precision: Precision, mfu: float
) -> str:
    shares, best = [], []
    for one in ranged.all:
        ratios = one.chosen(side, (accounting,), (precision,), (mfu,))
        ratios = ratios[~np.isnan(ratios)]
        shares.append(float(np.mean(ratios > 1)))
        best.append(float(ratios.max()))
    low, high = (_percent(share) for share in (min(shares), max(shares)))
    # One sign for percent is enough, and nothing for a share that is the same at both ends.
    share = "" if low == high else f"{low.removesuffix(' %')}-{high}"
    return f"{_percent(shares[0])}\n{share}\n{number(best[0])} x\n{short_range(ends_of(best))}"


def _largest(ranged: RangedMap, side: Side, accounting: ChargingRule, precision: Precision) -> str:
    sizes = [one.largest_winner(side, (accounting,), (precision,)) for one in ranged.all]
    own, *_ = words = ["none" if size is None else params_words(size) for size in sizes]
    low, *_, high = (
        word for _, word in sorted((0.0 if size is None else params_m(size), word)
                                   for size, word in zip(sizes, words, strict=True))
    )  # fmt: skip
    return own if low == high else f"{own}\n{low}\nto {high}"


def slice_table(ranged: RangedMap, side: Side, accounting: ChargingRule, mfu: float) -> Table:
    """Show the ratios of one row at a time, by model and length.

    Args:
        ranged: the map with its intervals.
        side: level of the card.
        accounting: who pays for idle power.
        mfu: share of the GPU's peak.
    """
    mfus = ranged.scoring_mfus
    title = (
        f"Ratio at one row, BF16 at {100 * mfu:.0f} % MFU ({100 * mfus[0]:.0f} to "
        f"{100 * mfus[-1]:.0f}), {accounting.title}: {CARD[side]}"
    )
    table = Table(title=title, width=WIDTH, padding=0)
    table.add_column("model \\ tokens", justify="right")
    for tokens in ranged.found.axes.tokens:
        table.add_column(f"{tokens:,}", justify="right", no_wrap=True)
    ratios, low, high = ranged.one_row(side, accounting, BF16, mfu)
    for i, size in enumerate(ranged.found.axes.sizes):
        cells = [
            f"{number(ratios[i, j])}\n{short_range(Ends(low[i, j], high[i, j]))}"
            for j in range(ratios.shape[1])
        ]
        table.add_row(params_words(size), *cells)
    return table


def tables(
    ranged: RangedMap,
    rows: Sequence[PaperRow],
    checks: Sequence[Check],
    broken: Sequence[Violation],
) -> Iterator[Table]:
    """Make all tables in order.

    Args:
        ranged: the map with its intervals.
        rows: printed figures with their limits.
        checks: all checks.
        broken: what cannot be true.
    """
    yield paper_table(rows)
    yield violation_table(broken, checks)
    for side in SIDES:
        yield break_even_table(ranged, side)
        yield slice_table(ranged, side, ALWAYS, 0.5)


def _percent(share: float) -> str:
    """Write a share in percent; only 0 and 1 are shown as 0 % and 100 %."""
    percent = 100.0 * share
    if 0.0 < percent < 0.5:
        return "<1 %"
    return ">99 %" if 99.5 <= percent < 100.0 else f"{percent:.0f} %"


def number(value: float) -> str:
    """Three significant digits; thousands with commas."""
    if np.isnan(value):
        return "n/a"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.6f}".rstrip("0") if "e" in text else text


def short(value: float) -> str:
    """A ratio in four characters or so: two decimals, or three without the leading zero."""
    if np.isnan(value):
        return "n/a"
    if value >= 99.5:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 0.095 else f"{value:.3f}".lstrip("0")


def short_range(ends: Ends) -> str:
    """The interval of a ratio; one value where both ends read the same."""
    low, high = ("n/a" if end is None else short(end) for end in ends)
    return low if low == high else f"{low}-{high}"


def _with_ends(text: str, ends: Ends | None) -> str:
    if ends is None or ends.low is None or ends.high is None:
        return text
    return f"{text}\n{number(ends.low)}-{number(ends.high)}"


def times(value: float | None) -> str:
    """A ratio; empty without one."""
    return "" if value is None else f"{number(value)} x"
