"""Measuring placement: decisions, policies in the simulator, and policies in real trainings."""
