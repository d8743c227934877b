"""Rewards by rules, as a user of ROLL writes them; their classes are named in a config."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from ray.util import get_current_placement_group
from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto


class LengthReward(Worker):
    """Rewards a completion by its length; each domain in its own way."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config):
        pass

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)
    def compute_rewards(self, data):
        lengths = data.batch["response_mask"].sum(-1).float()
        scores = lengths / 12 if self.cluster_name.endswith("long") else 1 - lengths / 12
        tensors = {
            "token_level_rewards": torch.zeros_like(data.batch["responses"], dtype=torch.float32),
            "response_level_rewards": scores,
            "scores": scores,
        }
        return DataProto.from_dict(tensors=tensors)


class HeldReward(LengthReward):
    """The same; after as many rows as ``HELD_AFTER`` says it waits for the file ``HELD_UNTIL``.

    What is done to a training meets it in a step of which the test knows the number.
    """

    n_rows = 0

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)
    def compute_rewards(self, data):
        if self.n_rows >= int(os.environ["HELD_AFTER"]):
            limit_s = time.monotonic() + 100
            while not Path(os.environ["HELD_UNTIL"]).exists() and time.monotonic() < limit_s:
                time.sleep(0.05)
        self.n_rows += len(data)
        return super().compute_rewards(data)


class CardReward(LengthReward):
    """The same, by a class that computes on cards itself: it must be where one is reserved."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config):
        (bundle,) = get_current_placement_group().bundle_specs
        if bundle.get("FPGA") != 1:
            raise RuntimeError(f"no card is reserved here: {bundle}")
