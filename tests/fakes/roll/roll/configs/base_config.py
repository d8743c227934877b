"""What a config says of any training with a policy, whatever its data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Optional, Union

from roll.configs.worker_config import WorkerConfig
from roll.platforms import current_platform

# dacite reads these annotations at run time.
# ruff: noqa: UP007, UP045

ROLLOUT_STRATEGIES = ("vllm", "sglang")


@dataclass
class BaseConfig:
    exp_name: str = "exp"
    seed: int = 42
    output_dir: str = "./output"
    logging_dir: str = "./output/logs"
    max_steps: int = 500
    save_steps: int = 50
    eval_steps: int = 50
    logging_steps: int = 1
    rollout_batch_size: int = 128
    prompt_length: int = 1024
    response_length: int = 1024
    sequence_length: Optional[int] = None
    track_with: Optional[str] = None
    tracker_kwargs: dict = field(default_factory=dict)
    num_gpus_per_node: int = 8
    num_nodes: int = 1
    resume_from_checkpoint: Union[bool, str] = False
    checkpoint_config: Optional[dict[str, Any]] = None
    rollout_dump_dir: Optional[str] = None
    save_logging_board_dir: Optional[str] = None
    rpc_timeout: Optional[int] = None

    def __post_init__(self) -> None:
        if not self.sequence_length:
            self.sequence_length = self.prompt_length + self.response_length
        self.num_gpus_per_node = current_platform.device_count()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class PPOConfig(BaseConfig):
    adv_estimator: str = "gae"
    gamma: float = 1.0
    lambd: float = 0.95
    ppo_epochs: int = 1
    pg_clip: float = 0.2
    value_clip: float = 0.5
    init_kl_coef: float = 0.2
    add_token_level_kl: bool = False
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.0
    whiten_advantages: bool = False
    advantage_clip: Optional[float] = None
    reward_clip: Optional[float] = None
    enable_reference: bool = True
    enable_old_logprobs_recompute: bool = True
    async_generation_ratio: float = 0
    actor_train: WorkerConfig = field(default_factory=WorkerConfig)
    actor_infer: WorkerConfig = field(default_factory=WorkerConfig)
    reference: WorkerConfig = field(default_factory=WorkerConfig)
    critic: WorkerConfig = field(default_factory=WorkerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        strategy = self.actor_infer.strategy_args
        name = strategy and strategy.strategy_name
        assert name in ROLLOUT_STRATEGIES, f"actor_infer generates with one of {ROLLOUT_STRATEGIES}"
        classes = {
            "actor_train": "roll.pipeline.rlvr.actor_worker.ActorWorker",
            "actor_infer": "roll.pipeline.base_worker.InferWorker",
            "reference": "roll.pipeline.rlvr.actor_worker.ActorWorker",
            "critic": "roll.pipeline.base_worker.CriticWorker",
        }
        for name, worker_cls in classes.items():
            role = getattr(self, name)
            role.name = role.name or name
            role.worker_cls = role.worker_cls or worker_cls

    @property
    def async_pipeline(self) -> bool:
        return self.async_generation_ratio > 0
