"""Lets ROLL's own code run on the CPU, in each process that has this folder on its path.

Python imports this module when it starts, so that Ray's workers have it as well and Ray's own
hooks stay free. It loads nothing large itself: a module is changed once it was loaded.
"""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path

from tests.frameworks.changed_imports import change_imports

_NOUGHT = (
    "device_memory_used", "max_memory_allocated", "max_memory_cached", "max_memory_reserved",
    "memory_allocated", "memory_cached", "memory_reserved",
)  # fmt: skip
_NOTHING = (
    "empty_cache", "init", "ipc_collect", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_peak_memory_stats", "set_device", "synchronize",
)  # fmt: skip


def _torch(torch):
    torch.set_num_threads(1)


def _platform(module):
    """ROLL's platform of the CPU has GPUs that Ray counts and nobody uses."""
    import torch

    class Random:
        get_rng_state_all = staticmethod(lambda: [torch.get_rng_state()])
        set_rng_state_all = staticmethod(lambda states: torch.set_rng_state(states[0]))

    cpu = module.CpuPlatform
    cpu.ray_device_key, cpu.device_control_env_var = "GPU", "CUDA_VISIBLE_DEVICES"
    cpu.ray_experimental_noset = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    cpu.device_count = staticmethod(lambda: int(os.environ["ROLL_TEST_GPUS"]))
    cpu.current_device = staticmethod(lambda: torch.device("cpu"))
    cpu.mem_get_info = staticmethod(lambda *_: (0, 0))
    cpu.get_rng_state = staticmethod(lambda *_: torch.get_rng_state())
    cpu.set_rng_state = staticmethod(lambda state, *_: torch.set_rng_state(state))
    cpu.random = Random
    for name in _NOUGHT:
        setattr(cpu, name, staticmethod(lambda *_: 0))
    for name in _NOTHING:
        setattr(cpu, name, staticmethod(lambda *_: None))


def _serializer(module):
    """Weights go to the rollout worker as bytes, where on a GPU their address does."""
    module.MultiprocessingSerializer.serialize = staticmethod(pickle.dumps)
    module.MultiprocessingSerializer.deserialize = staticmethod(pickle.loads)


def _send_recv(module):
    module.monkey_patch_torch_reductions = lambda: None


def _generate_scheduler(module):
    """Samples come in the order of their prompts, not in that in which they were ready."""
    scheduler = module.DynamicSamplingScheduler
    collect = scheduler.collect_items_as_batch

    def collect_items_as_batch(self, finished_items):
        return collect(self, sorted(finished_items, key=lambda item: item.prompt_id))

    scheduler.collect_items_as_batch = collect_items_as_batch


_AFTER = {
    "torch": _torch,
    "roll.distributed.scheduler.generate_scheduler": _generate_scheduler,
    "roll.platforms.cpu": _platform,
    "roll.utils.cuda_ipc_utils": _serializer,
    "roll.utils.send_recv_utils": _send_recv,
}
_INSTEAD = {
    "roll.distributed.strategy.vllm_strategy": Path(__file__).with_name("rollout_engine.py")
}


# A training is ten processes that each load torch and transformers: most of its time, of which
# the collector would take a sixth.
gc.set_threshold(100_000, 50, 50)
change_imports(_AFTER, _INSTEAD)
