"""What packing made of a step's rows, in the record.

Metrics of a step, by what was computed (``<what>`` is ``reward``, ``reward:math``, ``reference``,
``old_log_probs`` or ``actor_train``), of all processes together:

| metric | figure |
|---|---|
| ``micro_batches/<what>`` | forward passes |
| ``tokens/<what>`` | tokens of the rows, without padding |
| ``computed_tokens/<what>`` | tokens of the micro-batches, padding included |
| ``unpacked_tokens/<what>`` | tokens without packing, padding included |
| ``packing_difference/<what>`` | largest difference of results, packed and unpacked, as a share of
  the largest of them; only of steps in which they were compared |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ecorl.engines.packing import PackedTokens
from ecorl.runtime.processes.ranks import Ranks
from ecorl.runtime.protocol import RecordWriter

MICRO_BATCHES, TOKENS = "micro_batches/", "tokens/"
COMPUTED, UNPACKED = "computed_tokens/", "unpacked_tokens/"
DIFFERENCE = "packing_difference/"
"""What the names of the metrics begin with."""


class PackingTally:
    """Sums up over a step what packing made of its rows."""

    def __init__(self) -> None:
        self._found: dict[str, PackedTokens] = {}

    def note(self, what: str, packed: PackedTokens) -> None:
        """Add some rows.

        Args:
            what: they were computed for.
            packed: what packing made of them.
        """
        before = self._found.get(what)
        self._found[what] = packed if before is None else before + packed

    def note_difference(self, what: str, difference: float) -> None:
        """Add a comparison of rows that are counted already.

        Args:
            what: they were computed for.
            difference: of their results.
        """
        self.note(what, PackedTokens(0, 0, 0, 0, difference))

    def end_step(self, record: RecordWriter, step: int, ranks: Ranks | None) -> None:
        """Record the sums of a step, and begin the next one; all processes call it.

        Args:
            record: the run's record.
            step: 1-based number of the step.
            ranks: the processes that train together; None: this one alone.
        """
        found, self._found = self._found, {}
        told = [found] if ranks is None else ranks.gather(found)
        for what, packed in sorted(_together(told or ()).items()):
            record.metric(step, f"{MICRO_BATCHES}{what}", packed.n_micro_batches)
            record.metric(step, f"{TOKENS}{what}", packed.n_tokens)
            record.metric(step, f"{COMPUTED}{what}", packed.n_computed)
            record.metric(step, f"{UNPACKED}{what}", packed.n_unpacked)
            if packed.difference is not None:
                record.metric(step, f"{DIFFERENCE}{what}", packed.difference)


def _together(told: Sequence[Mapping[str, PackedTokens]]) -> dict[str, PackedTokens]:
    whole: dict[str, PackedTokens] = {}
    for found in told:
        for what, packed in found.items():
            whole[what] = whole[what] + packed if what in whole else packed
    return whole
