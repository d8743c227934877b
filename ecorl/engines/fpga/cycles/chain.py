"""How long a chain of processes lasts that run side by side, with FIFOs between them.

Each process has its own time for all that it does. The first ones begin before the last, and end
before them: a process begins when those before it have given their first words, and after its end
those behind it pass its last ones on. The chain lasts as long as the longest of these sums.
"""

from __future__ import annotations


class Chain:
    """Processes in the order in which words pass them.

    FIFOs between them are assumed to be deep enough that none waits for the one behind it for lack
    of room.
    """

    def __init__(self) -> None:
        self._begin = 0.0
        self._work: list[tuple[float, float, int]] = []  # begin, duration, first stage behind it
        self._tails: list[float] = []
        self._beside = 0.0

    def stage(self, busy: float, lead: float, tail: float, ready: float = 0.0) -> None:
        """Add the next process.

        Args:
            busy: from its first word in to its last word out, if it never waits.
            lead: from its first word in to its first word out.
            tail: from its last word in to its last word out.
            ready: cycles after which it can begin at the earliest.
        """
        begin = max(self._begin, ready)
        self._tails.append(tail)
        self._work.append((begin, busy, len(self._tails)))
        self._begin = begin + lead

    def feed(self, busy: float) -> None:
        """Add a process beside the chain whose words the next stage takes.

        Args:
            busy: cycles for all that it does, from the beginning on.
        """
        self._work.append((0.0, busy, len(self._tails)))

    def take(self, busy: float, tail: float) -> None:
        """Add a process that takes what the last stage gives, beside those that follow.

        Args:
            busy: cycles for all that it does, from its first word on.
            tail: from its last word in to its end.
        """
        self._beside = max(self._beside, self._begin + busy, self._until() + tail)

    def cycles(self) -> float:
        """Cycles from the beginning to the end of the last process."""
        return max(self._beside, self._until())

    def _until(self) -> float:
        """When the last word of the last stage leaves."""
        return max((b + busy + sum(self._tails[i:]) for b, busy, i in self._work), default=0.0)
