"""The demo's task: a small self-made language model that learns to subtract.

`arithmetic` defines the task, `prepare` makes and caches the checkpoints and data files.
"""
