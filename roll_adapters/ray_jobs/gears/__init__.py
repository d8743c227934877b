"""Gears of a job on Ray: chosen in one process, engaged in those that train."""
