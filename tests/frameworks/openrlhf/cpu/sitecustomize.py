"""Lets OpenRLHF's own code run on the CPU, in each process that has this folder on its path.

Python imports this module when it starts, so that Ray's workers have it as well and Ray's own
hooks stay free. It loads nothing large itself: a module is changed once it was loaded.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys

from tests.frameworks.changed_imports import change_imports


class _Cpu(str):
    """What torch takes as the CPU; in ``cuda:{...}`` it stands for a card that nobody uses."""

    __slots__ = ()

    def __format__(self, spec):
        return "0"


def _torch(torch):
    torch.cuda.current_device = lambda: _Cpu("cpu")
    for name in ("empty_cache", "synchronize", "set_device", "current_stream"):
        # A function for each name: torch's compiler has a rule for each, and they differ.
        setattr(torch.cuda, name, lambda *_args, **_kwargs: None)
    torch.set_num_threads(1)
    # The trainer shuffles the prompts and nothing in OpenRLHF seeds its process.
    torch.default_generator.manual_seed(0)


def _device_mesh(module):
    make = module.init_device_mesh
    module.init_device_mesh = lambda _device, *args, **kwargs: make("cpu", *args, **kwargs)


def _samples_generator(module):
    """Samples come in the order of their prompts, not in that in which they were ready."""

    class InOrder:
        def __getattr__(self, name):
            return getattr(ray, name)

        def wait(self, refs, num_returns=1, timeout=None):
            ray.wait(refs[:num_returns], num_returns=len(refs[:num_returns]))
            return refs[:num_returns], refs[num_returns:]

    ray, module.ray = module.ray, InOrder()


def _widths(module):
    """Has the control path choose widths: from a step on, as JSON in the environment."""
    plan = {int(step): width for step, width in json.loads(os.environ[WIDTHS]).items()}
    own = module.stand

    def stand(runtime, *, steps_left, stage):
        choice = own(runtime, steps_left=steps_left, stage=stage)
        done = int(os.environ[STEPS]) - steps_left
        wanted = [width for step, width in plan.items() if step <= done]
        return dataclasses.replace(choice, width=wanted[-1] if wanted else None)

    module.stand = stand


WIDTHS, STEPS = "ECORL_TEST_WIDTHS", "ECORL_TEST_STEPS"
_AFTER = {
    **({"roll_adapters.ray_jobs.policy_training": _widths} if WIDTHS in os.environ else {}),
    "torch": _torch,
    "torch.distributed.device_mesh": _device_mesh,
    "openrlhf.trainer.ppo_utils.samples_generator": _samples_generator,
}

_FORKS = (
    "openrlhf.cli.train_ppo_ray", "roll_adapters.openrlhf",
    "tests.frameworks.openrlhf.redone_steps", "setup_worker.py",
)  # fmt: skip

# A training is seven processes that each load torch, transformers and DeepSpeed: most of its
# time. They are forks of one that has, where there is one.
if "ECORL_TEST_FORKS" in os.environ and any(w.endswith(_FORKS) for w in sys.orig_argv[1:3]):
    from tests.frameworks.worker_forks import run_as_fork

    run_as_fork(sys.orig_argv[1:])

# The collector would take a sixth of what it takes to load them.
gc.set_threshold(100_000, 50, 50)
change_imports(_AFTER)
