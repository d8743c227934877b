"""Engines: inference of frozen models (reward, reference), and generation.

`protocol` says what an engine is, `registry` makes one from the configuration, `lane` and `host`
put it behind an asynchronous lane, on a thread or in a process of its own. `torch_engine` is the
exact path, `fpga` the INT8 kernels, `faults` goes wrong on purpose, `validate` checks answers.
"""
