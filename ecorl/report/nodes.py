"""The machines of a run: which there were, and whose record is missing."""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.ledger import NODE, LedgerReader, NodeRow, NodeSpan
from ecorl.report.model import NodeFacts


def node_facts(reader: LedgerReader) -> tuple[NodeFacts, ...]:
    """Describe the machines of a run by attempt, the head first; nothing where there is only one.

    Args:
        reader: the run's ledger.
    """
    head = reader.run().meta.get(NODE)
    devices = {(s.attempt, s.node): s.device_ids for s in reader.node_spans()}
    lost = {(n.attempt, n.node): n.lost for n in reader.lost_nodes()}
    found = [
        NodeFacts(
            head, a.attempt, True, None, None, _bare(devices.get((a.attempt, head), ())), None
        )
        for a in reader.attempts()
    ]
    found += [
        NodeFacts(
            node=n.node,
            attempt=n.attempt,
            is_head=False,
            offset_s=n.offset_s,
            offset_error_s=n.offset_error_s,
            devices=_bare(devices.get((n.attempt, n.node), ())),
            lost=lost.get((n.attempt, n.node)),
        )
        for n in reader.nodes()
        if n.node != head
    ]
    if len({f.node for f in found}) < 2:
        return ()
    return tuple(sorted(found, key=lambda f: (f.attempt, not f.is_head, f.name)))


def _bare(device_ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(device_id.rpartition("/")[2] for device_id in device_ids)


def lost_energy(
    lost: Sequence[NodeRow], spans: Sequence[NodeSpan], n_attempts: int
) -> tuple[str, ...]:
    """Name the machines whose energy is missing with their record, one sentence each.

    Args:
        lost: machines whose record is missing or not whole.
        spans: what could be read.
        n_attempts: attempts of the run; one of several is named.
    """
    there = {(s.attempt, s.node) for s in spans}
    sentences = []
    for n in lost:
        when = f" of attempt {n.attempt}" if n_attempts > 1 else ""
        what = f"the energy of its devices is in no figure ({n.lost})"
        if (n.attempt, n.node) in there:
            what = f"some energy of its devices may be in no figure ({n.lost})"
        whole = "not whole" if (n.attempt, n.node) in there else "missing"
        sentences.append(f"{n.node}: its record{when} is {whole}, and {what}")
    return tuple(sentences)
