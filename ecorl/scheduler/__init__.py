"""Where a stage runs: state encoding, policies, Algorithm 1 with its guards, barrier, quarantine.

policy = build_policy(config.placement, gpu, fpga, config.devices, models)
guards = Guards.from_config(config.placement, CostModel(gpu, fpga, config.devices, models))
placement = place(state, policy, guards)
"""

from __future__ import annotations

from ecorl.scheduler.barrier import BarrierOutcome, CompletionBarrier, Ticket
from ecorl.scheduler.costs import CostModel, Estimate, RoleDevices
from ecorl.scheduler.features import encode, state_size
from ecorl.scheduler.guards import Guards, place
from ecorl.scheduler.policies import (
    Lookahead,
    Policy,
    Profiling,
    Proposal,
    Static,
    Threshold,
    build_policy,
    load_policy,
)
from ecorl.scheduler.quarantine import Quarantine

__all__ = [
    "BarrierOutcome",
    "CompletionBarrier",
    "CostModel",
    "Estimate",
    "Guards",
    "Lookahead",
    "Policy",
    "Profiling",
    "Proposal",
    "Quarantine",
    "RoleDevices",
    "Static",
    "Threshold",
    "Ticket",
    "build_policy",
    "encode",
    "load_policy",
    "place",
    "state_size",
]
