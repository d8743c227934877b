"""The precision-adaptive AdamW beside torch's: same weights, and the time of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from benchmarks.harness import Figure, FigureTable
from ecorl.bench.rounds import round_ratios, timed_rounds
from ecorl.bench.stats import median, spread_of
from ecorl.trainer import PrecisionAdaptiveAdamW

FIGURES = FigureTable("trainer")

PATHS: Mapping[str, Mapping[str, bool]] = {
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""The paths of torch's AdamW, by the flags that choose them."""

HIDDEN, INTERMEDIATE, VOCABULARY, N_LAYERS = 256, 688, 2048, 6
"""A small decoder of Llama's proportions, of 5.3 million weights in 56 tensors."""

TORCH, OURS = "torch", "ours"
SLOWED_GAMMA = 1.3
"""Some gamma that is not 1, so that its arithmetic is in the time."""

N_ROUNDS = 400  # an even number
"""Rounds at most: the time box ends them sooner."""


def optimizer_figures(box_s: float) -> list[Figure]:
    """Compare weights with torch's, and time steps on the foreach path in turns with torch's.

    Args:
        box_s: time for all rounds, s; a few are measured however long they take.
    """
    shapes = decoder_shapes()
    gradients = _drawn(shapes, seed=1, size=1e-2)
    plain = AdamW(_weights(shapes, gradients), foreach=True)
    ours = PrecisionAdaptiveAdamW(_weights(shapes, gradients), foreach=True)
    calls = {TORCH: plain.step, OURS: ours.step}
    # Two arms at a time: of three in turns the middle one would never find its own weights in the
    # processor's cache, and the outer ones would in every second round.
    times = timed_rounds(calls, N_ROUNDS, box_s / 2)
    ours.decelerate(SLOWED_GAMMA)
    slowed_times = timed_rounds(calls, N_ROUNDS, box_s / 2)
    slowed = _ratios(slowed_times)
    torch_ms = 1e3 * median([*times[TORCH], *slowed_times[TORCH]])
    beside = {"torch_ms": torch_ms, "slowed": spread_of(slowed)}
    words = {
        "n_weights": sum(g.numel() for g in gradients),
        "n_tensors": len(shapes),
        "slowed": median(slowed),
    }
    return [
        FIGURES.figure("optim.adamw_equal", adamw_equal()),
        FIGURES.median("optim.foreach_vs_torch_adamw", _ratios(times), beside, words=words),
    ]


def adamw_equal(n_steps: int = 20) -> bool:
    """Whether ours at gamma = 1 ends with torch's weights and moments, bit for bit, on each path.

    Args:
        n_steps: steps of each run, with a gradient of its own each.
    """
    return all(
        _same_run(dtype, n_steps, amsgrad=amsgrad, **flags)
        for flags in PATHS.values()
        for dtype in (torch.float32, torch.bfloat16)
        for amsgrad in (False, True)
    )


def decoder_shapes() -> list[tuple[int, ...]]:
    """Shapes of the weights of a small decoder with a tied embedding."""
    square, wide = (HIDDEN, HIDDEN), (INTERMEDIATE, HIDDEN)
    layer = [square] * 4 + [wide, wide, wide[::-1]] + [(HIDDEN,)] * 2
    return [(VOCABULARY, HIDDEN), *layer * N_LAYERS, (HIDDEN,)]


def _ratios(times: Mapping[str, Sequence[float]]) -> list[float]:
    """Ours over torch's, two rounds at a time: in each two an arm stands once after itself."""
    pairs = {
        name: [a + b for a, b in zip(arm[::2], arm[1::2], strict=True)]
        for name, arm in times.items()
    }
    return round_ratios(pairs[OURS], pairs[TORCH])


def _same_run(dtype: torch.dtype, n_steps: int, **options: Any) -> bool:
    """Train small weights twice, and compare all of them and of the optimizers' states."""
    shapes = [(33, 17), (129,), (), (4, 3, 5)]
    ends = []
    for kind in (AdamW, PrecisionAdaptiveAdamW):
        weights = _weights(shapes, _drawn(shapes, seed=0, size=1.0, dtype=dtype))
        optimizer = kind(weights, lr=1e-2, weight_decay=0.1, **options)
        for step in range(n_steps):
            gradients = _drawn(shapes, seed=100 + step, size=10.0 ** (step % 5 - 3), dtype=dtype)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient
            optimizer.step()
        state = [optimizer.state[weight] for weight in weights]
        ends.append([*weights, *(part for s in state for _, part in sorted(s.items()))])
    return len(ends[0]) == len(ends[1]) and all(map(torch.equal, *ends))


def _weights(shapes: Sequence[tuple[int, ...]], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Weights of their own with these gradients, which are shared."""
    weights: list[Tensor] = []
    for drawn, gradient in zip(_drawn(shapes, 0, 0.02), gradients, strict=True):
        weight = torch.nn.Parameter(drawn.to(gradient.dtype))
        weight.grad = gradient
        weights.append(weight)
    return weights


def _drawn(
    shapes: Sequence[tuple[int, ...]], seed: int, size: float, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(s, generator=generator) * size).to(dtype) for s in shapes]
