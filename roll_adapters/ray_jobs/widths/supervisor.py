"""Starts a framework's command, and starts it again with another number of processes when it left.

Width by save and restart: the framework's world size is fixed for a job, so that a job that leaves
its training ends behind a checkpoint. The next one goes on from it. Where it fails before its first
step, the training goes on as wide as before, from the same checkpoint.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from ecorl.child_process import die_with_parent
from roll_adapters.ray_jobs.widths.handover import VARIABLE, Handover

logger = logging.getLogger(__name__)

Command = Callable[[int | None], Sequence[str]]
"""The command line for a width; None: as the user gave it."""


class JobSupervisor:
    """Runs one training as one job after the other.

    Args:
        command: the command line for a width.
        width: that the user's command begins with.
        has_stepped: tells whether the record holds a step after a given one.
    """

    def __init__(self, command: Command, width: int, has_stepped: Callable[[int], bool]) -> None:
        self._command, self._width, self._has_stepped = command, width, has_stepped
        self._barred: tuple[int, ...] = ()
        self._job: subprocess.Popen[bytes] | None = None
        self._signalled = False
        self._pending: int | None = None

    def run(self) -> int:
        """Train until a job ends without having left the training; its exit code."""
        with tempfile.TemporaryDirectory(prefix="ecorl-") as folder, self._forwarding():
            now, after = Path(folder) / "now.json", Path(folder) / "left.json"
            told: Handover | None = None
            while True:
                code = self._run(told, now, after)
                left = Handover.read(after)
                after.unlink(missing_ok=True)
                if left is not None and not self._signalled:
                    came_from = self._width if told is None else told.width
                    before, told = came_from, replace(left, barred=self._barred)
                    continue
                if code == 0 or told is None or told.reason is not None or self._signalled:
                    return code
                if self._has_stepped(told.step):
                    return code
                self._barred = (*self._barred, told.width)
                reason = f"the job ended with exit code {code} before its first step"
                logger.warning("%d processes cannot be begun with: %s", told.width, reason)
                told = replace(told, width=before, barred=self._barred, reason=reason)

    def _run(self, told: Handover | None, now: Path, after: Path) -> int:
        """Run one job to its end.

        It dies with this process: nobody would start the next one when it leaves its training.
        """
        if told is not None:
            told.write(now)
        words = self._command(None if told is None else told.width)
        # A session of its own: Ctrl-C in the terminal reaches it once, by way of this process.
        job = subprocess.Popen(
            words,
            env={**os.environ, VARIABLE: str(after)},
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        self._job = job
        self._pass_on()  # what came before there was a job to pass it on to
        try:
            return job.wait()
        finally:
            self._job = None

    def _pass_on(self) -> None:
        """Send the job the signal that waits for it, once."""
        if self._job is None or self._pending is None:
            return
        number, self._pending = self._pending, None
        with suppress(ProcessLookupError):
            self._job.send_signal(number)

    @contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Pass signals on to the job, which ends by them; no further one is started then."""

        def forward(number: int, _frame: FrameType | None) -> None:
            self._signalled, self._pending = True, number
            self._pass_on()

        before = {which: signal.signal(which, forward) for which in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for which, own in before.items():
                signal.signal(which, own)


def handed_over(file: Path | None) -> Handover | None:
    """What the job before this one has left; None for the first.

    Args:
        file: that this job leaves its own in.
    """
    return None if file is None else Handover.read(file.with_name("now.json"))
