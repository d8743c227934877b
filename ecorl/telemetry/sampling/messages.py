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

from pydantic import TypeAdapter

from ecorl.records import DeviceKind, PowerSample, Provenance
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
    return _spec_adapter().dump_json(tuple(specs)).decode() + "\n"


def decode_specs(line: str) -> tuple[SourceSpec, ...]:
    """The specs of a line of `encode_specs`, validated."""
    return _spec_adapter().validate_json(line)


@functools.cache
def _spec_adapter() -> TypeAdapter[tuple[SourceSpec, ...]]:
    return TypeAdapter(tuple[SourceSpec, ...])


def encode_ready(reports: Sequence[SourceReport]) -> str:
    """Reports as one line."""
    return (
        json.dumps(
            {
                "ready": [
                    {
                        "asked": r.asked,
                        "chosen": r.chosen,
                        "devices": [
                            [d.device_id, d.kind, d.provenance, d.source, d.name] for d in r.devices
                        ],
                        "interval_s": r.interval_s,
                        "refusals": [list(pair) for pair in r.refusals],
                        "error": r.error,
                        "user_error": r.user_error,
                        "unread": [list(pair) for pair in r.unread],
                    }
                    for r in reports
                ]
            }
        )
        + "\n"
    )


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
            return tuple(_report(item) for item in data["ready"])
        return tuple(
            PowerSample(row[0], row[1], row[2], row[3], row[4], Provenance(row[5]), row[6], row[7])
            for row in data["samples"]
        )
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a line of the sampler: {line!r}") from error


def _report(item: dict[str, object]) -> SourceReport:
    data: dict[str, object] = dict(item)
    devices = data.pop("devices")
    refusals = data.pop("refusals")
    unread = data.pop("unread")
    if not (isinstance(devices, list) and isinstance(refusals, list) and isinstance(unread, list)):
        raise ValueError("not a report of the sampler")
    return SourceReport(
        asked=str(data["asked"]),
        chosen=str(data["chosen"]),
        devices=tuple(
            DeviceInfo(d[0], DeviceKind(d[1]), Provenance(d[2]), d[3], d[4]) for d in devices
        ),
        interval_s=float(str(data["interval_s"])),
        refusals=tuple((str(kind), str(why)) for kind, why in refusals),
        error=None if data["error"] is None else str(data["error"]),
        user_error=None if data["user_error"] is None else str(data["user_error"]),
        unread=tuple((str(device_id), str(why)) for device_id, why in unread),
    )
