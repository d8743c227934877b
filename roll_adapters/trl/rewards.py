"""The reward functions of a TRL trainer as stages of a rollout.

TRL runs all of them in one method. Reward models that were answered elsewhere are replaced by their
answers for that call; each of the others is timed by hooks around its forward pass, and each Python
function by a clock around its call, so that every one has a price of its own. What remains
(tokenizing, gathering) is one execution.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ecorl.engines.protocol import ScoreBatch
from ecorl.engines.validate import EngineBoundary
from ecorl.records import Role, Stage, StageWork
from ecorl.runtime.frozen_models import FrozenModels
from ecorl.runtime.handles import StageRun
from ecorl.runtime.rollout import InferenceCall, Rollout
from roll_adapters.trl.functions import IN_PROCESS, FunctionReward
from roll_adapters.trl.packing.packed_trainer import TrlPacking
from roll_adapters.trl.reward import OTHER, RewardModelCall

logger = logging.getLogger(__name__)

AROUND = "the trainer's own work around its reward functions"
"""Why what remains beside reward functions is computed by the framework itself."""

Original = Callable[..., Any]


@dataclass(slots=True)
class _ModelReward:
    """One reward model's part of a batch, from its placement to TRL's own reward functions.

    Attributes:
        model: the model.
        run: the placed stage; TRL computes it unless it was sent.
        answers: the rewards, once an engine's are joined.
    """

    model: RewardModelCall
    run: StageRun
    answers: list[float] | None = None


class RewardStages:
    """Places a trainer's reward models, and accounts the reward functions that TRL itself runs.

    Args:
        trainer: the TRL trainer.
        rollout: its rollouts.
        frozen: notices when an engine no longer stands for its model.
        packing: packs rows into micro-batches; None: they stay as TRL has them.
    """

    def __init__(
        self, trainer: Any, rollout: Rollout, frozen: FrozenModels, packing: TrlPacking | None
    ) -> None:
        self._trainer, self._rollout, self._frozen = trainer, rollout, frozen
        self._packing = packing
        self._runtime = rollout.runtime
        self._under_way: list[_ModelReward] = []

    def forget(self) -> None:
        """Drop what an exception has left of an earlier batch."""
        self._under_way = []

    # ------------------------------------------------------------ after generation

    def submit(self, prompts: list[Any], completions: list[Any], completion_ids: list[Any]) -> None:
        """Place each reward model that has an engine, and send its rows if they leave the GPU.

        Args:
            prompts: one a row: a text, or a list of chat messages.
            completions: one a row, of the same kind.
            completion_ids: tokens of each row's completion.
        """
        n_completion = [len(c) for c in completion_ids]
        for model in RewardModelCall.find_all(self._trainer):
            if self._runtime.checkpoint(model.role) is not None:
                self._submit(model, prompts, completions, n_completion)

    def _submit(
        self,
        model: RewardModelCall,
        prompts: list[Any],
        completions: list[Any],
        n_completion: list[int],
    ) -> None:
        with EngineBoundary() as boundary, self._runtime.clock:
            texts = model.texts(prompts, completions)
            batch = self._packed(model.batch(self._rollout.sample_ids, texts, n_completion))
        if boundary.error is None:
            work = StageWork(
                stage=Stage.REWARD,
                n_sequences=len(batch),
                n_tokens=batch.n_tokens,
                n_output_tokens=sum(n_completion),
                max_length=max((len(row) for row in batch.token_ids), default=0),
                model=self._shape(model.role),
                role_name=model.role_name,
            )
        else:
            # TRL's own call of the model follows at the barrier, and says what is wrong if it is.
            logger.warning("rewards are not offloaded in this step: %s", boundary.error)
            work = self._work(model.role_name, self._shape(model.role))
        may_offload = boundary.error is None and self._frozen.unchanged(model.role, model.model)
        reward: _ModelReward

        def deliver(rows: list[Any]) -> None:
            reward.answers = [float(row) for row in rows]

        call = InferenceCall(
            work,
            lambda: batch,
            lambda bad: model.exact(texts, bad),
            deliver,
            is_deferred=True,  # TRL itself would run it at the barrier
            note=None if self._packing is None else self._packing.noting(model.role),
        )
        reward = _ModelReward(model, self._rollout.submit(call, may_offload=may_offload))
        self._under_way.append(reward)

    def _packed(self, batch: ScoreBatch) -> ScoreBatch:
        """Tell an engine how many tokens its forward passes may have, where rows are packed."""
        if self._packing is None or not len(batch):
            return batch
        lengths = [len(row) for row in batch.token_ids]
        budget = self._packing.budget(lengths, len(batch) * max(lengths))
        return replace(batch, token_budget=budget)

    # ------------------------------------------------------------ at the barrier

    def calculate(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """Run TRL's own method, with answered reward models replaced by their answers.

        Args:
            original: the method.
            *args: its arguments.
            **kwargs: likewise.
        """
        rewards, self._under_way = self._under_way, []
        answers = {r.model.index: r.answers for r in rewards if r.answers is not None}
        if len(answers) == len(self._trainer.reward_funcs):
            stand_ins = {i: _Answered(values) for i, values in answers.items()}
            return self._with(stand_ins, original, *args, **kwargs)
        placed = {r.model.role: r.run for r in rewards if r.answers is None}
        models = [m for m in RewardModelCall.find_all(self._trainer) if m.index not in answers]
        if len(models) == 1 and len(self._trainer.reward_funcs) == 1:
            # One model and nothing else: the whole call is its execution.
            run = placed.get(models[0].role) or self._start(models[0])
            self._rollout.restart(run)
            output = original(*args, **kwargs)
            self._rollout.end(run)
            return output
        functions = FunctionReward.find_all(self._trainer)
        rest = self._rollout.start(self._rest_work(), may_offload=False)
        alone = not answers and not models
        runs = [self._start_function(function, alone) for function in functions]
        with ExitStack() as stack:
            for model in models:
                run = placed.get(model.role) or self._start(model)
                stack.enter_context(self._timed(model, run, rest))
            replaced = {
                i: function.timed(self._trainer.reward_funcs[i])
                for function in functions
                for i in function.indices
            } | {i: _Answered(values) for i, values in answers.items()}
            output = self._with(replaced, original, *args, **kwargs)
        self._rollout.pause(rest)
        for run, function in zip(runs, functions, strict=True):
            self._rollout.carve(rest, run, function.clock.spans())
        self._rollout.end(rest)
        return output

    def _start_function(self, function: FunctionReward, alone: bool) -> StageRun:
        work = replace(self._work(function.role_name, None), kept_because=IN_PROCESS)
        if not alone:
            # Tokens count once, at the models: a function's price a token would stand for that of
            # a model which was never measured here.
            work = replace(work, n_tokens=0, n_output_tokens=0, max_length=0)
        return self._rollout.start(work, may_offload=False, is_deferred=True)

    def _start(self, model: RewardModelCall) -> StageRun:
        work = self._work(model.role_name, self._shape(model.role))
        return self._rollout.start(work, may_offload=False, is_deferred=True)

    @contextmanager
    def _timed(self, model: RewardModelCall, run: StageRun, rest: StageRun) -> Iterator[None]:
        """Account a model's forward passes inside the block to its own execution."""
        n_forwards = 0

        def before(*_: Any) -> None:
            self._rollout.pause(rest)
            self._rollout.restart(run)

        def after(*_: Any) -> None:
            nonlocal n_forwards
            n_forwards += 1
            self._rollout.pause(run)
            self._rollout.restart(rest)

        handles = (
            model.model.register_forward_pre_hook(before),
            model.model.register_forward_hook(after),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if n_forwards:
            self._rollout.end(run)
        else:
            self._runtime.forget(run)

    def _work(self, role_name: str, shape: Any) -> StageWork:
        """Describe rewards that TRL itself computes, with lengths in the policy's tokens."""
        last = self._rollout.last_work
        if last is None:
            return StageWork(Stage.REWARD, 0, 0, 0, 0, shape, role_name)
        return replace(last, stage=Stage.REWARD, model=shape, role_name=role_name)

    def _rest_work(self) -> StageWork:
        last = self._rollout.last_work
        n_rows = last.n_sequences if last else 0
        # No tokens: they count where the rewards are computed, and the rest has no price a token.
        return StageWork(Stage.REWARD, n_rows, 0, 0, 0, None, OTHER, kept_because=AROUND)

    def _shape(self, role: Role) -> Any:
        return self._runtime.training.models.get(role)

    def _with(
        self, replaced: Mapping[int, Original], original: Original, *args: Any, **kwargs: Any
    ) -> Any:
        """Run TRL's own method with others in the place of some reward functions.

        Weights, names, logs and all other reward functions stay TRL's own.
        """
        own = self._trainer.reward_funcs
        if not replaced:
            return original(*args, **kwargs)
        self._trainer.reward_funcs = [replaced.get(i, f) for i, f in enumerate(own)]
        try:
            return original(*args, **kwargs)
        finally:
            self._trainer.reward_funcs = own


class _Answered:
    """A reward function that returns answers which are already there."""

    def __init__(self, values: list[float]) -> None:
        self._values = values
        self.__name__ = "answered"

    def __call__(self, **_: Any) -> list[float]:
        return self._values
