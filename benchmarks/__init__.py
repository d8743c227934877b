"""Benchmarks: one question a file. ``python -m benchmarks`` runs them all."""

import logging
import os

# Small models on a CPU lose time with more threads, and libraries read this when first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Its clusters are this machine's alone, and end with the benchmark.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

# What they say, when they are imported, of kernels for other devices.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
