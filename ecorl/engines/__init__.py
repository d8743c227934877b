"""Engines that compute rewards and reference log-probs of frozen models.

`protocol` defines an engine; `registry` makes one from the configuration, with injected faults if
it has any. `lanes` puts it
behind an asynchronous queue, on a thread or in a separate process. `torch` is the exact path,
`fpga` the INT8 kernels, `models` reads checkpoints. `validate` checks
batches and results, and is the one place where errors of foreign engines are caught.
"""
