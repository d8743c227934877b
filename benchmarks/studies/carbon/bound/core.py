"""The part of the network that a schedule near the bound can use: few arcs of very many.

At a price, the least that any schedule costs which passes a state is known. Where that is above
some cost, no schedule below that cost passes it. What is left is small enough for a mixed-integer
programme, and nothing below that cost is lost.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from benchmarks.studies.carbon.bound.network import EpochNetwork, Values
from ecorl.controllers.clairvoyant.priced import BoolArray, IntArray
from ecorl.controllers.problem.table import PAUSE, FloatArray
from ecorl.controllers.problem.training import Kept

_ROUNDING = 1e-11
"""Share by which the same sum differs when it is taken in another order, amply."""

SINK = -1
"""Where a schedule goes with its last token."""


class Arcs(NamedTuple):
    """Epochs that may be spent: with which action, after which, and what that costs.

    An arc is broken where its epoch ends before its time, by the last token or the last one in low
    precision. How much of it comes before that is free; the rest is a pause, or after the end.

    Attributes:
        epoch: ``[n]``, number of the epoch.
        action: ``[n]``, its action.
        begin: ``[n]``, number of the state that it comes from.
        end: ``[n]``, number of the state that it leads to, or `SINK`.
        is_broken: ``[n]``, whether it is.
        cost_g: ``[n]``, emissions and lateness, of a broken one those that are not free, g.
        more_g: ``[n]``, of a broken one what it costs more if it lasts for its whole time, g.
        tokens: ``[n]``, trained in it, of a broken one if it lasts for its whole time.
        low_tokens: ``[n]``, those of them that the cap counts.
        least_g: ``[n]``, the least that a schedule with it costs at the price, g.
    """

    epoch: IntArray
    action: IntArray
    begin: IntArray
    end: IntArray
    is_broken: BoolArray
    cost_g: FloatArray
    more_g: FloatArray
    tokens: FloatArray
    low_tokens: FloatArray
    least_g: FloatArray

    def within(self, cut_g: float) -> Arcs:
        """Those that a schedule below a cost can use.

        Args:
            cut_g: the cost at the price, g.
        """
        kept = self.least_g <= cut_g
        return self._replace(**{name: part[kept] for name, part in self._asdict().items()})


class CoreNetwork:
    """Arcs of the network that may belong to a schedule near the bound.

    Args:
        network: the problem in whole epochs.
        values: least costs at a price.
    """

    def __init__(self, network: EpochNetwork, values: Values) -> None:
        self._network, self._values = network, values
        self._after = network.after_g(values)
        self._through = values.before + self._after
        self._worth = [network.worth(number, values.price) for number in range(len(network.phases))]
        self._rest_w = network.problem.draw_w(PAUSE)

    def cut_g(self, n_states: int) -> float:
        """The cost below which some states are left; infinite where there are no more states.

        Args:
            n_states: number of states.
        """
        costs = self._through.ravel()
        if n_states >= costs.size:
            return math.inf
        return float(np.partition(costs, n_states)[n_states])

    def n_states(self, cut_g: float) -> int:
        """Number of states that a schedule below a cost can pass.

        Args:
            cut_g: the cost at the price, g.
        """
        return int(np.count_nonzero(self._through <= cut_g))

    def arcs(self, cut_g: float) -> Arcs:
        """All arcs that a schedule below a cost can use.

        Args:
            cut_g: the cost at the price, g.
        """
        network = self._network
        cut_g += _ROUNDING * abs(cut_g)
        is_left = self._through <= cut_g
        parts: list[Arcs] = []
        for epoch in range(network.n_epochs):
            for phase, one in enumerate(network.phases):
                before = np.flatnonzero(is_left[epoch, phase])
                if not before.size:
                    continue
                after = np.flatnonzero(is_left[epoch + 1, phase])
                trains = np.flatnonzero(one.rates > 0.0)
                parts.append(self._whole(epoch, phase, before, after))
                if self._values.may_end[epoch]:
                    parts.append(self._last(epoch, phase, before, trains))
                low = np.flatnonzero(is_left[epoch + 1, -1] & (one.low_rates > 0.0))
                if low.size:
                    parts.append(self._using_up(epoch, before, low))
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in Arcs._fields
        }
        return Arcs(**columns).within(cut_g)

    # ------------------------------------------------------------ kinds of arcs

    def _whole(self, epoch: int, phase: int, before: IntArray, after: IntArray) -> Arcs:
        """Epochs that last for their whole time."""
        cost_g, useful_s = self._network.spent(epoch, phase, before, after)
        return self._built(epoch, (phase, phase), (before, after), cost_g, useful_s)

    def _using_up(self, epoch: int, before: IntArray, after: IntArray) -> Arcs:
        """Epochs in which the last tokens in low precision are trained."""
        whole_g, useful_s = self._network.spent(epoch, 0, before, after)
        cost_g, _ = self._network.spent(epoch, 1, before, after)
        return self._built(epoch, (0, 1), (before, after), cost_g, useful_s, whole_g - cost_g)

    def _last(self, epoch: int, phase: int, before: IntArray, after: IntArray) -> Arcs:
        """Epochs in which the last token is trained."""
        network = self._network
        whole_g, useful_s = network.spent(epoch, phase, before, after)
        length_s, c = network.seconds[epoch], network.g_per_j[epoch]
        trained_g = c * network.phases[phase].draw_w[after] * useful_s
        cost_g = whole_g - trained_g
        if network.problem.kept is Kept.DEADLINE:
            cost_g = cost_g + c * self._rest_w * useful_s
        late_g, later_g = network.late_within_g(epoch)
        change_late_g = (later_g - late_g) * (1.0 - useful_s / length_s)
        done_g = network.tail_g[epoch + 1] + late_g + change_late_g
        more_g = whole_g - cost_g + (later_g - late_g) - change_late_g
        return self._built(epoch, (phase, SINK), (before, after), cost_g + done_g, useful_s, more_g)

    def _built(
        self,
        epoch: int,
        phases: tuple[int, int],
        actions: tuple[IntArray, IntArray],
        cost_g: FloatArray,
        useful_s: FloatArray,
        more_g: FloatArray | None = None,
    ) -> Arcs:
        """Arcs from each action to each, with the least that a schedule with one costs."""
        network, (phase, to), (before, after) = self._network, phases, actions
        one, m, n_phases = network.phases[phase], len(network.actions), len(network.phases)
        is_end = to == SINK or epoch + 1 == network.n_epochs
        if to != SINK and is_end:
            cost_g = cost_g + self._after[-1, 0, 0]
        worth = self._worth[phase][after] * useful_s
        own_g = cost_g - worth if more_g is None else cost_g + np.minimum(0.0, more_g - worth)
        rest_g = 0.0 if is_end else self._after[epoch + 1, to, after]
        least_g = self._values.before[epoch, phase, before][:, None] + own_g + rest_g
        shape = cost_g.shape
        begin = (epoch * n_phases + phase) * m + before
        end = np.full_like(after, SINK) if is_end else ((epoch + 1) * n_phases + to) * m + after

        def flat(values: FloatArray | IntArray) -> Any:
            return np.broadcast_to(values, shape).ravel()

        return Arcs(
            epoch=np.full(cost_g.size, epoch),
            action=flat(after),
            begin=flat(begin[:, None]),
            end=flat(end),
            is_broken=np.full(cost_g.size, more_g is not None),
            cost_g=flat(cost_g),
            more_g=flat(np.zeros(shape) if more_g is None else more_g),
            tokens=flat(one.rates[after] * useful_s),
            low_tokens=flat(one.low_rates[after] * useful_s),
            least_g=flat(least_g),
        )
