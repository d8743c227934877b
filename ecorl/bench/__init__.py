"""Benchmarks of a user's own training, behind ``ecorl bench``: `tokens_per_joule`.

Beside it stands what it shares with the scripts in ``benchmarks/``: `stats`, `rounds` (arms
measured in turns), `figures` (a figure, its target, the record), `machine` (what it ran on).
"""
