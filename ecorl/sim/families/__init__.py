"""Families of scenarios: what policies are trained on, and what they are compared on.

Training and comparison draw from different seeds and differ in kind (`ecorl.sim.families.pools`).
"""
