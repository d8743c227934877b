"""Terms that no text for a user may hold, for tests of reports and of reasons."""

from __future__ import annotations

import re

_ALWAYS = (
    r"\bGPU path\b", r"\bhost path\b", r"\bexact path\b", r"\bFPGA path\b", r"\ba[123]\b",
    r"\bguards? (?:leave|is on)\b", r"\bEq\. ?\d", r"\(1 \+ ", r"\bso the GPU it is\b",
    r"\bconcurrent\b",
)  # fmt: skip
"""Of any run: several names of one thing, and terms that only the paper explains."""
_ON_A_HOST = r"\bGPUs?\b(?! ?hours)", r"\bgpu\b"
_ON_GPUS = (r"\b[Hh]osts?\b",)


def banned(text: str, *, on_gpus: bool) -> list[str]:
    """Find what a reader should not meet.

    Args:
        text: what a user reads.
        on_gpus: whether the framework of the run computes on GPUs, else on the host.

    Returns:
        Each find with some text around it.
    """
    patterns = (*_ALWAYS, *(_ON_GPUS if on_gpus else _ON_A_HOST))
    return [
        text[max(0, found.start() - 40) : found.end() + 40]
        for pattern in patterns
        for found in re.finditer(pattern, text)
    ]
