"""A scenario whose costs no calibration computes: the truth that a fit is checked against."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ecorl.records import Provenance
from ecorl.scheduler.paper_table import paper_table
from ecorl.scheduler.tables import COLUMNS, CostTable, length_grid, roofline_table
from ecorl.sim.families.training import paper_scenarios
from ecorl.sim.scenario import Scenario

_FACTOR = (0.6, 1.6)
"""Least and greatest factor on a hidden time, energy or power."""

_SHORTEST = 0.15
"""Shortest mean completion of a hidden table over the nominal one. Its lengths lie closer than
those of a computed table: what is a line between two of them should not be far off a curve."""


def hidden_scenario(
    seed: int, base: Scenario | None = None, *, n_iterations: int = 300
) -> Scenario:
    """A scenario that no calibration computes: every figure of its table is off by chance.

    Times and energies of each stage are scaled by factors between 0.6 and 1.6, idle and active
    powers as well, and the shares of overlapping (forward pass, its price, contention, swap) are
    drawn.

    Args:
        seed: of all that is hidden.
        base: whose table is scaled; by default one of the harder ones under the paper's
            calibration, with cards that neither fail nor get hot: no ledger tells of that.
        n_iterations: of an episode.
    """
    rng = np.random.default_rng([seed, 71])
    if base is None:
        (drawn,) = paper_scenarios(seed, 1, harder=True)
        base = replace(drawn, failure_rate=0.0, ambient_c=23.0)
    lengths = length_grid(_SHORTEST * base.nominal_length, base.max_length)
    make = paper_table if base.calibration == "paper" else roofline_table
    hidden = _hidden_table(make(base.setting, lengths, base.rows_at(lengths)), rng)
    return replace(
        base,
        name=f"hidden-{seed}",
        calibration="fitted",
        fitted=hidden,
        n_iterations=n_iterations,
    )


def _hidden_table(table: CostTable, rng: np.random.Generator) -> CostTable:
    def factor() -> float:
        return float(rng.uniform(*_FACTOR))

    factors = {name: factor() for name in COLUMNS}
    for unit in "sj":  # both belong to one stage: the longer row must stay the dearer one
        factors[f"generation_long_{unit}"] = factors[f"generation_short_{unit}"]
    active_w = table.card_active_w * factor()
    return replace(
        table,
        values=table.values * np.array([factors[name] for name in COLUMNS]),
        gpu_idle_w=table.gpu_idle_w * factor(),
        card_active_w=active_w,
        card_idle_w=min(table.card_idle_w * factor(), active_w),
        forward_share=table.forward_share * float(rng.uniform(0.8, 1.2)),
        early_share=float(rng.uniform(0.05, 0.20)),
        swap_share=float(rng.uniform(0.03, 0.12)),
        contention=float(rng.uniform(0.35, 0.75)),
        provenance=Provenance.MODELLED,
        notes=("made up: scaled by hidden factors",),
    )
