"""Sampling: one process that reads the sources, and the thread of the run that receives."""
