"""The end of a child process that does not end: within a driver's call not even SIGKILL does it."""

from __future__ import annotations

import subprocess

from ecorl.child_process import REAP_S, wait_or_kill


class Stuck:
    """A process that the kernel cannot remove."""

    def __init__(self):
        self.waits, self.n_killed = [], 0

    def wait(self, timeout=None):
        self.waits.append(timeout)
        assert timeout is not None, "it would be waited for without a limit"
        raise subprocess.TimeoutExpired("stuck", timeout)

    def kill(self):
        self.n_killed += 1


def test_a_process_that_cannot_be_killed_is_left_after_a_limit():
    process = Stuck()
    assert not wait_or_kill(process, 0.1)
    assert (process.waits, process.n_killed) == ([0.1, REAP_S], 1)
