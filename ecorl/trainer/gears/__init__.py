"""Gears: numeric formats of the training stage, shifted between two steps."""
