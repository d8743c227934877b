"""The EcoRL-Sched paper's card figures beside what limits them and what our model gives.

Each `Row` is one printed figure of its Table 2, Table 3, figure 3 or Lemma 1, with

- a limit, by the least work of its reward model and one of three (`LIMITS`): what the paper itself
  prints of the design (DSPs x products a DSP x clock, board power); the bound of the silicon, by
  the card's data sheets, where a figure claims a rate of the whole card; or an H100's data sheet;
- our figure, of the cycle model of our kernels (modelled, not measured).

The reward model is ArmoRM's Llama 3 8B, 7.0 B parameters beside the embedding, which is also what
Table 2 calls 7 B. Its least work a token lies below the usual ``2 N`` = 14 GOP: the last layer is
needed for a row's last token alone. Products are taken to be made in DSPs, as the paper's table
counts its cores. The tables do not say how long rows are: 512 tokens are those of section 3.3, and
where a batch of 32 rows is timed its own 142 tokens/ms give it 32 tokens a row, which is kind to
the printed time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ecorl.bench.physics.passes import LINK_BYTES_PER_S, scoring, silicon_ops_per_s
from ecorl.devices import DeviceProfile, card_peak_ops, load_profile
from ecorl.devices.llama import model_shape
from ecorl.devices.paper import (
    H100_TOKENS_PER_J,
    REFERENCE_PARAMS,
    U55C_POWER_W,
    U55C_TOKENS_PER_J,
)
from ecorl.devices.work import least_ops, least_products
from ecorl.engines.fpga.cycles.model import BatchShape, CardTime, CycleModel

OPS_PER_TOKEN = 2.0 * REFERENCE_PARAMS
"""The usual ``2 N`` of a 7 B model: a product and a sum for each parameter, without attention."""

REWARD_MODEL = model_shape("8b", scalar_head=True)

ROUNDING = 1.05
"""A printed figure of two or three digits may be off by this much without being wrong."""

N_ROWS, LONG, SHORT = 32, 512, 32
MHA_DSPS, GEMM_DSPS, DSPS = 1024, 2048, 3136
GEMM_BYTES_PER_S, PAPER_LINK_BYTES_PER_S = 9.8e10, 3.2e10
TOTAL_MS, KERNEL_MS, DMA_IN_MS, DMA_OUT_MS, H100_MS, LEMMA_MS = 7.1, 2.1, 4.2, 0.8, 5.9, 6.3
FORWARD_MS, L_MAX = 14.8, 2048.0
H100_W, INFERENCE_W = 700.0, 65.0
EMBEDDING_WIDTH = 4096
PER_DSP = {"FP16": 1.0, "INT8": 2.0, "INT4": 6.0}
"""Products a DSP and cycle: one of 11 bits for FP16; two of INT8 (WP486); of INT4 four are usual,
six have been reached with small errors (arXiv 2203.11028)."""

LUTS, FFS, BRAMS, URAMS = 1_303_680, 2_607_360, 2016, 960
"""What the card has: AMD DS978."""

TABLE_3 = {"FP16": (71.0, 6.9), "INT8": (142.0, 13.7), "INT4": (261.0, 22.1)}
"""Tokens/ms and tokens/J as printed."""

Sense = Literal["at most", "at least"]

Against = Literal["silicon", "printed", "h100"]

LIMITS: dict[Against, str] = {
    "silicon": "bound of the silicon, by the card's data sheets",
    "printed": "peak of the DSPs, clock and power that the paper prints",
    "h100": "peak of an H100, by its data sheet",
}
"""What a printed figure is held against, in words."""


@dataclass(frozen=True, slots=True)
class Row:
    """One printed figure.

    Attributes:
        id: unique.
        place: table or figure of the paper.
        text: what it is.
        unit: of all three figures.
        published: as printed.
        limit: what a true figure cannot pass; None where there is none.
        why: how the limit comes about, or why there is none.
        ours: of our cycle model; None where it has no such figure.
        sense: whether a true figure is at most or at least the limit.
        note: what to know of our figure.
        repeats: id of the row whose figure this one is again; empty otherwise.
        against: whose limit it is.
    """

    id: str
    place: str
    text: str
    unit: str
    published: float
    limit: float | None
    why: str
    ours: float | None
    sense: Sense = "at most"
    note: str = ""
    repeats: str = ""
    against: Against = "silicon"

    def beyond(self, other: float | None) -> float | None:
        """How many times better than another figure the printed one is; None without one."""
        if other is None or other <= 0:
            return None
        return self.published / other if self.sense == "at most" else other / self.published

    @property
    def flagged(self) -> bool:
        """Whether the printed figure lies beyond its limit, rounding aside."""
        beyond = self.beyond(self.limit)
        return beyond is not None and beyond > ROUNDING


def array_ops_per_s(n_dsps: float, per_dsp: float = 2.0) -> float:
    """Operations a second of so many DSPs at the paper's clock of 245 MHz."""
    return card_peak_ops(n_dsps, load_profile("u55c").value("clock_hz"), per_dsp)


@dataclass(frozen=True, slots=True)
class LeastWork:
    """Operations a token of the 8 B reward model in rows of 512 tokens that none can spare.

    Attributes:
        products: with weights.
        attention: scores and weighted values, causal.
    """

    products: float
    attention: float

    @property
    def ops(self) -> float:
        """Both."""
        return self.products + self.attention


def least_work() -> LeastWork:
    """See `LeastWork`."""
    work = scoring(REWARD_MODEL, 1, LONG)
    least = least_products(work, REWARD_MODEL)
    products = 2.0 * (least.earlier + least.last * least.wanted / least.tokens)
    return LeastWork(products, least_ops(work, REWARD_MODEL) / LONG - products)


def tokens_per_ms(ops_per_s: float, ops_per_token: float = OPS_PER_TOKEN) -> float:
    """Tokens a millisecond at a rate of operations."""
    return ops_per_s / ops_per_token / 1e3


def stream_ms(bytes_per_s: float, n_bytes: float = REFERENCE_PARAMS) -> float:
    """Time to read the INT8 weights of 7 B parameters once, ms."""
    return 1e3 * n_bytes / bytes_per_s


@dataclass(frozen=True, slots=True)
class Ours:
    """Our cycle model for the 8 B reward model: 32 rows of 512 tokens, and 32 rows of 32."""

    long: CardTime
    short: CardTime

    @property
    def tokens_per_ms(self) -> float:
        """Of the long batch."""
        return N_ROWS * LONG / self.long.time_s / 1e3

    def kernel_tokens_per_ms(self, kernel: str) -> float:
        """Tokens of the long batch over the time of one kernel."""
        found = self.long.of(kernel)
        assert found is not None  # a forward calls it
        return N_ROWS * LONG / found.time_s / 1e3

    def gb_per_s(self, kernel: str) -> float | None:
        """Bytes that a kernel moves through HBM over its own time, GB/s; None without a call."""
        found = self.long.of(kernel)
        return None if found is None else found.moved_bytes / found.time_s / 1e9


def ours(card: DeviceProfile) -> Ours:
    """Run the cycle model."""
    model = CycleModel(REWARD_MODEL, card)
    long, short = (BatchShape((n,) * N_ROWS, (1,) * N_ROWS, 1) for n in (LONG, SHORT))
    return Ours(model.batch(long), model.batch(short))


def rows(card: DeviceProfile, gpu: DeviceProfile, declared_dsps: int | None) -> tuple[Row, ...]:
    """All printed figures of the card, in the order of the paper.

    Args:
        card: profile of the U55C.
        gpu: profile of the H100.
        declared_dsps: DSPs that our kernels declare; None where they do not.
    """
    model = ours(card)
    return (
        *_table_2(card, model, declared_dsps), *_table_3(card, model),
        *_figure_3(card, gpu, model), *_lemma_1(card, gpu, model),
    )  # fmt: skip


def _table_2(card: DeviceProfile, model: Ours, declared: int | None) -> list[Row]:
    t, hbm = "Table 2", card.value("memory_bytes_per_s") / 1e9
    rate = f"HBM, {hbm:.0f} GB/s"
    no_call = "a reward does not call ours"
    as_input = "our model takes the printed one"
    none, card_has = "nothing is synthesised", "what the card has"
    kernels = {
        "mha_int8": ("MHA core", 120.0),
        "gemm_int8": ("INT8 GEMM", 98.0),
        "kv_cache_router": ("KV-cache router", 42.0),
        "score_aggregator": ("Score aggregator", 4.0),
    }
    least = least_work()
    return [
        Row("mha_rate", t, "MHA core", "token/ms", 142.0,
            tokens_per_ms(array_ops_per_s(MHA_DSPS), least.attention),
            f"1,024 DSPs x 4 x 245 MHz; attention alone, {least.attention / 1e6:.0f} MOP a token "
            "in rows of 512",
            model.kernel_tokens_per_ms("mha_int8"), against="printed"),
        Row("gemm_rate", t, "INT8 GEMM", "token/ms", 316.0,
            tokens_per_ms(array_ops_per_s(GEMM_DSPS), least.products),
            f"2,048 DSPs x 4 x 245 MHz; {least.products / 1e9:.1f} GOP a token",
            model.kernel_tokens_per_ms("gemm_int8"), against="printed"),
        Row("router_rate", t, "KV-cache router", "GB/s", 1.2, hbm, rate,
            model.gb_per_s("kv_cache_router")),
        Row("aggregator_ms", t, "Score aggregator", "ms", 1.0, None,
            "no batch is printed", None, "at least",
            f"below 1 ms is printed; {no_call}"),
        Row("pcie_rate", t, "PCIe DMA", "GB/s", 12.0, LINK_BYTES_PER_S / 1e9, "two PCIe 4.0 x8",
            None, note=as_input),
        *(Row(f"hbm_{kernel}", t, f"{name}: HBM", "GB/s", printed, hbm, rate,
              model.gb_per_s(kernel), note="" if model.long.of(kernel) else no_call)
          for kernel, (name, printed) in kernels.items()),
        Row("hbm_total", t, "All: HBM", "GB/s", 264.0, hbm, rate,
            model.long.memory_bytes / model.long.kernel_s / 1e9,
            note="one kernel after the other"),
        Row("dsps", t, "DSPs", "1", 3136.0, card.value("n_dsp"), card_has,
            None if declared is None else float(declared), note="declared, not synthesised"),
        Row("luts", t, "LUTs", "1", 532e3, float(LUTS), card_has, None, note=none),
        Row("ffs", t, "FFs", "1", 616e3, float(FFS), card_has, None, note=none),
        Row("brams", t, "Block RAMs", "1", 124.0, float(BRAMS), card_has, None, note=none),
        Row("urams", t, "UltraRAMs", "1", 192.0, float(URAMS), card_has, None, note=none),
        Row("clock", t, "Clock", "MHz", 245.0, card.value("clock_max_hz") / 1e6,
            "a DSP slice alone; HLS designs: 200 to 300", None, note=as_input),
        Row("power", t, "Board power", "W", U55C_POWER_W, card.value("tdp_w"),
            "the board's limit", None, note=as_input),
    ]  # fmt: skip


def _table_3(card: DeviceProfile, model: Ours) -> list[Row]:
    t, made, ops = "Table 3", [], least_work().ops
    each = f"{ops / 1e9:.1f} GOP a token"
    no_kernel = "our kernels compute INT8 alone"
    accuracy = {"FP16": 100.0, "INT8": 99.62, "INT4": 96.20}
    for name, (rate, per_j) in TABLE_3.items():
        limit = tokens_per_ms(array_ops_per_s(DSPS, PER_DSP[name]), ops)
        is_int8 = name == "INT8"
        products = f"3,136 DSPs x {2 * PER_DSP[name]:.0f} x 245 MHz"
        own = model.tokens_per_ms if is_int8 else None
        note = "" if is_int8 else no_kernel
        made += [
            Row(f"{name.lower()}_rate", t, f"{name} rate", "token/ms", rate, limit,
                f"{products}; {each}", own, note=note, against="printed"),
            Row(f"{name.lower()}_tokens_per_j", t, f"{name} efficiency", "token/J", per_j,
                1e3 * limit / U55C_POWER_W, f"{products}; {each}; 73 W",
                None if own is None else 1e3 * own / card.value("active_w"), note=note,
                against="printed"),
            Row(f"{name.lower()}_kept", t, f"{name} rankings kept", "%", accuracy[name], None,
                "a matter of the model and its data", None,
                note="benchmarks.precision has our own model's"),
        ]  # fmt: skip
    made.append(
        Row("int8_rate_die", t, "INT8 rate, all DSPs", "token/ms", 142.0,
            tokens_per_ms(silicon_ops_per_s(card), ops), f"9,024 DSPs x 4 x 775 MHz; {each}",
            model.tokens_per_ms, repeats="int8_rate")
    )  # fmt: skip
    return made


def _figure_3(card: DeviceProfile, gpu: DeviceProfile, model: Ours) -> list[Row]:
    hbm, short, ops = card.value("memory_bytes_per_s"), model.short, least_work().ops
    stream = "7 GB of weights at 460 GB/s"
    sent = N_ROWS * LONG * EMBEDDING_WIDTH
    gpu_w, peak = gpu.value("active_w"), gpu.value("peak_bf16_flops")
    gpu_stream_ms = stream_ms(gpu.value("memory_bytes_per_s"), 2.0 * REFERENCE_PARAMS)
    short_rows = "32 rows of 32 tokens"
    return [
        Row("peak_tokens_per_j", "Fig. 3B", "Card, best batch", "token/J", U55C_TOKENS_PER_J,
            1e3 * tokens_per_ms(array_ops_per_s(DSPS), ops) / U55C_POWER_W,
            f"3,136 DSPs x 4 x 245 MHz; {ops / 1e9:.1f} GOP a token; 73 W",
            1e3 * model.tokens_per_ms / card.value("active_w"), repeats="int8_tokens_per_j",
            against="printed"),
        Row("h100_tokens_per_j", "Fig. 3B", "H100", "token/J", H100_TOKENS_PER_J,
            peak / ops / gpu_w, f"989 TFLOPS at 700 W; {ops / 1e9:.1f} GOP a token",
            0.5 * peak / OPS_PER_TOKEN / gpu_w, note="roofline, 50 % MFU, 2 N a token",
            against="h100"),
        Row("dma_in_ms", "Fig. 3C", "DMA in", "ms", DMA_IN_MS, 1e3 * sent / LINK_BYTES_PER_S,
            "32 x 512 embeddings of 4,096 B at 31.5 GB/s", 1e3 * short.link_s, "at least",
            f"token ids and results both ways, {short_rows}"),
        Row("kernel_ms", "Fig. 3C", "Kernel", "ms", KERNEL_MS, stream_ms(hbm), stream,
            1e3 * (short.kernel_s + short.launch_s), "at least", short_rows),
        Row("dma_out_ms", "Fig. 3C", "DMA out", "ms", DMA_OUT_MS, None,
            "what goes out is not printed", None, "at least", "see DMA in"),
        Row("total_ms", "Fig. 3C", "Card in all", "ms", TOTAL_MS, stream_ms(hbm), stream,
            1e3 * short.time_s, "at least", short_rows),
        Row("h100_ms", "Fig. 3C", "H100 in all", "ms", H100_MS, gpu_stream_ms,
            "14 GB of weights at 3.35 TB/s",
            1e3 * N_ROWS * SHORT * OPS_PER_TOKEN / (0.5 * peak), "at least",
            f"roofline at 50 % MFU, {short_rows}", against="h100"),
    ]  # fmt: skip


def _lemma_1(card: DeviceProfile, gpu: DeviceProfile, model: Ours) -> list[Row]:
    t, peak = "Lemma 1", gpu.value("peak_bf16_flops")
    forward_ms = 1e3 * 2.0 * 70e9 * N_ROWS * LONG / (32 * peak)
    ops = least_work().ops
    tokens = 4 * tokens_per_ms(array_ops_per_s(DSPS), ops) * FORWARD_MS
    four_ours = 4 * model.tokens_per_ms * FORWARD_MS
    return [
        Row("lemma_ms", t, "Card at batch 32", "ms", LEMMA_MS,
            stream_ms(card.value("memory_bytes_per_s")), "7 GB of weights at 460 GB/s",
            1e3 * model.short.time_s, "at least", "32 rows of 32 tokens"),
        Row("forward_ms", t, "GPUs' forward pass, 70 B", "ms", FORWARD_MS, forward_ms,
            "32 x 512 tokens x 140 GOP at the peak of 32 H100", 2.0 * forward_ms, "at least",
            "roofline at 50 % MFU", against="h100"),
        Row("l_max", t, "Longest rows it hides", "token", L_MAX, tokens / N_ROWS,
            f"14.8 ms of four cards of 3,136 DSPs at 245 MHz; {ops / 1e9:.1f} GOP a token",
            four_ours / N_ROWS, against="printed"),
    ]  # fmt: skip
