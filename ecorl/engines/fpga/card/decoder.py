"""The forward on cards, with the interface and the bits of the C-simulation's.

Several cards hold the same weights: each group goes to the one with the shortest backlog.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

import numpy as np

from ecorl.engines.fpga.card.card import Card, CardStatus
from ecorl.engines.fpga.card.health import CardSetup, CardState
from ecorl.engines.fpga.card.image import Weights
from ecorl.engines.fpga.card.plan import KernelPlan, lay_out
from ecorl.engines.fpga.card.plan_builder import plan_logprobs, plan_rewards
from ecorl.engines.fpga.card.runner import GroupResult
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.cycles.kernel_calls import GROUP_TOKENS
from ecorl.engines.fpga.int8_decoder import MAX_ROW, Decoder, DecodeRequest, Int32, Segments
from ecorl.engines.fpga.kernels.banks import bytes_by_bank, overfull_bank
from ecorl.engines.fpga.numerics import formats
from ecorl.engines.protocol import Int64
from ecorl.errors import CheckpointError, DriverError, EngineCrashed, EngineError

logger = logging.getLogger(__name__)


RECOVERY_S = 20.0
"""How long a group waits for a card under reset, s. Assumed: a reset takes about 10 s."""

_LOOK_S = 0.2  # how often a waiting caller checks that its card still works
_LOAD_S = 600.0  # a model of 13 GB through PCIe takes seconds; this ends a card that hangs


@dataclass(slots=True)
class _Waiting:
    """A group and the card that runs it."""

    plan: KernelPlan
    card: Card
    future: Future[GroupResult]


class CardPool:
    """Cards that all hold the same weights.

    Args:
        setups: the cards, at least one.
        weights: of the model.

    Raises:
        EngineCrashed: when no card comes into service. One that does not, while others do, is left
            out with a warning.
    """

    def __init__(self, setups: Sequence[CardSetup], weights: Weights) -> None:
        self._cards: list[Card] = []
        errors: list[str] = []
        for setup in setups:
            try:
                self._cards.append(Card(setup, weights))
            except DriverError as error:
                errors.append(f"card {setup.index}: {error}")
                logger.warning("left out: %s", errors[-1])
        if not self._cards:
            raise EngineCrashed(f"no card came into service: {'; '.join(errors)}")

    def run(self, plans: Iterable[KernelPlan]) -> list[GroupResult | DriverError]:
        """Run groups on the cards.

        A plan is made while the groups before it run. A group whose card failed, or is being
        reset, moves to another card once; where there is none, it waits `RECOVERY_S` at most. Cards
        whose quarantine is over are brought back while the others run.

        Args:
            plans: of the groups.

        Returns:
            Results in the order of the groups; a fault in place of those of a group that failed.

        Raises:
            EngineError: when every group failed.
        """
        for card in self._cards:
            card.revive()
        waiting = []
        for plan in plans:
            chosen = self._least_busy(()) or self._coming_back()
            if chosen is None:
                future: Future[GroupResult] = Future()
                future.set_exception(self._cards[0].out_of_service())
                waiting.append(_Waiting(plan, self._cards[0], future))
            else:
                waiting.append(_Waiting(plan, chosen, chosen.submit(plan)))
        outcomes = [self._outcome(group) for group in waiting]
        faults = [o for o in outcomes if isinstance(o, DriverError)]
        if faults and len(faults) == len(outcomes):
            raise EngineCrashed(f"all {len(faults)} groups failed: {faults[0]}")
        return outcomes

    def load(self, weights: Weights) -> str:
        """Change the weights of all cards.

        Returns:
            Their SHA-256, as read back from each card that is in service.

        Raises:
            EngineError: when no card loaded them.
        """
        futures = [card.load(weights) for card in self._cards]
        digests, errors = set(), []
        for card, future in zip(self._cards, futures, strict=True):
            try:
                digests.add(future.result(_LOAD_S))
            except (DriverError, FutureTimeout) as error:
                errors.append(f"card {card.index}: {str(error) or 'no answer'}")
        if len(digests) != 1:
            raise EngineError(f"weights were not taken over: {'; '.join(errors)}")
        return digests.pop()

    def status(self) -> tuple[CardStatus, ...]:
        """State and load of each card."""
        return tuple(card.status() for card in self._cards)

    def close(self) -> None:
        """Close all cards."""
        for card in self._cards:
            card.close()

    def _outcome(self, group: _Waiting) -> GroupResult | DriverError:
        patience_s = RECOVERY_S
        while True:
            try:
                return group.future.result(_LOOK_S)
            except DriverError as error:
                other = self._least_busy((group.card,))
                if other is None:
                    return error
                break
            except FutureTimeout:
                if group.card.available:
                    continue
                patience_s -= _LOOK_S
                other = self._least_busy((group.card,))
                if (other is None and patience_s > 0) or not group.card.withdraw(group.future):
                    continue
                if other is None:
                    return group.card.out_of_service()
                break
        try:
            return other.submit(group.plan).result()
        except DriverError as error:
            return error

    def _coming_back(self) -> Card | None:
        """A card that is being reset, which may be back soon."""
        return next((c for c in self._cards if c.status().state is CardState.RECOVERING), None)

    def _least_busy(self, without: Sequence[Card]) -> Card | None:
        free = [card for card in self._cards if card.available and card not in without]
        return min(free, key=lambda card: card.backlog_tokens, default=None)


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
        tensors: formats.Tensors,
        library: CsimLibrary,
        setups: Sequence[CardSetup],
        n_positions: int | None = None,
    ) -> None:
        self.config = tensors.config
        self._library = library
        longest = min(self.config.max_positions, MAX_ROW)
        self.n_positions = longest if n_positions is None else min(n_positions, longest)
        decoder = self._integers(tensors)
        self._digest = formats.decoder_digest(decoder)
        self._weights = Weights.of(decoder, library, self.n_positions)
        self.banks = bytes_by_bank(self._weights.model.placed.sizes)
        why = overfull_bank(self.banks, {})
        if why:
            raise CheckpointError(f"the model's weights do not fit a card: they need {why}")
        self._pool = CardPool(setups, self._weights)

    def load(self, tensors: formats.Tensors) -> str:
        """See `Decoder.load`; weights that the cards hold already are not sent again."""
        self._check_shape(tensors)
        decoder = self._integers(tensors)
        digest = formats.decoder_digest(decoder)
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

    def _integers(self, tensors: formats.Tensors) -> formats.IntegerDecoder:
        if tensors.config.gating is not None:
            raise CheckpointError(
                f"{tensors.config.architecture}: the layers of a gate have no kernel"
            )
        return formats.integer_decoder(tensors)

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
