"""What a config says of RLVR: domains, each with rewards of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from roll.configs.base_config import PPOConfig
from roll.configs.worker_config import GeneratingArguments, WorkerConfig

# dacite reads these annotations at run time.
# ruff: noqa: UP045


@dataclass
class RewardConfig(WorkerConfig):
    tag_included: list[str] = field(default_factory=list)


@dataclass
class RLVRConfig(PPOConfig):
    num_return_sequences_in_group: int = 1
    is_num_return_sequences_expand: bool = False
    generate_opt_level: int = 1
    user_defined_rollout_loop_cls: str = (
        "roll.distributed.scheduler.user_defined_rollout_loop.UserDefinedRolloutLoop"
    )
    rewards: dict[str, RewardConfig] = field(default_factory=dict)
    reward_model: Optional[WorkerConfig] = None
    validation: Optional[WorkerConfig] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # Several references, by name, where a test wants them; no key of a config gives them.
        self._reference_configs: dict[str, WorkerConfig] | None = None
        if self.actor_infer.generating_args is None:
            self.actor_infer.generating_args = GeneratingArguments()
        asked = self.actor_infer.generating_args
        asked.num_return_sequences = self.num_return_sequences_in_group
        asked.max_new_tokens = min(
            asked.max_new_tokens or self.response_length, self.response_length
        )
        for domain, reward in self.rewards.items():
            reward.name = reward.name or f"reward-{domain}"

    @property
    def reference_configs(self) -> dict[str, WorkerConfig]:
        return self._reference_configs or {"default": self.reference}

    @property
    def needs_teacher_routing(self) -> bool:
        return False
