"""What a user reads as the reason of a decision, for each guard and each policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecorl.config import DeviceConfig, PlacementConfig
from ecorl.devices import load_profile
from ecorl.records import Abilities, Action, DeviceKind, PathCost, Provenance, Stage
from ecorl.scheduler import CostModel, Guards, Proposal, build_policy, place
from ecorl.scheduler.guards import Energies, GuardFacts, guard_objection
from ecorl.scheduler.words import action_name, against
from ecorl.sim.families.profiles import cpu_profile
from tests.plain_words import banned

H100, U55C, HOST = load_profile("h100_sxm"), load_profile("u55c"), cpu_profile(2)
KINDS = {DeviceKind.GPU: ("GPU", H100), DeviceKind.CPU: ("host", HOST)}
ALL = Abilities(stream=True, early_forward=True, defer_critic=True, offload_critic=True)


class Fixed:
    name = "fixed"

    def __init__(self, action):
        self.action = action

    def propose(self, state):
        return Proposal(self.action, "as asked")


def read(reason, kind):
    """The reason of a run with devices of a kind, once it holds nothing that nobody knows."""
    assert reason
    assert banned(reason, on_gpus=kind is DeviceKind.GPU) == []
    return reason


@pytest.mark.parametrize("kind", KINDS)
def test_a_guard_says_in_plain_words_why_a_stage_was_kept(make_state, snapshot, kind):
    reasons = []
    for changes in ({"queue": 9}, {"length": 3000}, {"available": False}, {"stage": Stage.CRITIC}):
        asked = replace(make_state(**changes), framework_on=kind)
        reasons.append(read(place(asked, Fixed(Action.CONCURRENT), Guards()).reason, kind))
    snapshot("\n".join(reasons))


@pytest.mark.parametrize("kind", KINDS)
def test_the_energy_guard_names_both_figures_in_one_unit(make_state, snapshot, kind):
    _, profile = KINDS[kind]
    asked = replace(make_state(), framework_on=kind)
    guards = Guards(energy_margin=0.0, costs=CostModel(H100, U55C))
    placed = place(asked, Fixed(Action.FPGA), guards)
    by_action = {c.action: c for c in placed.costs}
    n = asked.work.n_output_tokens
    card_j, own_j = (by_action[a].energy_j / n for a in (Action.FPGA, Action.GPU))
    reason = read(placed.reason, kind)
    assert f"({card_j:.3g} against {own_j:.3g} J a token" in reason
    assert profile.kind is kind
    unknown = place(asked, Fixed(Action.FPGA), replace(guards, costs=None)).reason
    snapshot(f"{reason}\n{read(unknown, kind)}")


def test_the_energies_of_a_batch_without_tokens_are_joules(snapshot):
    facts = GuardFacts(
        Stage.REWARD, True, True, 0, 1.0, 10.0, lambda: Energies(2.0, 0.25, "card measured")
    )
    words = guard_objection(facts, 8, 2048, 1.5).words
    assert "(2 against 0.25 J" in words
    snapshot(words)
    assert against(2.3e-3, 0.4e-3, 1) == "2.3 against 0.4 mJ a token"
    assert against(2.3e-5, 0.0, 1) == "23 against 0 µJ a token"
    assert against(2300.0, 46.0, 0) == "2.3 against 0.046 kJ"


CONFIGS = {
    "static": {"type": "static", "reward": "fpga", "reference": "gpu"},
    "threshold": {"type": "threshold", "max_length": 100, "max_queue": 0},
    "lookahead": {"type": "lookahead"},
    "learned": {"type": "learned"},
}
SEEN = tuple(
    PathCost(s, 2e-3, 3.0, 20, Provenance.MEASURED) for s in (Stage.REWARD, Stage.REFERENCE)
)
RECENT = tuple(
    replace(
        cost, recent_s_per_token=2e-3, n_recent=19, recent_j_per_token=energy_j,
        energy_j_per_token=energy_j, on_card=on_card,
    )
    for cost in SEEN
    for on_card, energy_j in ((False, 3.0), (True, None))
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("abilities", [Abilities(), ALL])
def test_no_policy_says_what_only_the_paper_explains(make_state, kind, name, abilities):
    config = PlacementConfig(policy=CONFIGS[name], profile_both_paths=True, n_profiling=2)
    shape = make_state().work.model
    models = dict.fromkeys(Stage, shape)
    _, profile = KINDS[kind]
    policy = build_policy(config, profile, U55C, DeviceConfig(), models, abilities)
    guards = Guards.from_config(config, CostModel(profile, U55C), abilities)
    reasons = set()
    for stage in Stage:
        for changes in ({}, {"queue": 9}, {"length": 60}, {"available": False}):
            for batch in (0, 1, 2):
                for paths in ((), SEEN, RECENT):
                    asked = replace(
                        make_state(stage, **changes), framework_on=kind, batch=batch, paths=paths
                    )
                    placed = place(asked, policy, guards)
                    reasons.add(read(placed.reason, kind))
    assert any(reason.startswith("profiling: ") for reason in reasons)
    assert len(reasons) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_actions_have_names_that_a_reader_understands(snapshot, kind):
    own = KINDS[kind][0]
    names = [action_name(action, own) for action in Action]
    names += [action_name(Action.CONCURRENT, own, stage) for stage in Stage]
    snapshot("\n".join(names))


def test_a_policy_that_fails_is_said_to_have_failed(make_state, snapshot):
    policy = Fixed(Action.FPGA)
    policy.propose = lambda state: 1 / 0
    asked = replace(make_state(), framework_on=DeviceKind.CPU)
    snapshot(place(asked, policy, Guards()).reason)
