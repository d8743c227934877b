"""Policies for the scheduler: heuristics, planners, the clairvoyant optimum, the learned one."""
