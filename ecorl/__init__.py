"""ecorl: measure, place and account for the energy of RLHF training, stage by stage.

Importing this package touches no driver and no torch.
"""

from __future__ import annotations

__version__ = "0.1.0"
