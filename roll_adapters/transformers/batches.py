"""Counts the sequences and tokens that a `Trainer` trains on, in the batches themselves.

Settings do not tell them: samplers, collators and streams make batches of any size, an epoch ends
in a part of one, and a resume skips some. `training_step` is given each batch that is trained on,
and no other: none of an evaluation, none that was fetched and left. Where it makes another batch of
it, as trainers do that generate, the batch is what `compute_loss` is given within it.

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
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from ecorl.engines.validate import EngineBoundary
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


_Seen = tuple[Counts, Exception | None]
"""What a batch holds, and why that is not known."""


class TrainedBatches:
    """Counts while a `Trainer` trains: between `watch` and `leave`.

    Attributes:
        objections: why something is not known, a sentence each.
    """

    def __init__(self) -> None:
        self.objections: list[str] = []
        self._so_far: Counts | None = None
        self._undo: list[Callable[[], None]] = []
        self._watch = object()  # of the newest watch; a wrapper of an older one counts nothing
        self._of_losses: list[_Seen] | None = None

    def watch(self, trainer: Any) -> None:
        """Count from here on.

        Args:
            trainer: its ``training_step`` and ``compute_loss`` are wrapped, on the object only.
                None: it is not known, and nothing is counted.
        """
        self.leave()
        self.objections, self._so_far = [], None
        if trainer is None:
            return
        watch = self._watch
        original = trainer.training_step

        @functools.wraps(original)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            if watch is not self._watch:
                return original(*args, **kwargs)
            # Before the loss is computed, which may take parts out of the batch.
            given, self._of_losses = _seen(args, kwargs, trainer), []
            try:
                output = original(*args, **kwargs)
                self._add(self._of_losses or [given])
            finally:
                self._of_losses = None
            return output

        self._undo.append(_replace(trainer, "training_step", training_step))
        loss = getattr(trainer, "compute_loss", None)
        if loss is None:
            return

        @functools.wraps(loss)
        def compute_loss(*args: Any, **kwargs: Any) -> Any:
            if watch is self._watch and self._of_losses is not None:
                self._of_losses.append(_seen(args, kwargs, trainer))
            return loss(*args, **kwargs)

        self._undo.append(_replace(trainer, "compute_loss", compute_loss))

    def leave(self) -> None:
        """Give the trainer its own methods back; safe to call twice."""
        self._watch = object()
        undo, self._undo = self._undo, []
        for one in undo:
            one()

    def take(self) -> tuple[int | None, int | None]:
        """Sequences and tokens since the last call; None where one of the batches hides them."""
        found, self._so_far = self._so_far, None
        if found is None:
            self._object("the batches that the trainer trains on were not seen")
            return None, None
        n_sequences, n_tokens = (None if n is None else int(n) for n in found)
        if n_sequences == 0:
            self._object("rows are not known: no sequence begins by the batches' position_ids")
            n_sequences = None
        return n_sequences, n_tokens

    def _add(self, batches: list[_Seen]) -> None:
        for found, error in batches:
            if error is not None:
                self._object(f"rows and tokens of a batch are not known: {error}")
            elif found.tokens is None:
                self._object("tokens are not counted: the batches have no tensor of input_ids")
            self._so_far = (self._so_far or Counts()).plus(found)

    def _object(self, why: str) -> None:
        if why not in self.objections:
            self.objections.append(why)


def _seen(args: Sequence[Any], kwargs: Mapping[str, Any], trainer: Any) -> _Seen:
    """Count the batch that a method of the trainer is given, behind the model."""
    found = Counts(None, None)
    with EngineBoundary() as boundary:
        found = counted(kwargs["inputs"] if "inputs" in kwargs else args[1], trainer)
    return found, boundary.error


def _replace(trainer: Any, name: str, method: Any) -> Callable[[], None]:
    """Put a method in the place of the trainer's own; what is returned undoes it."""
    own = trainer.__dict__.get(name)
    setattr(trainer, name, method)

    def undo() -> None:
        if trainer.__dict__.get(name) is not method:
            return  # it was wrapped once more meanwhile, by others
        delattr(trainer, name)
        if own is not None:
            setattr(trainer, name, own)

    return undo


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
    if getattr(ids, "ndim", 0) == 0:
        return Counts(_n_rows(inputs, trainer.model), None)
    if ids.ndim == 1 and "cu_seq_lens_q" not in inputs:
        raise DataError("input_ids have one dimension and there are no cu_seq_lens_q")
    mask: Any = inputs.get("attention_mask")
    positions: Any = inputs.get("position_ids")
    has_positions = getattr(positions, "shape", None) == ids.shape and ids.ndim == 2
    special = _special_ids(trainer)
    if getattr(mask, "shape", None) == ids.shape:
        is_token = mask != 0  # packed rows may have a number for each of their sequences
        tokens = is_token.sum()
    else:
        is_token = ids != (-1 if special.pad is None else special.pad)
        tokens = _not_padding(ids, special, positions if has_positions else None)
    if has_positions and ids.shape[1] > 1:
        return Counts(_n_starts(positions, is_token), tokens)
    if "cu_seq_lens_q" in inputs:
        return Counts(inputs["cu_seq_lens_q"].numel() - 1, tokens)
    return Counts(ids.shape[0], tokens)


def padding_tokenizer(trainer: Any) -> Any:
    """The tokenizer that a trainer pads with; None, or a processor that holds none, without one.

    Args:
        trainer: TRL's keep it. Of others a processor holds it; a tokenizer may have an attribute
            ``tokenizer`` too, which is its backend.
    """
    from transformers import ProcessorMixin

    found = getattr(trainer, "_tokenizer", None)
    if found is not None:
        return found
    processing = trainer.processing_class
    is_processor = isinstance(processing, ProcessorMixin)
    return getattr(processing, "tokenizer", processing) if is_processor else processing


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


class _Special(NamedTuple):
    """The id of the padding token, and what else it does."""

    pad: int | None
    is_eos: bool
    is_bos: bool


def _special_ids(trainer: Any) -> _Special:
    named = padding_tokenizer(trainer)
    if not hasattr(named, "pad_token_id"):
        config: Any = getattr(trainer.model, "config", None)
        named = config.get_text_config() if hasattr(config, "get_text_config") else config
    pad, eos, bos = (getattr(named, f"{name}_token_id", None) for name in ("pad", "eos", "bos"))
    return _Special(pad, pad in eos if isinstance(eos, list) else pad == eos, pad == bos)


def _not_padding(ids: Any, special: _Special, positions: Any) -> Any:
    """Count the tokens that are no padding, where no mask tells."""
    if special.pad is None:
        return ids.numel()
    is_padding = ids == special.pad
    if special.is_eos and positions is not None and len(ids) == 1:
        # Of flattened documents: a special token is of the document in which its position rises.
        before, behind = _rises(positions)
        return ids.numel() - (is_padding & ~before & ~behind).sum()
    n_bos = 0
    if special.is_bos:
        # Padding alone would leave the longest row without: then all begin with it as their BOS.
        n_bos = is_padding[..., 0].all() * is_padding[..., 0].numel()
    if special.is_eos:
        # The first one behind a text ends it; those behind that one, or before all text, pad.
        is_padding[..., 1:] &= is_padding[..., :-1].clone()
    return ids.numel() - is_padding.sum() + n_bos


def _rises(positions: Any) -> tuple[Any, Any]:
    """Whether each position is larger than the one before it, and than which the next is larger."""
    before, behind = positions != positions, positions != positions
    before[:, 1:] = positions[:, 1:] > positions[:, :-1]
    behind[:, :-1] = before[:, 1:]
    return before, behind


def _n_starts(positions: Any, is_token: Any) -> Any:
    """Count the sequences in rows whose positions begin anew with each of them.

    Padding has one and the same position: where a position neither follows on the one before it nor
    is followed by a larger one, there is no sequence, but for a token at 0, which is one by itself.
    A row with a token holds a sequence, whatever its positions.
    """
    before, behind = _rises(positions)
    starts = ~before & (behind | (is_token & (positions == 0)))
    return starts.sum(1).maximum(is_token.any(1).long()).sum()
