"""The rows of one rollout, between OpenRLHF's padded micro-batches and an engine's plain rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ecorl.engines.protocol import Float32, Int64, ScoreBatch
from ecorl.records import Stage
from roll_adapters.ray_jobs.sizes import RolloutSizes


def sizes_of(parts: Sequence[Any]) -> RolloutSizes:
    """Count the tokens of samples or of micro-batches.

    Args:
        parts: OpenRLHF's ``Experience`` objects.
    """
    return RolloutSizes.of((part.attention_mask, part.action_mask) for part in parts)


class RolloutRows:
    """The rows of a rollout batch in OpenRLHF's micro-batches.

    A micro-batch has ``sequences`` ``[n, length] int64``, padded on the right, ``attention_mask``
    ``[n, length]`` and ``action_mask`` ``[n, length - 1]``, whose entry j is of token j + 1.
    Log-probs have a column fewer than tokens too, since the first token has none.

    Args:
        micro_batches: OpenRLHF's ``Experience`` objects, in the order of their forward passes.
        ids: ids of the rows, by the number in ``Experience.index``; the rows of a micro-batch are
            found by it, and never by their place.
    """

    def __init__(self, micro_batches: Sequence[Any], ids: Sequence[str]) -> None:
        self._parts = list(micro_batches)
        self.sample_ids = tuple(ids[i] for part in self._parts for i in part.index)
        self._lengths = [part.attention_mask.long().sum(1) for part in self._parts]
        counts = [int(part.sequences.shape[0]) for part in self._parts]
        self._where = [(m, i) for m, n in enumerate(counts) for i in range(n)]
        self._starts = np.cumsum([0, *counts]).tolist()
        self.sizes = sizes_of(self._parts)

    def __len__(self) -> int:
        return len(self._where)

    def batch(self, stage: Stage, temperature: float) -> ScoreBatch:
        """Make the rows for an engine, without padding.

        A completion reaches from the first to the last token of a row's actions; where another
        party spoke in between (several turns) its tokens are computed and masked later.

        Args:
            stage: reward or reference.
            temperature: the logits are divided by it.
        """
        sizes = [len(part.index) for part in self._parts]
        # An engine cuts the rows evenly; the last micro-batch may be shorter.
        is_even = bool(sizes) and len(set(sizes[:-1])) <= 1 and sizes[-1] <= sizes[0]
        return ScoreBatch(
            sample_ids=self.sample_ids,
            token_ids=self._token_ids[0],
            n_completion=self._token_ids[1],
            temperature=temperature if stage is Stage.REFERENCE else 1.0,
            micro_batch=sizes[0] if is_even else None,
            reads_last=True,  # as RewardModelActor does, whatever the pad token is
        )

    @cached_property
    def _token_ids(self) -> tuple[tuple[Int64, ...], tuple[int, ...]]:
        """The rows without padding, and the number of each one's completion tokens."""
        rows, counts = [], []
        for part in self._parts:
            tokens = part.sequences.cpu().numpy().astype(np.int64)
            masks = part.attention_mask.cpu().numpy().astype(bool)
            actions = part.action_mask.cpu().numpy()
            for ids, mask, acts in zip(tokens, masks, actions, strict=True):
                rows.append(ids[mask])
                counts.append(len(rows[-1]) - 1 - _first_action(acts, len(rows[-1]) - 1))
        return tuple(rows), tuple(counts)

    # ------------------------------------------------------------ answers

    def rewards(self, values: Sequence[Float32]) -> list[torch.Tensor]:
        """Put one reward a row into OpenRLHF's shape: ``[n] float32`` a micro-batch."""
        flat = torch.from_numpy(np.asarray(values, dtype=np.float32).reshape(-1))
        return list(torch.split(flat, [len(part.index) for part in self._parts]))

    def logprobs(self, values: Sequence[Float32]) -> list[torch.Tensor]:
        """Put the log-probs of completions into OpenRLHF's shape, 0 where there is no action.

        Args:
            values: one ``[n_completion] float32`` a row.

        Returns:
            ``[n, length - 1] float32`` a micro-batch.
        """
        found = []
        for m, part in enumerate(self._parts):
            filled = torch.zeros(part.action_mask.shape, dtype=torch.float32)
            for i in range(len(filled)):
                row = torch.from_numpy(np.asarray(values[self._starts[m] + i], dtype=np.float32))
                end = int(self._lengths[m][i]) - 1
                filled[i, end - len(row) : end] = row
            found.append(filled * part.action_mask.cpu().float())
        return found

    # ------------------------------------------------------------ the exact path

    def micro_batches_of(self, rows: Sequence[int]) -> list[int]:
        """Numbers of the micro-batches that hold some rows, ascending.

        Args:
            rows: indices of the rows.
        """
        return sorted({self._where[row][0] for row in rows})

    def picked(
        self, stage: Stage, rows: Sequence[int], tensors: dict[int, torch.Tensor]
    ) -> list[Float32]:
        """Pick the answers to some rows out of OpenRLHF's own.

        Args:
            stage: reward or reference.
            rows: indices of the rows.
            tensors: what OpenRLHF's forward gave, by number of the micro-batch.

        Returns:
            One float32 scalar or ``[n_completion]`` vector a row.
        """
        found = []
        for row in rows:
            m, i = self._where[row]
            answer = tensors[m][i].float().cpu()
            if stage is Stage.REFERENCE:
                end = int(self._lengths[m][i]) - 1
                actions = self._parts[m].action_mask[i].cpu().numpy()
                answer = answer[_first_action(actions, end) : end]
            found.append(answer.numpy())
        return found


def _first_action(actions: npt.NDArray[Any], end: int) -> int:
    """Place of a row's first action in its mask; its end for a row without one."""
    where = np.flatnonzero(actions)
    return int(where[0]) if len(where) else end
