"""When a run stood still, from its recorded decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ecorl.control import Command
from ecorl.ledger import GearChoiceRow


def paused_spans(
    choices: Sequence[GearChoiceRow], ends_s: Mapping[int, float]
) -> dict[int, list[tuple[float, float]]]:
    """Begin and end of each pause by attempt, monotonic s of it, in the order of time.

    A pause lasts from the decision to pause to the next other one of its attempt, or to the
    attempt's last record.

    Args:
        choices: of the record, in their order.
        ends_s: time of the last record of each attempt, monotonic s.
    """
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    began: dict[int, float] = {}
    for row in choices:
        if row.choice.command is Command.PAUSE:
            began.setdefault(row.attempt, row.t_s)
        elif row.attempt in began:
            found[row.attempt].append((began.pop(row.attempt), row.t_s))
    for attempt, start_s in began.items():
        end_s = ends_s.get(attempt, start_s)
        if end_s > start_s:
            found[attempt].append((start_s, end_s))
    return dict(found)
