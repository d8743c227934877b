"""The record of a training process that keeps none."""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.records import EventKind, FaultEvent


class NoRecord:
    """The record of a process that keeps none: rank 0 notes everything."""

    def event(self, kind: EventKind, detail: str) -> None:
        """Do nothing."""

    def fault(self, f: FaultEvent) -> None:
        """Do nothing."""

    def metric(self, iteration: int, name: str, value: float | None) -> None:
        """Do nothing."""

    def evaluation(self, name: str, phase: str, values: Sequence[float | None]) -> None:
        """Do nothing."""

    def checkpoint(self, iteration: int, path: str) -> None:
        """Do nothing."""

    def edi(self, json: str) -> None:
        """Do nothing."""

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Do nothing; there is nothing to wait for."""
        return True

    def close(self) -> None:
        """Do nothing."""
