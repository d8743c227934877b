"""Bounds: the least that a training could emit if the grid's whole course were known beforehand."""
