"""Which stage a call of ROLL's dispatch is, by the name of its cluster and of the method."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ecorl.records import Role, Stage, role_of

POLICY = "actor_train"
"""Name of the cluster that trains the policy in RLVR."""

REWARD_PREFIX = "reward-"
"""With which the names of RLVR's reward clusters begin; the domain follows."""


class StageCall(NamedTuple):
    """What a call is to ecorl.

    Attributes:
        stage: the stage.
        has_output: whether the tokens of the responses are its output. Old log-probs are training
            work of the policy without one.
    """

    stage: Stage
    has_output: bool = True


_KINDS = (
    ("actor_infer", "rollout"), ("student_infer", "rollout"), ("actor", "actor"),
    ("student", "actor"), ("sft_train", "actor"), ("critic", "critic"), ("ref", "reference"),
    ("teacher", "reference"), ("reward", "reward"),
)  # fmt: skip
"""What clusters do, by what their names begin with; the first that fits."""

_CALLS: dict[tuple[str, str], StageCall] = {
    ("actor", "compute_log_probs"): StageCall(Stage.ACTOR_TRAIN, has_output=False),
    ("actor", "train_step"): StageCall(Stage.ACTOR_TRAIN),
    ("critic", "compute_values"): StageCall(Stage.CRITIC),
    ("critic", "train_step"): StageCall(Stage.CRITIC_TRAIN),
    ("reference", "compute_log_probs"): StageCall(Stage.REFERENCE),
    ("reference", "forward"): StageCall(Stage.REFERENCE),
}


def kind_of_cluster(name: str) -> str:
    """What a cluster of ROLL's does; empty for one that takes no part, e.g. an environment.

    Args:
        name: as ROLL's config has it.
    """
    return next((kind for begin, kind in _KINDS if name.startswith(begin)), "")


def call_of(kind: str, method: str) -> StageCall | None:
    """Which stage a call is, or None for one that is no stage's.

    Args:
        kind: of the cluster.
        method: name of the method.
    """
    return _CALLS.get((kind, method))


def reward_role(domain: str) -> Role:
    """The role of a domain's reward.

    Args:
        domain: its name under ``rewards``.
    """
    return role_of(Stage.REWARD, domain)


def reference_name(name: str, names: Collection[str]) -> str:
    """Which of the references one is in its role; empty where there is only one.

    Args:
        name: its key in ROLL's ``references``.
        names: all of these keys.
    """
    return name if len(names) > 1 else ""
