"""The batches that a calibration was fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reach:
    """The batches that a calibration was fitted to: least and greatest of each figure.

    Attributes:
        n_batches: how many.
        rows_least, rows_most: completions of a batch.
        prompt_least, prompt_most: mean prompt of a batch, tokens.
        completion_least, completion_most: mean completion of a batch, tokens.
        models: that ran, by name, as far as the record tells.
    """

    n_batches: int
    rows_least: int
    rows_most: int
    prompt_least: float
    prompt_most: float
    completion_least: float
    completion_most: float
    models: Mapping[str, str] = field(default_factory=dict)
