"""A training step by numeric format, and matrix products alone.

Three ways to compute a step, and each says which it is:

- *gears*: master weights in FP32, and `ecorl.trainer.gears` around the forward and backward pass,
  as a run with gears computes; eager.
- *compiled*: the same weights and formats with each layer compiled by ``torch.compile``; FP8 by
  torchao's own replacement of the linear layers, because published gains are of compiled models.
- *products*: the seven matrix products of a layer alone, operands already in their format: what
  the matrix units give, without quantising, norms, attention, optimizer or head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu.loads.llama import Llama
from benchmarks.gpu.loads.stages import TrainingStep, adamw
from ecorl.control import Gear
from ecorl.records import ModelShape
from ecorl.trainer.gears.formats import supported
from ecorl.trainer.gears.geared_model import GearedModel

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


class GearedStep:
    """Steps of one model in a gear at a time.

    Args:
        model: with weights in FP32.
        gears: that there are to be, beside FP32.
        rows_by_length: rows and length of the steps.

    Raises:
        UserError: for a gear that the device lacks, or FP8 without torchao.
    """

    def __init__(
        self, model: Llama, gears: tuple[Gear, ...], rows_by_length: tuple[tuple[int, int], ...]
    ) -> None:
        support = supported((Gear.FP32, *gears), model.device, may_simulate_fp8=True)
        self._geared = GearedModel(model, Gear.FP32, support)
        optimizer = adamw(model)
        self._steps = {one: TrainingStep(model, *one, optimizer) for one in rows_by_length}

    def load(self, shape: tuple[int, int], gear: Gear) -> tuple[GearLoad, Call]:
        """Make a load of a step in a gear, with its call.

        Args:
            shape: rows and length.
            gear: one of those that there are.
        """
        step = self._steps[shape]

        def call() -> None:
            with self._geared.within(gear):
                step()

        how = "training step; FP32 master weights and AdamW, ecorl's gear around the model, eager"
        return GearLoad(f"step.b{shape[0]}x{shape[1]}", gear, step.n_tokens, how), call


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

    how = "training step; FP32 master weights and AdamW, layers compiled by torch.compile"
    return GearLoad(f"compiled.b{shape[0]}x{shape[1]}", gear, step.n_tokens, how), call


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
    for n_tokens in PRODUCT_TOKENS:
        sizes = list(layer_products(shape).values())
        how = f"the seven products of a layer over {n_tokens} tokens, operands in their format"
        for gear in (Gear.BF16, Gear.FP8):
            call = _products([(n_tokens, *size) for size in sizes], gear, device)
            yield GearLoad(f"products.t{n_tokens}", gear, n_tokens, how), call
    how = f"one product of {SQUARE} by {SQUARE} by {SQUARE}, operands in their format"
    for gear in (Gear.BF16, Gear.FP8):
        call = _products([(SQUARE, SQUARE, SQUARE)], gear, device)
        yield GearLoad(f"product.square{SQUARE}", gear, SQUARE, how), call


def _products(sizes: list[tuple[int, int, int]], gear: Gear, device: torch.device) -> Call:
    """Products of ``[rows, inner]`` and ``[inner, outer]``, results in BF16."""
    pairs = [_operands(size, gear, device) for size in sizes]
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


def _operands(
    size: tuple[int, int, int], gear: Gear, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Random operands; the second lies by columns, as a linear layer's weight does."""
    rows, inner, outer = size
    dtype = torch.float8_e4m3fn if gear is Gear.FP8 else torch.bfloat16
    a = torch.randn(rows, inner, device=device, dtype=torch.bfloat16).to(dtype)
    b = torch.randn(outer, inner, device=device, dtype=torch.bfloat16).to(dtype)
    return a, b.t()
