"""The physics benchmark's tables for a terminal of 100 columns."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.studies.physics.audit import Check, Violation, about_gpus, printed_figures
from benchmarks.studies.physics.map import SIDES, Side, params_m, params_words
from benchmarks.studies.physics.paper import LIMITS, PaperRow
from benchmarks.studies.physics.passes import (
    ACCOUNTINGS,
    ALWAYS,
    BF16,
    PRECISIONS,
    ChargingRule,
    Precision,
)
from benchmarks.studies.physics.ranges import Ends, RangedMap, ends_of, scoring_mfus
from ecorl.devices import DeviceProfile, cheapest, dearest
from ecorl.devices.gpu_pass import streaming_w

WIDTH = 100
WORDS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
"""What tables, picture and printed lines say, as templates."""

CARD: dict[Side, str] = {
    "ours": "our kernels, cycle model",
    "ideal": "ideal HLS design",
    "bound": "bound of the silicon, at 65 W",
}
Column = tuple[str, Mapping[str, Any]]
"""Name of a column, and how its cells are set."""

_FOLD: Mapping[str, Any] = {"overflow": "fold"}
_PLAIN: Mapping[str, Any] = {"no_wrap": True}
_RIGHT: Mapping[str, Any] = {"justify": "right", "no_wrap": True}


def how(card: DeviceProfile, gpu: DeviceProfile) -> tuple[str, ...]:
    """What all ratios rest on, in lines for a terminal.

    Args:
        card: profile of the U55C.
        gpu: profile of the H100.
    """
    ends = cheapest(gpu), dearest(gpu)
    idle_w, memory_w, mbu = (
        sorted(of(end) for end in ends)
        for of in (lambda p: p.value("idle_w"), streaming_w, lambda p: 100 * p.value("mbu_decode"))
    )
    mfus = scoring_mfus(gpu)
    assert mfus.low is not None
    assert mfus.high is not None
    words: dict[str, Any] = {
        "full_w": gpu.value("active_w"),
        "idle_w": gpu.value("idle_w"),
        "card_idle_w": card.value("idle_w"),
        "memory_w": streaming_w(gpu),
        "mbu": 100 * gpu.value("mbu_decode"),
        "tb_per_s": gpu.value("memory_bytes_per_s") / 1e12,
        "launch_us": 1e6 * gpu.value("launch_s"),
        "mfu_low": 100 * mfus.low,
        "mfu_high": 100 * mfus.high,
    }
    for name, (low, high) in {"idle": idle_w, "memory": memory_w, "mbu": mbu}.items():
        unit = "" if name == "mbu" else "_w"
        words |= {f"{name}_low{unit}": low, f"{name}_high{unit}": high}
    wrapped = (
        line
        for key in ("how_gpu", "how_intervals")
        for line in wrap(WORDS[key].format(**words), WIDTH - 4)
    )
    return (*wrapped, *WORDS["how_card"], WORDS["how_idle"].format(**words))


def _table(title: str, columns: Sequence[Column], caption: str = "", **options: Any) -> Table:
    """A table as wide as the terminal; columns by name, with how their cells are set."""
    table = Table(title=title, width=WIDTH, caption=caption or None, **options)
    for name, setting in columns:
        table.add_column(name, **setting)
    return table


def paper_table(rows: Sequence[PaperRow]) -> Table:
    """Printed figures beside their limits and ours."""
    limits = "".join(f"{key[0].upper()}: {words}.\n" for key, words in LIMITS.items())
    columns = [
        ("", _FOLD), ("figure", _FOLD), ("published", _RIGHT), ("limit", _RIGHT), ("", _PLAIN),
        ("x limit", _RIGHT), ("ours", _RIGHT), ("x ours", _RIGHT), ("", _PLAIN),
    ]  # fmt: skip
    table = _table(WORDS["paper_title"], columns, WORDS["paper_caption"].format(limits=limits))
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
    return table


def violation_table(found: Sequence[Violation], checks: Sequence[Check]) -> Table:
    """List what cannot be true, with the arithmetic.

    Args:
        found: what cannot be true.
        checks: all checks, for their count.
    """
    gpus = about_gpus(found)
    words: dict[str, Any] = {
        "n": len(found), "n_printed": printed_figures(found), "n_gpus": len(gpus),
        "n_printed_gpus": printed_figures(gpus), "n_hold": sum(c.holds for c in checks),
        "n_checks": len(checks),
    }  # fmt: skip
    columns = [
        ("printed", {**_FOLD, "ratio": 4}), ("against", _RIGHT), ("apart", _RIGHT),
        ("how", {**_FOLD, "ratio": 5}),
    ]  # fmt: skip
    title, caption = (WORDS[f"violation_{key}"].format(**words) for key in ("title", "caption"))
    table, kind = _table(title, columns, caption), ""
    kinds = [*LIMITS, "contradiction"]
    for v in sorted(found, key=lambda v: kinds.index(v.kind)):
        if v.kind != kind:
            kind = v.kind
            table.add_section()
            table.add_row(f"[b]{_against(v)}[/b]")
        value = "" if v.kind == "contradiction" else f": {number(v.printed)} {v.unit}"
        unit = "" if v.unit == "1" else f" {v.unit}"
        table.add_row(f"{v.text}{value}", f"{number(v.other)}{unit}", times(v.ratio), v.arithmetic)
    return table


def _against(v: Violation) -> str:
    return "against one another" if v.kind == "contradiction" else f"above the {LIMITS[v.kind]}"


def break_even_table(ranged: RangedMap, side: Side) -> Table:
    """Show the share of batches and models that the card wins, and its best ratio, by MFU.

    Args:
        ranged: the map with its intervals.
        side: level of the card.
    """
    mfus = ranged.found.axes.mfus
    columns: list[Column] = [("who pays idle power", _FOLD), ("H100", {})]
    columns += [(f"{100 * mfu:.0f} % MFU", _RIGHT) for mfu in mfus] + [("largest", _RIGHT)]
    title = WORDS["break_even_title"].format(card=CARD[side])
    table = _table(title, columns, WORDS["break_even_caption"], padding=0)
    for accounting in ACCOUNTINGS:
        for i, precision in enumerate(PRECISIONS):
            cells = [_share_and_best(ranged, side, accounting, precision, mfu) for mfu in mfus]
            largest = _largest(ranged, side, accounting, precision)
            table.add_row("" if i else accounting.title, precision.name, *cells, largest)
        table.add_section()
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
    mfus = {"mfu": mfu, "mfu_low": ranged.scoring_mfus[0], "mfu_high": ranged.scoring_mfus[-1]}
    percents = {key: 100 * share for key, share in mfus.items()}
    title = WORDS["slice_title"].format(charge=accounting.title, card=CARD[side], **percents)
    columns: list[Column] = [("model \\ tokens", {"justify": "right"})]
    columns += [(f"{tokens:,}", _RIGHT) for tokens in ranged.found.axes.tokens]
    table = _table(title, columns, padding=0)
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
