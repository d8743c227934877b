"""Stages: their graphs per algorithm, and the one pure function of what a placement costs."""

from __future__ import annotations

from ecorl.stages.figures import (
    ACTIONS,
    BATCH,
    CONCURRENT,
    FPGA,
    GPU,
    SCALAR,
    THROTTLE_SPAN_C,
    Between,
    Carry,
    IterationTotals,
    Number,
    Ops,
    Work,
    idle_work,
)
from ecorl.stages.graph import FROZEN_STAGES, StageGraph, may_leave_gpu, stage_graph
from ecorl.stages.guards import (
    NO_LIMIT,
    OffloadBid,
    Rules,
    energy_fits,
    gpu_only,
    length_fits,
    offload_bids,
    outlook,
    permitted,
    queue_fits,
)
from ecorl.stages.iteration import advance, begin, card_done_s, finish, with_deferred_done
from ecorl.stages.outcome import StageOutcome, stage

__all__ = [
    "ACTIONS",
    "BATCH",
    "CONCURRENT",
    "FPGA",
    "FROZEN_STAGES",
    "GPU",
    "NO_LIMIT",
    "SCALAR",
    "THROTTLE_SPAN_C",
    "Between",
    "Carry",
    "IterationTotals",
    "Number",
    "OffloadBid",
    "Ops",
    "Rules",
    "StageGraph",
    "StageOutcome",
    "Work",
    "advance",
    "begin",
    "card_done_s",
    "energy_fits",
    "finish",
    "gpu_only",
    "idle_work",
    "length_fits",
    "may_leave_gpu",
    "offload_bids",
    "outlook",
    "permitted",
    "queue_fits",
    "stage",
    "stage_graph",
    "with_deferred_done",
]
