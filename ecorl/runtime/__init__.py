"""Run-time: the paths that events take through ecorl while a framework trains."""
