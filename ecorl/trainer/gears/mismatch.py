"""How far the trainer's token probabilities are from those of the rollout."""

from __future__ import annotations

import torch


def probability_mismatch(
    rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor
) -> float | None:
    """The mean ratio of token probabilities, the larger over the smaller.

    ``mean over tokens of exp(|log p_rollout - log p_trainer|)``, as RL frameworks print it for the
    same weights in two precisions: 1 for equal ones, and rarely above 1.03 to 1.05 in a training
    that is well.

    A token whose rollout probability is not a number, because the inference server has not told it,
    is left out: nothing is known of it. One that the trainer itself does not know counts.

    Args:
        rollout: ``[n, t] float32``, log-probabilities in the rollout's precision.
        trainer: ``[n, t] float32``, of the same tokens in the training stage's.
        mask: ``[n, t]``, other than 0 where a token counts.

    Returns:
        The mean, at least 1; infinite where a probability of the trainer's is not a number; None
        where no token is left.
    """
    counts = mask.bool() & rollout.isfinite()
    if not bool(counts.any()):
        return None
    # Of float64, as a single token far off can be a factor beyond float32.
    gap = (rollout.double() - trainer.double()).abs()[counts]
    mean = float(gap.exp().mean())
    return mean if mean == mean else float("inf")
