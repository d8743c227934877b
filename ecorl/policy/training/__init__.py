"""Trains the placement network: imitation of the planner, PPO, and the policy file."""
