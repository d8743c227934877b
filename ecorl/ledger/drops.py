"""The sentence about rows that never reached the disk, for whoever reads the record."""

from __future__ import annotations

from datetime import UTC, datetime

from ecorl.ledger.writer import Drops

_NAMES = {
    "raw_sample": ("power reading", "power readings"),
    "execution": ("stage execution", "stage executions"),
    "placement": ("placement decision", "placement decisions"),
    "barrier": ("wait for offloaded rows", "waits for offloaded rows"),
    "fault": ("fault", "faults"),
    "metric": ("metric of the trainer", "metrics of the trainer"),
    "evaluation": ("evaluation", "evaluations"),
    "event": ("event", "events"),
    "checkpoint": ("checkpoint", "checkpoints"),
    "device": ("device", "devices"),
    "node": ("machine", "machines"),
    "edi": ("state of the EDI matrix", "states of the EDI matrix"),
    "intensity": ("carbon intensity", "carbon intensities"),
    "pue": ("PUE", "PUEs"),
    "gear_choice": ("decision about the training stage", "decisions about the training stage"),
}
"""What rows of a table are called, one and several."""


def told_drops(drops: Drops, *, now_unix_s: float, now_t_s: float) -> str:
    """Say which rows were dropped, how many, and from when to when.

    Args:
        drops: at least one row.
        now_unix_s: wall clock, s since 1970.
        now_t_s: monotonic time at the same instant, s.
    """
    n = drops.n_rows
    rows = "1 row" if n == 1 else f"{n} rows"
    were = "was" if n == 1 else "were"
    counts = sorted(drops.by_kind.items(), key=lambda item: (-item[1], item[0]))
    kinds = ", ".join(_counted(kind, count) for kind, count in counts)
    first, last = (
        datetime.fromtimestamp(now_unix_s - (now_t_s - t_s), UTC)
        for t_s in (drops.first_t_s, drops.last_t_s)
    )
    begin, end = f"{first:%Y-%m-%d %H:%M:%S}", f"{last:%Y-%m-%d %H:%M:%S}"
    if begin == end:
        span = f"of {begin} UTC"
    else:
        span = f"from {begin} to {end if first.date() != last.date() else end[11:]} UTC"
    return f"{rows} of the run's record {were} dropped ({drops.why}): {kinds}, {span}"


def _counted(kind: str, count: int) -> str:
    one, several = _NAMES.get(kind, ("other row", "other rows"))
    return f"{count} {one if count == 1 else several}"
