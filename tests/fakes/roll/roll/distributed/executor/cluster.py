"""The processes of a role, and their methods as one."""

from __future__ import annotations

import inspect
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from roll.configs.worker_config import WorkerConfig
from roll.distributed.executor.worker import RankInfo
from roll.distributed.scheduler.decorator import (
    BIND_WORKER_METHOD_FLAG,
    DISPATCH,
    EXECUTE,
    func_generator,
)
from roll.distributed.scheduler.resource_manager import ResourceManager
from roll.platforms import current_platform
from roll.utils.constants import RAY_NAMESPACE
from roll.utils.import_utils import safe_import_class

ASYNC_CONCURRENCY = 1000


class Cluster:
    """A role. It travels to the processes of others, with its bound methods."""

    def __init__(
        self,
        name: str,
        worker_cls: Any,
        resource_manager: ResourceManager,
        worker_config: WorkerConfig,
    ) -> None:
        self.cluster_name, self.worker_config = name, worker_config
        self.resource_manager = resource_manager
        self.world_size: int = worker_config.world_size
        self.placement_groups = resource_manager.allocate_placement_group(
            device_mapping=worker_config.device_mapping, world_size=self.world_size
        )
        self.rank2devices = {
            rank: [{k: v for k, v in place.items() if k != "placement_group"} for place in places]
            for rank, places in enumerate(self.placement_groups)
        }
        self._worker_rank_info: list[RankInfo] | None = None
        if isinstance(worker_cls, str):
            worker_cls = safe_import_class(worker_cls)
        if not hasattr(worker_cls, "__ray_actor_class__"):
            worker_cls = ray.remote(worker_cls)
        methods = dict(inspect.getmembers(worker_cls.__ray_actor_class__, inspect.isfunction))
        is_async = any(map(inspect.iscoroutinefunction, methods.values()))
        self._max_concurrency = ASYNC_CONCURRENCY if is_async else worker_config.max_concurrency
        self.workers = [self._start(worker_cls, rank) for rank in range(self.world_size)]
        self._bind_worker_method(methods)

    def _start(self, worker_cls: Any, rank: int) -> Any:
        places = self.placement_groups[rank]
        gpus = [place["gpu_rank"] for place in places if place["gpu_rank"] is not None]
        name = f"{self.cluster_name}-{rank}"
        env_vars = {
            **current_platform.get_custom_env_vars(),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "CLUSTER_NAME": self.cluster_name,
            "WORKER_NAME": name,
        }
        if gpus:
            current_platform.update_env_vars_for_visible_devices(env_vars, gpus)
            name += f"-G{','.join(map(str, gpus))}"
        env_vars |= {key: str(value) for key, value in self.worker_config.system_envs.items()}
        return worker_cls.options(
            name=name,
            namespace=RAY_NAMESPACE,
            num_cpus=0.01,
            num_gpus=0.01 if self.worker_config.device_mapping else 0,
            max_concurrency=self._max_concurrency,
            runtime_env={"env_vars": env_vars},
            scheduling_strategy=PlacementGroupSchedulingStrategy(places[0]["placement_group"]),
        ).remote(worker_config=self.worker_config)

    @property
    def worker_rank_info(self) -> list[RankInfo]:
        # Asked late: the roles' processes start beside each other.
        if self._worker_rank_info is None:
            asked = [worker.get_rank_info.remote() for worker in self.workers]
            self._worker_rank_info = ray.get(asked)
        return self._worker_rank_info

    @property
    def dp_size(self) -> int:
        return self.worker_rank_info[0].dp_size

    def _bind_worker_method(self, methods: dict[str, Any]) -> None:
        for name, method in methods.items():
            how = getattr(method, BIND_WORKER_METHOD_FLAG, None)
            if how is None:
                continue
            dispatch_fn, collect_fn = DISPATCH[how["dispatch_mode"]]
            execute_fn = getattr(self, EXECUTE[how["execute_mode"]])
            func = func_generator(
                self,
                name,
                dispatch_fn=dispatch_fn,
                collect_fn=collect_fn,
                execute_fn=execute_fn,
            )
            setattr(self, name, func)

    def execute_all(self, method_name: str, *args: list, **kwargs: list) -> list[ray.ObjectRef]:
        """Call each worker with its own value of each argument."""
        return [
            getattr(worker, method_name).remote(
                *(values[rank] for values in args),
                **{key: values[rank] for key, values in kwargs.items()},
            )
            for rank, worker in enumerate(self.workers)
        ]

    def execute_rank_zero(self, method_name: str, *args: list, **kwargs: list) -> list:
        first = {key: values[0] for key, values in kwargs.items()}
        worker = self.workers[0]
        return [getattr(worker, method_name).remote(*(v[0] for v in args), **first)]
