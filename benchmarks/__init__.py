"""Benchmarks: one question a file. ``python -m benchmarks`` runs them all."""

import os

# Small models on a CPU lose time with more threads, and libraries read this when first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
