"""The demo's task: a small self-made language model that learns to subtract.

`arithmetic` defines the task, `prepare` makes and caches the checkpoints and data files, `folder`
writes them into a folder of the user's, with a config and with `train`, a script of one's own.
"""
