"""What the training stage is made of that obeys the controllers: it acts, they decide.

`optimizer` has an AdamW that takes smaller steps in noisy gears, and the measurement of that noise;
`gears` puts a model's training stage into another numeric format; `elastic` trains over actors
whose number changes.

Importing this package imports no torch: a public name brings its module when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecorl.trainer.elastic.trainer import ElasticTrainer as ElasticTrainer
    from ecorl.trainer.optimizer.adamw import PrecisionAdaptiveAdamW as PrecisionAdaptiveAdamW

_PUBLIC = {
    "ElasticTrainer": "ecorl.trainer.elastic.trainer",
    "PrecisionAdaptiveAdamW": "ecorl.trainer.optimizer.adamw",
}
"""Where each public name is defined."""

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for first."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
