"""Tells where it is worth reading a device's energy counter beside its usual times."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ecorl.records import Role
from ecorl.runtime.handles import Span

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
