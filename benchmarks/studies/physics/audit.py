"""Checks whether the paper's card figures agree with one another, with the arithmetic.

What a check derives comes from the paper's other figures (and, where it says so, from the card's
data sheet), nothing from our models. Checks that hold are listed too. `violations` are those that
do not, and the printed figures above a limit (`benchmarks.studies.physics.paper`). Several findings
may concern one printed figure: `printed_figures` counts those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.studies.physics.paper import (
    CARD_HAS,
    CHECKS,
    DESIGN,
    DSPS,
    LONG,
    N_ROWS,
    OPS_PER_TOKEN,
    PRINTED,
    ROUNDING,
    TABLE_3,
    Against,
    PaperRow,
    stream_ms,
)
from ecorl.devices import DeviceProfile
from ecorl.devices.paper import (
    H100_TOKENS_PER_J,
    U55C_POWER_W,
    U55C_TOKENS_PER_J,
    U55C_TOKENS_PER_S,
)

Kind = Literal[Against, "contradiction"]

GPU_FIGURES = ("h100_tokens_per_j", "h100_ms", "forward_ms")
"""Rows of `benchmarks.studies.physics.paper` that are a GPU's."""


@dataclass(frozen=True, slots=True)
class Check:
    """One printed figure against others.

    Attributes:
        id: unique.
        text: what is printed, and where.
        unit: of both figures.
        printed: as printed.
        derived: what the others give.
        arithmetic: how, to be followed by hand.
        is_least: whether what is printed is a lower limit of the other.
        concerns: id of the row or check of the printed figure in question where that is not its
            own. A check of several printed figures concerns one that is in question anyway, so
            that no figure is counted for this check alone.
    """

    id: str
    text: str
    unit: str
    printed: float
    derived: float
    arithmetic: str
    is_least: bool = False
    concerns: str = ""

    @property
    def ratio(self) -> float:
        """The larger of both over the smaller."""
        low, high = sorted((self.printed, self.derived))
        return high / low

    @property
    def holds(self) -> bool:
        """Whether both agree, rounding aside."""
        return self.ratio <= ROUNDING or (self.is_least and self.derived >= self.printed)


@dataclass(frozen=True, slots=True)
class Violation:
    """A printed figure that cannot be true, or not together with the others.

    Attributes:
        id: of its row or check.
        kind: whose limit it is beyond, or ``contradiction`` with other printed figures.
        text: what is printed.
        printed: as printed.
        other: the limit, or what the paper's other figures give.
        unit: of both.
        ratio: how far apart they are, at least 1.
        arithmetic: how the other figure comes about.
        concerns: the printed figure; two findings on one have the same here.
    """

    id: str
    kind: Kind
    text: str
    printed: float
    other: float
    unit: str
    ratio: float
    arithmetic: str
    concerns: str


def violations(rows: Sequence[PaperRow], found: Sequence[Check]) -> tuple[Violation, ...]:
    """Select rows beyond their limit, a figure printed twice once, and checks that do not hold.

    Args:
        rows: printed figures with their limits.
        found: all checks.
    """
    above = [
        Violation(row.id, row.against, f"{row.text} ({row.place})", row.published, row.limit,
                  row.unit, beyond, row.why, row.id)
        for row in rows
        if row.flagged and not row.repeats
        and row.limit is not None and (beyond := row.beyond(row.limit)) is not None
    ]  # fmt: skip
    against = [
        Violation(c.id, "contradiction", c.text, c.printed, c.derived, c.unit, c.ratio,
                  c.arithmetic, c.concerns or c.id)
        for c in found
        if not c.holds
    ]  # fmt: skip
    return (*above, *against)


def printed_figures(found: Sequence[Violation]) -> int:
    """Distinct printed figures that findings concern."""
    return len({v.concerns for v in found})


def about_gpus(found: Sequence[Violation]) -> tuple[Violation, ...]:
    """The findings on printed figures of GPUs."""
    return tuple(v for v in found if v.concerns in GPU_FIGURES)


def checks(card: DeviceProfile, gpu: DeviceProfile) -> tuple[Check, ...]:
    """Make all checks, those that hold included.

    Args:
        card: profile of the U55C.
        gpu: profile of the H100.
    """
    derived = _derived(card, gpu)
    return tuple(Check(**(printed | {"derived": derived[printed["id"]]})) for printed in CHECKS)


def _derived(card: DeviceProfile, gpu: DeviceProfile) -> dict[str, float]:
    """What the paper's other figures give for each printed one, by the id of the check."""
    total_ms, h100_ms = PRINTED["total_ms"], PRINTED["h100_ms"]
    tokens_per_ms, h100_w = U55C_TOKENS_PER_S / 1e3, DESIGN["h100_w"]
    sent, link = N_ROWS * LONG * DESIGN["embedding_width"], DESIGN["link_bytes_per_s"]
    kernels = ("mha_int8", "gemm_int8", "kv_cache_router", "score_aggregator")
    ratio, peak = U55C_TOKENS_PER_J / H100_TOKENS_PER_J, gpu.value("peak_bf16_flops")
    return {
        # Tokens/ms over tokens/J is power, as are energy and tokens of a batch.
        **{f"{name.lower()}_power": 1e3 * rate / per_j for name, (rate, per_j) in TABLE_3.items()},
        "card_batch": U55C_TOKENS_PER_J * U55C_POWER_W * total_ms / 1e3,
        "h100_batch": H100_TOKENS_PER_J * h100_w * h100_ms / 1e3,
        # Card over H100, tokens/J.
        "ratio_abstract": ratio,
        "ratio_figure_2": ratio,
        "ratio_powers": h100_w / DESIGN["inference_w"] * h100_ms / total_ms,
        # Times of one batch, ms.
        "lemma_total": total_ms,
        "batch_ms": N_ROWS * LONG / tokens_per_ms,
        "gemm_stream": stream_ms(1e9 * PRINTED["hbm_gemm_int8"]),
        "h100_peak": 1e3 * (tokens_per_ms * total_ms) * OPS_PER_TOKEN / peak,
        # What crosses PCIe: ms, GB/s and per cent of the time.
        "dma_64": 2e3 * sent / link,
        "dma_32": 1e3 * sent / link,
        "dma_rate": PRINTED["pcie_rate"],
        "dma_share": 100.0 * PRINTED["dma_in_ms"] / total_ms,
        # Resources in use, per cent of what the card has.
        "dsp_share": 100.0 * DSPS / card.value("n_dsp"),
        **{f"{kind[:-1]}_share": 100.0 * PRINTED[kind] / n for kind, n in CARD_HAS.items()},
        # Sums of printed parts.
        "dsp_sum": DESIGN["mha_dsps"] + DESIGN["gemm_dsps"] + DESIGN["other_dsps"],
        "hbm_sum": sum(PRINTED[f"hbm_{kernel}"] for kernel in kernels),
        "total_sum": PRINTED["dma_in_ms"] + PRINTED["kernel_ms"] + PRINTED["dma_out_ms"],
        "within_20": total_ms / h100_ms,
        **{f"{n}_sum": PRINTED[f"{n}_kept"] + DESIGN[f"{n}_flipped"] for n in ("int8", "int4")},
    }
