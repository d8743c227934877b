"""Runs the arms: each arm and seed in a process of its own, forked from one that has imported all.

`workers` starts that process and asks it for jobs, `worker_main` is what it does. `idle` reads what
this machine draws while nothing runs, `folder` is what a second call goes on with.
"""
