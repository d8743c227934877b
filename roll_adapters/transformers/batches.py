"""Counts the sequences and tokens that a `Trainer` trains on, in the batches themselves.

Settings do not tell them: samplers, collators and streams make batches of any size, an epoch ends
in a part of one, and a resume skips some. `training_step` is given each batch that is trained on,
and no other: none of an evaluation, none that was fetched and left.

| | what is counted |
|---|---|
| sequences | rows of ``input_ids``; where its rows hold several, by their ``position_ids`` or ``cu_seq_lens_q``, these |
| tokens | those that ``attention_mask`` attends to; without one, those that are no padding |

Both halves of a pair of answers are a sequence each where the collator lays them below each other,
as TRL's do. A batch without ``input_ids`` has the rows of the model's main input, or those that all
its tensors share, and no tokens.
"""  # noqa: E501

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple

from ecorl.engines.containment import EngineBoundary
from ecorl.errors import DataError


class Counts(NamedTuple):
    """What batches hold; a tensor of one number, on the batch's device, waits for no kernel.

    Attributes:
        sequences: number of them; None: not known.
        tokens: likewise.
    """

    sequences: Any = 0
    tokens: Any = 0

    def plus(self, more: Counts) -> Counts:
        """Both together: what is not known of one is not known of the sum."""
        both = zip(self, more, strict=True)
        return Counts(*(None if a is None or b is None else a + b for a, b in both))


class TrainedBatches:
    """Counts while a `Trainer` trains: between `watch` and `leave`.

    Attributes:
        objections: why something is not known, a sentence each.
    """

    def __init__(self) -> None:
        self.objections: list[str] = []
        self._so_far: Counts | None = None
        self._undo: Callable[[], None] | None = None

    def watch(self, trainer: Any) -> None:
        """Count from here on.

        Args:
            trainer: its ``training_step`` is wrapped, on the object only. None: it is not known,
                and nothing is counted.
        """
        self.leave()
        self.objections, self._so_far = [], None
        if trainer is None:
            return
        own, original = trainer.__dict__.get("training_step"), trainer.training_step

        @functools.wraps(original)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            # Before the loss is computed, which may take parts out of the batch.
            self._add(kwargs["inputs"] if "inputs" in kwargs else args[1], trainer)
            return original(*args, **kwargs)

        def undo() -> None:
            if trainer.__dict__.get("training_step") is not training_step:
                return  # it was wrapped once more meanwhile, by others
            del trainer.training_step
            if own is not None:
                trainer.training_step = own

        trainer.training_step, self._undo = training_step, undo

    def leave(self) -> None:
        """Give the trainer its own method back; safe to call twice."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def take(self) -> tuple[int | None, int | None]:
        """Sequences and tokens since the last call; None where one of the batches hides them."""
        found, self._so_far = self._so_far, None
        if found is None:
            self._object("the batches that the trainer trains on were not seen")
            return None, None
        n_sequences, n_tokens = (None if n is None else int(n) for n in found)
        return n_sequences, n_tokens

    def _add(self, inputs: Any, trainer: Any) -> None:
        found = Counts(None, None)
        with EngineBoundary() as boundary:
            found = counted(inputs, trainer)
        if boundary.error is not None:
            self._object(f"rows and tokens of a batch are not known: {boundary.error}")
        elif found.tokens is None:
            self._object("tokens are not counted: the batches have no input_ids")
        self._so_far = (self._so_far or Counts()).plus(found)

    def _object(self, why: str) -> None:
        if why not in self.objections:
            self.objections.append(why)


def counted(inputs: Any, trainer: Any) -> Counts:
    """Count what a batch holds.

    Args:
        inputs: as ``training_step`` is given it.
        trainer: whose model and tokenizer tell what is padding.

    Raises:
        DataError: when the number of rows is not known.
    """
    if not isinstance(inputs, Mapping):
        raise DataError(f"it is a {type(inputs).__name__}, not a mapping of tensors")
    ids: Any = inputs.get("input_ids")
    if getattr(ids, "ndim", 0) < 2:
        return Counts(_n_rows(inputs, trainer.model), None)
    mask: Any = inputs.get("attention_mask")
    positions: Any = inputs.get("position_ids")
    if getattr(mask, "shape", None) == ids.shape:
        tokens = (mask != 0).sum()  # packed rows may have a number for each of their sequences
    else:
        tokens = _not_padding(ids, *_special_ids(trainer))
    if getattr(positions, "shape", None) == ids.shape and ids.ndim == 2 and ids.shape[1] > 1:
        return Counts(_n_starts(positions), tokens)
    if "cu_seq_lens_q" in inputs:
        return Counts(inputs["cu_seq_lens_q"].numel() - 1, tokens)
    return Counts(ids.shape[0], tokens)


def calling_trainer(callback: Any) -> Any:
    """The `Trainer` that is calling a callback just now, which it does not say; None without one.

    Args:
        callback: one of the trainer's.
    """
    from transformers import Trainer

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer) and callback in found.callback_handler.callbacks:
            return found
        frame = frame.f_back
    return None


def _n_rows(inputs: Mapping[str, Any], model: Any) -> int:
    """Rows of a batch without token ids."""
    main = inputs.get(getattr(model, "main_input_name", "input_ids"))
    among = inputs.values() if main is None else [main]
    found = {int(t.shape[0]) for t in among if getattr(t, "ndim", 0) > 0}
    if len(found) != 1:
        raise DataError(f"{', '.join(map(str, inputs))} do not have the same number of rows")
    return found.pop()


def _special_ids(trainer: Any) -> tuple[int | None, bool]:
    """The id of the padding token, and whether it ends sequences too."""
    tokenizer = trainer.processing_class
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer) or getattr(trainer.model, "config", None)
    pad, eos = (getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "eos"))
    return pad, pad in eos if isinstance(eos, list) else pad == eos


def _not_padding(ids: Any, pad: int | None, pad_is_eos: bool) -> Any:
    """Count the tokens that are no padding, where no mask tells."""
    if pad is None:
        return ids.numel()
    is_padding = ids == pad
    if pad_is_eos:
        # The first one behind a text ends it; those behind that one, or before all text, pad.
        is_padding[..., 1:] &= is_padding[..., :-1].clone()
    return ids.numel() - is_padding.sum()


def _n_starts(positions: Any) -> Any:
    """Count the sequences in rows whose positions begin anew with each of them.

    Padding has one and the same position: where a position neither follows on the one before it nor
    is followed by a larger one, there is no sequence. One of a single token is taken for padding.
    """
    rises = positions[:, 1:] > positions[:, :-1]
    return rises[:, 0].sum() + (rises[:, 1:] & ~rises[:, :-1]).sum()
