"""Do the paper's card figures agree with one another? Every check with its arithmetic.

What a check derives comes from the paper's other figures (and, where it says so, from the card's
data sheet), nothing from our models. Checks that hold are listed too. `violations` are those that
do not, and the printed figures above a limit (`ecorl.bench.physics.paper`). Several findings may
concern one printed figure: `printed_figures` counts those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ecorl.bench.physics.paper import (
    BRAMS,
    DMA_IN_MS,
    DMA_OUT_MS,
    DSPS,
    EMBEDDING_WIDTH,
    FFS,
    GEMM_BYTES_PER_S,
    H100_MS,
    H100_W,
    INFERENCE_W,
    KERNEL_MS,
    LEMMA_MS,
    LONG,
    LUTS,
    N_ROWS,
    OPS_PER_TOKEN,
    PAPER_LINK_BYTES_PER_S,
    ROUNDING,
    TABLE_3,
    TOTAL_MS,
    URAMS,
    Against,
    Row,
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
"""Rows of `ecorl.bench.physics.paper` that are a GPU's."""


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


def violations(rows: Sequence[Row], found: Sequence[Check]) -> tuple[Violation, ...]:
    """Rows beyond their limit, a figure printed twice once, and checks that do not hold."""
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
    """All checks, those that hold included."""
    return (*_powers(), *_ratios(), *_times(gpu), *_links(), *_shares(card), *_sums())


def _powers() -> list[Check]:
    """Tokens/ms over tokens/J is a power, and so is every other way to get one."""
    made = [
        Check(f"{name.lower()}_power", f"Board power 73 W (Table 2) for {name} (Table 3)", "W",
              U55C_POWER_W, 1e3 * rate / per_j,
              f"{1e3 * rate:,.0f} token/s / {per_j:g} token/J", concerns="power")
        for name, (rate, per_j) in TABLE_3.items()
    ]  # fmt: skip
    tokens = U55C_TOKENS_PER_J * U55C_POWER_W * TOTAL_MS / 1e3
    gpu_tokens = H100_TOKENS_PER_J * H100_W * H100_MS / 1e3
    made += [
        Check("card_batch", "At least 32 tokens in 32 rows, card (Fig. 3C)", "token", N_ROWS,
              tokens, "13.7 token/J x 73 W x 7.1 ms", is_least=True, concerns="total_ms"),
        Check("h100_batch", "At least 32 tokens in 32 rows, H100 (Fig. 3C)", "token", N_ROWS,
              gpu_tokens, "4.8 token/J x 700 W x 5.9 ms", is_least=True, concerns="h100_ms"),
    ]  # fmt: skip
    return made


def _ratios() -> list[Check]:
    printed = U55C_TOKENS_PER_J / H100_TOKENS_PER_J
    powers = H100_W / INFERENCE_W * H100_MS / TOTAL_MS
    return [
        Check("ratio_abstract", "Card over H100, tokens/J: 4.9 (abstract)", "1", 4.9, printed,
              "13.7 / 4.8 of Fig. 3B"),
        Check("ratio_figure_2", "Card over H100, EDI: 4.8 (Fig. 2C)", "1", 4.8, printed,
              "13.7 / 4.8 of Fig. 3B"),
        Check("ratio_powers", "Card over H100: 4.9 from 65 W and 700 W (section 1)", "1", 4.9,
              powers, "700 W / 65 W x 5.9 ms / 7.1 ms of Fig. 3C", concerns="ratio_abstract"),
    ]  # fmt: skip


def _times(gpu: DeviceProfile) -> list[Check]:
    batch_ms = N_ROWS * LONG / (U55C_TOKENS_PER_S / 1e3)
    h100_tokens = U55C_TOKENS_PER_S / 1e3 * TOTAL_MS
    peak = gpu.value("peak_bf16_flops")
    return [
        Check("lemma_total", "Card at batch 32: 6.3 ms (section 3.1)", "ms", LEMMA_MS, TOTAL_MS,
              "7.1 ms of Fig. 3C for the same batch", concerns="lemma_ms"),
        Check("batch_ms", "Card at batch 32: 7.1 ms (Fig. 3C)", "ms", TOTAL_MS, batch_ms,
              "32 x 512 tokens (section 3.3) / 142 token/ms", concerns="total_ms"),
        Check("gemm_stream", "Card at batch 32: 7.1 ms (Fig. 3C)", "ms", TOTAL_MS,
              stream_ms(GEMM_BYTES_PER_S), "7 GB of weights / 98 GB/s of Table 2",
              concerns="total_ms"),
        Check("h100_peak", "H100 at batch 32: 5.9 ms (Fig. 3C)", "ms", H100_MS,
              1e3 * h100_tokens * OPS_PER_TOKEN / peak,
              "142 token/ms x 7.1 ms = 1,008 tokens x 14 GOP at its peak of 989 TFLOPS",
              concerns="h100_ms"),
    ]  # fmt: skip


def _links() -> list[Check]:
    sent = N_ROWS * LONG * EMBEDDING_WIDTH
    percent = 100.0 * DMA_IN_MS / TOTAL_MS
    return [
        Check("dma_64", "DMA of 64 x 512 embeddings: 4.2 ms (section 3.3)", "ms", DMA_IN_MS,
              2e3 * sent / PAPER_LINK_BYTES_PER_S, "134 MB / 32 GB/s", concerns="dma_in_ms"),
        Check("dma_32", "DMA in at batch 32: 4.2 ms (Fig. 3C)", "ms", DMA_IN_MS,
              1e3 * sent / PAPER_LINK_BYTES_PER_S,
              "67 MB / 32 GB/s; section 3.3 has 4.2 ms for batch 64", concerns="dma_in_ms"),
        Check("dma_rate", "PCIe at 32 GB/s (section 3.3)", "GB/s", 32.0, 12.0,
              "Table 2 prints PCIe DMA at 12 GB/s"),
        Check("dma_share", "DMA in is 28 % of the time (Fig. 3C)", "%", 28.0, percent,
              "4.2 ms / 7.1 ms; the three shares printed add up to 47 %"),
    ]  # fmt: skip


def _shares(card: DeviceProfile) -> list[Check]:
    return [
        Check("dsp_share", "DSPs: 48.7 % of the card (Table 2)", "%", 48.7,
              100.0 * DSPS / card.value("n_dsp"), "3,136 / 9,024"),
        Check("bram_share", "Block RAMs: 17.2 % of the card (Table 2)", "%", 17.2,
              100.0 * 124 / BRAMS, "124 / 2,016"),
        Check("uram_share", "UltraRAMs: 37.5 % of the card (Table 2)", "%", 37.5,
              100.0 * 192 / URAMS, "192 / 960"),
        Check("lut_share", "LUTs: 40.9 % of the card (Table 2)", "%", 40.9, 100.0 * 532e3 / LUTS,
              "532,000 / 1,303,680"),
        Check("ff_share", "FFs: 23.7 % of the card (Table 2)", "%", 23.7, 100.0 * 616e3 / FFS,
              "616,000 / 2,607,360"),
    ]  # fmt: skip


def _sums() -> list[Check]:
    return [
        Check("dsp_sum", "DSPs in all: 3,136 (Table 2)", "1", DSPS, 1024 + 2048 + 64,
              "1,024 + 2,048 + 64", concerns="dsps"),
        Check("hbm_sum", "HBM in all: 264 GB/s (Table 2)", "GB/s", 264.0,
              120.0 + 98.0 + 42.0 + 4.0, "120 + 98 + 42 + 4", concerns="hbm_total"),
        Check("total_sum", "Card at batch 32: 7.1 ms (Fig. 3C)", "ms", TOTAL_MS,
              DMA_IN_MS + KERNEL_MS + DMA_OUT_MS, "4.2 + 2.1 + 0.8", concerns="total_ms"),
        Check("within_20", "Card within 20 % of the H100 (Fig. 3C)", "1", 1.2, TOTAL_MS / H100_MS,
              "7.1 ms / 5.9 ms"),
        Check("int8_sum", "INT8 rankings kept and flipped (Table 3)", "%", 100.0, 99.62 + 0.38,
              "99.62 + 0.38"),
        Check("int4_sum", "INT4 rankings kept and flipped (Table 3)", "%", 100.0, 96.2 + 3.8,
              "96.20 + 3.80"),
    ]  # fmt: skip
