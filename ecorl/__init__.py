"""ecorl: measure, place and account for the energy of RLHF training, stage by stage.

    with ecorl.measure("ecorl.toml", total_steps=1000) as run:
        ...                                  # a training loop of your own, see `ecorl.loop`

Importing this package touches no driver and no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecorl.loop import measure as measure

__all__ = ["__version__", "measure"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `measure` when it is asked for first."""
    if name == "measure":
        from ecorl.loop import measure

        return measure
    raise AttributeError(f"module 'ecorl' has no attribute {name!r}")
