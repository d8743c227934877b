"""Reads the runs of a benchmark: one `RunFigures` an arm and seed, from the run's own record."""
