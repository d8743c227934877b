"""Plans as data: JSON of an answer, JSON and CSV of a grid."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ecorl.operate.levers.choice import LeverSetting
from ecorl.operate.levers.clocks import natural_clocks
from ecorl.operate.levers.study import LeverStudy, SavedShare
from ecorl.operate.plan.answer import PlanAnswer
from ecorl.operate.plan.job import PlannedJob
from ecorl.operate.plan.offload import OffloadAnswer
from ecorl.operate.plan.payback import PlanTerms
from ecorl.operate.plan.whatifs import WhatIf


def answer_data(answer: PlanAnswer, job: PlannedJob, terms: PlanTerms) -> dict[str, Any]:
    """Return an answer as plain data; times in s, energies in J.

    Args:
        answer: to a job.
        job: as it was asked about.
        terms: prices, intensity and use.
    """
    step = answer.step
    told = answer.own
    return {
        "job": asdict(job),
        "terms": asdict(terms),
        "provenance": str(step.provenance),
        "stages_from": None if told is None else told.told,
        "step": {
            "time_s": step.time_s,
            "energy_j": step.energy_j,
            "tokens_per_joule": answer.tokens_per_joule,
            "stages": {
                str(d.stage): {"time_s": d.time_s, "energy_j": d.energy_j} for d in step.draws
            },
        },
        "offload": _offload(answer.offload),
        "levers": _levers(answer.study),
        "narrower": None if answer.narrower is None else asdict(answer.narrower),
        "timing": [asdict(one) for one in answer.timings],
        "devices_per_year": None if answer.bought is None else asdict(answer.bought),
        "levers_per_year": asdict(answer.changed),
    }


def _offload(offload: OffloadAnswer) -> dict[str, Any]:
    return {
        "device": offload.device,
        "n": offload.n,
        "pays": offload.pays,
        "saved_share": offload.saved_share,
        "interval": None if offload.low is None else [offload.low, offload.high],
        "slowdown": offload.slowdown,
        "why_not": offload.why_not or None,
        "best_number": offload.best_number,
        "by_number": {str(n): value for n, value in offload.by_number.items()},
        "placements": [
            {
                "actions": {str(s): str(a) for s, a in row.actions.items()},
                "time_s": row.time_s,
                "energy_j": row.energy_j,
                "bubble_s": row.bubble_s,
            }
            for row in offload.placements
        ],
        "scans": {
            scan.what: {str(value): share for value, share in scan.saved.items()}
            for scan in offload.scans
        },
    }


def _levers(study: LeverStudy) -> dict[str, Any]:
    return {
        "alone": {str(k): _share(v) for k, v in study.alone.items()},
        "together": _share(study.together),
        "beyond": {name: _share(v) for name, v in study.beyond.items()},
        "missing": {str(k): why for k, why in study.missing.items()},
        "order": [{"lever": str(k), "adds": added} for k, added in study.order],
        "interactions": [
            {"levers": [str(one), str(other)], "beyond_sum": beyond}
            for one, other, beyond in study.between
        ],
        "setting": _setting(study.all),
        "natural_clocks": {str(k): v for k, v in natural_clocks(study.step).items()},
    }


def _share(saved: SavedShare) -> dict[str, float]:
    return {"saved_share": saved.value, "low": saved.low, "high": saved.high}


def _setting(found: LeverSetting) -> dict[str, Any]:
    generation, scoring, training = found.clocks
    return {
        "time_s": found.time_s,
        "energy_j": found.energy_j,
        "slowdown": found.slowdown,
        "clocks": {"generation": generation, "scoring": scoring, "training": training},
        "fp8_training": found.fp8,
        "overlapped_s": found.overlapped_s,
        "accelerator": found.accelerator,
        "actions": {str(s): str(a) for s, a in found.actions.items()},
    }


def what_if_data(row: WhatIf) -> dict[str, Any]:
    """Return a row of a grid as plain data.

    Args:
        row: of the grid.
    """
    return asdict(row) | {"values": dict(row.values), "why": row.why or None}


def write_csv(rows: Sequence[WhatIf], path: Path) -> None:
    """Write the rows of a grid; a missing figure is an empty cell.

    Args:
        rows: of the grid.
        path: the file.

    Raises:
        OSError: when it cannot be written.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    names = ["algorithm", "time_s", "energy_j", "tokens_per_joule", "offload_saved_share",
             "levers_saved_share", "why"]  # fmt: skip
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*keys, *names])
        for row in rows:
            figures = [getattr(row, name) for name in names]
            writer.writerow(
                [*(row.values.get(key, "") for key in keys),
                 *("" if value is None else value for value in figures)]
            )  # fmt: skip
