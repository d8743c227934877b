"""OpenRLHF's flags: names of those that older releases had, and the settings that ecorl reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from ecorl.errors import ConfigError
from ecorl.records import Algorithm

VERSION = "0.11"
"""Release of OpenRLHF whose flags and classes this adapter knows."""

_SECTIONS = {
    "actor": "num_nodes num_gpus_per_node",
    "ref": "num_nodes num_gpus_per_node",
    "critic": "num_nodes num_gpus_per_node",
    "reward": "num_nodes num_gpus_per_node",
    "vllm": "num_engines tensor_parallel_size sync_backend sync_with_ray gpu_memory_utilization "
    "enable_sleep",
    "algo.kl": "estimator:kl_estimator target:kl_target horizon:kl_horizon use_loss:use_kl_loss "
    "init_coef:init_kl_coef",
    "algo.advantage": "estimator:advantage_estimator gamma:gamma lambd:lambd "
    "no_std_norm:no_advantage_std_norm",
    "train": "colocate_actor_ref:colocate_actor_ref colocate_critic_reward:colocate_critic_reward "
    "colocate_all:colocate_all_models async_enable:async_train async_queue_size:async_queue_size "
    "agent_func_path:agent_func_path batch_size:train_batch_size num_episodes:num_episodes "
    "micro_batch_size:micro_train_batch_size max_epochs:max_epochs seed:seed "
    "enable_ema:enable_ema ema_beta:ema_beta dynamic_batch_enable:use_dynamic_batch "
    "max_tokens_per_gpu:train_max_tokens_per_gpu full_determinism_enable:full_determinism "
    "partial_rollout_enable:partial_rollout",
    "rollout": "batch_size:rollout_batch_size micro_batch_size:micro_rollout_batch_size "
    "n_samples_per_prompt:n_samples_per_prompt max_new_tokens:generate_max_len top_p:top_p "
    "temperature:temperature max_tokens_per_gpu:rollout_max_tokens_per_gpu "
    "vllm_generate_batch_size:vllm_generate_batch_size",
    "ds": "zero_stage:zero_stage adam_offload:adam_offload zpg:zpg overlap_comm:overlap_comm "
    "packing_samples:packing_samples ring_attn_size:ring_attn_size "
    "ring_attn_head_stride:ring_head_stride load_in_4bit:load_in_4bit "
    "enable_sleep:deepspeed_enable_sleep tensor_parallel_size:ds_tensor_parallel_size "
    "attn_implementation:attn_implementation use_liger_kernel:use_liger_kernel "
    "grad_accum_dtype:grad_accum_dtype value_head_prefix:value_head_prefix "
    "lora.rank:lora_rank lora.alpha:lora_alpha lora.target_modules:target_modules "
    "lora.dropout:lora_dropout use_universal_ckpt:use_ds_universal_ckpt deepcompile:deepcompile",
    "ckpt": "output_dir:save_path path:ckpt_path save_steps:save_steps save_hf:save_hf_ckpt "
    "disable_ds:disable_ds_ckpt max_num:max_ckpt_num max_mem:max_ckpt_mem "
    "load_enable:load_checkpoint",
    "data": "prompt_dataset:prompt_data prompt_probs:prompt_data_probs "
    "prompt_split:prompt_split input_key:input_key label_key:label_key "
    "input_template:input_template apply_chat_template:apply_chat_template max_len:max_len "
    "max_samples:max_samples disable_fast_tokenizer:disable_fast_tokenizer",
    "eval": "steps:eval_steps dataset:eval_dataset split:eval_split temperature:eval_temperature "
    "n_samples_per_prompt:eval_n_samples_per_prompt",
    "logger": "logging_steps:logging_steps wandb.key:use_wandb wandb.org:wandb_org "
    "wandb.group:wandb_group wandb.project:wandb_project wandb.run_name:wandb_run_name "
    "tensorboard_dir:use_tensorboard",
}

_SINGLE = {
    "pretrain": "actor.model_name_or_path",
    "reward_pretrain": "reward.model_name_or_path",
    "critic_pretrain": "critic.model_name_or_path",
    "remote_rm_url": "reward.remote_url",
    "normalize_reward": "reward.normalize_enable",
    "reward_clip_range": "reward.clip_range",
    "overlong_buffer_len": "reward.overlong_buffer_len",
    "overlong_penalty_factor": "reward.overlong_penalty_factor",
    "ref_reward_offload": "ref.offload and --reward.offload",
    "actor_learning_rate": "actor.adam.lr",
    "critic_learning_rate": "critic.adam.lr",
    "adam_betas": "actor.adam.betas",
    "l2": "actor.adam.weight_decay",
    "lr_scheduler": "actor.lr_scheduler",
    "lr_warmup_ratio": "actor.lr_warmup_ratio",
    "max_norm": "actor.max_norm",
    "eps_clip": "actor.eps_clip",
    "eps_clip_low_high": "actor.eps_clip_low_high",
    "dual_clip": "actor.dual_clip",
    "value_clip": "critic.value_clip",
    "entropy_loss_coef": "actor.entropy_coef",
    "aux_loss_coef": "actor.aux_loss_coef",
    "policy_loss_type": "actor.policy_loss_type",
    "gradient_checkpointing": "actor.gradient_checkpointing_enable",
    "gradient_checkpointing_use_reentrant": "actor.gradient_checkpointing_reentrant",
    "freezing_actor_steps": "critic.freezing_steps",
    "save_value_network": "critic.save_value_network",
    "enable_prefix_caching": "vllm.enable_prefix_caching",
    "enforce_eager": "vllm.enforce_eager",
    "flash_attn": "ds.attn_implementation flash_attention_2",
    "bf16": "ds.param_dtype bf16",
    "dynamic_filtering": "algo.dynamic_filtering_enable",
    "dynamic_filtering_reward_range": "algo.dynamic_filtering_range",
    "prompt_max_len": "data.max_len, which counts prompt and response together",
}


def _renamed() -> Iterator[tuple[str, str]]:
    yield from _SINGLE.items()
    for section, entries in _SECTIONS.items():
        for entry in entries.split():
            new, _, old = entry.partition(":")
            yield old or f"{section}_{new}", f"{section}.{new}"


RENAMED = dict(_renamed())
"""New names of the flags that releases before 0.11 had, both without dashes."""

ALGORITHMS = {
    "gae": Algorithm.PPO,
    "reinforce": Algorithm.REINFORCE_PP,
    "reinforce_baseline": Algorithm.REINFORCE_PP,
    "flash_reinforce": Algorithm.REINFORCE_PP,
    "rloo": Algorithm.RLOO,
    "group_norm": Algorithm.GRPO,
    "dr_grpo": Algorithm.GRPO,
}
"""ecorl's algorithm by ``--algo.advantage.estimator``."""


def check_names(flags: Sequence[str]) -> None:
    """Answer a flag of the undotted kind with its new name.

    Args:
        flags: the command line, without ecorl's own part.

    Raises:
        ConfigError: for the first flag that has been renamed.
    """
    for i, flag in enumerate(flags):
        name, equals, value = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or name not in RENAMED:
            continue
        if not equals:
            following = flags[i + 1] if i + 1 < len(flags) else ""
            value = "" if following.startswith("-") else following
        allowed = f"its new name: OpenRLHF {VERSION} calls it --{RENAMED[name]}"
        raise ConfigError(f"--{name}", value or None, allowed)


def value_of(args: Any, name: str, default: Any = None) -> Any:
    """Look up one of OpenRLHF's parsed flags by its dotted name.

    Args:
        args: the nested namespace that OpenRLHF makes of its command line.
        name: e.g. ``algo.kl.init_coef``.
        default: for a flag that this release does not have.
    """
    found = args
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return default
    return found


def steps_of(args: Any, n_optimizer_steps: int | None) -> int | None:
    """How many steps of the trainer a number of optimizer steps is; None: unknown.

    A step trains on all that was generated for it, in one optimizer step a batch and pass.

    Args:
        args: OpenRLHF's flags, nested.
        n_optimizer_steps: as OpenRLHF counts them for its learning rate; None: unknown.
    """
    if n_optimizer_steps is None:
        return None
    a_step = int(value_of(args, "rollout.batch_size")) * int(
        value_of(args, "rollout.n_samples_per_prompt", 1)
    )
    passes = int(value_of(args, "train.max_epochs", 1))
    n_rows = n_optimizer_steps * int(value_of(args, "train.batch_size")) // passes
    return n_rows // a_step


# ---------------------------------------------------------------- to an engine, as JSON


def args_of(flags: str) -> Any:
    """OpenRLHF's flags as a nested namespace.

    Args:
        flags: as JSON, from `options_for`.
    """
    return _nested(json.loads(flags))


def options_for(args: Any) -> dict[str, Any]:
    """Options of the engine for a job.

    Args:
        args: OpenRLHF's flags, nested; those that JSON cannot hold are left out.
    """
    return {"flags": json.dumps(_plain(args))}


def _plain(value: Any) -> Any:
    if isinstance(value, SimpleNamespace):
        found = {key: _plain(item) for key, item in vars(value).items()}
        return {key: item for key, item in found.items() if item is not _LEFT_OUT}
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return [item for item in items if item is not _LEFT_OUT]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _LEFT_OUT


_LEFT_OUT = object()


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{key: _nested(item) for key, item in value.items()})
    return value
