"""The physics benchmark's tables for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

import numpy as np
from rich.table import Table

from ecorl.bench.physics.accounts import ACCOUNTINGS, ALWAYS, ChargingRule
from ecorl.bench.physics.audit import Check, Violation, about_gpus, printed_figures
from ecorl.bench.physics.map import SIDES, BreakEvenMap, Side, params_words
from ecorl.bench.physics.paper import LIMITS, Row
from ecorl.bench.physics.passes import BF16, PRECISIONS
from ecorl.devices import DeviceProfile
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
    return (*wrap(of_gpu, WIDTH - 4), *_CARD_AND_CHARGES, idle)


def paper_table(rows: Sequence[Row]) -> Table:
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
            "none" if row.ours is None else number(row.ours),
            times(row.beyond(row.ours)),
            "ABOVE" if row.flagged else "",
        )
        last = row.place
    table.caption = (
        "x limit, x ours: how many times the published figure is as large, of times as short.\n"
        + "".join(f"{key[0].upper()}: {words}.\n" for key, words in LIMITS.items())
        + "ours: cycle model (modelled); none: it has no such figure, or takes the published one.\n"
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


def break_even_table(found: BreakEvenMap, side: Side) -> Table:
    """Show the share of batches and models that the card wins, and its best ratio, by MFU.

    Args:
        found: the map.
        side: level of the card.
    """
    table = Table(title=f"Where the card takes fewer joules a token: {CARD[side]}", width=WIDTH)
    table.add_column("who pays idle power")
    table.add_column("H100")
    for mfu in found.axes.mfus:
        table.add_column(f"{100 * mfu:.0f} % MFU", justify="right")
    table.add_column("largest", justify="right")
    for accounting in ACCOUNTINGS:
        for i, precision in enumerate(PRECISIONS):
            cells = []
            for mfu in found.axes.mfus:
                one = found.chosen(side, (accounting,), (precision,), (mfu,))
                one = one[~np.isnan(one)]
                cells.append(f"{_percent(float(np.mean(one > 1)))}\n{number(one.max())} x")
            size = found.largest_winner(side, (accounting,), (precision,))
            largest = "none" if size is None else params_words(size)
            table.add_row("" if i else accounting.title, precision.name, *cells, largest)
        table.add_section()
    table.caption = (
        "share of cells (model, rows, tokens a row) that the card wins; below it its best ratio;\n"
        "largest: the largest model that wins in some cell of the row"
    )
    return table


def slice_table(found: BreakEvenMap, side: Side, accounting: ChargingRule, mfu: float) -> Table:
    """Show the ratios of one row at a time, by model and length.

    Args:
        found: the map.
        side: level of the card.
        accounting: who pays for idle power.
        mfu: share of the GPU's peak.
    """
    title = f"Ratio at one row, BF16 at {100 * mfu:.0f} % MFU, {accounting.title}: {CARD[side]}"
    table = Table(title=title, width=WIDTH)
    table.add_column("model \\ tokens", justify="right")
    for tokens in found.axes.tokens:
        table.add_column(f"{tokens:,}", justify="right")
    ratios = found.chosen(side, (accounting,), (BF16,), (mfu,))[:, 0, :, 0, 0, 0]
    for size, own in zip(found.axes.sizes, ratios, strict=True):
        table.add_row(params_words(size), *(number(value) for value in own))
    return table


def tables(
    found: BreakEvenMap,
    rows: Sequence[Row],
    checks: Sequence[Check],
    broken: Sequence[Violation],
) -> Iterator[Table]:
    """Make all tables in order.

    Args:
        found: the map.
        rows: printed figures with their limits.
        checks: all checks.
        broken: what cannot be true.
    """
    yield paper_table(rows)
    yield violation_table(broken, checks)
    for side in SIDES:
        yield break_even_table(found, side)
        yield slice_table(found, side, ALWAYS, 0.5)


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


def times(value: float | None) -> str:
    """A ratio; empty without one."""
    return "" if value is None else f"{number(value)} x"
