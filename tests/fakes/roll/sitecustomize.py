"""Lets Ray's worker processes begin as forks of one that has loaded torch already.

Python imports this module when it starts. Loading is nearly all that a training of the double
takes: ten processes for a second of work. Where no such process is to be had, or for any other
program, all is as it would be without this module.
"""

from __future__ import annotations

import os
import sys

if "ECORL_TEST_FORKS" in os.environ and any(w.endswith("setup_worker.py") for w in sys.orig_argv):
    from tests.frameworks.worker_forks import run_as_fork

    run_as_fork(sys.orig_argv[1:])
