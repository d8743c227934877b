"""AdamW with a gear temperature in float64 NumPy, written from the formula alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def adamw_weights(
    weights: Array,
    gradients: Sequence[Array],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    gamma: float = 1.0,
    amsgrad: bool = False,
    maximize: bool = False,
    literal: bool = False,
) -> Array:
    """The weights after one step for each gradient; ``literal`` is Eq. 11 of CarbonGearRL."""
    theta = np.asarray(weights, np.float64)
    m, v, v_max = np.zeros_like(theta), np.zeros_like(theta), np.zeros_like(theta)
    for t, gradient in enumerate(gradients, start=1):
        g = np.asarray(gradient, np.float64) * (-1.0 if maximize else 1.0)
        m = betas[0] * m + (1.0 - betas[0]) * g
        v = betas[1] * v + (1.0 - betas[1]) * g**2
        v_max = np.maximum(v_max, v)
        m_hat = m / (1.0 - betas[0] ** t)
        root = np.sqrt((v_max if amsgrad else v) / (1.0 - betas[1] ** t))
        if literal:
            theta = theta - lr * m_hat / (root / gamma + eps) + weight_decay * theta
        else:
            theta = (1.0 - lr * weight_decay) * theta - lr * m_hat / (gamma * root + eps)
    return theta
