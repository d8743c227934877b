"""Measuring code behind the scripts in ``benchmarks/``.

Pure parts first: `stats`, `rounds` (arms measured in turns), `figures` (a figure, its target, the
record). `machine` says on what a benchmark ran, `command` is the command line that all share.
`demo_run` drives one whole ``ecorl run`` in empty folders, `install` a clone and an installation,
`peers` the same reward model by torch and by ONNX Runtime.
"""
