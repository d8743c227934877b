"""An engine in a separate process with the blocking calls of `InferenceEngine`, for tests."""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.engines.lanes import isolated
from ecorl.engines.protocol import LogprobResult, ScoreResult
from ecorl.errors import EngineError


@dataclass(frozen=True, slots=True)
class HostLimits(isolated.HostLimits):
    """With the limit of a blocking call, s; None waits without limit."""

    call_s: float | None = 60.0


class IsolatedEngine(isolated.IsolatedEngine):
    def __init__(self, spec, limits=None):
        super().__init__(spec, limits or HostLimits())

    def wait_available(self, timeout_s):
        """Wait for a restart in progress; True when the engine is available."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not isolated._Life.STARTING, timeout_s)
        return self.available

    def score(self, batch):
        result = self._call(batch)
        if not isinstance(result, ScoreResult):
            raise EngineError(f"an engine of stage {self.stage} does not score")
        return result

    def logprobs(self, batch):
        result = self._call(batch)
        if not isinstance(result, LogprobResult):
            raise EngineError(f"an engine of stage {self.stage} does not give log-probs")
        return result

    def _call(self, batch):
        self.wait_available(self._limits.start_s)
        future = self.submit(batch)
        try:
            return future.result(self._limits.call_s)
        except TimeoutError:
            if not future.done():
                self.cancel_and_restart()
        return future.result()
