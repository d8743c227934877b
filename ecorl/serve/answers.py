"""What goes back to a client: values, where they came from, and the device's share of effort.

JSON carries each float32 as the float64 of the same value, so that a client that reads it back as
float32 has the very bits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ecorl.engines.protocol import EngineReport, Float32
from ecorl.records import Provenance, Stage, weakest
from ecorl.serve.bodies import ScoreRows
from ecorl.serve.settings import ServedModel

NO_NUMBER = (
    "the engine gave no usable number for this row (not finite, or a log-prob above 0): score it "
    "on the exact path"
)
"""Why a row is null. An engine does not say more: a number that did not fit its format, or a gated
model that found no place for its gate."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The device's effort for some rows: their share, by tokens, of each micro-batch.

    Attributes:
        time_s: time of the device, s, or None when it cannot tell for one of the micro-batches.
        energy_j: energy of the device, J, or None.
        provenance: of the two, the weakest; None where both are missing.
    """

    time_s: float | None
    energy_j: float | None
    provenance: Provenance | None

    def __add__(self, other: Effort) -> Effort:
        known = [p for p in (self.provenance, other.provenance) if p is not None]
        time_s, energy_j = _sum(self.time_s, other.time_s), _sum(self.energy_j, other.energy_j)
        missing = time_s is None and energy_j is None
        return Effort(time_s, energy_j, None if missing else weakest(*known))


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


UNKNOWN = Effort(None, None, None)


def share_of(report: EngineReport, share: float) -> Effort:
    """The part of a micro-batch's effort that falls to some of its rows.

    Args:
        report: of the micro-batch.
        share: their tokens over those of all rows that count, 0 to 1.
    """
    time_s, energy_j = report.device_time_s, report.device_energy_j
    if time_s is None and energy_j is None:
        return UNKNOWN
    return Effort(
        None if time_s is None else time_s * share,
        None if energy_j is None else energy_j * share,
        report.provenance,
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """Results of one request.

    Attributes:
        values: for each row its reward (a float32 scalar) or ``[n_completion] float32``, or None
            where the engine gave no usable number.
        effort: of the rows with values; `UNKNOWN` when there is none.
    """

    values: Sequence[Float32 | None]
    effort: Effort


def as_json(rows: ScoreRows, answer: Answer, served: ServedModel, device: str) -> bytes:
    """The body of an answer."""
    data = {
        "model": served.name,
        "stage": str(served.stage),
        "provenance": str(served.provenance),
        "rows": [
            _row(id, value, served.stage) for id, value in zip(rows.ids, answer.values, strict=True)
        ],
        "device": {
            "name": device,
            "time_s": answer.effort.time_s,
            "energy_j": answer.effort.energy_j,
            "provenance": None
            if answer.effort.provenance is None
            else str(answer.effort.provenance),
        },
    }
    return dump(data)


def _row(id: str | None, value: Float32 | None, stage: Stage) -> dict[str, object]:
    key = "logprobs" if stage is Stage.REFERENCE else "reward"
    if value is None:
        return {"id": id, key: None, "reason": NO_NUMBER}
    return {"id": id, key: value.tolist()}  # float64 of the same value


def dump(data: object) -> bytes:
    """JSON on one line; NaN and infinity cannot stand in it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")
