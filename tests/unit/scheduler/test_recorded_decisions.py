"""Decisions of the shipped policy and of the look-ahead are as they were recorded.

The file holds what a run without abilities decides with one card, so that a change of the shared
arithmetic shows here. It is made anew, from `decisions`, when costs or the shipped policy change.
"""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import pytest

from ecorl.config import (
    DeviceConfig,
    LearnedPolicyConfig,
    LookaheadPolicyConfig,
    PlacementConfig,
)
from ecorl.devices import load_profile
from ecorl.devices.llama import model_shape
from ecorl.records import (
    Action,
    Algorithm,
    PathCost,
    Provenance,
    SchedulerState,
    Stage,
    StageWork,
)
from ecorl.scheduler import build_policy
from ecorl.scheduler.learned import DecisionView, LearnedScheduler
from ecorl.sim.families.profiles import cpu_profile

RECORD = Path(__file__).with_name("recorded_decisions.json")
STAGES = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)
MODELS = {s: model_shape("1b", scalar_head=s is Stage.REWARD) for s in STAGES}
MEASURED = tuple(PathCost(s, 2e-3, 3.0, 20, Provenance.MEASURED) for s in STAGES)
GENERATED = ((Stage.GENERATION, Action.GPU),)
DECIDED = {
    Stage.REWARD: (GENERATED,),
    Stage.REFERENCE: tuple((*GENERATED, (Stage.REWARD, action)) for action in Action),
}


def states():
    """States of a run, from one at ease to one with a queue, a long batch or no card."""
    cases = product(
        DECIDED, (40, 300, 1500), (8, 256), ((1, True), (3, True), (0, False)), ((), MEASURED)
    )
    for stage, length, rows, (queue, up), paths in cases:
        for decided in DECIDED[stage]:
            shares = (0.3, 0.4)
            n_output = rows * length
            work = StageWork(
                stage, rows, n_output + 100 * rows, n_output, 2 * length + 100, MODELS[stage]
            )
            yield SchedulerState(
                3, Algorithm.GRPO, stage, shares, shares, queue, up, work, paths=paths,
                decided=decided,
            )  # fmt: skip


def policy(chosen, gpu, calibration="roofline"):
    config = PlacementConfig(policy=chosen, l_max=8192)
    devices = DeviceConfig(n_gpus=2, calibration=calibration)
    return build_policy(config, gpu, load_profile("u55c"), devices, MODELS)


def decisions():
    """What each policy decides in each state: action, sentence, costs, and the network's input."""
    policies = {
        "learned": policy(LearnedPolicyConfig(), load_profile("h100_sxm")),
        "learned, paper": policy(LearnedPolicyConfig(), load_profile("h100_sxm"), "paper"),
        "learned, cpu": policy(LearnedPolicyConfig(), cpu_profile(2)),
        "lookahead": policy(LookaheadPolicyConfig(), cpu_profile(2)),
    }
    for name, made in policies.items():
        for i, state in enumerate(states()):
            proposal = made.propose(state)
            costs = [[c.time_s, c.energy_j, c.wait_s] for c in proposal.costs]
            inputs = []
            if isinstance(made, LearnedScheduler) and i % 6 == 0:
                table = made._tables.of(state)
                inputs = [float(x) for x in DecisionView(table, state).inputs()]
            yield [
                name,
                str(proposal.action),
                proposal.reason,
                [x for one in costs for x in one],
                inputs,
            ]


LEFT_OVER = re.compile(r"\b\d+(\.\d+)?e-1\d\b")
"""Figures below 1e-9."""


def test_decisions_are_as_recorded():
    recorded = json.loads(RECORD.read_text("utf-8"))
    made = list(decisions())
    assert len(made) == len(recorded) > 400
    assert len({row[1] for row in recorded}) > 1
    for now, before in zip(made, recorded, strict=True):
        assert now[:2] == before[:2]
        # The last bits are those of the machine's logarithms and exponentials; a difference of
        # equal times may be what they leave over.
        assert LEFT_OVER.sub("0", now[2]) == LEFT_OVER.sub("0", before[2])
        assert now[3] == pytest.approx(before[3], rel=1e-12, abs=1e-12)
        assert now[4] == pytest.approx(before[4], rel=1e-12, abs=1e-15)
