"""Makes the runtime that a config asks for."""

from __future__ import annotations

from ecorl.config import Config, RayRuntimeConfig
from ecorl.edi import EdiMatrix
from ecorl.ledger import Ledger
from ecorl.runtime.handles import RunTotals
from ecorl.runtime.local import LocalRuntime
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.training import TrainingSide


def build_runtime(
    config: Config,
    ledger: Ledger,
    training: TrainingSide,
    *,
    edi: EdiMatrix | None = None,
    before: RunTotals | None = None,
) -> Runtime:
    """Make the runtime of ``[runtime]``; it is not started yet.

    Args:
        config: the run's configuration.
        ledger: the run's record, open. From here on it is the runtime's: write to its `record`.
        training: what the framework's adapter says of its processes.
        edi: a matrix to go on with (a resumed run).
        before: what earlier attempts of the run have drawn.

    Raises:
        UserError: for a profile, policy or engine that cannot be used, or a cluster that is not
            there.
    """
    if isinstance(config.runtime, RayRuntimeConfig):
        # Imported here: without a cluster no one needs Ray.
        from ecorl.runtime.ray.runtime import RayRuntime

        return RayRuntime(config, ledger, training, edi=edi, before=before)
    return LocalRuntime(config, ledger, training, edi=edi, before=before)
