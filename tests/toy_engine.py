"""An engine without a model, which an entry point registers: it loads in any process of a run.

Its answers follow from the rows, and some tokens make it misbehave. It reports as an engine on a
simulated card does.
"""

from __future__ import annotations

import time

import numpy as np

from ecorl.engines.protocol import EngineReport, LogprobResult, ScoreResult
from ecorl.errors import CheckpointError, ConfigError
from ecorl.records import ModelShape, Provenance, Stage

MODEL = ModelShape(1, 8, 16, 1, 1, 8, 64, 1_500, 1_000)
REPORT = EngineReport(0.5, 4.0, Provenance.MODELLED, 0.01)
SCALE = "scale.txt"
"""The file of a checkpoint: what values are divided by."""

SLOW, HANG, SHORT = 61, 62, 63
"""First tokens of a row that make a call last 1 s, last for ever, and lack its last value."""


class Engine:
    name, model, row_invariant, card_bytes, host = "toy", MODEL, True, 1_000, "csim"

    def __init__(self, checkpoint, stage, device, broken="", mistaken=False):
        """Load it; `broken` names a stage whose model cannot be loaded."""
        if mistaken:
            raise ConfigError("engine.offload.options.mistaken", True, "false")
        if broken == stage or not (checkpoint / SCALE).is_file():
            raise CheckpointError(f"{checkpoint.name} is broken")
        self.stage, self.device = stage, device
        self.load_weights(checkpoint)

    def load_weights(self, checkpoint):
        self.scale = int((checkpoint / SCALE).read_text())
        return str(self.scale)

    def score(self, batch):
        firsts = {int(row[0]) for row in batch.token_ids}
        time.sleep(1.0 if SLOW in firsts else 3600.0 if HANG in firsts else 0.0)
        values = answers(batch, self.stage, self.scale)
        if SHORT in firsts:
            values = values[:-1]
        if self.stage is Stage.REFERENCE:
            return LogprobResult(batch.sample_ids, tuple(values), REPORT)
        return ScoreResult(batch.sample_ids, np.array(values, dtype=np.float32), REPORT)

    logprobs = score

    def close(self):
        pass


def answers(batch, stage, scale=100):
    """The right values: of a row's tokens, or of each token of its completion."""
    rows = zip(batch.token_ids, batch.n_completion, strict=True)
    if stage is Stage.REFERENCE:
        return [(-(row[len(row) - n :] + 1) / scale).astype(np.float32) for row, n in rows]
    return [np.float32(row.sum() / scale) for row, _ in rows]
