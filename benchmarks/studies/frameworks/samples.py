"""Counts in a run's record whether each row of each batch was answered exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ecorl.ledger import LedgerReader
from ecorl.records import Action, FaultKind, Role, role_of

Batch = tuple[int, Role]
"""Iteration and role: whose rows are counted."""


def count_samples(reader: LedgerReader, expected: Mapping[Batch, int]) -> tuple[int, int]:
    """Count the rows that a record lacks, and those that it holds more than once.

    Rows of superseded executions are left out: they belong to work that was thrown away. Of roles
    that are not among the expected ones nothing is counted.

    Args:
        reader: the run's record.
        expected: rows that each role has in each iteration.

    Returns:
        Numbers of lost and of doubled rows.
    """
    answered = answered_rows(reader)
    roles = {role for _, role in expected}
    found = {key: n for key, n in answered.items() if key[1] in roles}
    over = {key: found.get(key, 0) - expected.get(key, 0) for key in {*found, *expected}}
    lost = sum(-n for n in over.values() if n < 0)
    return lost, sum(n for n in over.values() if n > 0)


def answered_rows(reader: LedgerReader) -> dict[Batch, int]:
    """Rows that were answered by iteration and role: by engines, and by the exact path.

    An engine's execution counts without the rows that the exact path had to repeat; the repetition
    is an execution of its own. Where a machine's record is lost, and with it executions of its
    engines, the waits at the barrier tell how many rows arrived.

    Args:
        reader: the run's record.
    """
    answered: Counter[Batch] = Counter()
    n_executions: Counter[Batch] = Counter()
    for row in reader.executions():
        if row.superseded:
            continue
        r = row.result
        key = (r.iteration, r.role)
        answered[key] += r.n_sequences - r.n_rows_fallback
        n_executions[key] += r.action is not Action.GPU
    if reader.lost_nodes():
        for key, n_rows in _arrived(reader, n_executions).items():
            answered[key] += n_rows
    return dict(answered)


def _arrived(reader: LedgerReader, n_executions: Mapping[Batch, int]) -> dict[Batch, int]:
    """Rows that arrived at the barrier, of batches none of whose executions is in the record."""
    arrived: Counter[Batch] = Counter()
    for wait in reader.barriers():
        key = (wait.iteration, role_of(wait.stage, wait.role_name))
        if not wait.superseded and not n_executions[key]:
            arrived[key] += wait.n_rows
    for fault in reader.faults():
        # A batch that died with the scheduler never came to the barrier.
        if fault.superseded or fault.iteration is None or fault.kind == FaultKind.SCHEDULER_LOST:
            continue
        if (fault.iteration, fault.where) in arrived:
            arrived[fault.iteration, fault.where] -= fault.n_rows
    return dict(arrived)
