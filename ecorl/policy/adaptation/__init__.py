"""Adapts a policy to a run whose workload has shifted, and keeps its versions."""
