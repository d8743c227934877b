"""Several cards: each group goes to the one with the least to do."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from ecorl.engines.fpga.card.card import Card, CardStatus
from ecorl.engines.fpga.card.plan import Plan
from ecorl.engines.fpga.card.runner import GroupResult
from ecorl.engines.fpga.card.service import CardSetup
from ecorl.engines.fpga.card.weights import Weights
from ecorl.errors import DriverError, EngineCrashed, EngineError

logger = logging.getLogger(__name__)

_LOAD_S = 600.0  # a model of 13 GB through PCIe takes seconds; this ends a card that hangs


@dataclass(slots=True)
class _Waiting:
    plan: Plan
    card: Card
    future: Future[GroupResult]


class CardPool:
    """Cards that all hold the same weights.

    Args:
        setups: the cards, at least one.
        weights: what they are loaded with.

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

    def run(self, plans: Iterable[Plan]) -> list[GroupResult | DriverError]:
        """Results of groups in their order; a fault in the place of a group that failed.

        A plan is asked for while the groups before are at work. A group whose card failed is tried
        once more on another.

        Raises:
            EngineError: when every group failed.
        """
        waiting = []
        for plan in plans:
            card = self._least_busy(()) or self._cards[0]  # which says that it is out of service
            waiting.append(_Waiting(plan, card, card.submit(plan)))
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
            EngineError: when no card took them.
        """
        futures = [card.load(weights) for card in self._cards]
        digests, errors = set(), []
        for card, future in zip(self._cards, futures, strict=True):
            try:
                digests.add(future.result(_LOAD_S))
            except (DriverError, FutureTimeout) as error:
                errors.append(f"card {card.index}: {error or 'no answer'}")
        if len(digests) != 1:
            raise EngineError(f"weights were not taken over: {'; '.join(errors)}")
        return digests.pop()

    def status(self) -> tuple[CardStatus, ...]:
        """How each card stands."""
        return tuple(card.status() for card in self._cards)

    def close(self) -> None:
        """Close all cards."""
        for card in self._cards:
            card.close()

    def _outcome(self, group: _Waiting) -> GroupResult | DriverError:
        try:
            return group.future.result()
        except DriverError as error:
            other = self._least_busy((group.card,))
            if other is None:
                return error
        try:
            return other.submit(group.plan).result()
        except DriverError as error:
            return error

    def _least_busy(self, without: Sequence[Card]) -> Card | None:
        free = [card for card in self._cards if card.available and card not in without]
        return min(free, key=lambda card: card.backlog_tokens, default=None)
