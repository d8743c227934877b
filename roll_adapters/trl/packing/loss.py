"""A TRL trainer's loss over packed micro-batches: forward and backward, one after the other.

The loss of a micro-batch is TRL's own, of all of its rows. It is taken once for each packed part of
them, with the log-probs of that part as the model gives them now and those
of the other parts as numbers. A loss is a sum over rows and tokens, divided by counts of all of
them, so that the gradient of each part is that which it has in the whole; parts that are still to
come stand as if nothing had changed since the rollout. With the last part all numbers are there:
what the loss is then, and what it tells the trainer's log, is kept, and what came before is
forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import Trainer

from ecorl.engines.packing import partition
from ecorl.engines.torch.padding import has_relative_positions
from ecorl.runtime.packed_tokens import PackingTally
from ecorl.runtime.processes.ranks import Ranks
from roll_adapters.trl.gears.micro_batches import TrainerMemory, prepared, replaced
from roll_adapters.trl.packing.forwards import TRAINING, PackedForwards, log_prob_call
from roll_adapters.trl.packing.pieces import LogProbCall, LogProbs, PackedRows

logger = logging.getLogger(__name__)

Original = Callable[..., Any]
Scaled = Callable[[torch.Tensor], torch.Tensor]

_LOG_PROBS = "_get_per_token_logps_and_entropies"


def unscaled(loss: torch.Tensor) -> torch.Tensor:
    """Leave a loss as it is.

    Args:
        loss: of a micro-batch.
    """
    return loss


class _NotAsked(Exception):
    """The trainer's loss has not asked for log-probs where it is known to."""


class _Answers:
    """Answers a loss for log-probs: one part from the model, the others from what is known.

    Args:
        original: the trainer's own ``_get_per_token_logps_and_entropies``.
        model: that is trained.
        inputs: of the micro-batch.
    """

    def __init__(self, original: Original, model: Any, inputs: Mapping[str, Any]) -> None:
        self._original, self._model = original, model
        self._known = _as_in_the_rollout(inputs)
        self._entropies: torch.Tensor | None = None
        self.piece: PackedRows | None = None
        self.was_asked = False

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> LogProbs:
        call = log_prob_call(
            self._original, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        if model is not self._model or call is None or self.piece is None:
            answer: LogProbs = self._original(
                model, input_ids, attention_mask, logits_to_keep, batch_size, *args, **kwargs
            )
            return answer
        self.was_asked = True
        log_probs, entropies, _ = call.of(self.piece)
        known = self._known.to(log_probs.dtype)
        found = call.put(known.clone(), log_probs, self.piece)
        self._known = found.detach()
        if entropies is None:
            return found, None, None
        others = None if self._entropies is None else self._entropies.clone()
        both = call.put(others, entropies, self.piece)
        self._entropies = both.detach()
        return found, both, None


class PackedLoss:
    """Computes a trainer's loss in packed micro-batches.

    Args:
        trainer: the TRL trainer.
        forwards: what its forward passes are packed by.
        tally: where it is noted what packing made of the rows.
        ranks: the processes that train together; None: this one alone.

    Attributes:
        is_off: whether the loss did not ask for log-probs where it is known to, so that training
            stays as it is.
    """

    def __init__(
        self, trainer: Any, forwards: PackedForwards, tally: PackingTally, ranks: Ranks | None
    ) -> None:
        self._trainer, self._forwards, self._tally = trainer, forwards, tally
        self._ranks = ranks
        self.is_off = False

    def wrapped(self, compute_loss: Original, log_probs: Original, scaled: Scaled) -> Original:
        """Wrap ``compute_loss`` so that it trains on packed rows.

        All parts but the last have gone backward when it returns; the last one's loss is returned.

        Args:
            compute_loss: the trainer's own.
            log_probs: the trainer's own ``_get_per_token_logps_and_entropies``.
            scaled: scales a loss as the one that is returned will be scaled.
        """

        def packed(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_off:
                return compute_loss(model, inputs, *args, **kwargs)
            pieces, call = self._pieces(log_probs, model, inputs)
            answers = _Answers(log_probs, model, inputs)
            before = TrainerMemory.of(self._trainer)
            try:
                with replaced(self._trainer, _LOG_PROBS, answers):
                    loss = self._go(
                        pieces, answers, compute_loss, scaled, model, inputs, *args, **kwargs
                    )
            except _NotAsked:
                before.restore(self._trainer)
                self._give_up()
                return compute_loss(model, inputs, *args, **kwargs)
            self._tally.note(TRAINING, call.told(pieces))
            return loss

        return packed

    def _pieces(
        self, log_probs: Original, model: Any, inputs: Mapping[str, Any]
    ) -> tuple[list[PackedRows], LogProbCall]:
        """Cut the rows of a micro-batch: into equally many parts on all processes.

        Gradients and what the log is told are exchanged between processes part by part.
        """
        call = LogProbCall.of_inputs(log_probs, model, inputs)
        pieces, _ = self._forwards.pieces(call)
        if self._ranks is None:
            return pieces, call
        told = self._ranks.all_gather((len(pieces), len(call.input_ids)))
        n = min(max(n for n, _ in told), min(n_rows for _, n_rows in told))
        if n == len(pieces):
            return pieces, call
        bare = self._trainer.accelerator.unwrap_model(model)
        lengths = call.lengths(trims_prompts=has_relative_positions(bare))
        return call.pieces(partition(lengths, n), lengths), call

    def _go(
        self,
        pieces: list[PackedRows],
        answers: _Answers,
        compute_loss: Original,
        scaled: Scaled,
        model: Any,
        inputs: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Go backward from all parts but the last, and take the loss with that one."""
        trainer, accelerator = self._trainer, self._trainer.accelerator
        items = kwargs.get("num_items_in_batch", args[1] if len(args) > 1 else None)
        before, syncs = TrainerMemory.of(trainer), accelerator.sync_gradients

        def take(*given: Any, **named: Any) -> Any:
            loss = compute_loss(*given, **named)
            if not answers.was_asked:
                raise _NotAsked
            return loss

        try:
            accelerator.sync_gradients = False  # gradients of several processes meet with the last
            with (
                prepared(trainer),
                replaced(trainer, "compute_loss", lambda *g, **n: scaled(take(*g, **n))),
            ):
                for piece in pieces[:-1]:
                    answers.piece = piece
                    with accelerator.no_sync(model):
                        Trainer.training_step(trainer, model, inputs, items)
                    before.restore(trainer)
        finally:
            accelerator.sync_gradients = syncs
        answers.piece = pieces[-1]
        return take(model, inputs, *args, **kwargs)

    def _give_up(self) -> None:
        self.is_off = True
        logger.warning(
            "trainer.adaptive_micro_batch: the loss of this %s takes its log-probs from elsewhere "
            "than %s; training stays as it is, scoring is packed",
            type(self._trainer).__name__, _LOG_PROBS,
        )  # fmt: skip


def _as_in_the_rollout(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Log-probs that stand for rows which are still to come, ``[n_rows, n_keep]``.

    They are those of the rollout as far as the rows tell, so that the loss of such rows is a number
    like any other; it counts to nothing.
    """
    mask = inputs["completion_mask"]
    by_token = inputs.get("old_per_token_logps")
    if isinstance(by_token, torch.Tensor):
        return by_token.detach()
    by_row = inputs.get("old_logps")
    if isinstance(by_row, torch.Tensor):
        n_tokens = mask.sum(dim=1, keepdim=True).clamp(min=1)
        spread: torch.Tensor = mask * (by_row.detach().unsqueeze(1) / n_tokens)
        return spread
    return torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
