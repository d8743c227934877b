"""The toy engine in a process of its own, and what tests ask of processes."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

from ecorl.engines.lanes.threaded import EngineSpec
from ecorl.records import Stage
from tests.fakes.blocking_engine import HostLimits, IsolatedEngine

RAISE, HANG, EXIT, LOSE, OWN = 9001, 9002, 9003, 9004, 9005
LIMITS = HostLimits(start_s=240.0, call_s=240.0, max_restarts=3, backoff_s=0.02, close_s=3600.0)
"""Beyond what a call hangs for, 600 s, is only the time for an orderly end."""


def spec(stage=Stage.REWARD, faults=(), **options):
    return EngineSpec("plugin", "toy", Path("nowhere"), stage, "u55c", options, 1, tuple(faults))


@contextlib.contextmanager
def running(limits=LIMITS, **kwargs):
    engine = IsolatedEngine(spec(**kwargs), limits)
    try:
        yield engine
    finally:
        engine.close()


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition, limit_s=240.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
