"""The gears inside ROLL's worker of ``actor_train``: around each step of its optimizer.

ROLL's FSDP2 strategy takes no step whose gradient is not finite: it says so and goes on. Such a
step is computed anew here, from the same rows and random numbers, in BF16.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ecorl.control import Gear
from ecorl.errors import UserError
from ecorl.trainer.gears.formats import GearSupport
from ecorl.trainer.gears.mismatch import probability_mismatch
from ecorl.trainer.gears.random_state import RandomState, undisturbed
from roll_adapters.ray_jobs.gears.orders import GearOrder, Prepared, StepEnd
from roll_adapters.ray_jobs.gears.worker import (
    ATTRIBUTE,
    WorkerGears,
    evaluating,
    support_of,
    training_device,
)
from roll_adapters.roll.gears.formats import own_gear


class TrainStepGears(WorkerGears):
    """The gears of one process of ``actor_train``.

    Args:
        worker: ROLL's, with an FSDP2 strategy.
        own: gear in which ROLL itself trains.
        support: the gears, and which of them are simulated.

    Raises:
        ConfigError: when FP8 is asked for and no layer takes it.
        MissingToolError: when FP8 is asked for and torchao is not installed.
    """

    def __init__(self, worker: Any, own: Gear, support: GearSupport) -> None:
        super().__init__(worker.strategy.model, own, support)
        self._worker, self._strategy = worker, worker.strategy
        self._own: Callable[..., Any] = worker.strategy.train_step
        self._device = training_device()
        self._norm = f"{worker.worker_config.name}/grad_norm"
        worker.strategy.train_step = self.train_step

    def train_step(self, batch: Any, *arguments: Any, **named: Any) -> Any:
        """Take a step of the optimizer. See ROLL's ``FSDP2TrainStrategy.train_step``.

        Args:
            batch: ROLL's ``DataProto``.
            *arguments: further arguments.
            **named: likewise.
        """
        if self.due:
            self._measure(batch)
        if self.is_own:
            return self._own(batch, *arguments, **named)
        random = RandomState.now(self._device)
        rate = copy.deepcopy(self._strategy.scheduler.state_dict())
        known = dict(getattr(self._worker, "_logprobs_cache", {}))
        with self.engaged(self.gear):
            metrics = self._own(batch, *arguments, **named)
        norm = metrics.get(self._norm)
        if norm is None or math.isfinite(norm):
            self.report.ends.append(StepEnd.WELL)
            return metrics
        if getattr(self._strategy, "scaler", None) is not None:
            self.report.ends.append(StepEnd.SKIPPED)
            return metrics
        # ROLL has taken no step, but has counted one for the learning rate; and where it keeps the
        # first log-probs of a row as the old ones, these are of the step that failed.
        self.report.ends.append(StepEnd.REDONE)
        self._strategy.scheduler.load_state_dict(rate)
        for group, value in zip(
            self._strategy.optimizer.param_groups, rate["_last_lr"], strict=True
        ):
            group["lr"] = value
        if hasattr(self._worker, "_logprobs_cache"):
            self._worker._logprobs_cache.clear()
            self._worker._logprobs_cache.update(known)
        random.restore()
        with self.engaged(self.safe):
            return self._own(batch, *arguments, **named)

    def _measure(self, batch: Any) -> None:
        """Measure on a step's rows how far the gears' token probabilities are from the rollout's.

        Where the rollout has not told its own, ROLL's recomputed ones stand for them.
        """
        start_s = time.monotonic()
        due = self.take_due()
        tensors, mask = batch.batch, batch.batch["response_mask"][:, 1:]
        rollout = tensors.get("infer_logprobs", None)
        if rollout is None or rollout.shape != mask.shape:
            rollout = tensors.get("old_log_probs", None)
        for gear in due:
            self.report.mismatch[gear] = None
            if rollout is None or rollout.shape != mask.shape:
                continue
            with (
                undisturbed(self._device),
                self.model.within(gear),
                evaluating(self._strategy.model),
                torch.no_grad(),
            ):
                batch.meta_info["micro_batch_size"] = self._worker.worker_config.infer_batch_size
                found = self._strategy.forward_step(
                    batch=batch, forward_func=self._worker.forward_func_log_probs
                )
                # ROLL's training step sets its own.
                del batch.meta_info["micro_batch_size"]
            self.report.mismatch[gear] = probability_mismatch(rollout, found["log_probs"], mask)
        self.report.measured_s += time.monotonic() - start_s


def prepare(worker: Any, order: GearOrder) -> Prepared:
    """Make a worker ready to shift; its model is loaded.

    Args:
        worker: ROLL's worker of ``actor_train``; Ray passes it.
        order: the gears.
    """
    strategy = worker.strategy
    model = getattr(strategy, "model", None)
    if not isinstance(model, nn.Module) or not hasattr(strategy, "forward_step"):
        return Prepared(why_not=f"{type(strategy).__name__} trains no module of torch's")
    own = own_gear(worker.worker_config.strategy_args.strategy_config)
    if own is None:
        return Prepared(why_not="its weights are neither in BF16 nor in FP32")
    try:
        support = support_of(order)
        setattr(worker, ATTRIBUTE, TrainStepGears(worker, own, support))
    except UserError as error:
        return Prepared(why_not=str(error))
    return Prepared(support.simulated, None, type(strategy.optimizer).__name__)
