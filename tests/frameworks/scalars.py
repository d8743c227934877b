"""Reads the scalars of a training from its TensorBoard files."""

from __future__ import annotations

from pathlib import Path


def scalars_in(folder: Path) -> dict[str, dict[int, float]]:
    """All scalars below a folder by name and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    values: dict[str, dict[int, float]] = {}
    for file in sorted(folder.rglob("events.*")):
        events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        for name in events.Tags()["scalars"]:
            steps = values.setdefault(name, {})
            steps.update({event.step: event.value for event in events.Scalars(name)})
    return values
