"""Trackers of metrics: TensorBoard's files, or none."""

from __future__ import annotations

import time
from typing import Any


class NoTracker:
    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        pass

    def finish(self) -> None:
        pass


class TensorBoardTracker:
    def __init__(self, log_dir: str) -> None:
        # Here alone: no other process writes scalars.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(log_dir)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        scalars = [
            self._summary.Value(tag=name.rsplit("@", 1)[0], simple_value=float(value))
            for name, value in values.items()
        ]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=scalars))
        self._writer.add_event(event)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


def create_tracker(tracker_name: str | None, config: dict, **kwargs: Any) -> Any:
    if tracker_name is None:
        return NoTracker()
    if tracker_name != "tensorboard":
        raise ValueError(f"no such tracker: {tracker_name}")
    return TensorBoardTracker(**kwargs)
