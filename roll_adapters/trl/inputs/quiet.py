"""Keeps transformers and its kin from talking to the user of `ecorl run`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from transformers.utils import logging as hf_logging


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the bars and warnings of transformers and its kin inside the block."""
    bars, level = hf_logging.is_progress_bar_enabled(), hf_logging.get_verbosity()
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            # Deprecations between these libraries are theirs to mend, not the user's.
            for package in ("transformers", "trl", "torch", "accelerate", "datasets"):
                warnings.filterwarnings("ignore", module=rf"{package}(\.|$)")
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()
