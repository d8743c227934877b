"""Policies without a network: heuristics, look-ahead, the causal and the clairvoyant planner."""
