"""The log-probs that a TRL trainer computes before it trains, as stages of a rollout.

They are those of the reference, which may leave the GPU, and those of the policy as it was when it
generated, which train with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ecorl.engines.protocol import ScoreBatch
from ecorl.engines.torch.padding import prompt_and_completion
from ecorl.engines.validate import EngineBoundary
from ecorl.records import Action, ModelShape, Stage, StageWork
from ecorl.runtime.frozen_models import FrozenModels
from ecorl.runtime.rollout import InferenceCall, Rollout
from roll_adapters.trl.adapters import OWN_REFERENCE, answers_for_reference, is_own_reference
from roll_adapters.trl.masks import pad_token_id, tell_not_counted
from roll_adapters.trl.packing.packed_trainer import TrlPacking
from roll_adapters.trl.reference import ReferenceCall

Original = Callable[..., Any]

OLD_LOG_PROBS = "old_log_probs"
"""What the record calls the policy's own pass before training, of packed rows."""


class LogProbStages:
    """Places a trainer's reference, and accounts the passes that TRL itself makes.

    Args:
        trainer: the TRL trainer.
        rollout: its rollouts.
        frozen: notices when an engine no longer stands for its model.
        packing: packs rows into micro-batches; None: they stay as TRL has them.

    Attributes:
        not_counted: what was told already of tokens that are not counted.
    """

    def __init__(
        self, trainer: Any, rollout: Rollout, frozen: FrozenModels, packing: TrlPacking | None
    ) -> None:
        self._trainer, self._rollout, self._frozen = trainer, rollout, frozen
        self._packing = packing
        self.not_counted: set[tuple[str, str]] = set()

    def compute(
        self,
        original: Original,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Answer a call of ``_get_per_token_logps_and_entropies`` outside the loss.

        Args:
            original: the trainer's own method.
            model: its first argument.
            input_ids: its second.
            attention_mask: its third.
            logits_to_keep: its fourth.
            batch_size: its fifth.
            *args: those behind.
            **kwargs: likewise.
        """

        def own(forward: Original) -> Callable[[], Any]:
            return lambda: forward(
                model, input_ids, attention_mask, logits_to_keep, batch_size, *args, **kwargs
            )

        is_own = is_own_reference(self._trainer)
        if is_own:
            policy = self._trainer.accelerator.unwrap_model(self._trainer.model)
            answers = answers_for_reference(policy)
            if answers is None:
                return own(original)()  # no telling whose time it is
            is_reference = answers
        else:
            is_reference = self._trainer.ref_model is not None and model is self._trainer.ref_model
        forward = self._packed(original, Stage.REFERENCE if is_reference else OLD_LOG_PROBS)
        stage = Stage.REFERENCE if is_reference else Stage.ACTOR_TRAIN
        work = StageWork(stage, int(input_ids.shape[0]), 0, 0, 0, self._shape(stage))
        with EngineBoundary() as boundary:
            call = ReferenceCall(
                forward, model, input_ids, attention_mask, logits_to_keep, batch_size,
                pad_token_id(self._trainer),
            )  # fmt: skip
            work = call.work(stage, work.model)
        if boundary.error is not None:
            tell_not_counted(self._rollout, stage, boundary.error, self.not_counted)
        if not is_reference:
            # Training work without output tokens: the forward before training.
            return self._own_pass(replace(work, n_output_tokens=0), own(forward))
        if boundary.error is not None:
            return self._own_pass(work, own(forward))
        plain = not args and not any(kwargs.values())  # no images, no entropies
        return self._reference(call, work, own(forward), may_offload=plain and not is_own)

    def _shape(self, stage: Stage) -> ModelShape | None:
        return self._rollout.runtime.training.models.get(stage)

    def _packed(self, original: Original, what: str) -> Original:
        if self._packing is None:
            return original
        return self._packing.forwards.log_probs(original, what)

    def _reference(
        self, call: ReferenceCall, work: StageWork, own: Callable[[], Any], *, may_offload: bool
    ) -> tuple[Any, Any, Any]:
        """Answer for the reference: with a tensor that the barrier fills, or as TRL itself does."""
        if is_own_reference(self._trainer):
            work = replace(work, kept_because=OWN_REFERENCE)
        target: list[torch.Tensor] = []

        def batch() -> ScoreBatch:
            rows = call.batch(self._rollout.sample_ids, float(self._trainer.temperature))
            target.append(call.unfilled())
            if self._packing is None:
                return rows
            n_tokens = (call.batch_size or call.n_rows) * int(call.input_ids.shape[1])
            budget = self._packing.budget(prompt_and_completion(rows), n_tokens)
            return replace(rows, token_budget=budget)

        run = self._rollout.submit(
            InferenceCall(
                work,
                batch,
                call.exact,
                lambda rows: call.fill(target[0], rows),
                note=None if self._packing is None else self._packing.noting(Stage.REFERENCE),
            ),
            may_offload=may_offload
            and self._rollout.expects(Stage.REFERENCE, call.n_rows)
            and self._frozen.unchanged(Stage.REFERENCE, call.model),
        )
        if not run.sent:
            output: tuple[Any, Any, Any] = own()
            self._rollout.end(run)
            self._compare()
            return output
        # Action a2 is sequential: nothing of the GPU path runs beside the card.
        if run.placement.action is Action.FPGA:
            self._rollout.join(Stage.REFERENCE)
        return target[0], None, None

    def _own_pass(self, work: StageWork, own: Callable[[], Any]) -> Any:
        """Account a pass that the trainer makes itself."""
        run = self._rollout.start(work)
        output = own()
        self._rollout.end(run)
        self._compare()
        return output

    def _compare(self) -> None:
        if self._packing is not None:
            with self._rollout.runtime.clock:
                self._packing.forwards.compare()
