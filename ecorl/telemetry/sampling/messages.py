"""The lines that travel between the sampling process and its parent: one JSON object a line.

Towards the child, once: a list of `SourceSpec`, with the configuration of its sources in it, which
the child validates; after it `EDGE` for each edge of a stage. From the child, first
``{"ready": [...]}`` with one report a spec, then ``{"samples": [...]}`` for every read.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from ecorl.records import PowerSample, Provenance
from ecorl.telemetry.sources.specs import DeviceInfo, SourceSpec

EDGE = b"."
"""What the child gets where a stage begins or ends."""


@dataclass(frozen=True)
class SourceReport:
    """The child's report of one spec.

    Attributes:
        asked: the type in the spec.
        chosen: the type that opened, or `asked` when none did.
        devices: its devices; empty when it did not open.
        interval_s: polling interval, s.
        refusals: type and reason of each source that was tried and did not open.
        error: name of the error when none opened, else None.
        user_error: message of a mistake of the user (an unreadable replay file), else None.
        unread: devices that gave no readings when it opened, each with the reason in words.
    """

    asked: str
    chosen: str
    devices: tuple[DeviceInfo, ...]
    interval_s: float
    refusals: tuple[tuple[str, str], ...] = ()
    error: str | None = None
    user_error: str | None = None
    unread: tuple[tuple[str, str], ...] = ()


def encode_specs(specs: Sequence[SourceSpec]) -> str:
    """Specs as one line."""
    return _adapter(SourceSpec).dump_json(tuple(specs)).decode() + "\n"


def decode_specs(line: str) -> tuple[SourceSpec, ...]:
    """The specs of a line of `encode_specs`, validated."""
    specs: tuple[SourceSpec, ...] = _adapter(SourceSpec).validate_json(line)
    return specs


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    """Reads and writes a tuple of one kind of record."""
    return TypeAdapter(tuple[kind, ...])  # type: ignore[valid-type]


def encode_ready(reports: Sequence[SourceReport]) -> str:
    """Reports as one line."""
    return f'{{"ready":{_adapter(SourceReport).dump_json(tuple(reports)).decode()}}}\n'


def encode_samples(samples: Sequence[PowerSample]) -> str:
    """Samples as one line."""
    rows = [
        [s.device_id, s.t_s, s.power_w, s.energy_j, s.utilisation, s.provenance, s.source, s.error]
        for s in samples
    ]
    return json.dumps({"samples": rows}, separators=(",", ":")) + "\n"


def decode(line: str | bytes) -> tuple[SourceReport, ...] | tuple[PowerSample, ...]:
    """Reports or samples of one line.

    Raises:
        ValueError: the line is neither.
    """
    try:
        data = json.loads(line)
        if "ready" in data:
            reports: tuple[SourceReport, ...] = _adapter(SourceReport).validate_python(
                data["ready"]
            )
            return reports
        return tuple(
            PowerSample(row[0], row[1], row[2], row[3], row[4], Provenance(row[5]), row[6], row[7])
            for row in data["samples"]
        )
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a line of the sampler: {line!r}") from error
