"""Lets Ray's worker processes begin as forks of one that has loaded their libraries already.

Python imports this module when it starts. Loading is nearly all that a short test over Ray takes:
ten processes for a second of work. Where no such process is to be had, and for any other program,
all is as it would be without this module.
"""

from __future__ import annotations

import os
import sys

_FORKS = ("setup_worker.py", "default_worker.py", "roll_adapters.roll")

if "ECORL_TEST_FORKS" in os.environ and any(w.endswith(_FORKS) for w in sys.orig_argv[1:3]):
    from tests.frameworks.worker_forks import run_as_fork

    run_as_fork(sys.orig_argv[1:])
