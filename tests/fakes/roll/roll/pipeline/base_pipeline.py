"""What all pipelines have: resources, roles' weights, checkpoints, metrics."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from roll.distributed.executor.cluster import Cluster
from roll.distributed.scheduler.resource_manager import ResourceManager
from roll.utils.checkpoint_manager import CheckpointManager, download_model
from roll.utils.logging import get_logger
from roll.utils.tracking import create_tracker
from roll.utils.worker_state import WorkerState

logger = get_logger()


class BasePipeline:
    def __init__(self, pipeline_config: Any) -> None:
        self.pipeline_config = pipeline_config
        self.resource_manager = ResourceManager(
            num_gpus_per_node=pipeline_config.num_gpus_per_node,
            num_nodes=pipeline_config.num_nodes,
        )
        self.state = WorkerState()
        self.checkpoint_manager = CheckpointManager(pipeline_config.checkpoint_config)
        self.tracker = create_tracker(
            pipeline_config.track_with, pipeline_config.to_dict(), **pipeline_config.tracker_kwargs
        )
        self.checkpoint_clusters: list[Cluster] = []
        self.model_update_pairs: list[tuple[Cluster, Cluster, int]] = []
        self.resume_from_checkpoint = pipeline_config.resume_from_checkpoint
        if self.resume_from_checkpoint:
            assert isinstance(self.resume_from_checkpoint, str), "a checkpoint's folder is named"
            folder = Path(download_model(self.resume_from_checkpoint)) / "pipeline"
            self.state = WorkerState.load_from_json(str(folder), "pipeline")
            logger.info(f"resumed after step {self.state.step}")

    def run(self) -> None:
        raise NotImplementedError

    def set_model_update_pair(
        self, src_cluster: Cluster, tgt_cluster: Cluster, frequency: int = 1
    ) -> None:
        for cluster in (src_cluster, tgt_cluster):
            gpus = cluster.worker_config.device_mapping
            assert gpus, f"{cluster.cluster_name} has no GPUs"
            assert gpus == list(range(gpus[0], gpus[-1] + 1)), f"{gpus} have gaps"
        self.model_update_pairs.append((src_cluster, tgt_cluster, frequency))

    def set_checkpoint_clusters(self, *clusters: Cluster) -> None:
        self.checkpoint_clusters += clusters

    def model_update(self, global_step: int) -> dict[str, float]:
        """Give those who generate the weights of those who train."""
        metrics: dict[str, float] = {}
        for source, target, frequency in self.model_update_pairs:
            if global_step % frequency == 0:
                for told in ray.get(
                    source.start_model_update(tgt_workers=target.workers, blocking=False)
                ):
                    metrics.update(told)
        return metrics

    def do_checkpoint(self, global_step: int, is_last_step: bool | None = None) -> None:
        config = self.pipeline_config
        if is_last_step is None:
            is_last_step = global_step == config.max_steps - 1
        if global_step <= 0 or not (is_last_step or global_step % config.save_steps == 0):
            return
        start = time.monotonic()
        saving = []
        for cluster in self.checkpoint_clusters:
            saving += cluster.do_checkpoint(
                global_step=global_step, is_last_step=is_last_step, blocking=False
            )
        ray.get(saving)
        ckpt_id = f"checkpoint-{global_step}"
        folder = Path(config.output_dir) / "pipeline" / ckpt_id
        self.state.save_to_json(str(folder / "pipeline"), "pipeline")
        self.checkpoint_manager.upload(ckpt_id=ckpt_id, local_state_path=str(folder))
        logger.info(f"{ckpt_id} saved in {time.monotonic() - start:.2f} s")

    def download_models(self, *clusters: Cluster) -> None:
        """See that each node has its roles' models; a task in the node's placement group."""
        groups: dict[int, Any] = {}
        wanted: dict[int, set[str]] = {}
        for cluster in clusters:
            model = cluster.worker_config.model_args.model_name_or_path
            for places in cluster.placement_groups:
                node_rank = places[0]["node_rank"]
                groups.setdefault(node_rank, places[0]["placement_group"])
                wanted.setdefault(node_rank, set()).update([model] if model else [])
        task = ray.remote(_download_all)
        tasks = [
            task.options(
                num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group)
            ).remote(sorted(wanted[node_rank]))
            for node_rank, group in groups.items()
        ]
        ray.get(tasks, timeout=self.pipeline_config.rpc_timeout)


def _download_all(models: list[str]) -> None:
    for model in models:
        download_model(model)
