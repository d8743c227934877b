"""Checks of the batches that go into an engine and of the results that come out of it.

No engine is trusted: rows that fail here are answered by the exact path, or refused by the
scoring service; the other rows stay as they are. `EngineBoundary` is the one place where errors of
foreign engines are caught.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ecorl.engines import protocol
from ecorl.engines.packing import PackedTokens
from ecorl.errors import EcorlError, EngineCrashed, EngineError, InvalidResult
from ecorl.interrupt import n_interrupts, raise_swallowed_interrupt
from ecorl.records import Provenance, Stage

# Wide on purpose. An engine may come from another package by entry point, and a trainer's own
# model code runs here too: neither keeps to ecorl's error tree, and no error of theirs may end a
# training run that can answer the same rows on the exact path. Not `Exception`: an error outside
# these families (a signal turned into an exception, a generator's StopIteration) says nothing of
# the state that it left behind. It ends the engine's process, whose parent starts another.
_CONTAINED = (
    EcorlError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    OSError,
    MemoryError,
    ImportError,
    AssertionError,
)


class EngineBoundary:
    """Runs foreign code and keeps the error that it raises, for the caller to act on.

        with EngineBoundary() as boundary:
            return engine.score(batch)
        return boundary.engine_error()

    Ctrl-C is never contained: where foreign code made an error of its own of a KeyboardInterrupt,
    leaving the block raises the KeyboardInterrupt.

    Attributes:
        error: what the block raised; None while and when it raised nothing.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._n_interrupts = n_interrupts()

    def __enter__(self) -> EngineBoundary:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, _CONTAINED):
            raise_swallowed_interrupt(self._n_interrupts)
            self.error = error
            return True
        return False

    def caught(self) -> Exception:
        """The error, where the caller knows that there is one.

        Raises:
            ValueError: when the block raised nothing.
        """
        if self.error is None:
            raise ValueError("the block raised nothing")
        return self.error

    def engine_error(self) -> EngineError:
        """The error as an `EngineError`; any other class becomes `EngineCrashed`, with its cause.

        Raises:
            ValueError: when the block raised nothing.
        """
        error = self.caught()
        if isinstance(error, EngineError):
            return error
        crashed = EngineCrashed(f"{type(error).__name__}: {error}")
        crashed.__cause__ = error
        return crashed


Bool = npt.NDArray[np.bool_]

LOGPROB_EPSILON = 1e-3
"""How far above 0 nats a log-prob may lie. Invented: a fixed-point log-sum-exp rounds at about
1e-4, float32 at about 1e-5; a figure above this bound cannot come from rounding."""


def check_batch(batch: protocol.ScoreBatch, stage: Stage) -> None:
    """Refuse a batch that no engine can compute.

    Args:
        batch: the rows about to be computed.
        stage: ``REFERENCE`` also needs a token before each completion.

    Raises:
        EngineError: for an empty row, fields of unequal length, a temperature that is not
            positive and finite, or a completion without a token before it.
    """
    n_rows = len(batch.sample_ids)
    if len(batch.token_ids) != n_rows or len(batch.n_completion) != n_rows:
        raise EngineError(
            f"a batch of {n_rows} ids holds {len(batch.token_ids)} rows and "
            f"{len(batch.n_completion)} completion lengths"
        )
    if not (np.isfinite(batch.temperature) and batch.temperature > 0):
        raise EngineError(f"temperature is {batch.temperature}, needs to be above 0")
    if batch.micro_batch is not None and batch.micro_batch < 1:
        raise EngineError(f"micro_batch is {batch.micro_batch}, needs to be at least 1")
    if batch.token_budget is not None and batch.token_budget < 1:
        raise EngineError(f"token_budget is {batch.token_budget}, needs to be at least 1")
    for sample_id, row, n_completion in zip(
        batch.sample_ids, batch.token_ids, batch.n_completion, strict=True
    ):
        if len(row) == 0:
            raise EngineError(f"row {sample_id} has no tokens")
        if stage is Stage.REFERENCE and not 0 <= n_completion < len(row):
            raise EngineError(
                f"row {sample_id}: {n_completion} completion tokens in a row of {len(row)}; "
                "the first needs a token before it"
            )


@dataclass(frozen=True, slots=True)
class CheckedResult:
    """What can be used of an engine's result.

    Attributes:
        values: for each row of the batch its reward (a float32 scalar) or its log-probs
            (``[n_completion] float32``); None for a row that cannot be used.
        report: the engine's figures, with impossible ones as None; None without a usable report.
    """

    values: tuple[protocol.Float32 | None, ...]
    report: protocol.EngineReport | None


def check_result(batch: protocol.ScoreBatch, result: object, stage: Stage) -> CheckedResult:
    """Check the whole result of an engine, which may be anything: engines come from elsewhere.

    Args:
        batch: what was asked.
        result: what the engine answered.
        stage: of the engine; ``REFERENCE`` answers log-probs, any other rewards.

    Returns:
        The rows and figures that can be used.

    Raises:
        InvalidResult: when no row can be matched to the batch.
    """
    with EngineBoundary() as boundary:
        valid: Bool
        values: protocol.Float32 | Sequence[protocol.Float32]
        if stage is Stage.REFERENCE:
            if not isinstance(result, protocol.LogprobResult):
                raise InvalidResult("a reference engine answered without log-probs")
            valid, values = check_logprobs(batch, result), result.values
        else:
            if not isinstance(result, protocol.ScoreResult):
                raise InvalidResult("a reward engine answered without scores")
            valid, values = check_score(batch, result), result.values
        rows = tuple(values[i] if good else None for i, good in enumerate(valid))
        return CheckedResult(rows, _checked_report(result.report))
    # Fields of the wrong kind (ids that have no length, say) are no less invalid than wrong values.
    raise InvalidResult(str(boundary.error)) from boundary.error


def check_score(batch: protocol.ScoreBatch, result: protocol.ScoreResult) -> Bool:
    """Find the rows of a reward result that can be used.

    Args:
        batch: what was asked.
        result: what came back; row i must carry the id of row i of the batch.

    Returns:
        ``[n_rows] bool``: True where id, dtype and value are right. Rows beyond the end of a
        shorter answer are False.

    Raises:
        InvalidResult: when no row can be matched: not a ``[n] float32`` array, another number
            of values than ids, or no id in its place.
    """
    values = result.values
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype != np.float32:
        raise InvalidResult(f"rewards are not a [n] float32 array: {_describe(values)}")
    matched = _match(batch, result.sample_ids, len(values))
    # Values may be more or fewer than the batch's rows; those without a row are ignored.
    n_given = int(min(len(values), len(batch)))
    finite = np.zeros(len(batch), dtype=np.bool_)
    finite[:n_given] = np.isfinite(values[:n_given])
    return matched & finite


def check_logprobs(batch: protocol.ScoreBatch, result: protocol.LogprobResult) -> Bool:
    """Find the rows of a log-prob result that can be used.

    Args:
        batch: what was asked.
        result: what came back; row i must carry the id of row i of the batch.

    Returns:
        ``[n_rows] bool``: True where the id is right and the row is a ``[n_completion] float32``
        array of finite values not above `LOGPROB_EPSILON`.

    Raises:
        InvalidResult: when no row can be matched: no rows at all, another number of rows than
            ids, or no id in its place.
    """
    if not isinstance(result.values, Sequence | np.ndarray):
        raise InvalidResult(f"the log-probs are {_describe(result.values)}, no rows")
    valid = _match(batch, result.sample_ids, len(result.values))
    for index in np.flatnonzero(valid):
        valid[index] = _is_logprob_row(result.values[index], batch.n_completion[index])
    return valid


def _is_logprob_row(row: object, n_completion: int) -> bool:
    if not isinstance(row, np.ndarray) or row.dtype != np.float32:
        return False
    if row.shape != (n_completion,):
        return False
    return bool(np.isfinite(row).all() and (row <= LOGPROB_EPSILON).all())


def _match(batch: protocol.ScoreBatch, ids: Sequence[str], n_values: int) -> Bool:
    """Rows whose id is at the same position as in the batch; a result keeps the batch's order."""
    if len(ids) != n_values:
        # It is unknown which row was lost, so that none may be trusted.
        raise InvalidResult(f"the answer has {len(ids)} ids and {n_values} values")
    matched = np.zeros(len(batch), dtype=np.bool_)
    for index, (asked, given) in enumerate(zip(batch.sample_ids, ids, strict=False)):
        matched[index] = asked == given
    if len(batch) and not matched.any():
        raise InvalidResult(f"none of the {len(batch)} rows came back in its place")
    return matched


def _describe(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"{list(values.shape)} {values.dtype}"
    return type(values).__name__


def _checked_report(report: object) -> protocol.EngineReport | None:
    """The engine's figures, impossible ones as None; None for what is no report."""
    if not isinstance(report, protocol.EngineReport) or not isinstance(
        report.provenance, Provenance
    ):
        return None
    host_time_s = _figure(report.host_time_s)
    if host_time_s is None:
        return None
    return protocol.EngineReport(
        device_time_s=_figure(report.device_time_s),
        device_energy_j=_figure(report.device_energy_j),
        provenance=report.provenance,
        host_time_s=host_time_s,
        cards=tuple(card for card in report.cards if isinstance(card, protocol.CardLoad)),
        span_s=_span(report.span_s),
        packing=_packing(report.packing),
    )


def _packing(value: object) -> PackedTokens | None:
    """What packing made of a batch, else None: counts that can be, and a difference or none."""
    if not isinstance(value, PackedTokens):
        return None
    counts = (value.n_micro_batches, value.n_tokens, value.n_computed, value.n_unpacked)
    if any(_figure(n) is None for n in counts):
        return None
    return replace(value, difference=_figure(value.difference))


def _span(value: object) -> tuple[float, float] | None:
    """Begin and end of a call, else None."""
    if not isinstance(value, tuple) or len(value) != 2:
        return None
    begin_s, end_s = (_figure(v) for v in value)
    if begin_s is None or end_s is None or end_s < begin_s:
        return None
    return begin_s, end_s


def _figure(value: object) -> float | None:
    """A finite number of 0 or more, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    number = float(value)
    return number if math.isfinite(number) and number >= 0 else None
