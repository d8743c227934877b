"""Injects faults into an engine, to rehearse what a run survives."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ecorl.config import FaultInjection
from ecorl.engines.lanes.threaded import answer, told_of
from ecorl.engines.protocol import (
    InferenceEngine,
    LogprobResult,
    Refresh,
    Refreshed,
    ScoreBatch,
    ScoreResult,
)
from ecorl.errors import EngineCrashed
from ecorl.records import ModelShape, Stage

logger = logging.getLogger(__name__)

EXIT_CODE = 70
"""Exit code of an injected process exit (EX_SOFTWARE of sysexits.h)."""


@dataclass(frozen=True, slots=True)
class FaultScope:
    """Bounds on the effect of a fault.

    Attributes:
        own_process: whether the engine runs in a separate process, which ``exit`` may end.
            Elsewhere ``exit`` raises instead, since it would end the training run too.
        hang_s: how long a ``hang`` lasts unless the process is killed, s.
    """

    own_process: bool = False
    hang_s: float = 24 * 3600.0


class FaultyEngine:
    """Wraps an engine and makes chosen calls fail.

    Args:
        inner: the engine that computes all calls.
        faults: kinds of faults, and the 0-based calls that they affect.
        first_call: number of the first call; a restarted engine goes on counting.
        scope: bounds on the effect of a fault.
    """

    def __init__(
        self,
        inner: InferenceEngine,
        faults: Sequence[FaultInjection],
        *,
        first_call: int = 0,
        scope: FaultScope | None = None,
    ) -> None:
        self.name: str = inner.name
        self.device: str = inner.device
        self.stage: Stage = inner.stage
        self.model: ModelShape = inner.model
        self.row_invariant: bool = inner.row_invariant
        self.card_bytes, self.host, self.card_banks = told_of(inner)
        self._inner = inner
        self._faults = tuple(faults)
        self._next_call = first_call
        self._scope = scope or FaultScope()

    def score(self, batch: ScoreBatch) -> ScoreResult:
        """Score as the inner engine does, with the faults of this call."""
        faults = self._begin_call()
        result = self._inner.score(batch)
        for fault in faults:
            if fault.kind == "nan":
                values = result.values.copy()
                values[[row for row in fault.rows if 0 <= row < len(values)]] = np.nan
                result = replace(result, values=values)
            elif fault.kind == "shape":
                result = replace(result, values=result.values[:-1])
        return result

    def logprobs(self, batch: ScoreBatch) -> LogprobResult:
        """Compute log-probs as the inner engine does, with the faults of this call."""
        faults = self._begin_call()
        result = self._inner.logprobs(batch)
        for fault in faults:
            if fault.kind == "nan":
                rows = [
                    np.full_like(row, np.nan) if index in fault.rows else row
                    for index, row in enumerate(result.values)
                ]
                result = replace(result, values=tuple(rows))
            elif fault.kind == "shape":
                result = replace(result, values=result.values[:-1])
        return result

    def load_weights(self, checkpoint: Path) -> str:
        """Load weights as the inner engine does; no fault is injected, and no call counted.

        Raises:
            EngineError: when the inner engine cannot take over weights.
        """
        result = answer(self._inner, Refresh(checkpoint))
        return result.digest if isinstance(result, Refreshed) else ""

    def close(self) -> None:
        """Close the inner engine."""
        self._inner.close()

    def _begin_call(self) -> list[FaultInjection]:
        """Count the call, then raise, hang or exit where one of its faults demands it."""
        call = self._next_call
        self._next_call += 1
        due = [fault for fault in self._faults if call in fault.calls]
        for kind in _kinds(due):
            logger.warning("injected fault: %s on call %d of engine %s", kind, call, self.name)
            if kind == "hang":
                time.sleep(self._scope.hang_s)
                raise EngineCrashed(f"injected fault: call {call} hung {self._scope.hang_s:g} s")
            if kind == "exit" and self._scope.own_process:
                os._exit(EXIT_CODE)
            if kind in ("raise", "exit"):
                raise EngineCrashed(f"injected fault: {kind} on call {call}")
        return due


def _kinds(faults: Iterable[FaultInjection]) -> list[str]:
    return [fault.kind for fault in faults]
