"""Lets Ray's worker processes begin as forks of one that has loaded torch and Ray already.

Python imports this module when it starts. Loading is nearly all that a training of the double
takes: ten processes for a second of work. Where no such process is to be had, or for any other
program, all is as it would be without this module.
"""

from __future__ import annotations

import os
import sys

_SOCKET = "ROLL_TEST_FORKS"

if _SOCKET in os.environ and any(word.endswith("setup_worker.py") for word in sys.orig_argv):
    from worker_forks import run_as_fork

    run_as_fork(os.environ[_SOCKET], sys.orig_argv[1:])
