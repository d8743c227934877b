"""Measures whether INT8 keeps the order of held-out preference pairs."""
