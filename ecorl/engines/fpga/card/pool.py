"""Several cards with the same weights: each group goes to the one with the shortest backlog."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from ecorl.engines.fpga.card.card import Card, CardStatus
from ecorl.engines.fpga.card.health import CardSetup, CardState
from ecorl.engines.fpga.card.plan import KernelPlan
from ecorl.engines.fpga.card.runner import GroupResult
from ecorl.engines.fpga.card.weights import Weights
from ecorl.errors import DriverError, EngineCrashed, EngineError

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
