"""The roles' processes: policy and reference, critic, rollouts, a reward model."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import torch
from torch import Tensor

from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.strategy.strategy import TrainStrategy, create_strategy
from roll.models.model_providers import token_log_probs
from roll.utils.checkpoint_manager import CheckpointManager
from roll.utils.functionals import masked_mean, reduce_metrics

FORWARD_S = 0.15
"""What a forward pass takes at least, s: in less, nothing could be seen to run beside it."""


class _ModelWorker(Worker):
    """A role with a model."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any) -> None:
        super().initialize(pipeline_config)
        self.strategy = create_strategy(worker=self)
        resumed = pipeline_config.resume_from_checkpoint
        if resumed and isinstance(self.strategy, TrainStrategy):
            self.strategy.load_checkpoint(Path(resumed) / self.cluster_name)
        self.logger.info(f"{self.worker_name} initialized")

    def _micro_batches(self, data: DataProto) -> list[DataProto]:
        return data.to("cpu").split(self.worker_config.infer_batch_size)

    def _hidden(self, data: DataProto) -> Tensor:
        names = ("input_ids", "attention_mask", "position_ids")
        return self.strategy.model.hidden(*(data.batch[name] for name in names))


class _TrainedWorker(_ModelWorker):
    """A role whose model may be trained."""

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST, clear_cache=False)
    def train_step(self, data: DataProto) -> DataProto:
        """Go over the rows in a new order, one step of the optimizer a mini-batch."""
        found: dict[str, list[float]] = {}
        for _ in range(self.pipeline_config.ppo_epochs):
            for micro_batches in self._mini_batches(data):
                losses, metrics = zip(*map(self._loss, micro_batches), strict=True)
                name = self.worker_config.name
                rate = self.strategy.learning_rate
                own = {f"{name}/grad_norm": self.strategy.step(list(losses))}
                own["actor/lr" if name == "actor_train" else f"{name}/lr"] = rate
                for part in (*metrics, own):
                    for key, value in part.items():
                        found.setdefault(key, []).append(float(value))
        return DataProto(meta_info={"metrics": reduce_metrics(found)})

    def _mini_batches(self, data: DataProto) -> Iterator[list[DataProto]]:
        args = self.worker_config.training_args
        micro, n_micro = args.per_device_train_batch_size, args.gradient_accumulation_steps
        order = torch.randperm(len(data), generator=self.strategy.draw)
        for rows in order.split(micro * n_micro):
            yield data.select_idxs(rows).split(micro)

    def _loss(self, data: DataProto) -> tuple[Tensor, dict[str, Any]]:
        raise NotImplementedError

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def do_checkpoint(self, global_step: int, is_last_step: bool | None = None) -> DataProto:
        start = time.monotonic()
        ckpt_id = f"checkpoint-{global_step}"
        folder = Path(self.pipeline_config.output_dir) / self.worker_name / ckpt_id
        # As the pipeline's own state: what is uploaded has a folder of the role's name.
        self.strategy.save_checkpoint(folder / self.cluster_name)
        manager = CheckpointManager(self.pipeline_config.checkpoint_config)
        manager.upload(ckpt_id=ckpt_id, local_state_path=str(folder))
        seconds = time.monotonic() - start
        return DataProto(meta_info={"metrics": {f"time/{self.cluster_name}/checkpoint": seconds}})


class ActorWorker(_TrainedWorker):
    """The policy, and a reference that is a model of its own."""

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST, clear_cache=False)
    @torch.no_grad()
    def compute_log_probs(self, data: DataProto) -> DataProto:
        time.sleep(FORWARD_S)
        model = self.strategy.model
        model.uses_adapter = model.is_adapted and not data.meta_info.get("disable_adapter", False)
        try:
            parts = [self._log_probs(part) for part in self._micro_batches(data)]
        finally:
            model.uses_adapter = model.is_adapted
        log_probs, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
        tensors = {"log_probs": log_probs, "entropy": entropy}
        return DataProto.from_dict(tensors, meta_info={"metrics": {}})

    def _log_probs(self, data: DataProto) -> tuple[Tensor, Tensor]:
        logits = self.strategy.model.logits(self._hidden(data))
        mask = data.batch["response_mask"][:, 1:]
        own, entropy = token_log_probs(logits, data.batch["input_ids"])
        return own * mask, entropy * mask

    def _loss(self, data: DataProto) -> tuple[Tensor, dict[str, Any]]:
        config, batch = self.pipeline_config, data.batch
        log_probs, entropy = self._log_probs(data)
        mask = batch["final_response_mask"][:, 1:]
        known = config.enable_old_logprobs_recompute
        ratio = torch.exp(log_probs - (batch["old_log_probs"] if known else log_probs.detach()))
        clipped = ratio.clamp(1 - config.pg_clip, 1 + config.pg_clip)
        advantages = batch["advantages"]
        pg_loss = masked_mean(-torch.min(ratio * advantages, clipped * advantages), mask)
        away = batch["ref_log_probs"] - log_probs
        kl_loss = masked_mean(away.exp() - away - 1, mask)
        coefficient = config.kl_loss_coef if config.use_kl_loss else 0.0
        loss = pg_loss + coefficient * kl_loss
        outside = ((ratio - 1).abs() > config.pg_clip).float()
        return loss, {
            "actor/pg_loss@sum": pg_loss.detach(),
            "actor/kl_loss@sum": kl_loss.detach(),
            "actor/total_loss@sum": loss.detach(),
            "actor/entropy": masked_mean(entropy.detach(), mask),
            "actor/ppo_ratio_clipfrac@sum": masked_mean(outside, mask),
        }

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, clear_cache=False)
    def start_model_update(self, tgt_workers: list[Any]) -> dict[str, float]:
        """Hand the weights to those who generate."""
        start = time.monotonic()
        weights = ray.put(self.strategy.model.merged())
        ray.get([worker.update_parameter.remote(weights) for worker in tgt_workers])
        return {"time/model_update/broadcast": time.monotonic() - start}


class CriticWorker(_TrainedWorker):
    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST, clear_cache=False)
    @torch.no_grad()
    def compute_values(self, data: DataProto) -> DataProto:
        time.sleep(FORWARD_S)
        values = torch.cat([self._values(part) for part in self._micro_batches(data)])
        return DataProto.from_dict({"values": values}, meta_info={"metrics": {}})

    def _values(self, data: DataProto) -> Tensor:
        values = self.strategy.model.score(self._hidden(data))[:, :-1]
        return values * data.batch["response_mask"][:, 1:]

    def _loss(self, data: DataProto) -> tuple[Tensor, dict[str, Any]]:
        batch, clip = data.batch, self.pipeline_config.value_clip
        values, mask = self._values(data), batch["final_response_mask"][:, 1:]
        near = batch["values"] + (values - batch["values"]).clamp(-clip, clip)
        error = torch.max((values - batch["returns"]).square(), (near - batch["returns"]).square())
        loss = masked_mean(error, mask) / 2
        means = {"critic/value": masked_mean(values.detach(), mask)}
        return loss, {"critic/loss": loss.detach(), **means}


class InferWorker(_ModelWorker):
    """Generates. What is drawn depends on the prompt and the weights alone."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, clear_cache=False)
    async def load_states(self, *args: Any, **kwargs: Any) -> None:
        self.strategy.load_states(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, clear_cache=False)
    async def offload_states(self, *args: Any, **kwargs: Any) -> None:
        self.strategy.offload_states(*args, **kwargs)

    async def update_parameter(self, weights: dict[str, Tensor]) -> None:
        for name, weight in weights.items():
            self.strategy.model.weights[name].copy_(weight)

    async def generate_request(self, data: DataProto) -> DataProto:
        """Answer one prompt, padded on the left, as often as its config asks."""
        asked = data.meta_info["generation_config"]
        prompt = data.batch["input_ids"][0][data.batch["attention_mask"][0].bool()].tolist()
        # One of several requests for the same prompt is told which it is.
        key = (prompt, data.meta_info.get("sequence", 0))
        draw = torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
        n = asked["num_return_sequences"]
        drawn = [self._complete(prompt, asked, draw) for _ in range(n)]
        tokens, logprobs, reasons = (list(column) for column in zip(*drawn, strict=True))
        return DataProto(
            meta_info={
                "output_token_ids": tokens,
                "finish_reasons": reasons,
                "output_logprobs": logprobs,
            }
        )

    @torch.no_grad()
    def _complete(
        self, prompt: list[int], asked: dict[str, Any], draw: torch.Generator
    ) -> tuple[list[int], list[float], str]:
        model, tokens, logprobs = self.strategy.model, [], []
        while len(tokens) < asked["max_new_tokens"]:
            ids = torch.tensor([prompt + tokens])
            hidden = model.hidden(ids, torch.ones_like(ids), torch.arange(ids.shape[1])[None])
            logits = model.logits(hidden[0, -1]).float()
            shares = torch.softmax(logits / asked["temperature"], -1)
            tokens.append(int(torch.multinomial(shares, 1, generator=draw)))
            logprobs.append(float(torch.log(shares[tokens[-1]])))
            if tokens[-1] in asked["eos_token_id"]:
                return tokens, logprobs, "stop"
        return tokens, logprobs, "length"


class RewardWorker(_ModelWorker):
    """A reward model: the score of a sequence's last token."""

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)
    @torch.no_grad()
    def compute_rewards(self, data: DataProto) -> DataProto:
        scores = torch.cat([self._scores(part) for part in self._micro_batches(data)])
        tensors = {
            "token_level_rewards": torch.zeros_like(data.batch["responses"], dtype=torch.float32),
            "response_level_rewards": scores,
            "scores": scores,
        }
        return DataProto.from_dict(tensors)

    def _scores(self, data: DataProto) -> Tensor:
        last = data.batch["attention_mask"].sum(-1) - 1
        return self.strategy.model.score(self._hidden(data))[torch.arange(len(data)), last]
