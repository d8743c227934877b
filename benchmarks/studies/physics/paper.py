"""The EcoRL-Sched paper's card figures beside what limits them and what our model gives.

Each `PaperRow` is one printed figure of its Table 2, Table 3, figure 3 or Lemma 1, with

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

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from benchmarks.studies.physics.passes import LINK_BYTES_PER_S, scoring, silicon_ops_per_s
from benchmarks.studies.physics.ranges import Ends, ends_of, scoring_mfus
from ecorl.devices import DeviceProfile, card_peak_ops, load_profile
from ecorl.devices.llama import model_shape
from ecorl.devices.paper import REFERENCE_PARAMS, U55C_POWER_W
from ecorl.devices.work import least_ops, least_products
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.cycles.model import CardTime, CycleModel

OPS_PER_TOKEN = 2.0 * REFERENCE_PARAMS
"""The usual ``2 N`` of a 7 B model: a product and a sum for each parameter, without attention."""

REWARD_MODEL = model_shape("8b", scalar_head=True)

ROUNDING = 1.05
"""A printed figure of two or three digits may be off by this much without being wrong."""

_DATA = tomllib.loads(
    (resources.files("benchmarks.studies.physics") / "printed.toml").read_text("utf-8")
)

DESIGN: Mapping[str, float] = _DATA["design"]
"""What the paper's text says of the workload and the design."""
CARD_HAS: Mapping[str, float] = _DATA["card"]
"""What a U55C has, by its data sheet."""
PER_DSP: Mapping[str, float] = _DATA["products_per_dsp"]
"""Products a DSP and cycle, by format."""
CHECKS: Sequence[dict[str, Any]] = _DATA["checks"]
"""Printed figures that can be derived from others."""
PRINTED: Mapping[str, float] = {row["id"]: row["published"] for row in _DATA["figures"]}
"""Printed figures by id."""

N_ROWS, LONG, SHORT = (int(DESIGN[key]) for key in ("n_rows", "long_tokens", "short_tokens"))
DSPS = PRINTED["dsps"]
TABLE_3 = {
    name: (PRINTED[f"{name.lower()}_rate"], PRINTED[f"{name.lower()}_tokens_per_j"])
    for name in PER_DSP
}
"""Tokens/ms and tokens/J by format."""

Sense = Literal["at most", "at least"]

Against = Literal["silicon", "printed", "h100"]

LIMITS: dict[Against, str] = {
    "silicon": "bound of the silicon, by the card's data sheets",
    "printed": "peak of the DSPs, clock and power that the paper prints",
    "h100": "peak of an H100, by its data sheet",
}
"""What a printed figure is held against, in words."""


@dataclass(frozen=True, slots=True)
class PaperRow:
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
        ours_ends: the interval of our figure by the MFU that scoring reaches; None where it does
            not rest on that.
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
    ours_ends: Ends | None = None

    def beyond(self, other: float | None) -> float | None:
        """Tell how many times better the printed figure is than another; None without one."""
        if other is None or other <= 0:
            return None
        return self.published / other if self.sense == "at most" else other / self.published

    @property
    def flagged(self) -> bool:
        """Whether the printed figure lies beyond its limit, rounding aside."""
        beyond = self.beyond(self.limit)
        return beyond is not None and beyond > ROUNDING


def array_ops_per_s(n_dsps: float, per_dsp: float = 2.0) -> float:
    """Compute the operations a second of DSPs at the paper's clock of 245 MHz.

    Args:
        n_dsps: DSPs at work.
        per_dsp: products of one DSP a cycle.
    """
    return card_peak_ops(n_dsps, load_profile("u55c").value("clock_hz"), per_dsp)


@dataclass(frozen=True, slots=True)
class LeastWork:
    """The fewest operations a token that the 8 B reward model takes in rows of 512 tokens.

    Attributes:
        products: with weights.
        attention: scores and weighted values, causal.
    """

    products: float
    attention: float

    @property
    def ops(self) -> float:
        """All operations: products and attention."""
        return self.products + self.attention


def least_work() -> LeastWork:
    """Count the least work of the 8 B reward model."""
    work = scoring(REWARD_MODEL, 1, LONG)
    least = least_products(work, REWARD_MODEL)
    products = 2.0 * (least.earlier + least.last * least.wanted / least.tokens)
    return LeastWork(products, least_ops(work, REWARD_MODEL) / LONG - products)


def tokens_per_ms(ops_per_s: float, ops_per_token: float = OPS_PER_TOKEN) -> float:
    """Compute the tokens a millisecond at a rate of operations.

    Args:
        ops_per_s: rate, operations per second.
        ops_per_token: operations of a token.
    """
    return ops_per_s / ops_per_token / 1e3


def stream_ms(bytes_per_s: float, n_bytes: float = REFERENCE_PARAMS) -> float:
    """Compute the time to read weights once, ms; by default the INT8 weights of 7 B parameters.

    Args:
        bytes_per_s: bandwidth, bytes per second.
        n_bytes: what is read.
    """
    return 1e3 * n_bytes / bytes_per_s


@dataclass(frozen=True, slots=True)
class Ours:
    """Our cycle model for the 8 B reward model: 32 rows of 512 tokens, and 32 rows of 32."""

    long: CardTime
    short: CardTime

    @property
    def tokens_per_ms(self) -> float:
        """Tokens a millisecond of the long batch."""
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


Derived = tuple[float | None, float | None]
"""The limit of a printed figure, and ours; None where there is none."""


def rows(
    card: DeviceProfile, gpu: DeviceProfile, declared_dsps: int | None
) -> tuple[PaperRow, ...]:
    """Set each printed figure of the card beside its limit and ours, in the order of the paper.

    Args:
        card: profile of the U55C.
        gpu: profile of the H100.
        declared_dsps: DSPs that our kernels declare; None where they do not.
    """
    model, least = ours(card), least_work()
    derived = _derived(card, gpu, model, declared_dsps)
    words = {
        "attention_mop": least.attention / 1e6,
        "products_gop": least.products / 1e9,
        "ops_gop": least.ops / 1e9,
        "hbm_gb": card.value("memory_bytes_per_s") / 1e9,
    }
    made = []
    for printed in _DATA["figures"]:
        limit, own = derived.get(printed["id"], (None, None))
        why = printed["why"].format(**words)
        ends = None if own is None else _ends(printed["id"], own, gpu)
        derived_here = {"limit": limit, "why": why, "ours": own, "ours_ends": ends}
        made.append(PaperRow(**(printed | derived_here)))
    return tuple(made)


ROOFLINE_MFU = 0.5
"""MFU of our figures of a GPU; the profiles say the same of scoring, with an interval."""
_BY_MFU = {"h100_tokens_per_j": 1, "h100_ms": -1, "forward_ms": -1}
"""Power of the MFU to which our figure of a GPU is proportional."""


def _ends(id: str, own: float, gpu: DeviceProfile) -> Ends | None:
    if id not in _BY_MFU:
        return None
    mfus = [mfu for mfu in scoring_mfus(gpu) if mfu is not None]
    return ends_of(own * (mfu / ROOFLINE_MFU) ** _BY_MFU[id] for mfu in mfus)


def _derived(
    card: DeviceProfile, gpu: DeviceProfile, model: Ours, declared: int | None
) -> dict[str, Derived]:
    """Limits and our figures by the id of the printed one.

    Ours are missing where nothing is synthesised, and of formats that our kernels do not compute;
    those of figure 3 are for 32 rows of 32 tokens. Our H100 is the roofline at 50 % MFU with 2 N
    operations a token.
    """
    least, short, per_ms = least_work(), model.short, model.tokens_per_ms
    memory_bytes_per_s, card_w = card.value("memory_bytes_per_s"), card.value("active_w")
    gpu_w, peak = gpu.value("active_w"), gpu.value("peak_bf16_flops")
    hbm, stream = memory_bytes_per_s / 1e9, stream_ms(memory_bytes_per_s)
    kernels = ("mha_int8", "gemm_int8", "kv_cache_router", "score_aggregator")
    moved = model.long.memory_bytes / model.long.kernel_s / 1e9
    int8_rate = tokens_per_ms(array_ops_per_s(DSPS), least.ops)
    made: dict[str, Derived] = {
        # Table 2.
        "mha_rate": (
            tokens_per_ms(array_ops_per_s(DESIGN["mha_dsps"]), least.attention),
            model.kernel_tokens_per_ms("mha_int8"),
        ),
        "gemm_rate": (
            tokens_per_ms(array_ops_per_s(DESIGN["gemm_dsps"]), least.products),
            model.kernel_tokens_per_ms("gemm_int8"),
        ),
        "router_rate": (hbm, model.gb_per_s("kv_cache_router")),
        "pcie_rate": (LINK_BYTES_PER_S / 1e9, None),
        **{f"hbm_{kernel}": (hbm, model.gb_per_s(kernel)) for kernel in kernels},
        "hbm_total": (hbm, moved),
        "dsps": (card.value("n_dsp"), None if declared is None else float(declared)),
        **{kind: (float(n), None) for kind, n in CARD_HAS.items()},
        "clock": (card.value("clock_max_hz") / 1e6, None),
        "power": (card.value("tdp_w"), None),
        # Table 3, but for the formats below.
        "int8_rate_die": (tokens_per_ms(silicon_ops_per_s(card), least.ops), per_ms),
        # Figure 3.
        "peak_tokens_per_j": (1e3 * int8_rate / U55C_POWER_W, 1e3 * per_ms / card_w),
        "h100_tokens_per_j": (
            peak / least.ops / gpu_w,
            ROOFLINE_MFU * peak / OPS_PER_TOKEN / gpu_w,
        ),
        "dma_in_ms": (
            1e3 * (N_ROWS * LONG * DESIGN["embedding_width"]) / LINK_BYTES_PER_S,
            1e3 * short.link_s,
        ),
        "kernel_ms": (stream, 1e3 * (short.kernel_s + short.launch_s)),
        "total_ms": (stream, 1e3 * short.time_s),
        "h100_ms": (
            stream_ms(gpu.value("memory_bytes_per_s"), 2.0 * REFERENCE_PARAMS),
            1e3 * N_ROWS * SHORT * OPS_PER_TOKEN / (ROOFLINE_MFU * peak),
        ),
        "lemma_ms": (stream, 1e3 * short.time_s),
    }
    for name, per_dsp in PER_DSP.items():
        limit = tokens_per_ms(array_ops_per_s(DSPS, per_dsp), least.ops)
        own = per_ms if name == "INT8" else None
        own_per_j = None if own is None else 1e3 * own / card_w
        made[f"{name.lower()}_rate"] = (limit, own)
        made[f"{name.lower()}_tokens_per_j"] = (1e3 * limit / U55C_POWER_W, own_per_j)
    # Lemma 1.
    forward_ms = 1e3 * 2.0 * DESIGN["policy_params"] * N_ROWS * LONG / (DESIGN["n_gpus"] * peak)
    hidden_ms = DESIGN["n_cards"] * PRINTED["forward_ms"]
    return made | {
        "forward_ms": (forward_ms, forward_ms / ROOFLINE_MFU),
        "l_max": (int8_rate * hidden_ms / N_ROWS, per_ms * hidden_ms / N_ROWS),
    }
