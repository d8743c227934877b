"""Part ``clocks`` of ``make gpu``: what limits each stage, and decoding on a part of the GPU.

Nothing is set: the clock is the one that the GPU chose, and what held it down is read beside it.
Five things are measured, each in its own share of the time:

- stages of a 1 B Llama: power, the memory's part of it, clock, and what limited the clock
- passes: the time of a pass against the clock that the limiter left
- ramp: how long short kernels take to reach their speed after a second of idling
- decode: an 8 B-shaped model at large batches
- part: the same decoding on some of the GPU's processors
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import TypeVar

import torch

from benchmarks.gpu.loads import passes
from benchmarks.gpu.loads.generation import BUCKET, wait_patiently
from benchmarks.gpu.loads.llama import Llama, fused
from benchmarks.gpu.loads.stages import Batch, longest
from benchmarks.gpu.run.setting import Measured, Setting, attempt, reason
from benchmarks.gpu.sensing.limiters import LIMITERS, Watch, window_values
from benchmarks.gpu.sensing.meter import EnergyMeter, window_facts
from benchmarks.gpu.sensing.traces import quantile
from benchmarks.harness.figures import Figure, over
from benchmarks.harness.table import FigureTable
from ecorl.devices.llama import model_shape
from ecorl.errors import DeviceLost, DriverTimeout, NotSupported

FIGURES, OF_LOAD = FigureTable("gpu_clocks"), "gpu_clocks.{load}."
"""The table, and how the rows of a load begin."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and for how long.

    Attributes:
        size: of the model whose stages are measured.
        batches: rows of its decoding.
        scoring: rows and length of reward and reference.
        training: rows and length of a training step.
        large_size: of the model that only decodes.
        large_batches: rows of its decoding.
        part_batches: those that are decoded on a part of the GPU too.
        context: tokens before those that are decoded.
        window_s: length of a window, s.
        warm_up_s: before it, s.
        call_s: about how long a call of decoding takes, s.
        runs: how often passes are taken; the idle time before, s; how long they are repeated, s.
        ramps: how often short kernels are launched; the idle time before, s; how many kernels.
        kernel_side: rows and columns of a short kernel's product.
    """

    size: str
    batches: tuple[int, ...]
    scoring: tuple[int, int]
    training: tuple[int, int]
    large_size: str
    large_batches: tuple[int, ...]
    part_batches: tuple[int, ...]
    context: int
    window_s: float
    warm_up_s: float
    call_s: float
    runs: tuple[int, float, float]
    ramps: tuple[int, float, int]
    kernel_side: int


FULL = Plan(
    "1b", (512, 64, 8), (32, 512), (8, 512), "8b", (64, 512, 256, 128, 1024), (64, 512), 256,
    2.0, 0.4, 0.05, (2, 1.2, 1.2), (4, 1.0, 4000), 1024,
)  # fmt: skip

TOY = Plan(
    "160k", (2,), (2, 32), (2, 32), "160k", (2, 3), (2,), 64,
    0.4, 0.05, 0.05, (2, 0.1, 0.25), (2, 0.1, 300), 32,
)  # fmt: skip
"""That of a rehearsal."""

ENDS = {"stages": 0.32, "passes": 0.47, "ramp": 0.54, "decode": 0.80, "part": 1.0}
"""Share of the time at whose end each section ends, in the order in which they run; what one leaves
over goes to the next."""

PARTS = {"half": 0.5, "quarter": 0.25, "three_quarters": 0.75}
"""Shares of the GPU's processors on which is decoded."""

KERNEL_S = 50e-6
"""About how long a short kernel takes, s."""

EXPONENT = "gpu_clocks.passes.{load}.time_over_clock_exponent"
PRODUCT = "gpu_clocks.part.{part}.product_time_over_full"


class Bench:
    """Measures loads, and keeps what comes of them.

    Args:
        setting: where and how long.
        meter: of energy.
        watch: of clock and limiters.
        plan: what is measured.

    Attributes:
        captures: whether there is a GPU: steps of decoding are captured as CUDA graphs.
        figures: so far.
        facts: about how each was measured, by name.
        values: of each load's figures, by its name.
    """

    def __init__(self, setting: Setting, meter: EnergyMeter, watch: Watch, plan: Plan) -> None:
        self.device, self.meter, self.watch, self.plan = setting.device, meter, watch, plan
        self.captures = not setting.is_rehearsal
        self.figures: list[Figure] = []
        self.facts: dict[str, object] = {}
        self.values: dict[str, dict[str, float | None]] = {}
        self._start_s, self._left_s = time.monotonic(), setting.left_s()
        self._until_s, self._over = self._start_s, ""
        self._tell = setting.tell

    def begin(self, section: str) -> None:
        """Begin a section: it may use the time up to the end of its share.

        Args:
            section: one of `ENDS`.
        """
        self._until_s = self._start_s + ENDS[section] * self._left_s
        self._tell(section)

    def attempt(self, stem: str, need_s: float, call: Callable[[], T], **words: object) -> T | None:
        """Measure something; where that does not work its figures are missing, with the reason.

        Args:
            stem: with which the rows of its figures begin.
            need_s: how long it takes, s.
            call: measures.
            **words: fields of the rows' names.

        Returns:
            What `call` returns, or None.
        """
        lost = self.watch.fault
        if not self._over and isinstance(lost, DeviceLost):
            self._over = f"DeviceLost: {lost}"
        why = self._over or ("" if time.monotonic() + need_s <= self._until_s else "no time left")
        if not why:
            found, error = attempt(call)
            if error is None:
                return found
            why = reason(error)
            if isinstance(error, DeviceLost | DriverTimeout):
                self._over = why
        self.figures += FIGURES.all_missing(FIGURES.rows(stem), why, words=words)
        return None

    def take(self, name: str, make: Callable[[], passes.Load]) -> passes.Load | None:
        """Measure one window of a load.

        Args:
            name: of the load, after the benchmark's.
            make: makes the load; called only if it is measured.

        Returns:
            The load, or None where it was not measured.
        """
        need_s = self.plan.warm_up_s + self.plan.window_s + 1.0
        return self.attempt(OF_LOAD, need_s, lambda: self._measured(name, make()), load=name)

    def _measured(self, name: str, load: passes.Load) -> passes.Load:
        with torch.cuda.stream(load.stream):
            call_s = self.meter.warm_up(load.call, self.plan.warm_up_s)
            window = self.meter.repeat(load.call, self.plan.window_s, call_s)
        seen = self.watch.seen(window.energy.t_start_s, window.energy.t_end_s)
        values = window_values(window, load.n_tokens, seen)
        why = "it was not told in this window"
        if self.watch.fault is not None:
            why = f"{why} ({type(self.watch.fault).__name__}: {self.watch.fault})"
        for kind, value in values.items():
            spread: dict[str, object] = {"window_s": window.time_s}
            if kind == "sm_clock_hz" and seen.clocks_hz:
                spread |= {"n": len(seen.clocks_hz), "p10": quantile(seen.clocks_hz, 0.1),
                           "p90": quantile(seen.clocks_hz, 0.9)}  # fmt: skip
            told = None if value is None else spread
            figure = FIGURES.figure(OF_LOAD + kind, value, told, why=why, load=name, how=load.how)
            self.figures.append(figure)
        self.values[name] = values
        self.facts[name] = {"how": load.how, **window_facts([window]), **seen.facts()}
        return load


def measure(setting: Setting) -> Measured:
    """Measure all sections, as far as the time goes.

    Args:
        setting: where and how long.

    Raises:
        MissingToolError: when there is no GPU.
    """
    wait = setting.synchronize if setting.is_rehearsal else wait_patiently
    with EnergyMeter(wait) as meter, Watch(meter.driver, meter.device) as watch:
        bench = Bench(setting, meter, watch, TOY if setting.is_rehearsal else FULL)
        small_model(bench)
        bench.begin("ramp")
        ramp(bench)
        if bench.captures:
            # Compiled for one model, the pieces would be made anew to fit both, and slower.
            fused.cache_clear()
            torch.compiler.reset()
            gc.collect()
        large_model(bench)
        config = {
            "gpu": meter.device.name,
            "plan": asdict(bench.plan),
            "loads": bench.facts,
            "limiter_fields": LIMITERS,
        }
    return config, bench.figures


def small_model(bench: Bench) -> None:
    """Measure stages of the small model, and passes of those that a limiter may hold down.

    Args:
        bench: that measures.
    """
    bench.begin("stages")
    plan = bench.plan
    batches = (Batch("scoring", *plan.scoring), Batch("training", *plan.training))
    n_most = longest([*batches, Batch("generation", 1, plan.context, BUCKET)])
    model = _model(bench, plan.size, n_most + 1)
    makes = {name: partial(_stage, model, batch, name) for batch in batches for name in batch.names}
    names = list(makes)
    makes |= {f"decode.b{n}": partial(_decoding, bench, model, n) for n in plan.batches}
    loads = {name: bench.take(f"stages.{name}", make) for name, make in makes.items()}
    bench.begin("passes")
    for name in (names[0], names[2], f"decode.b{max(plan.batches)}"):
        load = loads[name]
        if load is None:
            bench.figures.append(FIGURES.figure(EXPONENT, None, load=name))
        else:
            fit_to_clock(bench, name, load)


def _model(bench: Bench, size: str, max_length: int) -> Callable[[], Llama]:
    """Makes a model when it is first asked for."""
    shape, dtype = model_shape(size), torch.bfloat16
    return cache(partial(Llama, shape, max_length, device=bench.device, dtype=dtype))


def _stage(model: Callable[[], Llama], batch: Batch, name: str) -> passes.Load:
    loads = batch.loads(model(), graphs=False)
    workload, call = next(one for one in loads if one[0].name == name)
    return passes.Load(call, workload.n_counted, f"{workload.how}; all tokens counted")


def _decoding(
    bench: Bench,
    model: Callable[[], Llama],
    n_rows: int,
    stream: Callable[[], torch.cuda.Stream | None] = lambda: None,
) -> passes.Load:
    plan = bench.plan
    return passes.decoding(
        model(), n_rows, plan.context, plan.call_s, graphs=bench.captures, stream=stream()
    )


def fit_to_clock(bench: Bench, name: str, load: passes.Load) -> None:
    """Measure how the time of a pass follows the clock that the limiter left.

    Args:
        bench: that measures.
        name: of the load.
        load: whose call is a pass.
    """
    n_runs, idle_s, run_s = bench.plan.runs

    def fitted() -> None:
        points: list[tuple[float, float]] = []
        for _ in range(n_runs):
            bench.meter.synchronize()
            time.sleep(idle_s)
            points += passes.clock_and_time(load.call, run_s, bench.watch, bench.device)
        bench.facts[f"passes.{name}"] = {"clock_hz_and_time_s": points}
        slope, spread = passes.exponent(points)
        bench.figures.append(FIGURES.figure(EXPONENT, slope, spread, load=name))

    need_s = n_runs * (idle_s + run_s) + 0.3
    bench.attempt(EXPONENT, need_s, fitted, load=name)


def ramp(bench: Bench) -> None:
    """Measure how long short kernels take to reach their speed after idling.

    Args:
        bench: that measures.
    """
    (n_ramps, idle_s, n_kernels), side = bench.plan.ramps, bench.plan.kernel_side

    def measured() -> None:
        call, found = passes.short_kernel(side, KERNEL_S, bench.device), []
        clocks, medians = [], []
        for _ in range(n_ramps):
            idle_from_s = time.monotonic()
            time.sleep(idle_s)
            clocks += bench.watch.clocks_hz(idle_from_s + 0.5 * idle_s, time.monotonic())
            times_s = passes.timed_s(call, n_kernels, bench.device)
            found.append(passes.settling(times_s))
            medians.append(
                [statistics.median(times_s[i : i + 100]) for i in range(0, n_kernels, 100)]
            )
        how = f"{n_kernels} products of {side} by {side} in turn, {idle_s:g} s idle before"
        bench.facts["ramp"] = {"how": how, "medians_of_100_s": medians}
        settle_s = [one.settle_s for one in found if one.settle_s is not None]
        never = f"{n_ramps - len(settle_s)} of {n_ramps} never did"
        rows = {
            "first_over_settled": [one.first_over_settled for one in found],
            "settle_s": settle_s,
            "kernel_s": [one.settled_s for one in found],
            "idle_sm_clock_hz": clocks,
        }
        bench.figures += [
            FIGURES.median(f"gpu_clocks.ramp.{kind}", values, how=how, never=never)
            for kind, values in rows.items()
        ]

    need_s = n_ramps * (idle_s + 1.5 * n_kernels * KERNEL_S) + 0.5
    bench.attempt("gpu_clocks.ramp.", need_s, measured)


def large_model(bench: Bench) -> None:
    """Measure decoding of the large model, on all of the GPU and on parts of it.

    Args:
        bench: that measures.
    """
    bench.begin("decode")
    plan = bench.plan
    model = _model(bench, plan.large_size, plan.context + BUCKET)
    for n_rows in plan.large_batches:
        bench.take(f"decode_8b.b{n_rows}", partial(_decoding, bench, model, n_rows))
    bench.begin("part")
    for name, share in PARTS.items():
        stream = _part(bench, name, share)
        for n_rows in plan.part_batches:
            make = partial(_decoding, bench, model, n_rows, stream)
            bench.take(f"part.{name}.b{n_rows}", make)
            _compare(bench, f"part.{name}.b{n_rows}", f"decode_8b.b{n_rows}")


def _part(bench: Bench, name: str, share: float) -> Callable[[], torch.cuda.Stream]:
    """Makes a part of the GPU when it is first asked for, and checks that it is one."""

    @cache
    def stream() -> torch.cuda.Stream:
        if not bench.captures:
            raise NotSupported("a rehearsal on the processor has no part of a GPU")
        found, n_part, n_all = passes.part_of_gpu(share)
        bench.facts[f"part.{name}"] = {"processors": n_part, "of": n_all}
        return found

    def compared() -> None:
        ratio = passes.product_s(stream()) / passes.product_s(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        bench.figures.append(FIGURES.figure(PRODUCT, ratio, part=name))

    bench.attempt(PRODUCT, 2.0, compared, part=name)
    return stream


def _compare(bench: Bench, name: str, full: str) -> None:
    """Energy and speed of a load on a part of the GPU over the same on all of it."""
    part, whole = bench.values.get(name, {}), bench.values.get(full, {})
    for kind in ("j_per_token", "tokens_per_s"):
        key, ratio = f"gpu_clocks.{{part}}.{kind}_over_full", over(part.get(kind), whole.get(kind))
        bench.figures.append(FIGURES.figure(key, ratio, part=name, full=full))
