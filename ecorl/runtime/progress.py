"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PLAIN_INTERVAL_S = 10.0
"""Without a terminal at most one line per piece of work in this time, so that logs stay short."""


class ProgressTask:
    """One piece of work of known length; call `advance` as it goes."""

    def __init__(self, title: str, total: int, console: Console, bar: Progress | None) -> None:
        self._title, self._total, self._console, self._bar = title, total, console, bar
        self._done = 0
        self._t_start_s = self._t_line_s = time.monotonic()
        self._id = bar.add_task(title, total=total, note="") if bar else None

    def finish(self, note: str) -> None:
        """End the work before its full length, with a note (a target was reached)."""
        if self._bar is not None and self._id is not None:
            self._bar.update(self._id, total=self._done, note=note)
        else:
            self._line(note)

    def _line(self, note: str) -> None:
        self._t_line_s = time.monotonic()
        elapsed_s = self._t_line_s - self._t_start_s
        tail = f"  {note}" if note else ""
        self._console.print(
            f"{self._title}: {self._done}/{self._total}  {elapsed_s:.0f} s{tail}",
            highlight=False,
            markup=False,
        )

    def advance(self, n: int = 1, note: str = "") -> None:
        """Count more units done.

        Args:
            n: units.
            note: shown behind the bar or the line.
        """
        self._done += n
        if self._bar is not None and self._id is not None:
            self._bar.update(self._id, advance=n, note=note)
            return
        now_s = time.monotonic()
        if self._done >= self._total or now_s - self._t_line_s >= PLAIN_INTERVAL_S:
            self._line(note)


@contextmanager
def progress(title: str, total: int, console: Console, *, done: int = 0) -> Iterator[ProgressTask]:
    """Draw the progress of some work while the block runs.

    Args:
        title: what is being done, a few words.
        total: units of work.
        console: where to draw; a bar when it is a terminal.
        done: units that were done earlier (a resumed run).
    """
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
        )
        with Progress(*columns, console=console) as bar:
            task = ProgressTask(title, total, console, bar)
            if done:
                task.advance(done)
            yield task
    else:
        task = ProgressTask(title, total, console, None)
        if done:
            task.advance(done)
        yield task
