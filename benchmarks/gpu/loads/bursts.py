"""Loads of a known duty for looking at sensors: the same kernels each time, on and off in time."""

from __future__ import annotations

import random
import time

import torch

SIDE = 4096
"""Side of the square product that a burst repeats: some 0.2 ms on an H100."""

_LEAD_S = 0.002
"""Time before a due moment from which the clock is watched instead of slept for, s."""


class Burner:
    """Multiplies matrices for as long as it is told.

    Args:
        device: that is loaded.
        side: of the square matrices.
    """

    def __init__(self, device: torch.device, side: int = SIDE) -> None:
        make = torch.Generator(device).manual_seed(0)
        sizes = (side, side)
        self._a = torch.randn(sizes, generator=make, device=device).to(torch.bfloat16)
        self._b = torch.randn(sizes, generator=make, device=device).to(torch.bfloat16)
        self._out = torch.empty_like(self._a)
        self._is_cuda = device.type == "cuda"
        self._n_per_s = 0.0

    def wait(self) -> None:
        """Wait until the GPU has done all that was launched."""
        if self._is_cuda:
            torch.cuda.synchronize()

    def calibrate(self, length_s: float = 1.0) -> None:
        """Find how many products the device does in a second, warm.

        Args:
            length_s: how long to try, s.
        """
        self.run(32)
        start_s, n_done = time.monotonic(), 0
        while time.monotonic() - start_s < length_s:
            self.run(32)
            n_done += 32
        self._n_per_s = n_done / (time.monotonic() - start_s)

    def count(self, length_s: float) -> int:
        """Products that take about so long.

        Args:
            length_s: s; `calibrate` was called before.
        """
        return max(1, round(length_s * self._n_per_s))

    def run(self, n_products: int) -> None:
        """Do some products and wait for them.

        Args:
            n_products: how many.
        """
        for _ in range(n_products):
            torch.mm(self._a, self._b, out=self._out)
        self.wait()

    def steady(self, length_s: float) -> tuple[float, float]:
        """Load the device all the while; returns begin and end, monotonic s.

        Args:
            length_s: about how long, s.
        """
        left, piece = self.count(length_s), self.count(0.02)
        self.wait()
        start_s = time.monotonic()
        while left > 0:
            self.run(min(piece, left))
            left -= piece
        return start_s, time.monotonic()

    def periodic(
        self, period_s: float, duty: float, n_periods: int, phase: float
    ) -> tuple[float, float]:
        """Load the device for a share of each period; returns begin and end, monotonic s.

        The bursts begin on a grid of whole periods since the clock's zero, moved by the phase.
        Between them the GPU stands idle.

        Args:
            period_s: from one burst to the next, s.
            duty: share of the period in which it is loaded.
            n_periods: how many bursts.
            phase: by which share of a period the bursts are moved, 0 to 1.
        """
        n_products = self.count(duty * period_s)
        self.wait()
        first = (time.monotonic() + 0.01) // period_s + 1 + phase
        for number in range(n_periods):
            _wait_until((first + number) * period_s)
            self.run(n_products)
        end_s = (first + n_periods) * period_s
        _wait_until(end_s)
        return first * period_s, end_s

    def restless(self, length_s: float, seed: int = 0) -> tuple[float, float]:
        """Load the device for random times, so that its power is never the same for long.

        Args:
            length_s: how long, s.
            seed: of the times.
        """
        chance = random.Random(seed)
        start_s = time.monotonic()
        while time.monotonic() - start_s < length_s:
            self.run(self.count(chance.uniform(0.005, 0.06)))
            time.sleep(chance.uniform(0.002, 0.06))
        return start_s, time.monotonic()


def _wait_until(due_s: float) -> None:
    """Sleep until shortly before a moment of the monotonic clock, then watch the clock."""
    rest_s = due_s - time.monotonic() - _LEAD_S
    if rest_s > 0:
        time.sleep(rest_s)
    while time.monotonic() < due_s:
        pass
