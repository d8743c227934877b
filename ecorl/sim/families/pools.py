"""What training may draw, and what it never sees."""

from __future__ import annotations

from ecorl.records import Abilities, Algorithm

HELD_OUT_GPU = "a100_sxm"
HELD_OUT_SIZE = "3b"
HELD_OUT_ALGORITHM = Algorithm.DAPO
"""Never drawn for training: neither as the training's GPU nor in the card's place."""

GPUS = ("h100_sxm", "h200", "b200_sxm", "l4", "cpu")
SIZES = ("160k", "15m", "135m", "360m", "0.5b", "1b", "8b")
TRAINING_ALGORITHMS = (Algorithm.PPO, Algorithm.GRPO, Algorithm.REINFORCE_PP)
ALGORITHMS = (*TRAINING_ALGORITHMS, HELD_OUT_ALGORITHM)
LONG_S = 4.0
"""Iterations above which a card's heat can be planned with."""

FROZEN = Abilities(True, True, True, False)
ALL = Abilities(True, True, True, True)
