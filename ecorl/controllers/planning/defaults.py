"""What plans and simulations assume where nobody says otherwise."""

from __future__ import annotations

FP8_GAIN = 1.25
"""Throughput of FP8 over BF16 end to end: published, torchao at 8 B on 8 GPUs."""

EXPONENT = 0.97
"""Power of the width with which throughput grows. Assumed, as in the study behind the targets."""

COMPARED = ("carbonscaler", "carbonscaler-fp8", "stochastic")
"""Controllers that are played beside the static ones: the one that people know, in BF16 and in FP8,
and the default one."""
