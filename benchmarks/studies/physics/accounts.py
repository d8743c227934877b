"""Four ways to charge idle power for one scoring pass to a card or to a GPU.

- *there anyway* (without the GPU's idle power): the GPU is there for training, which pays its idle
  power either way. The GPU path pays what the pass draws above idle; the card path pays the card's
  whole board while it works.
- *dedicated* at a duty d (with the GPU's idle power): the GPU is there for these passes alone and
  works the share d of the time, so a pass comes every ``period = GPU time / d``. The GPU path pays
  the pass and the idle power of the rest of the period; the card path pays the card's pass and the
  card's idle power for what its pass leaves of the period. A card that takes longer than a period
  shares the passes with others: as many as it takes, none of them ever idle.

The host's power is in neither path, nor are switches, cooling and the buying of either device.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.studies.physics.passes import Pass


@dataclass(frozen=True, slots=True)
class ChargingRule:
    """One way to charge a pass.

    Attributes:
        key: in JSON.
        title: in tables.
        duty: share of the time that the GPU works; None where it is there anyway.
    """

    key: str
    title: str
    duty: float | None

    def energies(self, gpu: Pass, card: Pass) -> tuple[float, float]:
        """Charge one pass to the GPU path and to the card path.

        Args:
            gpu: the GPU's pass.
            card: the card's pass.

        Returns:
            Joules of both.
        """
        if self.duty is None:
            return gpu.above_idle_j, card.energy_j
        return dedicated(gpu, card, gpu.time_s / self.duty)


def dedicated(gpu: Pass, card: Pass, period_s: float) -> tuple[float, float]:
    """Charge a period to a GPU, and to a card, that are there for one pass a period alone.

    Args:
        gpu: the GPU's pass.
        card: the card's pass.
        period_s: time from one pass to the next, s.

    Returns:
        Joules of both.
    """
    gpu_j = gpu.above_idle_j + gpu.idle_w * period_s
    card_j = card.above_idle_j + card.idle_w * max(period_s, card.time_s)
    return gpu_j, card_j


def break_even_duty(gpu: Pass, card: Pass) -> float | None:
    """Find the largest duty of a dedicated GPU at which the card takes no more joules than it.

    The longer the period, the better the card, where its idle power is the smaller. None where it
    is not and the card never gets there; at most 1.

    Args:
        gpu: the GPU's pass.
        card: the card's pass.
    """
    if _wins(gpu, card, gpu.time_s):
        return 1.0
    if card.time_s > gpu.time_s and _wins(gpu, card, card.time_s):  # it never idles till then
        period_s = (card.energy_j - gpu.above_idle_j) / gpu.idle_w
    elif gpu.idle_w > card.idle_w:
        period_s = (card.above_idle_j - gpu.above_idle_j) / (gpu.idle_w - card.idle_w)
    else:
        return None
    return gpu.time_s / period_s


def _wins(gpu: Pass, card: Pass, period_s: float) -> bool:
    gpu_j, card_j = dedicated(gpu, card, period_s)
    return card_j <= gpu_j


ANYWAY = ChargingRule("gpu_there_anyway", "GPU there anyway", None)
ALWAYS = ChargingRule("dedicated_duty_1", "dedicated, duty 1", 1.0)
TENTH = ChargingRule("dedicated_duty_0.1", "dedicated, duty 0.1", 0.1)
HUNDREDTH = ChargingRule("dedicated_duty_0.01", "dedicated, duty 0.01", 0.01)
ACCOUNTINGS = (ANYWAY, ALWAYS, TENTH, HUNDREDTH)
BUSY_ENOUGH = (ANYWAY, ALWAYS, TENTH)
"""Those in which the GPU works at least a tenth of the time; a duty of 0.01 is a quarter of an hour
a day, which nobody keeps an H100 for."""
