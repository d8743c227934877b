"""Health of a card: opening it, counting its faults, resets, quarantine."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ecorl.drivers.xrt.card import OpenCard
from ecorl.engines.fpga.card.image import Weights
from ecorl.engines.fpga.card.runner import CardRunner, CardTimes
from ecorl.engines.fpga.kernels.interfaces import KernelInterface
from ecorl.errors import CardFull, DeviceLost, DriverError, DriverTimeout, UserError

logger = logging.getLogger(__name__)

OCCUPANCY_S = 10.0
"""Time constant of a card's occupancy, s. Invented: the time of a few batches of a large model."""


class CardState(StrEnum):
    """Whether a card accepts groups: only a ready one does."""

    READY = "ready"
    RECOVERING = "recovering"
    QUARANTINED = "quarantined"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class CardLimits:
    """Limits for a card. All but the first are invented, rather too patient than too strict.

    Attributes:
        start_s: limit of one start of a kernel, s.
        max_faults: faults in a row after which a card is reset.
        quarantine_s: time out of service after a reset that did not help, s; doubled each further
            time.
        longest_quarantine_s: upper bound of that time, s.
    """

    start_s: float = 10.0
    max_faults: int = 3
    quarantine_s: float = 30.0
    longest_quarantine_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class CardSetup:
    """How to open, reset and time out a card.

    Attributes:
        index: XRT's number.
        open: opens it and loads the bitstream.
        reset: resets it, given its PCIe address; raises `DriverError` where that fails.
        interfaces: of its kernels.
        limits: of time and faults.
        clock: seconds, for quarantine and occupancy.
    """

    index: int
    open: Callable[[], OpenCard]
    reset: Callable[[str], None]
    interfaces: Sequence[KernelInterface]
    limits: CardLimits = field(default_factory=CardLimits)
    clock: Callable[[], float] = time.monotonic


class CardHealth:
    """Opens a card, counts its faults, resets and quarantines it. Used from one thread.

    Args:
        setup: of the card.

    Attributes:
        state: whether it accepts groups.
        n_faults: groups that failed.
        n_resets: resets.
        digest: SHA-256 of the weights as read back from the card; empty while it is out of service.
        ended: when set, no more kernels are started; may be set from any thread.
    """

    def __init__(self, setup: CardSetup) -> None:
        self._setup = setup
        self._card: OpenCard | None = None
        self._runner: CardRunner | None = None
        self._past = CardTimes()
        self._address = ""
        self._retry_at = 0.0
        self._n_in_a_row = self._n_quarantines = 0
        self._is_suspect = False  # reset, and nothing has succeeded since
        self.state = CardState.READY
        self.n_faults = self.n_resets = 0
        self.digest = ""
        self.ended = threading.Event()

    @property
    def available(self) -> bool:
        """Whether the card accepts groups."""
        return self.state is CardState.READY

    @property
    def is_due(self) -> bool:
        """Whether a quarantine is over, so that the card may be opened again."""
        return self.state is CardState.QUARANTINED and self._setup.clock() >= self._retry_at

    def out_of_service(self) -> DriverError:
        """The error for a group that the card cannot accept now."""
        what = f"card {self._setup.index} is out of service"
        if self.state is CardState.QUARANTINED:
            left_s = math.ceil(max(0.0, self._retry_at - self._setup.clock()))
            return DriverError(f"{what} for {left_s} s")
        return DriverError(f"{what}: {self.state}")

    @property
    def in_service(self) -> bool:
        """Whether the card is open and loaded."""
        return self._runner is not None

    def times(self) -> CardTimes:
        """Times of all transfers so far."""
        runner = self._runner  # another thread may call this while the card is being closed
        now = CardTimes() if runner is None else runner.times
        hidden_s = (
            self._past.hidden_s + now.hidden_s
        )  # read first, so that it cannot exceed the total
        past = self._past
        return CardTimes(past.total_s + now.total_s, hidden_s, past.run_s + now.run_s)

    def open(self, weights: Weights) -> None:
        """Open the card and upload its weights.

        Args:
            weights: of the model.

        Raises:
            DriverError: when either fails; the card is closed then.
        """
        try:
            self._card = self._setup.open()
            self._address = self._card.address() or self._address
            limits = self._setup.limits
            runner = CardRunner(self._card, self._setup.interfaces, limits.start_s, self.ended)
            self.digest = runner.load(weights)
            self._runner = runner
        except (DriverError, UserError):
            self._drop()
            raise
        self.state = CardState.READY

    def runner(self) -> CardRunner:
        """The opened card.

        Raises:
            DriverError: when it is out of service.
        """
        if self._runner is None:
            raise self.out_of_service()
        return self._runner

    def load(self, weights: Weights) -> None:
        """Change the weights.

        Raises:
            DriverError: when that fails, or the card is out of service.
        """
        self.digest = self.runner().load(weights)

    def succeeded(self) -> None:
        """Note that a group was computed and its results downloaded."""
        self._n_in_a_row = self._n_quarantines = 0
        self._is_suspect = False

    def failed(self, error: DriverError) -> bool:
        """Note that a group failed; a full memory bank is no fault of the card.

        Returns:
            Whether the card needs a reset.
        """
        if self._runner is None or isinstance(error, CardFull):
            return False
        self.n_faults += 1
        self._n_in_a_row += 1
        # A kernel that did not end may still write; a lost card does not respond at all.
        at_once = isinstance(error, DriverTimeout | DeviceLost)
        return at_once or self._n_in_a_row >= self._setup.limits.max_faults

    def recover(self, weights: Weights) -> None:
        """Reset and open the card, or quarantine it. Never raises a driver's error."""
        is_again = self._is_suspect and self.state is CardState.READY
        self.state, self._is_suspect = CardState.RECOVERING, True  # so that it accepts nothing
        self._drop()
        self._n_in_a_row = 0
        if is_again:
            self._quarantine("it failed again after a reset")
            return
        self.n_resets += 1
        try:
            self._setup.reset(self._address)
            self.open(weights)
        except (DriverError, UserError) as error:  # UserError: the bitstream was changed meanwhile
            self._quarantine(str(error))
            return
        logger.warning("card %d was reset and is back in service", self._setup.index)

    def close(self) -> None:
        """Close the card for good."""
        self._drop()
        self.state = CardState.CLOSED

    def _drop(self) -> None:
        past, self._runner = (
            self.times(),
            None,
        )  # its buffers and runs must be freed before the card
        self._past, self.digest = past, ""
        if self._card is not None:
            self._card.close()
            self._card = None

    def _quarantine(self, why: str) -> None:
        limits = self._setup.limits
        doubled = limits.quarantine_s * 2.0 ** min(self._n_quarantines, 30)
        length_s = min(doubled, limits.longest_quarantine_s)
        self._n_quarantines += 1
        self._retry_at = self._setup.clock() + length_s
        self.state = CardState.QUARANTINED
        logger.warning("card %d is out of service for %.0f s: %s", self._setup.index, length_s, why)


class Occupancy:
    """Share of time in which a card was busy, averaged exponentially over `OCCUPANCY_S`."""

    def __init__(self) -> None:
        self._share = 0.0
        self._is_busy = False
        self._since_s: float | None = None

    def set(self, is_busy: bool, now_s: float) -> None:
        """Note that the card is busy, or idle, from now on.

        Args:
            is_busy: whether it is busy.
            now_s: the time, s.
        """
        self._share, self._since_s = self.share(now_s), now_s
        self._is_busy = is_busy

    def share(self, now_s: float) -> float:
        """The share up to now, 0 to 1."""
        if self._since_s is None:
            return 0.0
        kept = math.exp(-max(0.0, now_s - self._since_s) / OCCUPANCY_S)
        return float(self._is_busy) + (self._share - float(self._is_busy)) * kept
