"""The forward on cards, with the interface and the bits of the C-simulation's."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import numpy as np

from ecorl.engines.fpga.card.card import CardStatus
from ecorl.engines.fpga.card.health import CardSetup
from ecorl.engines.fpga.card.plan import KernelPlan
from ecorl.engines.fpga.card.plan_builder import plan_logprobs, plan_rewards
from ecorl.engines.fpga.card.pool import CardPool
from ecorl.engines.fpga.card.tokens import lay_out
from ecorl.engines.fpga.card.weights import Weights
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.cycles.kernel_calls import GROUP_TOKENS
from ecorl.engines.fpga.int8_decoder import MAX_ROW, Decoder, DecodeRequest, Int32
from ecorl.engines.fpga.kernels.banks import bytes_by_bank, overfull_bank
from ecorl.engines.fpga.numerics.formats import (
    IntegerDecoder,
    Tensors,
    decoder_digest,
    integer_decoder,
)
from ecorl.engines.fpga.prefix_sharing import Segments
from ecorl.engines.protocol import Int64
from ecorl.errors import CheckpointError, DriverError, EngineError

logger = logging.getLogger(__name__)


class CardDecoder(Decoder):
    """A frozen decoder on one card or several.

    A row whose group failed on the cards, or is too large for them, is NaN, like one with a number
    beyond its format.

    Args:
        tensors: the model, without a gate.
        library: packs the weights.
        setups: the cards.
        n_positions: longest row, tokens; at most what the model knows.

    Raises:
        CheckpointError: when a tensor does not fit its format, the model has a gate, or its weights
            do not fit the banks of a card.
        EngineError: when no card comes into service.
    """

    def __init__(
        self,
        tensors: Tensors,
        library: CsimLibrary,
        setups: Sequence[CardSetup],
        n_positions: int | None = None,
    ) -> None:
        self.config = tensors.config
        self._library = library
        longest = min(self.config.max_positions, MAX_ROW)
        self.n_positions = longest if n_positions is None else min(n_positions, longest)
        decoder = self._integers(tensors)
        self._digest = decoder_digest(decoder)
        self._weights = Weights.of(decoder, library, self.n_positions)
        self.banks = bytes_by_bank(self._weights.model.placed.sizes)
        why = overfull_bank(self.banks, {})
        if why:
            raise CheckpointError(f"the model's weights do not fit a card: they need {why}")
        self._pool = CardPool(setups, self._weights)

    def load(self, tensors: Tensors) -> str:
        """See `Decoder.load`; weights that the cards hold already are not sent again."""
        self._check_shape(tensors)
        decoder = self._integers(tensors)
        digest = decoder_digest(decoder)
        if digest != self._digest:
            self._change(Weights.of(decoder, self._library, self.n_positions))
            self._digest = digest
        return digest

    def _change(self, weights: Weights) -> None:
        try:
            self._pool.load(weights)
        except EngineError:
            # The former weights stay; a card that is out of service comes back with them.
            with contextlib.suppress(EngineError):
                self._pool.load(self._weights)
            raise
        self._weights = weights

    def status(self) -> tuple[CardStatus, ...]:
        """State and load of each card."""
        return self._pool.status()

    def close(self) -> None:
        """Close the cards."""
        self._pool.close()

    def _integers(self, tensors: Tensors) -> IntegerDecoder:
        if tensors.config.gating is not None:
            raise CheckpointError(
                f"{tensors.config.architecture}: the layers of a gate have no kernel"
            )
        return integer_decoder(tensors)

    def _run(self, request: DecodeRequest) -> tuple[Int32, Int32]:
        if request.kind not in ("rewards", "logprobs"):
            raise EngineError(f"the cards' host does not answer {request.kind}")
        if request.longest > self.n_positions:
            raise EngineError(
                f"a row has {request.longest} tokens, the cards hold {self.n_positions} positions"
            )
        n = len(request.tokens)
        n_rewards = self._weights.model.placed.head[0].n if request.kind == "rewards" else 1
        values, marks = np.zeros((n, n_rewards), np.int32), np.ones(n, np.int32)
        groups: list[tuple[int, int, int, int]] = []  # those that fit
        outcomes = self._pool.run(self._plans(request, groups))
        for (_, _, first, last), outcome in zip(groups, outcomes, strict=True):
            if not isinstance(outcome, DriverError):
                values[first:last] = outcome.values[:, :n_rewards]
                marks[first:last] = outcome.marks
        return values.reshape(-1), marks

    def _plans(
        self, request: DecodeRequest, planned: list[tuple[int, int, int, int]]
    ) -> Iterator[KernelPlan]:
        """Yield the plans of the groups that fit a card's banks; note these groups in `planned`."""
        for group in groups_of(request.segments, request.tokens):
            plan = self._plan(request, group)
            why = overfull_bank(bytes_by_bank(plan.sizes), self.banks)
            if why:
                n_tokens = plan.n_tokens
                logger.warning("%d tokens that share a prompt do not fit: %s", n_tokens, why)
                continue
            planned.append(group)
            yield plan

    def _plan(self, request: DecodeRequest, group: tuple[int, int, int, int]) -> KernelPlan:
        first, last, first_output, last_output = group
        own = slice(first_output, last_output)
        model = self._weights.model
        layout = lay_out(request.segments, first, last, request.tokens[own])
        if request.targets is None or request.by is None:
            return plan_rewards(model, layout)
        return plan_logprobs(model, layout, request.targets[own], request.by)


def groups_of(segments: Segments, tokens: Int64) -> Iterator[tuple[int, int, int, int]]:
    """Cut a batch into groups of whole families (rows with one prompt) that have outputs.

    Args:
        segments: the batch.
        tokens: where outputs are read, ascending.

    Yields:
        First and last segment, first and last output, the last ones not included.
    """
    families = [s for s, parent in enumerate(segments.parent) if parent < 0]
    families.append(len(segments.parent))
    edges = np.searchsorted(tokens, segments.begin[families]).tolist()
    first = None
    for i, family in enumerate(families[:-1]):
        has_outputs = edges[i + 1] > edges[i]
        if first is not None and not has_outputs:
            yield families[first], family, edges[first], edges[i]
            first = None
        if not has_outputs:
            continue
        if first is None:
            first = i
        n_tokens = segments.begin[families[i + 1]] - segments.begin[families[first]]
        if n_tokens >= GROUP_TOKENS or i + 2 == len(families):
            yield families[first], families[i + 1], edges[first], edges[i + 1]
            first = None
