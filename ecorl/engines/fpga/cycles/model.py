"""The cycle model: time and energy of a batch on a card, term by term. Every figure is modelled.

A forward is a list of kernel calls (`kernel_calls`). Cycles of a call are computed in `kernels`,
`vector`, `attention` and `score`, what the memory adds in `hbm`; each of these modules says what it
assumes. No synthesis report backs any figure. In short:

- loop counts are the sources' own, in closed form, and equal the C-simulation's counters;
- load, compute and store of a call overlap, calls follow one another;
- ``gemm_int8`` multiplies 4,096 numbers a cycle on 2,048 DSPs, ``mha_int8`` 2,048 on 1,024. A
  profile's DSP budget (``n_dsp_used`` x ``macs_per_dsp``) decides how many arrays of the former
  there are, and every other kernel has as many copies;
- every start of a kernel adds its share of the profile's ``launch_s``, where the profile has it:
  a thirteenth, since a layer has 13 starts (`LAYER_STARTS`). Slices of long products, rows that go
  on inside a page (`kernel_starts`), the embedding and the head come on top;
- the link: a record of 64 bytes a token to the card and back, results, and ``link_latency_s`` for
  each transfer that no kernel covers (`link_bytes` and `TRANSFERS` in `kernel_calls`).

Energy is the profile's ``active_w`` over the whole time.

Before a batch is placed its rows are not all known, only their number, their tokens and their
completion tokens: `mean_rows` spreads these evenly. All but pages, attention and the router's
second start depends on the sums alone, so the modelled time is then off by the error of these
three, and exact for rows that are alike and share no prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ecorl.devices import DeviceProfile
from ecorl.devices.card import n_arrays
from ecorl.engines.fpga.cycles.hbm import WEIGHT_CHANNELS, Memory, memory_of
from ecorl.engines.fpga.cycles.kernel_calls import (
    TRANSFERS,
    BatchShape,
    attention_calls,
    forward_calls,
    kernel_starts,
    link_bytes,
)
from ecorl.engines.fpga.cycles.kernels import call_cost
from ecorl.engines.fpga.kernels.sequence import LAYER_STARTS
from ecorl.errors import ConfigError
from ecorl.records import ModelShape, Stage, StageWork

__all__ = ["BatchShape", "CardTime", "CycleModel", "KernelTime", "attention_calls", "mean_rows"]

KERNELS = ("gemm_int8", "vector_ops", "kv_cache_router", "mha_int8", "score_aggregator")
"""In the order of a forward."""

INTERVALS = (1, 2, 4)
"""Initiation intervals of a sweep."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Time of all calls of one kernel in a batch.

    Attributes:
        kernel: its name.
        calls: how many are modelled: of the router one for each row, of attention for each run of
            queries, though those of a layer are one start, or a few of the router
            (`kernel_calls.kernel_starts`).
        cycles: from start to end of each, summed.
        stall_cycles: of them, waits for memory.
        array_cycles: trips of its MAC array at the initiation interval.
        macs: useful multiply-accumulates.
        moved_bytes: through the card's memory.
        time_s: cycles over the clock, s.
    """

    kernel: str
    calls: int
    cycles: float
    stall_cycles: float
    array_cycles: float
    macs: int
    moved_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class CardTime:
    """Modelled time and energy of one batch on a card, with each term.

    Attributes:
        array_s: trips of the MAC arrays over the clock, s.
        memory_s: memory traffic over the data sheet's bandwidth, s.
        vector_s: trips of the row functions over the clock, s.
        kernel_s: all kernel calls, one after the other, s.
        launch_s: kernel starts, s.
        link_s: transfers of ids and results and their latency, s.
        time_s: kernel + launch + link, s.
        energy_j: ``active_w`` x ``time_s``, J.
        macs: useful multiply-accumulates.
        memory_bytes: bytes through the card's memory.
        stall_s: of ``kernel_s``, waits for memory, s.
        link_bytes: bytes over the link.
        kernels: each kernel's part, in the order of `KERNELS`; those without a call left out.
    """

    array_s: float
    memory_s: float
    vector_s: float
    kernel_s: float
    launch_s: float
    link_s: float
    time_s: float
    energy_j: float
    macs: int
    memory_bytes: int
    stall_s: float
    link_bytes: int
    kernels: tuple[KernelTime, ...]

    def of(self, kernel: str) -> KernelTime | None:
        """One kernel's part; None where the batch does not call it."""
        return next((k for k in self.kernels if k.kernel == kernel), None)


@dataclass(frozen=True, slots=True)
class CardFigures:
    """The figures of a profile that the model rests on; hashable."""

    clock_hz: float
    memory: Memory
    memory_bytes_per_s: float
    link_bytes_per_s: float
    link_latency_s: float
    launch_s: float
    active_w: float
    n_arrays: int
    ii: int


class CycleModel:
    """Time and energy of a decoder on one card.

    Args:
        model: the decoder's shape.
        profile: a card with ``clock_hz``, ``n_dsp_used``, ``macs_per_dsp``,
            ``memory_bytes_per_s``, ``link_bytes_per_s``, ``link_latency_s`` and ``active_w``; with
            ``memory_channels`` ports are held to the rate of their channels.
        ii: factor on the initiation interval of every loop; 1 is what the sources ask for.
        weight_channels: channels that hold the weights, a port each.

    Raises:
        ConfigError: when the profile lacks a figure, its DSP budget holds no array, or `ii` or
            `weight_channels` is not above 0.
    """

    def __init__(
        self,
        model: ModelShape,
        profile: DeviceProfile,
        ii: int = 1,
        weight_channels: int = WEIGHT_CHANNELS,
    ) -> None:
        for key, value in (("ii", ii), ("weight_channels", weight_channels)):
            if value < 1:
                raise ConfigError(key, value, "1 or more")
        self.model = model
        self.card = CardFigures(
            clock_hz=profile.value("clock_hz"),
            memory=memory_of(profile, weight_channels),
            memory_bytes_per_s=profile.value("memory_bytes_per_s"),
            link_bytes_per_s=profile.value("link_bytes_per_s"),
            link_latency_s=profile.value("link_latency_s"),
            launch_s=profile.get("launch_s") or 0.0,
            active_w=profile.value("active_w"),
            n_arrays=n_arrays(profile),
            ii=ii,
        )

    def batch(self, batch: BatchShape) -> CardTime:
        """Modelled time and energy of one batch; all zero for an empty one."""
        return _batch_time(self.model, self.card, batch)


@lru_cache(maxsize=1024)
def _batch_time(model: ModelShape, card: CardFigures, batch: BatchShape) -> CardTime:
    sums: dict[str, list[float]] = {}
    vector_cycles = 0.0
    for call, times in forward_calls(model, batch):
        cost = call_cost(call, card.memory, card.ii, card.n_arrays)
        vector_cycles += times * cost.vector_cycles
        own = sums.setdefault(call.kernel, [0, 0.0, 0.0, 0.0, 0, 0])
        for i, part in enumerate(
            (1, cost.cycles, cost.stall_cycles, cost.array_cycles, cost.macs, cost.moved_bytes)
        ):
            own[i] += times * part
    kernels = tuple(
        KernelTime(
            name, int(n), cycles, stalls, array, int(macs), int(moved), cycles / card.clock_hz
        )
        for name in KERNELS
        if name in sums
        for n, cycles, stalls, array, macs, moved in (sums[name],)
    )
    n_tokens = sum(batch.lengths)
    moved = link_bytes(batch)
    link_s = moved / card.link_bytes_per_s + (TRANSFERS * card.link_latency_s if n_tokens else 0.0)
    launch_s = card.launch_s * kernel_starts(model, batch) / LAYER_STARTS
    kernel_s = sum(k.time_s for k in kernels)
    memory_bytes = sum(k.moved_bytes for k in kernels)
    time_s = kernel_s + launch_s + link_s
    return CardTime(
        array_s=sum(k.array_cycles for k in kernels) / card.clock_hz,
        memory_s=memory_bytes / card.memory_bytes_per_s,
        vector_s=vector_cycles / card.clock_hz,
        kernel_s=kernel_s,
        launch_s=launch_s,
        link_s=link_s,
        time_s=time_s,
        energy_j=card.active_w * time_s,
        macs=sum(k.macs for k in kernels),
        memory_bytes=memory_bytes,
        stall_s=sum(k.stall_cycles for k in kernels) / card.clock_hz,
        link_bytes=moved,
        kernels=kernels,
    )


def mean_rows(work: StageWork) -> BatchShape:
    """A batch of the work's sums with rows, and completions in them, as even as can be.

    Rows that are alike are as given; otherwise see the module's text for what that changes.
    """
    n_rows = min(work.n_sequences, work.n_tokens)
    if n_rows <= 0:
        return BatchShape((), (), 1)
    lengths = _spread(work.n_tokens, n_rows)
    if work.stage is Stage.REWARD:
        return BatchShape(lengths, (1,) * n_rows, 1)
    wanted = _spread(min(work.n_output_tokens, work.n_tokens), n_rows)
    return BatchShape(lengths, wanted, work.model.vocab_size if work.model else 1)


def _spread(total: int, n_rows: int) -> tuple[int, ...]:
    least, n_longer = divmod(total, n_rows)
    return (least + 1,) * n_longer + (least,) * (n_rows - n_longer)
