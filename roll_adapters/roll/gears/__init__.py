"""Gears of ROLL's ``actor_train``: its training steps in another numeric format."""
