"""How much the stages of a step read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ecorl.records import ModelShape, Stage, StageWork


@dataclass(frozen=True, slots=True)
class RolloutSizes:
    """How much a stage reads.

    Attributes:
        n_rows: rows.
        n_tokens: tokens of all rows, without padding.
        n_output_tokens: tokens of their completions; of a generation those that the policy made.
        max_length: tokens of the longest row.
    """

    n_rows: int
    n_tokens: int
    n_output_tokens: int
    max_length: int

    @classmethod
    def of(cls, masks: Iterable[tuple[Any, Any]]) -> RolloutSizes:
        """Count the tokens that a pass over padded batches computes.

        Args:
            masks: of each batch a pair of tensors ``[n, ...]``, as for `completion_lengths`.
        """
        pairs = list(masks)
        lengths = [attention.long().sum(1) for attention, _ in pairs]
        return cls(
            n_rows=sum(len(each) for each in lengths),
            n_tokens=sum(int(each.sum()) for each in lengths),
            n_output_tokens=sum(int(completion_lengths(*pair).sum()) for pair in pairs),
            max_length=max((int(each.max()) for each in lengths), default=0),
        )

    def work(
        self,
        stage: Stage,
        shape: ModelShape | None,
        *,
        passes: int = 1,
        has_output: bool = True,
        role_name: str = "",
    ) -> StageWork:
        """Describe a stage that reads all rows.

        Args:
            stage: the stage.
            shape: of its model.
            passes: how often it reads them.
            has_output: whether the tokens of the completions are its output.
            role_name: which of the stage's models runs; empty where it has only one.
        """
        return StageWork(
            stage=stage,
            n_sequences=self.n_rows * passes,
            n_tokens=self.n_tokens * passes,
            n_output_tokens=self.n_output_tokens * passes if has_output else 0,
            max_length=self.max_length,
            model=shape,
            role_name=role_name,
        )


def completion_lengths(attention: Any, made: Any) -> Any:
    """Count the tokens of completions: from the first one that the policy made to the row's end.

    What an environment or a tool said in between is among them, since every pass computes it.

    Args:
        attention: ``[n, length]``, not 0 where a token is real.
        made: ``[n, length]``, not 0 for tokens that the policy made; or without a first column,
            since a row's first token is never one of them.

    Returns:
        ``[n] int64``.
    """
    real = attention[:, attention.shape[1] - made.shape[1] :].bool()
    return (real & (made.long().cumsum(1) > 0)).sum(1)
