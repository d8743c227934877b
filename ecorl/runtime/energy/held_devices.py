"""Who holds which device of a machine when: what splits a device's energy among executions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ecorl.records import Role
from ecorl.runtime.handles import Span


@dataclass(frozen=True, slots=True)
class DeviceWindow:
    """A time for which an execution held a device.

    Attributes:
        device_id: the device.
        t_start_s: when it began to, monotonic s.
        t_end_s: when it ended, monotonic s; infinite while it is under way.
    """

    device_id: str
    t_start_s: float
    t_end_s: float = math.inf


class HeldDevices:
    """Who holds which device when: the windows of executions under way and of recent ones."""

    def __init__(self) -> None:
        self._windows: dict[str, dict[int, list[DeviceWindow]]] = {}
        self._ended: set[int] = set()
        self._free_to_s: dict[str, float] = {}

    def hold(self, serial: int, windows: Sequence[DeviceWindow], *, ended: bool) -> None:
        """Set the windows of one execution; earlier ones of it are replaced."""
        self.drop(serial)
        for window in windows:
            of_device = self._windows.setdefault(window.device_id, {})
            of_device.setdefault(serial, []).append(window)
        if ended:
            self._ended.add(serial)

    def drop(self, serial: int) -> None:
        """Forget the windows of one execution."""
        self._ended.discard(serial)
        for of_device in self._windows.values():
            of_device.pop(serial, None)

    def pieces(
        self, device_id: str, spans: Sequence[DeviceWindow]
    ) -> list[tuple[float, float, int]]:
        """Cut an execution's time on a device where the number of holders changes.

        Args:
            device_id: the device.
            spans: the execution's windows on it.

        Returns:
            Begin, end and number of holders of each piece, in order.
        """
        others = list(self._windows.get(device_id, {}).values())
        found = []
        for start_s, end_s in union(spans):
            inner = {
                t
                for windows in others
                for w in windows
                for t in (w.t_start_s, w.t_end_s)
                if start_s < t < end_s
            }
            edges = [start_s, *sorted(inner), end_s]
            for left_s, right_s in itertools.pairwise(edges):
                middle_s = 0.5 * (left_s + right_s)
                n = sum(
                    any(w.t_start_s <= middle_s < w.t_end_s for w in windows) for windows in others
                )
                found.append((left_s, right_s, max(1, n)))
        return found

    def take_free(self, device_id: str, until_s: float) -> list[tuple[float, float]]:
        """Take the times since the last call in which nobody held a device.

        Args:
            device_id: the device.
            until_s: end of the last of them; all that held the device before it must be known.

        Returns:
            Begin and end of each, in order; none at the first call, which begins the count.
        """
        since_s = self._free_to_s.get(device_id, until_s)
        if until_s <= since_s:
            self._free_to_s.setdefault(device_id, until_s)
            return []
        self._free_to_s[device_id] = until_s
        held = union([w for ws in self._windows.get(device_id, {}).values() for w in ws])
        edges = [since_s, *(t for span in held for t in span), until_s]
        found = [
            (max(left_s, since_s), min(right_s, until_s))
            for left_s, right_s in zip(edges[::2], edges[1::2], strict=True)
        ]
        return [(left_s, right_s) for left_s, right_s in found if left_s < right_s]

    def trim(self, before_s: float) -> None:
        """Forget executions that ended before a time, but for those that `take_free` still needs.

        Args:
            before_s: the time, s.
        """
        for device_id, of_device in self._windows.items():
            limit_s = min(before_s, self._free_to_s.get(device_id, before_s))
            for serial, windows in list(of_device.items()):
                if serial in self._ended and end_s_of(windows) < limit_s:
                    del of_device[serial]
        self._ended &= {serial for of_device in self._windows.values() for serial in of_device}

    def oldest_s(self) -> float:
        """Begin of the oldest window of an execution under way, s; infinite without one."""
        return min(
            (
                w.t_start_s
                for of_device in self._windows.values()
                for serial, windows in of_device.items()
                if serial not in self._ended
                for w in windows
            ),
            default=math.inf,
        )


def end_s_of(windows: Sequence[DeviceWindow]) -> float:
    """End of the last of some windows, s."""
    return max(w.t_end_s for w in windows)


def union(spans: Sequence[DeviceWindow]) -> list[tuple[float, float]]:
    """The union of windows on one device as disjoint spans in order."""
    found: list[tuple[float, float]] = []
    for window in sorted(spans, key=lambda w: w.t_start_s):
        if found and window.t_start_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], window.t_end_s))
        else:
            found.append((window.t_start_s, window.t_end_s))
    return found


LONG_S = 1.0
"""Where an execution that holds a device for so long, s, begins and ends, the device is read at
once: beside that, an energy counter that is slow to read is read once a second only."""


class StageEdges:
    """Remembers which roles take long: where one begins, it is not known yet how long it takes."""

    def __init__(self) -> None:
        self._long_roles: set[Role] = set()

    def is_edge(self, spans: Sequence[Span], role: Role | None) -> bool:
        """Whether the newest span of an execution ended now and was long, or begins and may be.

        Args:
            spans: so far; one that is under way ends at infinity.
            role: what is executed; None where that is not known.
        """
        if spans and math.isinf(spans[-1].t_end_s):
            # Of a stage in many pieces only the edges of long ones are read.
            return role in self._long_roles and all(map(_is_long, spans[:-1]))
        return any(map(_is_long, spans[-1:]))

    def ended(self, spans: Sequence[Span], role: Role) -> None:
        """Note how long an execution took.

        Args:
            spans: all of it.
            role: what was executed.
        """
        if spans and all(map(_is_long, spans)):
            self._long_roles.add(role)
        else:
            self._long_roles.discard(role)


def _is_long(span: Span) -> bool:
    return span.t_end_s - span.t_start_s >= LONG_S
