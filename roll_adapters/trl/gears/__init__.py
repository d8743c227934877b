"""Gears of a TRL trainer: its training stage in another numeric format than its other stages."""
