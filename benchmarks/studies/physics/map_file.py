"""The whole break-even map with its intervals as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.studies.physics.accounts import ACCOUNTINGS
from benchmarks.studies.physics.map import SIDES, Joules, params_m
from benchmarks.studies.physics.passes import PRECISIONS
from benchmarks.studies.physics.ranges import RangedMap
from ecorl.files import write_whole

_MJ = 1e3


def as_data(ranged: RangedMap) -> dict[str, object]:
    """Convert the map to plain data for JSON: axes, then nested lists; an unknown cell is null.

    Args:
        ranged: the map with its intervals.
    """
    found = ranged.found
    a, ends = found.axes, {side: ranged.ratio_ends(side) for side in SIDES}
    return {
        "provenance": "modelled",
        "unit": "mJ/token; ratio: tokens/J of the card over tokens/J of the GPU; ratio_low and "
        "ratio_high: the least and the most by the ends of the GPU's figures, the MFU aside",
        "order": ["size", "rows", "tokens", "precision", "mfu", "accounting"],
        "axes": {
            "size": list(a.sizes),
            "params_m": [round(params_m(size), 1) for size in a.sizes],
            "rows": list(a.rows),
            "tokens": list(a.tokens),
            "precision": [p.name for p in PRECISIONS],
            "mfu": list(a.mfus),
            "accounting": [one.key for one in ACCOUNTINGS],
        },
        "gpu_mj_per_token": _nested(found.gpu_j * _MJ),
        "card_mj_per_token": {s: _nested(found.card_j[s] * _MJ) for s in SIDES},
        "ratio": {s: _nested(found.ratio(s)) for s in SIDES},
        "ratio_low": {s: _nested(ends[s][0]) for s in SIDES},
        "ratio_high": {s: _nested(ends[s][1]) for s in SIDES},
        "gpu_rules": found.gpu_rules.tolist(),
        "card_rules": {s: found.card_rules[s].tolist() for s in SIDES},
        "card_parts": found.card_parts.tolist(),
    }


def write_map(ranged: RangedMap, path: Path) -> None:
    """Write the map as compact JSON; the file is whole or not there.

    Args:
        ranged: the map with its intervals.
        path: the file; its folder is made if need be.

    Raises:
        OSError: when the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_data(ranged), allow_nan=False, separators=(",", ":"))
    write_whole(path, text.replace("]],[[", "]],\n[[") + "\n")


def _nested(values: Joules) -> object:
    """Nested lists of three significant digits; None for NaN."""
    if values.ndim == 0:
        return None if np.isnan(values) else float(f"{float(values):.3g}")
    parts: Iterable[Joules] = values
    return [_nested(np.asarray(part)) for part in parts]
