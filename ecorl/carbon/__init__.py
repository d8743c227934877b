"""Carbon of the electricity: who tells it, what it will be, and what a run has caused.

feeds       one protocol, and a back-end for each source of intensities
traces      recorded grid data: reading, repairing, refusing
forecasts   what the intensity will be in the next days, with intervals
"""
