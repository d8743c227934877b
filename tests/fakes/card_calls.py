"""How long kernel calls take one after the other, by the cycle model."""

from __future__ import annotations

from ecorl.engines.fpga.cycles.kernels import call_cost


def calls_s(model, calls):
    """Time of calls, each with how often it comes, s."""
    card = model.card
    cycles = (n * call_cost(call, card.memory, card.ii, card.n_arrays).cycles for call, n in calls)
    return sum(cycles) / card.clock_hz
