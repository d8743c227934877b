"""What does FP8 save on a real NVIDIA GPU, in a training step and in its matrix products alone?

Time and joules over those of BF16 of three loads, and each figure says which it is:

- *step*: a training step of a 1 B-class Llama of random weights, master weights in FP32, and
  `ecorl.trainer.gears` around the forward and backward pass, as a run with gears computes; eager.
- *compiled*: the same weights and formats with each layer compiled by ``torch.compile``; FP8 by
  torchao's own replacement of the linear layers, because published gains are of compiled models.
- *products*: the seven matrix products of a layer alone, operands already in their format: what
  the matrix units give, without quantising, norms, attention, optimizer or head.

Nothing is set on the GPU. Not part of `make bench`: it needs a GPU with FP8 units that nothing else
uses, torchao, and some five minutes.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from benchmarks.gpu.loads.llama import Llama
from benchmarks.gpu.loads.stages import TrainingStep, adamw
from benchmarks.gpu.run.parts import NO_CUDA
from benchmarks.gpu.sensing.meter import EnergyMeter, Window, power_figure, window_facts
from benchmarks.harness import Figure, FigureTable, run_benchmark
from ecorl.control import Gear
from ecorl.devices.llama import model_shape
from ecorl.errors import MissingToolError
from ecorl.records import ModelShape
from ecorl.trainer.gears.formats import computes_fp8, supported
from ecorl.trainer.gears.geared_model import GearedModel

BENCHMARK = "gpu_gears"
FIGURES, OF_LOAD = FigureTable(BENCHMARK), "gpu_gears.{load.name}.{gear}."
SIZE = "1b"
REPETITIONS, LENGTH_S, QUICK_LENGTH_S = 3, 3.0, 1.0
SHAPES = ((8, 512), (16, 1024))
"""Rows and length of a step. FP32 is measured at the first alone: it is an order slower."""

PRODUCT_TOKENS = (4096, 16384)
"""Tokens of a batch over which products are taken: those of the training steps."""

SQUARE = 8192
"""Side of a square product that fills the GPU."""

Call = Callable[[], object]
"""Computes a load once."""


@dataclass(frozen=True, slots=True)
class GearLoad:
    """A load in one format, to be held against the same in another.

    It does not hold its call: with that a model would live as long as its figures.

    Attributes:
        name: of what is computed, the same in all formats, e.g. ``step.b8x512``.
        gear: the format.
        n_tokens: tokens of a call.
        how: what exactly is computed, in words.
    """

    name: str
    gear: Gear
    n_tokens: int
    how: str


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    with EnergyMeter(torch.cuda.synchronize) as meter:
        if not torch.cuda.is_available():
            raise MissingToolError(NO_CUDA)
        device, shape = torch.device("cuda"), model_shape(SIZE)
        if not computes_fp8(device):
            raise MissingToolError(f"{meter.device.name} has no units for FP8: nothing to measure")
        length_s = QUICK_LENGTH_S if options.quick else LENGTH_S
        shapes = SHAPES[:1] if options.quick else SHAPES
        torch.empty(1, device=device)
        idle = power_figure(FIGURES, "gpu_gears.idle_before_w", meter.idle(length_s))
        measured: list[tuple[GearLoad, list[Window]]] = []

        def take(load: GearLoad, call: Call) -> None:
            windows = meter.measure(call, n_repetitions=REPETITIONS, length_s=length_s)
            measured.append((load, windows))

        for load, call in product_loads(shape, device):
            take(load, call)
        for load, call in geared_loads(_model(shape, device), shapes):
            take(load, call)
        del load, call
        for gear in (Gear.BF16, Gear.FP8):
            for one in shapes:
                _free()
                take(*compiled_load(_model(shape, device), one, gear))
        config = {
            "gpu": meter.device.name,
            "driver": meter.driver.version(),
            "power_limit_w": meter.driver.power_limits(meter.device).enforced_w,
            "torch": torch.__version__,
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "model": {"size": SIZE, **asdict(shape), "weights": "random"},
            "repetitions": REPETITIONS,
            "window_s": length_s,
            "loads": {
                f"{load.name}.{load.gear.lower()}": {"how": load.how, **window_facts(windows)}
                for load, windows in measured
            },
        }
    return config, [idle, *gear_figures(measured)]


def _model(shape: ModelShape, device: torch.device) -> Llama:
    longest = max(length for _, length in SHAPES)
    return Llama(shape, longest + 1, device=device, dtype=torch.float32)


def _free() -> None:
    """Give back what the model before held, and forget what was compiled for its sizes."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def geared_loads(
    model: Llama, shapes: Sequence[tuple[int, int]]
) -> Iterator[tuple[GearLoad, Call]]:
    """Yield steps of one model in a gear at a time, each with its call.

    Args:
        model: with weights in FP32.
        shapes: rows and length of the steps.

    Raises:
        UserError: for a gear that the device lacks, or FP8 without torchao.
    """
    gears = (Gear.FP32, Gear.BF16, Gear.FP16, Gear.FP8)
    geared = GearedModel(model, Gear.FP32, supported(gears, model.device, may_simulate_fp8=True))
    optimizer = adamw(model)
    for shape in shapes:
        step = TrainingStep(model, *shape, optimizer)
        for gear in gears if shape == shapes[0] else (Gear.BF16, Gear.FP8):

            def call(step: TrainingStep = step, gear: Gear = gear) -> None:
                with geared.within(gear):
                    step()

            how = "FP32 master weights and AdamW, ecorl's gear around the model, eager"
            yield _step_load("step", shape, gear, how), call


def _step_load(kind: str, shape: tuple[int, int], gear: Gear, how: str) -> GearLoad:
    n_rows, length = shape
    name = f"{kind}.b{n_rows}x{length}"
    return GearLoad(name, gear, n_rows * length, f"training step; {how}")


def compiled_load(model: Llama, shape: tuple[int, int], gear: Gear) -> tuple[GearLoad, Call]:
    """Make a step of a model whose layers are compiled, with its call; the model is changed.

    Args:
        model: with weights in FP32.
        shape: rows and length of a step.
        gear: BF16 or FP8.
    """
    if gear is Gear.FP8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        head = model.get_output_embeddings()
        convert_to_float8_training(
            model.blocks,
            config=Float8LinearConfig(pad_inner_dim=True),
            module_filter_fn=lambda module, name: module is not head,
        )
    for block in model.blocks:
        block.compile(dynamic=False)
    step, kind = TrainingStep(model, *shape), model.device.type

    def call() -> None:
        with torch.autocast(kind, dtype=torch.bfloat16):
            step()

    how = "FP32 master weights and AdamW, layers compiled by torch.compile"
    return _step_load("compiled", shape, gear, how), call


def layer_products(shape: ModelShape) -> Mapping[str, tuple[int, int]]:
    """Inner and outer size of each matrix product of a layer.

    Args:
        shape: of the model.
    """
    hidden, width = shape.hidden_size, shape.n_heads * shape.head_dim
    kv_width, inner = shape.n_kv_heads * shape.head_dim, shape.intermediate_size
    return {
        "q": (hidden, width), "k": (hidden, kv_width), "v": (hidden, kv_width),
        "o": (width, hidden), "gate": (hidden, inner), "up": (hidden, inner),
        "down": (inner, hidden),
    }  # fmt: skip


def product_loads(shape: ModelShape, device: torch.device) -> Iterator[tuple[GearLoad, Call]]:
    """Yield matrix products in BF16 and in FP8, one after the other, each with its call.

    Args:
        shape: of the model.
        device: with FP8 units.
    """
    kinds = [
        (f"products.t{n_tokens}", n_tokens, f"the seven products of a layer over {n_tokens} tokens",
         [(n_tokens, *size) for size in layer_products(shape).values()])
        for n_tokens in PRODUCT_TOKENS
    ]  # fmt: skip
    how = f"one product of {SQUARE} by {SQUARE} by {SQUARE}"
    kinds.append((f"product.square{SQUARE}", SQUARE, how, [(SQUARE, SQUARE, SQUARE)]))
    for name, n_tokens, how, sizes in kinds:
        for gear in (Gear.BF16, Gear.FP8):
            load = GearLoad(name, gear, n_tokens, f"{how}, operands in their format")
            yield load, _products(sizes, gear, device)


def _products(sizes: list[tuple[int, int, int]], gear: Gear, device: torch.device) -> Call:
    """Products of random ``[rows, inner]`` and ``[inner, outer]``, results in BF16."""
    dtype = torch.float8_e4m3fn if gear is Gear.FP8 else torch.bfloat16

    def operand(*size: int) -> Tensor:
        return torch.randn(*size, device=device, dtype=torch.bfloat16).to(dtype)

    # The second lies by columns, as a linear layer's weight does.
    pairs = [(operand(rows, inner), operand(outer, inner).t()) for rows, inner, outer in sizes]
    one = torch.ones((), device=device)

    def call() -> None:
        for a, b in pairs:
            if gear is Gear.FP8:
                torch._scaled_mm(
                    a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
                )
            else:
                torch.mm(a, b)

    return call


def gear_figures(measured: Sequence[tuple[GearLoad, Sequence[Window]]]) -> list[Figure]:
    """Figures of each load in each format, and its ratios to the same load in BF16.

    Args:
        measured: loads with their repetitions; ratios are taken window by window.
    """
    figures, base = list[Figure](), Gear.BF16
    bases = {load.name: windows for load, windows in measured if load.gear is base}
    for load, windows in measured:
        words = {"load": load, "gear": load.gear.lower()}
        call_s, call_j = _per_call(windows)
        per_token = [None if j is None else j / load.n_tokens for j in call_j]
        figures += [
            FIGURES.median(OF_LOAD + "call_s", call_s, words=words),
            FIGURES.median(OF_LOAD + "j_per_token", per_token, words=words),
            FIGURES.median(OF_LOAD + "power_w", [w.power_w for w in windows], words=words),
        ]
        if load.gear is base or load.name not in bases:
            continue
        base_s, base_j = _per_call(bases[load.name])
        figures += [
            FIGURES.ratio(OF_LOAD + "time_ratio", call_s, base_s, words=words),
            FIGURES.ratio(OF_LOAD + "energy_ratio", call_j, base_j, words=words),
        ]
    return figures


def _per_call(windows: Sequence[Window]) -> tuple[list[float | None], list[float | None]]:
    """Time, s, and energy, J, of one call, by repetition."""
    times: list[float | None] = [w.time_s / w.n_calls for w in windows]
    return times, [None if w.energy_j is None else w.energy_j / w.n_calls for w in windows]


if __name__ == "__main__":
    sys.exit(run_benchmark(BENCHMARK, measure))
