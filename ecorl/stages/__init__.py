"""Stages: their graphs per algorithm, and the one pure function of what a placement costs."""
