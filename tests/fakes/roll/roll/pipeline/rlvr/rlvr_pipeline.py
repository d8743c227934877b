"""Reinforcement learning from verifiable rewards: the driver, step by step."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.datasets.collator import (
    DataCollatorWithPaddingForPaddedKeys,
    load_prompts,
    special_tokens,
)
from roll.distributed.executor.cluster import Cluster
from roll.distributed.scheduler.generate_scheduler import DynamicSamplingScheduler
from roll.distributed.scheduler.protocol import DataProto
from roll.pipeline.base_pipeline import BasePipeline, logger
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.rlvr.utils import dump_rollout_to_specific_path
from roll.utils.constants import RAY_NAMESPACE
from roll.utils.functionals import (
    FixedKLController,
    batch_balance,
    compute_advantage,
    compute_data_metrics,
    compute_ref_log_probs_with_routing,
    compute_token_reward,
    get_sample_level_mask,
    reduce_metrics,
    reward_postprocess,
)


class RLVRPipeline(BasePipeline):
    def __init__(self, pipeline_config: RLVRConfig) -> None:
        super().__init__(pipeline_config)
        config = pipeline_config
        self.tokenizer, self.val_dataset = None, None
        self.kl_ctrl = FixedKLController(config.init_kl_coef)
        self.is_lora = config.actor_train.model_args.lora_target is not None
        self.use_ref_model = config.enable_reference and not self.is_lora
        self.actor_train = self._cluster(config.actor_train)
        self.actor_infer = self._cluster(config.actor_infer)
        self.references: dict[str, Cluster] = {}
        self.reference: Cluster | None = None
        if self.use_ref_model:
            for name, role in config.reference_configs.items():
                role.name = role.name or f"reference-{name}"
                self.references[name] = self._cluster(role)
            self.reference = next(iter(self.references.values()))
        self.critic: Cluster | None = None
        if config.adv_estimator == "gae":
            self.critic = self._cluster(config.critic)
        self.rewards = {domain: self._cluster(role) for domain, role in config.rewards.items()}
        self.domain_batch_size = self._shares()
        self.generate_schedulers = self._start_schedulers()
        trained = [cluster for cluster in (self.actor_train, self.critic) if cluster is not None]
        clusters = [
            *trained, self.actor_infer, *self.references.values(), *self.rewards.values()
        ]  # fmt: skip
        self.download_models(*clusters)
        waited: list[Any] = []
        for cluster in clusters:
            waited += cluster.initialize(pipeline_config=config, blocking=False)
        waited += [s.initialize.remote() for s in self.generate_schedulers.values()]
        ray.get(waited)
        for cluster in clusters:
            # Ask for the ranks while nobody is at work.
            logger.info(f"{cluster.cluster_name}: {cluster.dp_size} processes")
        self.set_model_update_pair(src_cluster=self.actor_train, tgt_cluster=self.actor_infer)
        self.set_checkpoint_clusters(*trained)

    def _cluster(self, role: Any) -> Cluster:
        return Cluster(
            name=role.name,
            worker_cls=role.worker_cls,
            resource_manager=self.resource_manager,
            worker_config=role,
        )

    def _shares(self) -> dict[str, int]:
        """How many prompts of a step each domain has."""
        config, domains = self.pipeline_config, list(self.rewards)
        given = config.actor_train.data_args.domain_interleave_probs
        share = given or dict.fromkeys(domains, 1 / len(domains))
        sizes = {d: int(share[d] * config.rollout_batch_size) for d in domains}
        sizes[domains[-1]] += config.rollout_batch_size - sum(sizes.values())
        return sizes

    def _start_schedulers(self) -> dict[str, Any]:
        config, prompts = self.pipeline_config, load_prompts(self.pipeline_config)
        padding, self.eos_token_ids = special_tokens(
            config.actor_train.model_args.model_name_or_path
        )
        self.pad_token_id = padding
        node = ray.get_runtime_context().get_node_id()
        return {
            domain: ray.remote(DynamicSamplingScheduler)
            .options(
                name=f"DynamicSamplingScheduler-{domain}",
                namespace=RAY_NAMESPACE,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            )
            .remote(
                pipeline_config=config,
                actor_cluster=self.actor_infer,
                reward_clusters={domain: self.rewards[domain]},
                dataset=prompts[domain],
                collect_fn_cls=DataCollatorWithPaddingForPaddedKeys,
                collect_fn_kwargs={"max_length": config.prompt_length, "pad_token_id": padding},
                state=self.state.kv.get(f"scheduler_state_{domain}"),
            )
            for domain in self.rewards
        }

    # ------------------------------------------------------------ a training

    def run(self) -> None:
        config = self.pipeline_config
        for global_step in range(config.max_steps):
            if global_step <= self.state.step:
                continue
            metrics: dict[str, float] = {}
            with _timed(metrics, "step_total"):
                self._step(global_step, metrics)
            metrics["system/samples_per_second"] = (
                config.rollout_batch_size / metrics["time/step_total"]
            )
            for domain, scheduler in self.generate_schedulers.items():
                state = ray.get(scheduler.get_scheduler_state.remote())
                self.state.kv[f"scheduler_state_{domain}"] = state
            self.state.step = global_step
            self.state.log_history.append(metrics)
            self.do_checkpoint(global_step=global_step)
            self.tracker.log(values=metrics, step=global_step)
            logger.info(f"step {global_step} finished")
        ray.get([s.shutdown.remote() for s in self.generate_schedulers.values()])
        self.tracker.finish()
        logger.info("pipeline complete")

    def _step(self, global_step: int, metrics: dict[str, float]) -> None:
        batch = DataProto(meta_info={"global_step": global_step, "collect_unfinished": False})
        with _timed(metrics, "step_model_update"):
            self._update_rollouts(global_step, metrics)
        with _timed(metrics, "step_generate"):
            batch = self._generate(batch, global_step, metrics)
        batch.meta_info["loss_mask_keys"] = ["response_mask", "final_response_mask"]
        batch.meta_info["global_step"] = global_step
        uuids = [str(uuid.uuid4()) for _ in range(len(batch))]
        batch.non_tensor_batch["sample_uuid"] = DataProto.from_dict(
            None, {"sample_uuid": uuids}
        ).non_tensor_batch["sample_uuid"]
        batch.batch["prompt_id"] = torch.arange(len(batch))
        with _timed(metrics, "ref_log_probs"):
            batch = self._add_reference(batch, metrics)
        with _timed(metrics, "old_log_probs_values"):
            batch = self._add_old_log_probs_and_values(batch, metrics)
        with _timed(metrics, "adv"):
            batch = self._add_advantages(batch, metrics)
        with _timed(metrics, "step_train"):
            self._train(batch, metrics)

    def _update_rollouts(self, global_step: int, metrics: dict[str, float]) -> None:
        if self.pipeline_config.async_pipeline:
            self._pause_sampling()
        if self.critic is not None:
            self.critic.offload_states(blocking=True)
        self.actor_train.offload_states(blocking=True)
        metrics.update(self.model_update(global_step))

    def _pause_sampling(self) -> None:
        ray.get([s.pause_sampling.remote() for s in self.generate_schedulers.values()])

    def _generate(self, batch: DataProto, global_step: int, metrics: dict[str, float]) -> DataProto:
        config = self.pipeline_config
        batch.meta_info["generation_config"] = {
            **config.actor_infer.generating_args.to_dict(),
            "eos_token_id": self.eos_token_ids,
            "pad_token_id": self.pad_token_id,
        }
        self.actor_infer.load_states(blocking=True)
        if not config.async_pipeline:
            for cluster in self.rewards.values():
                cluster.load_states()
        asked = {
            domain: scheduler.get_batch.remote(
                data=batch, global_step=global_step, batch_size=self.domain_batch_size[domain]
            )
            for domain, scheduler in self.generate_schedulers.items()
        }
        parts = []
        for domain, ref in asked.items():
            part = ray.get(ref)
            found = reduce_metrics(part.meta_info.pop("metrics", {}))
            metrics.update({f"{domain}/{name}": value for name, value in found.items()})
            parts.append(part)
        generate_output = DataProto.concat(parts)
        dump_rollout_to_specific_path(
            config.rollout_dump_dir, global_step, generate_output, self.tokenizer
        )
        if not config.async_pipeline:
            self._pause_sampling()
            self.actor_infer.offload_states()
            for cluster in self.rewards.values():
                cluster.offload_states()
        return generate_output

    def _add_reference(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
        config = self.pipeline_config
        if not config.enable_reference:
            return batch
        if self.is_lora:
            batch.meta_info["disable_adapter"] = True
            answer = self.actor_train.compute_log_probs(batch, blocking=True)
            batch.meta_info["disable_adapter"] = False
            metrics.update(reduce_metrics(answer.meta_info.pop("metrics", {})))
            answer.rename(old_keys="log_probs", new_keys="ref_log_probs")
            return batch.union(answer.pop("ref_log_probs"))
        return compute_ref_log_probs_with_routing(
            batch=batch,
            references=self.references,
            pipeline_config=config,
            domain_to_teacher_names=None,
            domain_values=None,
            metrics_fn=metrics.update,
        )

    def _add_old_log_probs_and_values(
        self, batch: DataProto, metrics: dict[str, float]
    ) -> DataProto:
        config = self.pipeline_config
        batch.meta_info["is_offload_states"] = False
        values_refs: list[Any] = []
        if self.critic is not None:
            values_refs = self.critic.compute_values(batch, blocking=False)
        if config.enable_old_logprobs_recompute:
            metrics.update(
                batch_balance(batch, dp_size=self.actor_train.dp_size, minibatch_size=len(batch))
            )
            old_refs = self.actor_train.compute_log_probs(batch, blocking=False)
            old = DataProto.materialize_concat(data_refs=old_refs)
            metrics.update(reduce_metrics(old.meta_info.pop("metrics", {})))
            batch.batch["old_log_probs"] = old.batch["log_probs"]
        else:
            batch.batch["old_log_probs"] = torch.zeros_like(batch.batch["infer_logprobs"])
        if self.critic is not None:
            # As ROLL has it: where rows were reordered since, values are those of other rows.
            values = DataProto.materialize_concat(data_refs=values_refs)
            metrics.update(reduce_metrics(values.meta_info.pop("metrics", {})))
            batch = batch.union(values)
        if not config.enable_reference:
            batch.batch["ref_log_probs"] = batch.batch["old_log_probs"].clone()
        return batch

    def _add_advantages(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
        config, parts = self.pipeline_config, []
        batch.reorder(torch.argsort(batch.batch["prompt_id"]))
        for domain, domain_batch in batch.group_by("domain").items():
            domain_batch, found = get_sample_level_mask(domain_batch, config)
            domain_batch, clipped = reward_postprocess(domain_batch, config, None)
            domain_batch, away = compute_token_reward(domain_batch, config, self.kl_ctrl)
            domain_batch = compute_advantage(
                data=domain_batch,
                gamma=config.gamma,
                lambd=config.lambd,
                adv_estimator=config.adv_estimator,
                advantage_clip=config.advantage_clip,
                whiten_advantages=config.whiten_advantages,
            )
            found |= clipped | away | compute_data_metrics(domain_batch)
            metrics.update({f"{domain}/{name}": value for name, value in found.items()})
            parts.append(domain_batch)
        batch = DataProto.concat(parts)
        batch.reorder(torch.argsort(batch.batch["prompt_id"]))
        batch.pop("prompt_id")
        return batch

    def _train(self, batch: DataProto, metrics: dict[str, float]) -> None:
        critic_refs: list[Any] = []
        if self.critic is not None:
            critic_refs = self.critic.train_step(batch, blocking=False)
        dp_size = self.actor_train.dp_size
        balance = batch_balance(batch, dp_size=dp_size, minibatch_size=len(batch))
        metrics.update(balance)
        actor_refs = self.actor_train.train_step(batch, blocking=False)
        actor = DataProto.materialize_concat(data_refs=actor_refs)
        metrics.update(reduce_metrics(actor.meta_info.pop("metrics", {})))
        if self.critic is not None:
            critic = DataProto.materialize_concat(data_refs=critic_refs)
            metrics.update(reduce_metrics(critic.meta_info.pop("metrics", {})))


@contextlib.contextmanager
def _timed(metrics: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    metrics[f"time/{name}"] = time.monotonic() - start
