"""What a config says of one role."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Optional, Union

# dacite reads these annotations at run time.
# ruff: noqa: UP007, UP045


@dataclass
class ModelArguments:
    model_name_or_path: Optional[str] = None
    dtype: Optional[str] = "bf16"
    attn_implementation: Optional[str] = None
    disable_gradient_checkpointing: bool = False
    model_type: Optional[str] = None
    lora_target: Optional[str] = None
    lora_rank: int = 8
    lora_alpha: Optional[int] = None


@dataclass
class TrainingArguments:
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    warmup_steps: int = 0
    max_grad_norm: float = 1.0


@dataclass
class DataArguments:
    template: Optional[str] = None
    file_name: Optional[Union[list[str], str]] = None
    dataset_dir: Optional[str] = None
    domain_interleave_probs: Optional[dict[str, float]] = None
    prompt: Optional[str] = None
    preprocessing_num_workers: Optional[int] = None


@dataclass
class GeneratingArguments:
    do_sample: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 50
    num_beams: int = 1
    max_new_tokens: Optional[int] = None
    num_return_sequences: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass
class StrategyArguments:
    strategy_name: Literal[
        "hf_infer", "vllm", "sglang", "megatron_infer", "megatron_train",
        "fsdp2_train", "fsdp2_infer",
    ]  # fmt: skip
    strategy_config: dict = field(default_factory=dict)


@dataclass
class WorkerConfig:
    name: Optional[str] = None
    worker_cls: Optional[str] = None
    model_args: ModelArguments = field(default_factory=ModelArguments)
    training_args: TrainingArguments = field(default_factory=TrainingArguments)
    data_args: Optional[DataArguments] = None
    generating_args: Optional[GeneratingArguments] = None
    strategy_args: Optional[StrategyArguments] = None
    world_size: Optional[int] = None
    # ROLL's own type: a config that says null is refused.
    device_mapping: Union[list[int], str] = None
    num_gpus_per_worker: int = 1
    infer_batch_size: int = 16
    system_envs: dict = field(default_factory=dict)
    max_concurrency: int = 1
    use_dynamic_batching_in_infer: bool = False
    resource_placement_groups: Optional[list[Any]] = None

    def __post_init__(self) -> None:
        several = ("hf_infer", "vllm", "sglang")
        if self.strategy_args is not None and self.strategy_args.strategy_name not in several:
            self.num_gpus_per_worker = 1
        if self.device_mapping is None:
            # A role without GPUs: the config says how many processes it has.
            self.num_gpus_per_worker = 0
            return
        if isinstance(self.device_mapping, str):
            # A config's own expression, such as list(range(0, 8)).
            self.device_mapping = eval(self.device_mapping)
        n_gpus = len(self.device_mapping)
        assert n_gpus % self.num_gpus_per_worker == 0, "GPUs are left over"
        self.world_size = n_gpus // self.num_gpus_per_worker
