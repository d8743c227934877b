"""How noisy the gradients of a gear are beside those of BF16, and the gamma that follows.

CarbonGearRL (Eq. 4 and 5) writes a gear's gradient as the true one plus a noise of variance
sigma_p^2, and takes gamma = sigma_p / sigma_BF16. The question is what counts as noise.

What the optimizer divides by grows with all noise that it sees: the choice of the samples, which
is there in every gear, and the rounding of the gear. Both are counted here, in both gears:

    gamma = sqrt((sampling + rounding of the gear) / (sampling + rounding of BF16)).

The rounding alone would give another figure altogether. FP8 keeps 3 bits of mantissa and BF16 keeps
7, so that its rounding is up to 2^4 times as large: on small Llamas that of emulated FP8 was 12
times BF16's at the start and 5 to 8 times later, near what the paper prints, about 4; the total of
the two gears was the same within 1 %. A training slowed so much loses progress for a difference
that its optimizer cannot see.
With the total, a gear whose rounding drowns in the scatter of the samples has a gamma near
1 and costs no progress, and one whose rounding rules has a large gamma: that is what is wanted.

The two gears see the same micro-batches, weights and random draws, so that the scatter of the
samples is the same in both and the ratio is far more certain than each variance is. What a gear
gets wrong in the same direction for all samples is no noise, and smaller steps do not mend it; it
enters as far as the gear's gradients are taken around the reference's mean (see `GradientNoise`),
and stands beside as `shift_norm`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

Contexts = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """The noise of a step's gradient in a gear beside the same in the reference gear.

    The step's gradient is the sum over K micro-batches. With g_i of the reference, h_i of the gear,
    d_i = h_i - g_i, and g, h, d their means, the variances of the sum are, without bias,

        reference     K / (K - 1) sum |g_i - g|^2
        gear          K / (K - 1) sum |h_i - h|^2 + K b^2
        rounding      sum |d_i|^2

    where b^2 = |d|^2 - sum |d_i - d|^2 / (K (K - 1)), at least 0, is what the gear is wrong by in
    the mean: |d|^2 less the scatter that d itself has.

    Attributes:
        n_micro_batches: K.
        reference_variance: of the reference gear, its rounding included; squared units of the
            gradient, summed over all parameters. None where it is not finite, here and below.
        gear_variance: of the gear, with what it is wrong by in the mean.
        quantisation_variance: of the difference between the two.
        reference_norm: length of the step's gradient in the reference gear.
        shift_norm: length of the difference of the step's gradients: about the root of
            `quantisation_variance` where the gear is right in the mean, larger where it is not.
        time_s: what the measurement took, s, measured.
    """

    n_micro_batches: int
    reference_variance: float | None
    gear_variance: float | None
    quantisation_variance: float | None
    reference_norm: float | None
    shift_norm: float | None
    time_s: float

    @property
    def ratio(self) -> float | None:
        """sigma_gear / sigma_reference; None where it cannot be told: no noise, or not finite."""
        if self.gear_variance is None or not self.reference_variance:
            return None
        ratio = math.sqrt(self.gear_variance / self.reference_variance)
        return ratio if math.isfinite(ratio) else None

    @property
    def gamma(self) -> float | None:
        """What the optimizer is to be given: `ratio`, but never below 1; None without a ratio."""
        ratio = self.ratio
        return None if ratio is None else max(1.0, ratio)


def gradient_noise(
    losses: Sequence[Callable[[], Tensor]],
    parameters: Sequence[Tensor],
    reference: Contexts,
    gear: Contexts,
    scale: float = 1.0,
) -> GradientNoise:
    """Measure the noise of the gradient in a gear and in the reference gear, on the same samples.

    It takes one forward and one backward pass more for each micro-batch and gear, and the memory of
    about five gradients. Gradients are asked for directly: ``.grad`` stays as it is, and no hook of
    DistributedDataParallel runs; the losses are to call the bare module, because the wrapper waits
    for a reduction that does not come. torch's random state is afterwards as it was, and a
    micro-batch draws the same numbers in both gears. What a forward pass changes in the model
    itself, as the running means of batch normalisation, is changed.

    Args:
        losses: for each of at least two micro-batches what computes its loss; the step's loss is
            their sum. Each is called once in each gear.
        parameters: what the optimizer steps, on the devices on which the losses draw.
        reference: makes the context in which the BF16 gear computes.
        gear: makes the context of the gear.
        scale: by which the gear's loss is multiplied and its gradient divided, as a GradScaler does
            for FP16.

    Raises:
        ValueError: for fewer than two micro-batches: one has no variance.
    """
    if len(losses) < 2:
        raise ValueError(f"{len(losses)} micro-batches: a variance needs two")
    start_s = time.perf_counter()
    weights = [p for p in parameters if p.requires_grad]
    devices = sorted({p.device.index for p in weights if p.device.type == "cuda"})
    of_reference, of_gear = _Scatter(), _Scatter()
    squares: list[Tensor] = []
    with torch.random.fork_rng(devices=devices):
        for loss in losses:
            with torch.random.fork_rng(devices=devices):
                exact = _gradients(loss, weights, reference, 1.0)
            rounded = _gradients(loss, weights, gear, scale)
            of_reference.add(exact)
            of_gear.add(rounded)
            squares.append(_square(h - g for h, g in zip(rounded, exact, strict=True)))
            del exact, rounded  # before the next micro-batch needs the room
    n = len(losses)
    shift = _square(h - g for h, g in zip(of_gear.mean, of_reference.mean, strict=True))
    rounding = sum(float(square) for square in squares)
    off = float(shift)
    # sum |d_i - d|^2 = sum |d_i|^2 - K |d|^2: no gradient has to be kept for it. NaN stays NaN.
    bias = off - (rounding - n * off) / (n * (n - 1))
    bessel = n / (n - 1)
    return GradientNoise(
        n,
        _finite(bessel * of_reference.squares()),
        _finite(bessel * of_gear.squares() + n * (0.0 if bias < 0.0 else bias)),
        _finite(rounding),
        _finite(n * math.sqrt(float(_square(of_reference.mean)))),
        _finite(n * math.sqrt(off)),
        time.perf_counter() - start_s,
    )


class _Scatter:
    """Mean of gradients and the sum of their squared distances from it, by Welford's recurrence."""

    def __init__(self) -> None:
        self.mean: list[Tensor] = []
        self._squares: list[Tensor] = []

    def add(self, gradients: Sequence[Tensor]) -> None:
        n = len(self._squares) + 1
        if n == 1:
            self.mean = [g.clone() for g in gradients]
            self._squares.append(torch.zeros((), dtype=torch.float64))
            return
        square = _square(g - m for g, m in zip(gradients, self.mean, strict=True))
        self._squares.append(square * ((n - 1) / n))
        for m, g in zip(self.mean, gradients, strict=True):
            m.lerp_(g, 1.0 / n)

    def squares(self) -> float:
        return sum(float(square) for square in self._squares)


def _gradients(
    loss: Callable[[], Tensor], weights: Sequence[Tensor], context: Contexts, scale: float
) -> list[Tensor]:
    """The gradients of a loss, at least in float32; zero for what it does not depend on."""
    # Autocast keeps the weights that it cast, whatever it cast them to, until its outermost context
    # ends: one gear within the trainer's own autocast would compute with the other's weights.
    torch.clear_autocast_cache()
    # The backward pass is within the context too: it may compute parts of the forward pass anew.
    with torch.enable_grad(), context(), ExitStack() as without_autocast:
        value = loss() * scale
        # Autocast alone ends before it, which would be cast as well.
        for device in {w.device.type for w in weights}:
            without_autocast.enter_context(torch.autocast(device, enabled=False))
        found = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
    torch.clear_autocast_cache()
    # Not in place: autograd may answer with one tensor for two weights.
    return [_wide(g) / scale if scale != 1.0 else _wide(g) for g in found]


def _wide(gradient: Tensor) -> Tensor:
    dense = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
    return dense.to(torch.promote_types(dense.dtype, torch.float32))


def _square(tensors: Iterator[Tensor] | Sequence[Tensor]) -> Tensor:
    """The squared length of a vector in parts, float64, on the device of its last part."""
    total = torch.zeros((), dtype=torch.float64)
    for tensor in tensors:
        norm = torch.linalg.vector_norm(tensor, dtype=torch.float64)
        total = total.to(tensor.device) + norm.square()
    return total


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
