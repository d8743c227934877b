"""What adaptive micro-batches saved, and by how much results differ: one line of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ecorl.ledger import MetricRow
from ecorl.report.energy.stages import present
from ecorl.report.render.numbers import count, figure, share
from ecorl.runtime.packed_tokens import COMPUTED, DIFFERENCE, TOKENS, UNPACKED


def packing_remark(metrics: Mapping[str, Sequence[MetricRow]]) -> str | None:
    """Say what packing rows by length saved; None where none were packed.

    Args:
        metrics: from `ecorl.report.training.metric_series`.
    """
    computed, unpacked = _total(metrics, COMPUTED), _total(metrics, UNPACKED)
    real = _total(metrics, TOKENS)
    if not unpacked:
        return None
    padding = unpacked - real
    avoided = f", {share((unpacked - computed) / padding)} of the padding" if padding > 0 else ""
    return (
        f"adaptive micro-batches left out {count(round(unpacked - computed))} of "
        f"{count(round(unpacked))} tokens, padding included{avoided}; "
        f"{_apart(_values(metrics, DIFFERENCE))}"
    )


def _apart(differences: Sequence[float]) -> str:
    if not differences:
        return "results with and without them were not compared"
    word = "comparison" if len(differences) == 1 else "comparisons"
    return (
        f"results with and without them differ by {figure(max(differences), 2)} of the largest "
        f"value at most ({count(len(differences))} {word}, measured)"
    )


def _total(metrics: Mapping[str, Sequence[MetricRow]], begin: str) -> float:
    return sum(_values(metrics, begin))


def _values(metrics: Mapping[str, Sequence[MetricRow]], begin: str) -> list[float]:
    """Values of all metrics whose name begins so, whatever was computed."""
    rows = [row for name, series in metrics.items() if name.startswith(begin) for row in series]
    return present(row.value for row in rows)
