"""The wrapped methods of one TRL trainer: where its stages meet ecorl's runtime.

`roll_adapters.trl_hooks.attach` makes a `TrlAttachment`; see there for what happens when.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from ecorl.engines.protocol import ScoreBatch
from ecorl.records import Action, Stage, StageWork
from ecorl.runtime.local import LocalRuntime, StageRun
from roll_adapters.trl_reward import RewardModelCall

logger = logging.getLogger(__name__)

Original = Callable[..., Any]

HOOKED = (
    "_generate",
    "_get_per_token_logps_and_entropies",
    "_calculate_rewards",
    "compute_loss",
    "training_step",
)
"""Methods of a trainer that are wrapped, on the object only."""


@dataclass(slots=True)
class _RewardFlight:
    """Rewards of one reward model on their way."""

    call: RewardModelCall
    run: StageRun
    texts: list[str]


@dataclass(slots=True)
class _ReferenceFlight:
    """Reference log-probs on their way, and the tensor that waits for them."""

    run: StageRun
    target: torch.Tensor
    mask: torch.Tensor
    exact: Callable[[Sequence[int]], torch.Tensor]


class TrlAttachment:
    """The wrapped methods of one trainer; made by `attach`, undone by `detach`."""

    def __init__(self, trainer: Any, runtime: LocalRuntime, on_close: Callable[[], None]) -> None:
        self.trainer, self.runtime, self._on_close = trainer, runtime, on_close
        self._original: dict[str, Original] = {}
        self._policy_shape = runtime.models.get(Stage.ACTOR_TRAIN)
        self._rewards: list[_RewardFlight] = []
        self._reference: _ReferenceFlight | None = None
        self._train_run: StageRun | None = None
        self._last_work: StageWork | None = None
        self._sample_ids: tuple[str, ...] = ()
        self._serial = 0
        self._closed = False

    # ------------------------------------------------------------ wrapping

    def wrap(self) -> None:
        """Put the hooks in place, on the object only; its class stays as it is."""
        hooks = (
            self._generate,
            self._per_token_logps,
            self._calculate_rewards,
            self._compute_loss,
            self._training_step,
        )
        for name, hook in zip(HOOKED, hooks, strict=True):
            self._original[name] = getattr(self.trainer, name)
            setattr(self.trainer, name, hook)

    def detach(self) -> None:
        """Give the trainer its own methods back and close the run's record; safe to call twice."""
        for name in self._original:
            self.trainer.__dict__.pop(name, None)
        self._original.clear()
        if not self._closed:
            self._closed = True
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
        self._forget_flights()
        self.runtime.begin_iteration(self.trainer.state.global_step + 1)
        n = len(prompts)
        limit = int(self.trainer.max_completion_length)
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

    # ------------------------------------------------------------ reward

    def _submit_rewards(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[Any]
    ) -> None:
        """Send the rows of each offloadable reward model as soon as the texts are there."""
        if not self.runtime.offloads(Stage.REWARD) or self._last_work is None:
            return
        call = RewardModelCall.find(self.trainer)
        if call is None:
            return
        with self.runtime.clock:
            texts = call.texts(prompts, completions)
            batch = call.batch(self._sample_ids, texts, [len(c) for c in completion_ids])
        work = StageWork(
            stage=Stage.REWARD,
            n_sequences=len(batch),
            n_tokens=batch.n_tokens,
            n_output_tokens=self._last_work.n_output_tokens,
            max_length=max(len(row) for row in batch.token_ids),
            model=self.runtime.models.get(Stage.REWARD),
        )
        run = self.runtime.on_stage_start(work)
        if run.placement.action is not Action.GPU:
            self.runtime.submit(run, batch)
        self._rewards.append(_RewardFlight(call, run, texts))

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

        if not self.training or self.trainer.ref_model is None:
            return own()
        if model is not self.trainer.ref_model:
            # Within the loss this is part of actor_train; before it, the policy's old log-probs.
            return own() if self._train_run is not None else self._old_logps(own, input_ids)
        mask = attention_mask[:, -logits_to_keep:].bool()
        work = StageWork(
            stage=Stage.REFERENCE,
            n_sequences=int(input_ids.shape[0]),
            n_tokens=int(attention_mask.sum()),
            n_output_tokens=int(mask.sum()),
            max_length=int(attention_mask.sum(1).max()),
            model=self.runtime.models.get(Stage.REFERENCE),
        )
        run = self.runtime.on_stage_start(work)
        if run.placement.action is Action.GPU:
            output = own()
            self.runtime.on_stage_end(run)
            return output
        with self.runtime.clock:
            batch = self._reference_batch(input_ids, attention_mask, mask, batch_size)
        self.runtime.submit(run, batch)
        # NaN until the barrier fills it: should anything read it early, that shows.
        target = torch.full(mask.shape, torch.nan, dtype=torch.float32, device=input_ids.device)

        def exact(rows: Sequence[int]) -> torch.Tensor:
            index = torch.as_tensor(list(rows), device=input_ids.device)
            with torch.no_grad():
                answer: torch.Tensor = original(
                    model, input_ids[index], attention_mask[index], logits_to_keep, batch_size
                )[0]
            return answer

        self._reference = _ReferenceFlight(run, target, mask, exact)
        if run.placement.action is Action.FPGA:
            self._join_reference()
        return target, None, None

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

    def _reference_batch(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        mask: torch.Tensor,
        batch_size: int | None,
    ) -> ScoreBatch:
        ids = input_ids.cpu().numpy()
        keep = attention_mask.bool().cpu().numpy()
        return ScoreBatch(
            sample_ids=self._sample_ids,
            token_ids=tuple(row[k].astype(np.int64) for row, k in zip(ids, keep, strict=True)),
            n_completion=tuple(int(n) for n in mask.sum(1).cpu()),
            temperature=float(self.trainer.temperature),
            micro_batch=batch_size,
        )

    def _join_reference(self) -> None:
        flight, self._reference = self._reference, None
        if flight is None:
            return
        mask = flight.mask

        def exact(rows: Sequence[int]) -> list[Any]:
            answers = flight.exact(rows).float().cpu()
            return [a[mask[i].cpu()].numpy() for a, i in zip(answers, rows, strict=True)]

        rows = self.runtime.join(flight.run, exact)
        with self.runtime.clock:
            filled = torch.zeros(mask.shape, dtype=torch.float32)
            filled[mask.cpu()] = torch.from_numpy(np.concatenate(rows))
            flight.target.copy_(filled)

    # ------------------------------------------------------------ completion barrier

    def _calculate_rewards(self, inputs: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        original = self._original["_calculate_rewards"]
        if not self.training:
            return original(inputs, prompts, *args, **kwargs)
        flights, self._rewards = self._rewards, []
        sent = [f for f in flights if f.run.flight is not None]
        kept = [f for f in flights if f.run.flight is None]
        answers = {f.call.index: self._join_reward(f) for f in sent}
        self._join_reference()
        if len(answers) < len(self.trainer.reward_funcs):
            run = kept[0].run if kept else self.runtime.on_stage_start(self._reward_work())
            run.t_start_s = time.monotonic()
            output = self._with_answers(answers, original, inputs, prompts, *args, **kwargs)
            self.runtime.on_stage_end(run)
            return output
        return self._with_answers(answers, original, inputs, prompts, *args, **kwargs)

    def _reward_work(self) -> StageWork:
        """The reward stage as TRL itself runs it: lengths are those of the policy's tokens."""
        last = self._last_work
        if last is None:
            return StageWork(Stage.REWARD, 0, 0, 0, 0, self.runtime.models.get(Stage.REWARD))
        return StageWork(
            stage=Stage.REWARD,
            n_sequences=last.n_sequences,
            n_tokens=last.n_tokens,
            n_output_tokens=last.n_output_tokens,
            max_length=last.max_length,
            model=self.runtime.models.get(Stage.REWARD),
        )

    def _join_reward(self, flight: _RewardFlight) -> list[float]:
        rows = self.runtime.join(flight.run, lambda bad: flight.call.exact(flight.texts, bad))
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

    def _compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
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

    def _forget_flights(self) -> None:
        """A step that an exception cut short leaves nothing behind for the next one."""
        self._rewards, self._reference = [], None


class _Answered:
    """A reward function that gives answers which are already there."""

    def __init__(self, values: list[float]) -> None:
        self._values = values
        self.__name__ = "answered"

    def __call__(self, **_: Any) -> list[float]:
        return self._values


class StageCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Tells the attachment where a step ends."""

    def __init__(self, attachment: TrlAttachment) -> None:
        self._attachment = attachment

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped: the training stage is over."""
        self._attachment.end_training_stage()
        self._attachment.runtime.tick()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Nothing is left under way when training ends."""
        self._attachment.end_training_stage()
