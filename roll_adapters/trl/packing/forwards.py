"""A TRL trainer's forward passes without gradients, in micro-batches of even tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from ecorl.engines.packing import (
    COMPARED_EVERY,
    PackedTokens,
    pack,
    padded_tokens,
    relative_difference,
)
from ecorl.engines.torch.padding import has_relative_positions
from ecorl.engines.validate import EngineBoundary
from ecorl.runtime.packed_tokens import PackingTally
from ecorl.trainer.gears.random_state import undisturbed
from roll_adapters.trl.packing.pieces import LogProbCall, LogProbs, PackedRows
from roll_adapters.trl.packing.rule import PackingRule

Original = Callable[..., Any]

TRAINING = "actor_train"
"""What the record calls the forward passes of training."""


class PackedForwards:
    """Computes rewards and log-probs in micro-batches, and compares now and then.

    Args:
        trainer: the TRL trainer.
        rule: how many tokens a micro-batch may have.
        tally: where it is noted what packing made of the rows.
    """

    def __init__(self, trainer: Any, rule: PackingRule, tally: PackingTally) -> None:
        self._trainer, self.rule, self._tally = trainer, rule, tally
        self._compared_at: dict[str, int] = {}
        self._waiting: list[tuple[str, Callable[[], float]]] = []
        self._faults: list[tuple[str, str]] = []
        self._told: set[str] = set()

    # ------------------------------------------------------------ log-probs

    def log_probs(self, original: Original, what: str) -> Original:
        """Wrap ``_get_per_token_logps_and_entropies`` so that it computes packed rows.

        Args:
            original: the trainer's own.
            what: the record calls what is computed.

        Returns:
            A function with the same arguments and results. Gradients do not flow through it.
        """

        def packed(
            model: Any,
            input_ids: torch.Tensor,
            attention_mask: torch.Tensor,
            logits_to_keep: int,
            batch_size: int | None = None,
            *args: Any,
            **kwargs: Any,
        ) -> LogProbs:
            call = log_prob_call(
                original, self._bare(model), input_ids, attention_mask, logits_to_keep, *args,
                **kwargs,
            )  # fmt: skip
            if call is None:
                answer: LogProbs = original(
                    model, input_ids, attention_mask, logits_to_keep, batch_size, *args, **kwargs
                )
                return answer
            with torch.no_grad():
                return self._packed(call, batch_size, what)

        return packed

    def _packed(self, call: LogProbCall, batch_size: int | None, what: str) -> LogProbs:
        width = call.input_ids.shape[1]
        pieces, budget = self.pieces(call, batch_size)
        found = call.packed(pieces)
        packed = call.told(pieces)
        self._tally.note(what, packed)
        if self._is_due(what, packed):
            size = _rows_within(budget, width)
            self._waiting.append((what, lambda: _apart(found[0], call.whole(size)[0])))
        return found

    def pieces(
        self, call: LogProbCall, batch_size: int | None = None
    ) -> tuple[list[PackedRows], int]:
        """Cut the rows of a call into micro-batches.

        Args:
            call: whose rows.
            batch_size: rows of the trainer's own forward passes; None: all.

        Returns:
            The micro-batches, and the most tokens that each of them may have.
        """
        lengths = call.lengths(trims_prompts=has_relative_positions(self._bare(call.model)))
        n_rows, width = call.input_ids.shape
        budget = self.rule.budget(lengths, min(batch_size or n_rows, n_rows) * width)
        return call.pieces(pack(lengths, budget), lengths), budget

    def compare_training(self, original: Original, model: Any, inputs: Mapping[str, Any]) -> None:
        """Compare the log-probs of a micro-batch of training, if it is time to.

        Args:
            original: the trainer's own ``_get_per_token_logps_and_entropies``.
            model: that is trained.
            inputs: of the micro-batch.
        """
        if not self._is_time(TRAINING):
            return
        with EngineBoundary() as boundary:
            call = LogProbCall.of_inputs(original, self._bare(model), inputs)
            pieces, budget = self.pieces(call)
            if self._is_due(TRAINING, call.told(pieces)):
                size = _rows_within(budget, call.input_ids.shape[1])
                self._waiting.append(
                    (TRAINING, lambda: _apart(call.packed(pieces)[0], call.whole(size)[0]))
                )
        if boundary.error is not None:
            self._note_fault(boundary.error)
        self.compare()

    # ------------------------------------------------------------ rewards

    @contextmanager
    def rewards(self, model: Any, what: str) -> Iterator[None]:
        """Have a reward model compute packed rows inside the block.

        Args:
            model: the reward model; the block changes its ``forward``, on the object only.
            what: the record calls what is computed.
        """
        own, original = model.__dict__.get("forward"), model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            rows = _rows_of(args, kwargs)
            if rows is None:
                return original(*args, **kwargs)
            return SequenceClassifierOutput(logits=self._rewards(original, rows, what))

        model.forward = forward
        try:
            yield
        finally:
            del model.forward
            if own is not None:
                model.forward = own

    def _rewards(
        self, original: Original, inputs: Mapping[str, torch.Tensor], what: str
    ) -> torch.Tensor:
        mask = inputs["attention_mask"]
        n_rows, width = mask.shape
        columns = torch.arange(1, width + 1, device=mask.device)
        lengths = (mask.bool() * columns).amax(dim=1).clamp(min=1).cpu().numpy()
        budget = self.rule.budget(lengths, int(mask.numel()))
        cut = pack(lengths, budget)
        logits: torch.Tensor | None = None
        for rows in cut:
            index, end = torch.from_numpy(rows).to(mask.device), int(lengths[rows].max())
            part = original(**{key: value[index, :end] for key, value in inputs.items()}).logits
            if logits is None:
                logits = part.new_zeros((n_rows, *part.shape[1:]))
            logits[index] = part
        assert logits is not None
        n_computed = padded_tokens(lengths, cut)
        packed = PackedTokens(len(cut), int(mask.sum()), n_computed, int(mask.numel()))
        self._tally.note(what, packed)
        if self._is_due(what, packed):
            found, size = logits, _rows_within(budget, width)
            self._waiting.append((what, lambda: _apart(found, _padded(original, inputs, size))))
        return logits

    # ------------------------------------------------------------ comparisons

    def compare(self) -> None:
        """Make the comparisons that are due; nothing of the training changes.

        For a moment in which no stage's clock runs: the rows are computed once more.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        with undisturbed(self._trainer.accelerator.device), torch.no_grad():
            for what, difference in waiting:
                # A comparison is for the record alone: training goes on without it.
                with EngineBoundary() as boundary:
                    self._tally.note_difference(what, difference())
                if boundary.error is not None:
                    self._note_fault(boundary.error)

    def take_faults(self) -> list[tuple[str, str]]:
        """Class and reason of the errors that comparisons have met; each kind is told once."""
        found, self._faults = self._faults, []
        return found

    def _note_fault(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind not in self._told:
            self._told.add(kind)
            lines = str(error).splitlines()
            self._faults.append((kind, lines[0] if lines else kind))

    def _is_due(self, what: str, packed: PackedTokens) -> bool:
        """Whether it is time for a comparison: the first one, or many steps behind the last.

        Rows that were left as they are say nothing.
        """
        if packed.n_computed == packed.n_unpacked and packed.n_micro_batches == 1:
            return False
        if not self._is_time(what):
            return False
        self._compared_at[what] = int(self._trainer.state.global_step)
        return True

    def _is_time(self, what: str) -> bool:
        last = self._compared_at.get(what)
        return last is None or int(self._trainer.state.global_step) - last >= COMPARED_EVERY

    def _bare(self, model: Any) -> Any:
        return self._trainer.accelerator.unwrap_model(model)


def log_prob_call(
    original: Original,
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    n_keep: int,
    *args: Any,
    **kwargs: Any,
) -> LogProbCall | None:
    """Take apart a call of ``_get_per_token_logps_and_entropies``.

    Args:
        original: the trainer's own.
        model: its first argument.
        input_ids: its second.
        attention_mask: its third.
        n_keep: its fourth.
        *args: those behind ``batch_size``.
        **kwargs: likewise.

    Returns:
        None for a call that goes with images, or asks for what is not a sum over rows.
    """
    told = {key: value for key, value in kwargs.items() if value is not None and value is not False}
    if args or told.keys() - {"compute_entropy"} or not n_keep or not len(input_ids):
        return None
    return LogProbCall(original, model, input_ids, attention_mask, int(n_keep), told)


def _rows_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor] | None:
    """Arguments of a reward model that have a row for each text; None where others are there."""
    found = {key: value for key, value in kwargs.items() if value is not None}
    ids, mask = found.get("input_ids"), found.get("attention_mask")
    if args or not isinstance(ids, torch.Tensor) or not isinstance(mask, torch.Tensor):
        return None
    if ids.dim() != 2 or not ids.numel():
        return None
    for value in found.values():
        if not isinstance(value, torch.Tensor) or value.shape != ids.shape:
            return None
    return found


def _rows_within(budget: int, width: int) -> int:
    """How many rows of the whole batch's width make no larger a forward pass than packed ones."""
    return max(1, budget // width)


def _padded(original: Original, inputs: Mapping[str, torch.Tensor], size: int) -> torch.Tensor:
    """A reward model's results for rows that are padded to the longest, some rows at a time."""
    n_rows = len(inputs["input_ids"])
    parts = [
        original(**{key: value[begin : begin + size] for key, value in inputs.items()}).logits
        for begin in range(0, n_rows, size)
    ]
    return torch.cat(parts)


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return relative_difference(one.float().cpu().numpy(), other.float().cpu().numpy())
