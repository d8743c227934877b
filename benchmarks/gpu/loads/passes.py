"""Calls that are timed on the device itself, and what their times tell.

Decoding at one length of context, on all processors of a GPU or on a part of them; short kernels
that follow each other; how a time follows the clock.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.loads.generation import BUCKET, Generator, captured, wait_patiently
from benchmarks.gpu.loads.llama import Llama
from benchmarks.gpu.loads.stages import random_tokens
from benchmarks.gpu.sensing.limiters import Watch
from benchmarks.gpu.sensing.traces import quantile
from ecorl.errors import CardFull, NotSupported
from ecorl.records import ModelShape

LEAST_PASSES = 10
LEAST_CLOCK_SPREAD = 0.02
"""Share by which the clock of the fast tenth of passes is above that of the slow tenth, for a fit
of times on clocks to mean anything."""

SETTLED_WITHIN = 0.02
"""Share by which settled kernels may differ from the last ones."""

_AT_ONCE = 20
"""Kernels over which a median is taken: a single one may be held up by anything."""

_CONTEXTS: list[object] = []
"""Green contexts that were made. None is destroyed before the process ends: PyTorch ends the
process when that fails, as it does behind an error of the device."""

_LOGIT_BYTES = 24
"""Memory of a step for each row and token of the vocabulary: its score in several formats."""

_SPARE_BYTES = 2 * 2**30

PRODUCT_SIDE = 8192
"""Side of a square product that fills all processors."""


class Load(NamedTuple):
    """What is repeated in a window.

    Attributes:
        call: computes it once.
        n_tokens: of a call.
        how: what exactly is computed, in words.
        stream: on which it has to be called; None: any.
    """

    call: Callable[[], object]
    n_tokens: int
    how: str
    stream: torch.cuda.Stream | None = None


def timed_s(call: Callable[[], object], n_calls: int, device: torch.device) -> list[float]:
    """Time calls that are launched one after the other, on the device, s.

    Args:
        call: launches one.
        n_calls: how many.
        device: on which it computes.
    """
    if device.type != "cuda":
        marks_s = [time.perf_counter()]
        for _ in range(n_calls):
            call()
            marks_s.append(time.perf_counter())
        return [b - a for a, b in pairwise(marks_s)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(n_calls + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    wait_patiently()
    return [1e-3 * a.elapsed_time(b) for a, b in pairwise(events)]


def clock_and_time(
    call: Callable[[], object], length_s: float, watch: Watch, device: torch.device
) -> list[tuple[float, float]]:
    """Repeat a pass; returns the clock, Hz, and the time, s, of those in which the clock was read.

    Args:
        call: launches a pass.
        length_s: for how long, s.
        watch: that reads the clock.
        device: on which it computes.
    """
    spans: list[tuple[float, float, float]] = []
    until_s = time.monotonic() + length_s
    while time.monotonic() < until_s:
        start_s = time.monotonic()
        (pass_s,) = timed_s(call, 1, device)
        spans.append((start_s, time.monotonic(), pass_s))
    found = [(watch.clocks_hz(start_s, end_s), pass_s) for start_s, end_s, pass_s in spans]
    return [(statistics.fmean(clocks), pass_s) for clocks, pass_s in found if clocks]


def part_of_gpu(share: float) -> tuple[torch.cuda.Stream, int, int]:
    """Make a stream whose kernels run on some of the GPU's processors alone, by a green context.

    Args:
        share: of the multiprocessors; the nearest multiple of 8 is taken, as GPUs divide them.

    Returns:
        The stream, how many multiprocessors it has, and how many there are.

    Raises:
        NotSupported: PyTorch or the driver has no such contexts.
    """
    n_all = torch.cuda.get_device_properties(0).multi_processor_count
    n_part = max(8, 8 * round(share * n_all / 8))
    try:
        from torch.cuda.green_contexts import GreenContext

        context: Any = GreenContext.create(num_sms=n_part, device_id=0)
        _CONTEXTS.append(context)
        return context.Stream(), n_part, n_all
    except (ImportError, AttributeError, TypeError, RuntimeError) as error:
        line = " ".join(str(error).strip().splitlines()[:1])
        raise NotSupported(f"no green context ({type(error).__name__}: {line})") from error


def lacking_memory(shape: ModelShape, n_rows: int, context: int) -> str | None:
    """Why a batch does not fit into what the GPU has left, or None where it does.

    Args:
        shape: of the model.
        n_rows: rows of the batch.
        context: as of `decoding`.
    """
    a_token = 2 * 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim
    need = n_rows * ((context + BUCKET) * a_token + _LOGIT_BYTES * shape.vocab_size) + _SPARE_BYTES
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if need <= free:
        return None
    return f"it needs {need / 1e9:.0f} GB, of which {free / 1e9:.0f} GB are left"


def decoding(
    model: Llama,
    n_rows: int,
    context: int,
    call_s: float,
    *,
    graphs: bool,
    stream: torch.cuda.Stream | None = None,
) -> Load:
    """Make a load that decodes the same few tokens of a batch, on noise in place of prompts.

    Args:
        model: that is sampled from.
        n_rows: rows of the batch.
        context: tokens before the first one that is decoded, a multiple of `BUCKET`; a step reads
            a cache that is one bucket longer, so that one CUDA graph is captured.
        call_s: about how long a call takes, s.
        graphs: as of `Generator`.
        stream: as of `Generator`.

    Raises:
        CardFull: the batch does not fit into the GPU's memory.
    """
    lack = lacking_memory(model.shape, n_rows, context) if graphs else None
    if lack is not None:
        raise CardFull(lack)
    with torch.cuda.stream(stream):
        prompts = random_tokens(model, n_rows, context)
        generator = Generator(model, prompts, BUCKET, graphs=graphs, noise=True, stream=stream)
        generator.decode(2)
        (two_s,) = timed_s(partial(generator.decode, 2), 1, model.device)
    n_steps = min(BUCKET - 1, max(1, round(2.0 * call_s / two_s)))
    launched = "a CUDA graph a step, pieces fused" if graphs else "eager"
    how = f"{n_rows} rows decode on {context + BUCKET} cached tokens of noise; {launched}"
    how = f"{how}; new tokens counted"
    return Load(partial(generator.decode, n_steps), n_rows * n_steps, how, stream)


def product_s(stream: torch.cuda.Stream) -> float:
    """Time of a large product that is captured and replayed on a stream, s.

    Args:
        stream: whose processors compute it.
    """
    sizes = (PRODUCT_SIDE, PRODUCT_SIDE)
    a, b, out = (torch.randn(sizes, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        replay = captured(partial(torch.mm, a, b, out=out), stream)
        return statistics.median(timed_s(replay, 20, a.device))


def short_kernel(side: int, length_s: float, device: torch.device) -> Callable[[], object]:
    """Make a product of few tiles, which leave power for the highest clock.

    Args:
        side: rows and columns of its result.
        length_s: about how long it takes, s.
        device: that computes it.
    """
    make = partial(torch.randn, device=device, dtype=torch.bfloat16)
    inner = 4096 if device.type == "cuda" else 64
    for _ in range(3):
        call = partial(torch.mm, make(side, inner), make(inner, side), out=make(side, side))
        kernel_s = statistics.median(timed_s(call, 300, device))
        inner = min(65_536, max(64, 64 * round(inner * length_s / kernel_s / 64)))
    return call


def exponent(points: Sequence[tuple[float, float]]) -> tuple[float, dict[str, object]]:
    """Fit the logarithm of a time to that of the clock.

    Args:
        points: clock, Hz, and time, s, of each pass.

    Returns:
        The slope, -1 where all of the time follows the clock and 0 where nothing does; and its
        spread: the 95 % interval, as if the passes were independent, and the clocks below and above
        which a tenth of them ran, Hz.

    Raises:
        NotSupported: there are too few passes, or the clock hardly varied.
    """
    if len(points) < LEAST_PASSES:
        raise NotSupported(f"{len(points)} passes with a reading of the clock: too few")
    clocks = [clock_hz for clock_hz, _ in points]
    low_hz, high_hz = quantile(clocks, 0.1), quantile(clocks, 0.9)
    if high_hz < (1.0 + LEAST_CLOCK_SPREAD) * low_hz:
        raise NotSupported(
            f"the clock hardly varied: {low_hz / 1e6:.0f} to {high_hz / 1e6:.0f} MHz"
        )
    x, y = [math.log(clock) for clock in clocks], [math.log(time_s) for _, time_s in points]
    slope, offset = statistics.linear_regression(x, y)
    square = math.fsum((b - offset - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    middle = statistics.fmean(x)
    error = math.sqrt(square / (len(x) - 2) / math.fsum((a - middle) ** 2 for a in x))
    return slope, {"n": len(points), "interval_95": [slope - 1.96 * error, slope + 1.96 * error],
                   "clock_p10_hz": low_hz, "clock_p90_hz": high_hz}  # fmt: skip


class Settling(NamedTuple):
    """How short kernels that follow each other reach their speed.

    Attributes:
        first_over_settled: time of the first ten over that of the last quarter, medians.
        settle_s: time until they stay within `SETTLED_WITHIN` of it, s; None where they never do.
        settled_s: median time of the last quarter, s.
    """

    first_over_settled: float
    settle_s: float | None
    settled_s: float


def settling(times_s: Sequence[float]) -> Settling:
    """Describe the times of kernels.

    Args:
        times_s: of each in turn, s.
    """
    last = len(times_s) - len(times_s) // 4
    settled_s = statistics.median(times_s[last:])
    middles = [statistics.median(times_s[i : i + _AT_ONCE]) for i in range(last)]
    off = [i for i, middle in enumerate(middles) if abs(middle / settled_s - 1) > SETTLED_WITHIN]
    settle_s = (
        None
        if off and off[-1] >= last - _AT_ONCE
        else math.fsum(times_s[: off[-1] + 1] if off else [])
    )
    return Settling(statistics.median(times_s[:10]) / settled_s, settle_s, settled_s)
