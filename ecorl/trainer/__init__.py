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
    from ecorl.trainer.elastic.groups import GroupOptions as GroupOptions
    from ecorl.trainer.elastic.records import ActorPlace as ActorPlace
    from ecorl.trainer.elastic.records import ElasticOptions as ElasticOptions
    from ecorl.trainer.elastic.records import MemberOptions as MemberOptions
    from ecorl.trainer.elastic.records import Patience as Patience
    from ecorl.trainer.elastic.task import EpochOrder as EpochOrder
    from ecorl.trainer.elastic.trainer import ElasticTrainer as ElasticTrainer
    from ecorl.trainer.optimizer.adamw import PrecisionAdaptiveAdamW as PrecisionAdaptiveAdamW

_PUBLIC = {
    "ActorPlace": "ecorl.trainer.elastic.records",
    "ElasticOptions": "ecorl.trainer.elastic.records",
    "ElasticTrainer": "ecorl.trainer.elastic.trainer",
    "EpochOrder": "ecorl.trainer.elastic.task",
    "GroupOptions": "ecorl.trainer.elastic.groups",
    "MemberOptions": "ecorl.trainer.elastic.records",
    "Patience": "ecorl.trainer.elastic.records",
    "PrecisionAdaptiveAdamW": "ecorl.trainer.optimizer.adamw",
}
"""Where each public name is defined."""

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for first."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
