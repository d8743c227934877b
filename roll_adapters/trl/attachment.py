"""The wrapped methods of one TRL trainer: where its stages meet ecorl's runtime.

`roll_adapters.trl_hooks.attach` makes a `TrlAttachment`; see there for what happens when.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ecorl.engines.containment import EngineBoundary
from ecorl.engines.protocol import ScoreBatch
from ecorl.records import Action, Stage, StageWork
from ecorl.runtime.local import LocalRuntime, StageRun
from roll_adapters.trl.frozen import FrozenModels
from roll_adapters.trl.reference import ReferenceCall
from roll_adapters.trl.reward import RewardModelCall

logger = logging.getLogger(__name__)

Original = Callable[..., Any]

HOOKED = (
    "_generate",
    "_get_per_token_logps_and_entropies",
    "_calculate_rewards",
    "compute_loss",
    "training_step",
    "train",
)
"""Methods of a trainer that are wrapped, on the object only."""


@dataclass(slots=True)
class _PendingReward:
    """Rewards of one reward model on their way."""

    call: RewardModelCall
    run: StageRun
    texts: list[str]


@dataclass(slots=True)
class _PendingReference:
    """Reference log-probs on their way, and the tensor that waits for them."""

    call: ReferenceCall
    run: StageRun
    target: torch.Tensor


class TrlAttachment:
    """The wrapped methods of one trainer; made by `attach`, undone by `detach`.

    Args:
        trainer: the TRL trainer.
        runtime: started, with the trainer's facts.
        on_close: called once, when the attachment ends.
        frozen: notices when an engine no longer stands for its model.
    """

    def __init__(
        self,
        trainer: Any,
        runtime: LocalRuntime,
        on_close: Callable[[], None],
        frozen: FrozenModels,
    ) -> None:
        self.trainer, self.runtime, self._on_close = trainer, runtime, on_close
        self._frozen = frozen
        self._original: dict[str, Original] = {}
        self._instance: dict[str, Any] = {}
        self._policy_shape = runtime.training.models.get(Stage.ACTOR_TRAIN)
        self._rewards: list[_PendingReward] = []
        self._reference: _PendingReference | None = None
        self._train_run: StageRun | None = None
        self._last_work: StageWork | None = None
        self._sample_ids: tuple[str, ...] = ()
        self._serial = 0
        self._n_generated = 0
        self._barrier_ahead = False
        self.closed = False

    # ------------------------------------------------------------ wrapping

    def wrap(self) -> None:
        """Put the hooks in place, on the object only; its class stays as it is."""
        hooks = (
            self._generate,
            self._per_token_logps,
            self._calculate_rewards,
            self._compute_loss,
            self._training_step,
            self._train,
        )
        # A method that the user replaced on the object is called by the hook, and put back after.
        self._instance = {n: self.trainer.__dict__[n] for n in HOOKED if n in self.trainer.__dict__}
        for name, hook in zip(HOOKED, hooks, strict=True):
            self._original[name] = getattr(self.trainer, name)
            setattr(self.trainer, name, hook)

    def detach(self) -> None:
        """Give the trainer its own methods back and close the run's record; safe to call twice.

        The two callbacks stay with the trainer and do nothing any more: they may be running.
        """
        for name in self._original:
            self.trainer.__dict__.pop(name, None)
        self.trainer.__dict__.update(self._instance)
        self._original.clear()
        self._instance.clear()
        if not self.closed:
            self.closed = True
            self.end_training_stage()
            self.runtime.close()
            self._on_close()

    @property
    def training(self) -> bool:
        """Whether the trainer trains just now; evaluation passes through untouched."""
        return bool(self.trainer.model.training)

    # ------------------------------------------------------------ generation

    def _generate(self, prompts: list[Any], *args: Any, **kwargs: Any) -> Any:
        original = self._original["_generate"]
        if not self.training:
            return original(prompts, *args, **kwargs)
        self.end_training_stage()
        self._forget_pending()
        self.runtime.begin_iteration(self.trainer.state.global_step + 1, self._batch_number())
        self._n_generated += 1
        self._barrier_ahead = True
        n = len(prompts)
        limit = int(self.trainer.max_completion_length or 0)  # None: no limit, so none is known
        expected = StageWork(Stage.GENERATION, n, n * limit, n * limit, limit, self._policy_shape)
        run = self.runtime.on_stage_start(expected)
        output = original(prompts, *args, **kwargs)
        prompt_ids, completion_ids = output[0], output[1]
        lengths = [len(p) + len(c) for p, c in zip(prompt_ids, completion_ids, strict=True)]
        done = StageWork(
            stage=Stage.GENERATION,
            n_sequences=n,
            n_tokens=sum(lengths),
            n_output_tokens=sum(len(c) for c in completion_ids),
            max_length=max(lengths, default=0),
            model=self._policy_shape,
        )
        self.runtime.on_stage_end(run, done)
        self._last_work = done
        self._serial += 1
        self._sample_ids = tuple(f"{self.runtime.iteration}.{self._serial}.{i}" for i in range(n))
        completions = output[3] if len(output) > 3 else output[2]
        self._submit_rewards(prompts, completions, completion_ids)
        return output

    def begin_step(self) -> None:
        """An optimizer step begins; it may generate one batch, several or none."""
        self._n_generated = 0
        self.runtime.begin_iteration(self.trainer.state.global_step + 1, self._batch_number())

    def _batch_number(self) -> int:
        """0-based number of the rollout batch, from the step alone, so that a resume repeats it."""
        args = self.trainer.args
        per_batch = int(args.steps_per_generation) * int(self.trainer.num_iterations)
        micro_steps = int(self.trainer.state.global_step) * int(args.gradient_accumulation_steps)
        return micro_steps // per_batch + self._n_generated

    # ------------------------------------------------------------ reward

    def _send(self, run: StageRun, make: Callable[[], ScoreBatch]) -> bool:
        """Make a batch and submit it; False when that fails, whatever it was, and costs nothing."""
        with EngineBoundary() as boundary:
            with self.runtime.clock:
                batch = make()
            self.runtime.submit(run, batch)
        if boundary.error is not None:
            self.runtime.refuse(run, boundary.error)
        return boundary.error is None

    def _submit_rewards(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[Any]
    ) -> None:
        """Send the rows of the offloadable reward model as soon as the texts are there."""
        call = RewardModelCall.find(self.trainer)
        if call is None or not self._frozen.unchanged(Stage.REWARD, call.model):
            return
        with EngineBoundary() as boundary, self.runtime.clock:
            texts = call.texts(prompts, completions)
            batch = call.batch(self._sample_ids, texts, [len(c) for c in completion_ids])
        if boundary.error is not None:
            # TRL's own call of the model follows at the barrier, and says what is wrong if it is.
            logger.warning("rewards stay on the GPU path for this step: %s", boundary.error)
            return
        work = StageWork(
            stage=Stage.REWARD,
            n_sequences=len(batch),
            n_tokens=batch.n_tokens,
            n_output_tokens=sum(len(c) for c in completion_ids),
            max_length=max((len(row) for row in batch.token_ids), default=0),
            model=self.runtime.training.models.get(Stage.REWARD),
        )
        run = self.runtime.on_stage_start(work)
        if run.placement.action is not Action.GPU:
            self._send(run, lambda: batch)
        self._rewards.append(_PendingReward(call, run, texts))

    # ------------------------------------------------------------ reference

    def _per_token_logps(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        original = self._original["_get_per_token_logps_and_entropies"]

        def own() -> Any:
            return original(
                model, input_ids, attention_mask, logits_to_keep, batch_size, *args, **kwargs
            )

        if not self.training:
            return own()
        if self._train_run is not None:
            return own()  # within the loss: part of actor_train, whoever's forward it is
        reference = self.trainer.ref_model
        if reference is None and float(self.trainer.beta) != 0.0:
            return own()  # the policy without its adapter: reference or old log-probs, who knows
        if reference is None or model is not reference:
            return self._old_logps(own, input_ids)
        call = ReferenceCall(original, model, input_ids, attention_mask, logits_to_keep, batch_size)
        plain = not args and not any(kwargs.values())  # no images, no entropies
        work = call.work(self.runtime.training.models.get(Stage.REFERENCE))
        run = self.runtime.on_stage_start(work, may_offload=plain and self._may_send(call))
        if run.placement.action is Action.GPU or not self._send(
            run, lambda: call.batch(self._sample_ids, float(self.trainer.temperature))
        ):
            output = own()
            self.runtime.on_stage_end(run)
            return output
        self._reference = _PendingReference(call, run, call.unfilled())
        target = self._reference.target
        if run.placement.action is Action.FPGA:
            self._join_reference()
        return target, None, None

    def _may_send(self, call: ReferenceCall) -> bool:
        """Whether this call is the one between generation and barrier that the flow is made for.

        A trainer that asks for the reference in another place, or for some rows only, gets its
        own answer.
        """
        return (
            self._barrier_ahead
            and self._reference is None
            and call.n_rows == len(self._sample_ids)
            and self._frozen.unchanged(Stage.REFERENCE, call.model)
        )

    def _old_logps(self, own: Callable[[], Any], input_ids: torch.Tensor) -> Any:
        """The policy's own forward before training (RLOO): training work without output tokens."""
        work = StageWork(
            stage=Stage.ACTOR_TRAIN,
            n_sequences=int(input_ids.shape[0]),
            n_tokens=int(input_ids.numel()),
            n_output_tokens=0,
            max_length=int(input_ids.shape[1]),
            model=self._policy_shape,
        )
        run = self.runtime.on_stage_start(work)
        output = own()
        self.runtime.on_stage_end(run)
        return output

    def _join_reference(self) -> None:
        pending, self._reference = self._reference, None
        if pending is None:
            return
        rows = self.runtime.join(pending.run, pending.call.exact)
        with self.runtime.clock:
            pending.call.fill(pending.target, rows)

    # ------------------------------------------------------------ completion barrier

    def _calculate_rewards(self, inputs: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        original = self._original["_calculate_rewards"]
        if not self.training:
            return original(inputs, prompts, *args, **kwargs)
        self._barrier_ahead = False
        pending, self._rewards = self._rewards, []
        sent = [p for p in pending if p.run.pending is not None]
        kept = [p for p in pending if p.run.pending is None]
        answers = {p.call.index: self._join_reward(p) for p in sent}
        self._join_reference()
        if len(answers) < len(self.trainer.reward_funcs):
            run = (
                kept[0].run
                if kept
                else self.runtime.on_stage_start(
                    self._reward_work(beside_model=bool(answers)), may_offload=False
                )
            )
            run.t_start_s = time.monotonic()
            output = self._with_answers(answers, original, inputs, prompts, *args, **kwargs)
            self.runtime.on_stage_end(run)
            return output
        return self._with_answers(answers, original, inputs, prompts, *args, **kwargs)

    def _reward_work(self, *, beside_model: bool) -> StageWork:
        """The reward functions that TRL itself runs: lengths are those of the policy's tokens.

        Args:
            beside_model: whether the reward model was answered elsewhere. Its tokens count there,
                and what is left is no price of its work: it has none here.
        """
        last = self._last_work
        if last is None or beside_model:
            n = last.n_sequences if last else 0
            return StageWork(Stage.REWARD, n, 0, 0, 0, None)
        return StageWork(
            stage=Stage.REWARD,
            n_sequences=last.n_sequences,
            n_tokens=last.n_tokens,
            n_output_tokens=last.n_output_tokens,
            max_length=last.max_length,
            model=self.runtime.training.models.get(Stage.REWARD),
        )

    def _join_reward(self, pending: _PendingReward) -> list[float]:
        rows = self.runtime.join(pending.run, lambda bad: pending.call.exact(pending.texts, bad))
        return [float(row) for row in rows]

    def _with_answers(
        self, answers: dict[int, list[float]], original: Original, *args: Any, **kwargs: Any
    ) -> Any:
        """TRL's own bookkeeping, with the answered reward models replaced by their answers."""
        own = self.trainer.reward_funcs
        if not answers:
            return original(*args, **kwargs)
        self.trainer.reward_funcs = [
            _Answered(answers[i]) if i in answers else function for i, function in enumerate(own)
        ]
        try:
            return original(*args, **kwargs)
        finally:
            self.trainer.reward_funcs = own

    # ------------------------------------------------------------ training

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        """The whole training; an error or Ctrl-C that ends it ends the record's attempt too.

        The record can then be gone on with, from the same process or another.
        """
        try:
            return self._original["train"](*args, **kwargs)
        except BaseException as error:
            if not self.closed:
                what = f"training ended with {type(error).__name__}"
                self.runtime.ledger.event("stop", what)
                self.detach()
            raise

    def _compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            self._join_reference()  # joined long before, unless a trainer knows no barrier
        if self.training and self._train_run is None:
            last = self._last_work
            n_rows = int(inputs["completion_ids"].shape[0])
            n_output = int(inputs["completion_mask"].sum())
            work = StageWork(
                stage=Stage.ACTOR_TRAIN,
                n_sequences=n_rows,
                n_tokens=n_output + int(inputs["prompt_mask"].sum()),
                n_output_tokens=n_output,
                max_length=last.max_length if last else 0,
                model=self._policy_shape,
            )
            self._train_run = self.runtime.on_stage_start(work)
        return self._original["compute_loss"](model, inputs, *args, **kwargs)

    def _training_step(self, *args: Any, **kwargs: Any) -> Any:
        output = self._original["training_step"](*args, **kwargs)
        if not self.trainer.accelerator.sync_gradients:
            self.end_training_stage()  # a micro-batch; the next one opens its own execution
        return output

    def end_training_stage(self) -> None:
        """Close the open actor_train execution, if any: the optimizer has stepped."""
        run, self._train_run = self._train_run, None
        if run is not None:
            self.runtime.on_stage_end(run)

    def _forget_pending(self) -> None:
        """A step that an exception cut short leaves nothing behind for the next one."""
        for pending in self._rewards:
            self.runtime.forget(pending.run)
        if self._reference is not None:
            self.runtime.forget(self._reference.run)
        self._rewards, self._reference = [], None


class _Answered:
    """A reward function that gives answers which are already there."""

    def __init__(self, values: list[float]) -> None:
        self._values = values
        self.__name__ = "answered"

    def __call__(self, **_: Any) -> list[float]:
        return self._values
