"""Compares an engine that is not exact with the framework's own model, on rows of the training.

INT8 changes rewards and log-probs, and a user wants to know by how much on the own data. The first
batch that an engine answers is computed by the framework's own model too, once an attempt of a run;
the training goes on with the engine's values. The time and energy of it are no stage's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ecorl.engines.protocol import Float32
from ecorl.records import Stage
from ecorl.runtime.protocol import RecordWriter

PHASE = "first batch"
"""Phase under which the comparison stands in the record."""

PAIRED_ROWS = 128
"""Rows whose places are compared with each other. Invented: 8128 pairs tell a share to about a
percent, and the training waits while they are counted; those of 8192 rows would be 33 million."""


def record_comparison(
    record: RecordWriter, stage: Stage, ours: Sequence[Float32], exact: Sequence[Float32]
) -> None:
    """Record how far an engine's values are from the exact ones.

    Rewards: the shift of each, and for each pair of the first rows whether they change places.
    Log-probs: the mean absolute shift of each row's tokens, nats.

    Args:
        record: of the run.
        stage: reward or reference.
        ours: one float32 scalar or ``[n_completion]`` vector a row, by the engine.
        exact: the same by the framework's own model.
    """
    if stage is Stage.REFERENCE:
        shifts = [float(np.abs(a - b).mean()) for a, b in zip(ours, exact, strict=True) if len(a)]
        record.evaluation("logprob_shift", PHASE, shifts)
        return
    a, b = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (ours, exact))
    flips = [
        float(np.sign(a[i] - a[j]) != np.sign(b[i] - b[j]))
        for i, j in combinations(range(min(len(a), PAIRED_ROWS)), 2)
    ]
    record.evaluation("score_shift", PHASE, [float(shift) for shift in a - b])
    record.evaluation("rank_flip", PHASE, flips)
