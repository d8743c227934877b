"""From rewards and log-probs to advantages, and what keeps a batch's rows in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roll.distributed.scheduler.protocol import DataProto

# ---------------------------------------------------------------- means


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum().clamp(min=1)


def masked_whiten(values: Tensor, mask: Tensor) -> Tensor:
    mean = masked_mean(values, mask)
    spread = masked_mean((values - mean).square(), mask)
    return (values - mean) * torch.rsqrt(spread + 1e-8)


def reduce_metrics(metrics: dict[str, Any]) -> dict[str, float]:
    return {key: float(np.mean(values)) for key, values in metrics.items()}


# ---------------------------------------------------------------- samples


def postprocess_generate(
    prompts: DataProto, output: list[list[int]], logprobs: list[list[float]], sequence_length: int
) -> DataProto:
    """The samples of one prompt: prompt and response side by side, padded on the right."""
    ids, width = prompts.batch["input_ids"][0], prompts.batch["input_ids"].shape[1]
    prompt = ids[prompts.batch["attention_mask"][0].bool()]
    n, n_prompt = len(output), len(prompt)
    tensors = {
        "prompts": ids.repeat(n, 1),
        "responses": torch.zeros((n, sequence_length - width), dtype=torch.int64),
        "input_ids": torch.zeros((n, sequence_length), dtype=torch.int64),
        "attention_mask": torch.zeros((n, sequence_length), dtype=torch.int64),
        "response_mask": torch.zeros((n, sequence_length), dtype=torch.int64),
        "prompt_mask": torch.zeros((n, sequence_length), dtype=torch.bool),
        "infer_logprobs": torch.zeros((n, sequence_length - 1)),
    }
    for i, (tokens, drawn) in enumerate(zip(output, logprobs, strict=True)):
        end = n_prompt + len(tokens)
        tensors["responses"][i, : len(tokens)] = torch.tensor(tokens)
        tensors["input_ids"][i, :end] = torch.cat([prompt, torch.tensor(tokens)])
        tensors["attention_mask"][i, :end] = 1
        tensors["response_mask"][i, n_prompt:end] = 1
        tensors["prompt_mask"][i, :n_prompt] = True
        # As log-probs everywhere: that of a token stands where the one before it does.
        tensors["infer_logprobs"][i, n_prompt - 1 : end - 1] = torch.tensor(drawn)
    tensors["position_ids"] = (tensors["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    return DataProto.from_dict(tensors)


def batch_balance(
    batch: DataProto, dp_size: int, minibatch_size: int, logging_prefix: str = "global_seqlen"
) -> dict[str, float]:
    """Reorder rows in place, so that the ranks' shares of a mini-batch are of like length."""
    lengths = batch.batch["attention_mask"].sum(-1).tolist()
    order, sums = [], []
    for start in range(0, len(lengths), minibatch_size):
        rows = range(start, min(start + minibatch_size, len(lengths)))
        longest_first = sorted(rows, key=lambda row: -lengths[row])
        shares: list[list[int]] = [[] for _ in range(dp_size)]
        for i, row in enumerate(longest_first):
            turn, place = divmod(i, dp_size)
            shares[place if turn % 2 == 0 else dp_size - 1 - place].append(row)
        order += [row for share in shares for row in share]
        sums += [sum(lengths[row] for row in share) for share in shares]
    batch.reorder(torch.tensor(order))
    figures = {"min": min(sums), "max": max(sums), "mean": float(np.mean(sums))}
    return {f"{logging_prefix}/{name}": value for name, value in figures.items()}


def get_sample_level_mask(
    data: DataProto, pipeline_config: Any
) -> tuple[DataProto, dict[str, float]]:
    """Which samples are trained on: all of them here."""
    kept = torch.ones(len(data), dtype=torch.int64)
    data.batch["final_response_mask"] = data.batch["response_mask"] * kept[:, None]
    return data, {"actor/final_mask_ratio": float(kept.float().mean())}


# ---------------------------------------------------------------- reference


def clusters_have_disjoint_devices(clusters: list[Any]) -> bool:
    """Whether no two of the roles share a device."""
    used: set[tuple[int, int]] = set()
    for cluster in clusters:
        own = {
            (place["node_rank"], place["gpu_rank"])
            for places in cluster.rank2devices.values()
            for place in places
            if place["gpu_rank"] is not None
        }
        if own & used:
            return False
        used |= own
    return True


def compute_ref_log_probs_with_routing(
    batch: DataProto,
    references: dict[str, Any],
    pipeline_config: Any,
    domain_to_teacher_names: dict[str, list[str]] | None,
    domain_values: Any,
    metrics_fn: Callable[[dict[str, Any]], None],
) -> DataProto:
    """Each reference's log-probs of all rows; those of the first are the reference's."""
    assert domain_to_teacher_names is None, "the double routes nothing"
    beside = clusters_have_disjoint_devices(list(references.values()))
    sent = {}
    for name, cluster in references.items():
        sent[name] = _send_to_reference(batch, cluster)
        if not beside:
            sent[name] = _join(*sent[name])
    for name in references:
        answer = sent[name] if not beside else _join(*sent[name])
        metrics_fn(reduce_metrics(answer.meta_info.pop("metrics", {})))
        batch.batch[f"ref_log_probs_{name}"] = answer.batch["log_probs"]
        batch.batch[f"ref_log_probs_{name}_mask"] = torch.ones(len(batch), dtype=torch.bool)
    merge_ref_log_probs_compat(batch, references, is_routing=False)
    return batch


def _send_to_reference(batch: DataProto, cluster: Any) -> tuple[Any, Tensor, int]:
    n_rows, dp_size = len(batch), cluster.dp_size
    padding = -n_rows % dp_size
    sub_batch = batch.select_idxs([*range(n_rows), *(i % n_rows for i in range(padding))])
    sub_batch.batch["ref_row"] = torch.arange(len(sub_batch))
    batch_balance(sub_batch, dp_size=dp_size, minibatch_size=len(sub_batch))
    refs = cluster.compute_log_probs(sub_batch, blocking=False)
    return refs, sub_batch.batch["ref_row"], n_rows


def _join(refs: Any, rows: Tensor, n_rows: int) -> DataProto:
    """The answer in the rows' own order, without padding."""
    answer = DataProto.materialize_concat(data_refs=refs)
    return answer.select_idxs(torch.argsort(rows)[:n_rows])


def merge_ref_log_probs_compat(
    batch: DataProto, references: dict[str, Any], is_routing: bool
) -> None:
    if not is_routing:
        batch.batch["ref_log_probs"] = batch.batch[f"ref_log_probs_{next(iter(references))}"]


# ---------------------------------------------------------------- rewards and advantages


class FixedKLController:
    def __init__(self, value: float) -> None:
        self.value = value

    def update(self, current: float, n_steps: int) -> None:
        pass


def reward_postprocess(
    data: DataProto, pipeline_config: Any, running_ctrl: Any = None
) -> tuple[DataProto, dict[str, float]]:
    """Clip rewards; for GRPO compare each with the others of its prompt."""
    rewards = data.batch["response_level_rewards"].clone().float()
    metrics = {"critic/reward_clip_frac": 0.0}
    if pipeline_config.reward_clip is not None:
        clip = pipeline_config.reward_clip
        metrics["critic/reward_clip_frac"] = float((rewards.abs() > clip).float().mean())
        rewards = rewards.clamp(-clip, clip)
    n = pipeline_config.num_return_sequences_in_group
    if pipeline_config.adv_estimator == "grpo" and n > 1:
        groups = rewards.view(-1, n)
        spread = groups.std(-1, keepdim=True)
        rewards = ((groups - groups.mean(-1, keepdim=True)) / (spread + 1e-6)).flatten()
    data.batch["response_level_rewards"] = rewards
    return data, metrics


def compute_token_reward(
    data: DataProto, pipeline_config: Any, kl_ctrl: Any
) -> tuple[DataProto, dict[str, float]]:
    """Each token's reward: the response's at its last token, less what the policy went away."""
    batch = data.batch
    mask = batch["response_mask"][:, 1:]
    away = (batch["old_log_probs"] - batch["ref_log_probs"]) * mask
    last = batch["attention_mask"].sum(-1) - 2
    rewards = torch.zeros_like(away)
    rewards[torch.arange(len(data)), last] = batch["response_level_rewards"]
    if pipeline_config.add_token_level_kl:
        rewards = rewards - kl_ctrl.value * away
    batch["token_level_rewards"] = rewards
    kl = float((away.sum(-1) / mask.sum(-1).clamp(min=1)).mean())
    kl_ctrl.update(current=kl, n_steps=len(data))
    return data, {"critic/kl": kl, "critic/kl_coef": kl_ctrl.value}


def compute_advantage(
    data: DataProto,
    gamma: float,
    lambd: float,
    adv_estimator: str,
    advantage_clip: float | None = None,
    whiten_advantages: bool = False,
    whiten_rewards: bool = False,
    response_mask: Tensor | None = None,
) -> DataProto:
    batch = data.batch
    mask = batch["final_response_mask"][:, 1:] if response_mask is None else response_mask
    rewards = batch["token_level_rewards"].float()
    if whiten_rewards:
        rewards = masked_whiten(rewards, mask) * mask
    if adv_estimator == "gae":
        advantages = _discounted(
            rewards + gamma * _next(batch["values"] * mask) - batch["values"] * mask, gamma * lambd
        )
        returns = advantages + batch["values"]
    elif adv_estimator in ("reinforce", "grpo"):
        advantages = returns = _discounted(rewards, gamma)
    else:
        raise ValueError(f"no such estimator: {adv_estimator}")
    batch["raw_advantages"] = advantages * mask
    if whiten_advantages:
        advantages = masked_whiten(advantages, mask)
    if advantage_clip is not None:
        advantages = advantages.clamp(-advantage_clip, advantage_clip)
    batch["advantages"], batch["returns"] = advantages * mask, returns * mask
    return data


def _next(values: Tensor) -> Tensor:
    return torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], -1)


def _discounted(values: Tensor, rate: float) -> Tensor:
    """Of each token the sum of its own value and, less and less, of those after it."""
    total, columns = torch.zeros_like(values[:, 0]), []
    for column in reversed(values.unbind(-1)):
        total = column + rate * total
        columns.append(total)
    return torch.stack(columns[::-1], -1)


def compute_data_metrics(data: DataProto) -> dict[str, float]:
    batch = data.batch
    mask = batch["response_mask"][:, 1:]
    lengths, n_prompt = batch["response_mask"].sum(-1).float(), batch["prompt_mask"].sum(-1).float()
    metrics = {
        "token/response_length/mean": lengths.mean(),
        "token/response_length/max": lengths.max(),
        "token/response_length/min": lengths.min(),
        "token/prompt_length/mean": n_prompt.mean(),
        "critic/score/mean": batch["scores"].mean(),
        "critic/rewards/mean": batch["token_level_rewards"].sum(-1).mean(),
        "critic/advantages/mean": masked_mean(batch["advantages"], mask),
        "critic/returns/mean": masked_mean(batch["returns"], mask),
    }
    if "values" in batch:
        metrics["critic/values/mean"] = masked_mean(batch["values"], mask)
    return {name: float(value) for name, value in metrics.items()}
