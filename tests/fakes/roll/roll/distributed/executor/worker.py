"""A process of a role."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import ray
import torch

from roll.configs.worker_config import WorkerConfig
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.platforms import current_platform
from roll.utils.logging import get_logger


@dataclass
class RankInfo:
    """Where a process stands among those of its role; here data are all that is parallel."""

    world_size: int = 1
    tp_size: int = 1
    dp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1
    rank: int = 0
    tp_rank: int = 0
    dp_rank: int = 0
    pp_rank: int = 0
    cp_rank: int = 0


class Worker:
    def __init__(self, worker_config: WorkerConfig) -> None:
        torch.set_num_threads(1)
        self.worker_config, self.pipeline_config = worker_config, None
        self.cluster_name = os.environ.get("CLUSTER_NAME", worker_config.name)
        self.rank = int(os.environ.get("RANK", 0))
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        self.worker_name = os.environ.get("WORKER_NAME", f"{self.cluster_name}-{self.rank}")
        self.rank_info = RankInfo(
            world_size=self.world_size,
            dp_size=self.world_size,
            rank=self.rank,
            dp_rank=self.rank,
        )
        self.logger = get_logger()
        self.strategy: Any = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any) -> None:
        self.pipeline_config = pipeline_config

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, clear_cache=False)
    def load_states(self, *args: Any, **kwargs: Any) -> None:
        if self.strategy is not None:
            self.strategy.load_states(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, clear_cache=False)
    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        if self.strategy is not None:
            self.strategy.offload_states(*args, **kwargs)

    def get_rank_info(self) -> RankInfo:
        return self.rank_info

    def get_devices_info(self) -> list[dict[str, Any]]:
        visible = os.environ.get(current_platform.device_control_env_var, "")
        return [
            {"rank": self.rank, "node_ip": self.get_node_ip(), "gpu_rank": int(gpu)}
            for gpu in visible.split(",")
            if gpu
        ]

    @staticmethod
    def get_node_ip() -> str:
        return ray.util.get_node_ip_address()
