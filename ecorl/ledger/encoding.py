"""Records to rows and back. Pure functions; numpy scalars are accepted and become plain ones."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from ecorl.ledger.rows import BarrierRow, DeviceRecord, DeviceRow, FaultRow, NodeRecord, NodeRow
from ecorl.records import (
    Action,
    ActionCost,
    BarrierWait,
    DeviceKind,
    EnergyMethod,
    FaultEvent,
    FaultKind,
    GuardRefusal,
    Placement,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
    kind_in_name,
)

Columns = dict[str, Any]
"""One row: values by column name."""


def number(value: float | None) -> float | None:
    """A plain float; None for None and for what is not a number."""
    if value is None:
        return None
    plain = float(value)
    return None if math.isnan(plain) else plain


def fault_row(f: FaultEvent) -> Columns:
    """Columns of table ``fault``."""
    return {
        "iteration": None if f.iteration is None else int(f.iteration),
        "kind": str(f.kind),
        "place": str(f.where),
        "detail": str(f.detail),
        "n_rows": int(f.n_rows),
    }


def fault_of(row: sqlite3.Row) -> FaultRow:
    """The row of table ``fault``."""
    return FaultRow(
        attempt=row["attempt"],
        superseded=bool(row["superseded"]),
        iteration=row["iteration"],
        t_s=row["t_s"],
        kind=_fault_kind(row["kind"]),
        where=row["place"],
        detail=row["detail"],
        n_rows=row["n_rows"],
    )


def barrier_row(wait: BarrierWait) -> Columns:
    """Columns of table ``barrier``."""
    return {
        "iteration": int(wait.iteration),
        "stage": str(wait.stage),
        "wait_s": number(wait.wait_s),
        "n_rows": int(wait.n_rows),
        "n_missing": int(wait.n_missing),
        "n_late": int(wait.n_late),
        "n_duplicates": int(wait.n_duplicates),
        "n_unknown": int(wait.n_unknown),
        "role_name": _text(wait.role_name),
    }


def barrier_of(row: sqlite3.Row) -> BarrierRow:
    """The row of table ``barrier``."""
    return BarrierRow(
        attempt=row["attempt"],
        superseded=bool(row["superseded"]),
        iteration=row["iteration"],
        t_s=row["t_s"],
        stage=Stage(row["stage"]),
        wait_s=row["wait_s"],
        n_rows=row["n_rows"],
        n_missing=row["n_missing"],
        n_late=row["n_late"],
        n_duplicates=row["n_duplicates"],
        n_unknown=row["n_unknown"],
        role_name=row["role_name"] or "",
    )


def node_row(n: NodeRecord) -> Columns:
    """Columns of table ``node``."""
    return {
        "node": str(n.node),
        "file": _text(n.file),
        "offset_s": number(n.offset_s),
        "offset_error_s": number(n.offset_error_s),
        "t_s": number(n.t_s),
        "lost": _text(n.lost),
    }


def node_of(row: sqlite3.Row) -> NodeRow:
    """The row of table ``node``."""
    return NodeRow(**{name: row[name] for name in row.keys()})  # noqa: SIM118


def _text(value: str | None) -> str | None:
    """A text, or None for None and for the empty one, which says as much."""
    return str(value) if value else None


def placement_row(p: Placement) -> Columns:
    """Columns of table ``placement``."""
    costs = [
        {
            "action": str(c.action),
            "time_s": number(c.time_s),
            "energy_j": number(c.energy_j),
            "wait_s": number(c.wait_s),
            "provenance": str(c.provenance),
        }
        for c in p.costs
    ]
    return {
        "iteration": int(p.iteration),
        "stage": str(p.stage),
        "proposed": str(p.proposed),
        "action": str(p.action),
        "policy": str(p.policy),
        "reason": str(p.reason),
        "costs": json.dumps(costs, separators=(",", ":")),
        "refusal": None if p.refusal is None else str(p.refusal),
        "role_name": _text(p.role_name),
    }


def placement_of(row: sqlite3.Row) -> Placement:
    """The record of a row of table ``placement``."""
    costs = tuple(
        ActionCost(
            action=Action(c["action"]),
            time_s=_or_nan(c["time_s"]),
            energy_j=_or_nan(c["energy_j"]),
            wait_s=_or_nan(c["wait_s"]),
            provenance=Provenance(c["provenance"]),
        )
        for c in json.loads(row["costs"])
    )
    return Placement(
        iteration=row["iteration"],
        stage=Stage(row["stage"]),
        proposed=Action(row["proposed"]),
        action=Action(row["action"]),
        policy=row["policy"],
        reason=row["reason"],
        costs=costs,
        refusal=None if row["refusal"] is None else GuardRefusal(row["refusal"]),
        role_name=row["role_name"] or "",
    )


def _or_nan(value: float | None) -> float:
    # ActionCost has no room for None: a cost that the model could not tell reads back as NaN.
    return math.nan if value is None else float(value)


def _joined(device_ids: Iterable[str]) -> str:
    """One column for several devices: their ids with ``+`` between them."""
    return "+".join(map(str, device_ids))


def _split(column: str) -> tuple[str, ...]:
    return tuple(column.split("+"))


def _fault_kind(text: str) -> FaultKind | str:
    """The kind of a fault; the text itself, an exception's class name, where it is none."""
    try:
        return FaultKind(text)
    except ValueError:
        return text


def result_row(r: StageResult) -> Columns:
    """Columns of table ``execution``."""
    return {
        "iteration": int(r.iteration),
        "stage": str(r.stage),
        "action": str(r.action),
        "device_id": _joined(r.device_ids),
        "device": str(r.device),
        "start_t_s": number(r.t_start_s),
        "end_t_s": number(r.t_end_s),
        "time_s": number(r.time_s),
        "time_provenance": str(r.time_provenance),
        "host_time_s": number(r.host_time_s),
        "wait_s": number(r.wait_s),
        "n_sequences": int(r.n_sequences),
        "n_tokens": int(r.n_tokens),
        "n_output_tokens": int(r.n_output_tokens),
        "n_rows_fallback": int(r.n_rows_fallback),
        "fault": None if r.fault is None else str(r.fault),
        "node": _text(r.node),
        "role_name": _text(r.role_name),
        "gear": _text(r.gear),
        "width": None if r.width is None else int(r.width),
        "clock_mhz": None if r.clock_mhz is None else int(r.clock_mhz),
        **({} if r.energy is None else _energy_row(r.energy)),
    }


def _energy_row(e: StageEnergy) -> Columns:
    return {
        "energy_device_id": _joined(e.device_ids),
        "energy_start_t_s": number(e.t_start_s),
        "energy_end_t_s": number(e.t_end_s),
        "energy_j": number(e.energy_j),
        "mean_power_w": number(e.mean_power_w),
        "counter_energy_j": number(e.counter_energy_j),
        "integral_energy_j": number(e.integral_energy_j),
        "n_samples": int(e.n_samples),
        "coverage": number(e.coverage),
        "energy_method": str(e.method),
        "energy_provenance": str(e.provenance),
    }


def result_of(row: sqlite3.Row) -> StageResult:
    """The record of a row of table ``execution``."""
    return StageResult(
        iteration=row["iteration"],
        stage=Stage(row["stage"]),
        action=Action(row["action"]),
        device_ids=_split(row["device_id"]),
        device=row["device"],
        t_start_s=row["start_t_s"],
        t_end_s=row["end_t_s"],
        time_s=row["time_s"],
        time_provenance=Provenance(row["time_provenance"]),
        host_time_s=_or_nan(row["host_time_s"]),
        wait_s=_or_nan(row["wait_s"]),
        n_sequences=row["n_sequences"],
        n_tokens=row["n_tokens"],
        n_output_tokens=row["n_output_tokens"],
        energy=_energy_of(row),
        n_rows_fallback=row["n_rows_fallback"],
        fault=None if row["fault"] is None else _fault_kind(row["fault"]),
        role_name=row["role_name"] or "",
        node=row["node"],
        gear=row["gear"],
        width=row["width"],
        clock_mhz=row["clock_mhz"],
    )


def _energy_of(row: sqlite3.Row) -> StageEnergy | None:
    if row["energy_method"] is None:
        return None
    return StageEnergy(
        device_ids=_split(row["energy_device_id"]),
        t_start_s=_or_nan(row["energy_start_t_s"]),
        t_end_s=_or_nan(row["energy_end_t_s"]),
        energy_j=row["energy_j"],
        mean_power_w=row["mean_power_w"],
        counter_energy_j=row["counter_energy_j"],
        integral_energy_j=row["integral_energy_j"],
        n_samples=row["n_samples"],
        coverage=_or_nan(row["coverage"]),
        method=EnergyMethod(row["energy_method"]),
        provenance=Provenance(row["energy_provenance"]),
    )


def device_row(d: DeviceRecord) -> Columns:
    """Columns of table ``device``."""
    return {
        "device_id": str(d.device_id),
        "profile": str(d.profile),
        "provenance": str(d.provenance),
        "source": str(d.source),
        "idle_w": number(d.idle_w),
        "figures": str(d.figures_json),
        "kind": None if d.kind is None else str(d.kind),
    }


def device_of(row: sqlite3.Row) -> DeviceRow:
    """The record of a row of table ``device``."""
    kind = row["kind"]
    return DeviceRow(
        attempt=row["attempt"],
        device_id=row["device_id"],
        profile=row["profile"],
        provenance=Provenance(row["provenance"]),
        source=row["source"],
        idle_w=row["idle_w"],
        figures_json=row["figures"],
        kind=kind_in_name(row["device_id"]) if kind is None else DeviceKind(kind),
    )


def metric_row(iteration: int, name: str, value: float | None) -> Columns:
    """Columns of table ``metric``."""
    return {"iteration": int(iteration), "name": str(name), "value": number(value)}


def evaluation_row(name: str, phase: str, values: Iterable[float | None]) -> Columns:
    """Columns of table ``evaluation``."""
    return {"name": str(name), "phase": str(phase), "item_values": values_text(values)}


def values_text(values: Iterable[float | None]) -> str:
    """A JSON list of numbers; null for None, NaN and the infinities (JSON has none of them)."""
    plain = (number(v) for v in values)
    return json.dumps([v if v is not None and math.isfinite(v) else None for v in plain])


def values_of(text: str) -> tuple[float | None, ...]:
    """The numbers of `values_text`."""
    return tuple(None if v is None else float(v) for v in json.loads(text))


def meta_rows(meta: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rows of table ``meta``."""
    return [(str(key), str(value)) for key, value in meta.items()]
