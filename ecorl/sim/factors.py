"""True costs over those of the tables, stage by stage and device by device.

The same arithmetic serves the truth (what a job's stages really cost) and what a run believes of it
(what it has measured, over what its tables say).

A reading is what a stage took over what its table says of the same batch, so that longer rows do
not pass for slower ones. As in a run (`ecorl.edi`), the first execution of a stage on a device
counts in no recent figure, and an execution that failed has none. What is believed of the next one
is `ecorl.statistics.expected`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ecorl.records import Stage
from ecorl.scheduler.measured.readings import UNREAD, Readings, level
from ecorl.scheduler.tables import Float64
from ecorl.stages.figures import Carry, Number, Ops, Work
from ecorl.statistics import FADING_BATCHES, SCATTER_SHARE, recent_weight

PATHS = (
    *((stage, False) for stage in Stage),
    *((stage, True) for stage in (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)),
)
"""Stages and whether they run on the cards: the places of a factor on times."""

N_TIMES = len(PATHS)
ON_CARD = len(Stage)
"""Place of the first factor of the cards' times; those of the GPUs' stages come before."""

N_POWERS = len(Stage) + 1
"""Factors on mean power: each stage on the GPUs, and the cards."""
CARD_POWER = len(Stage)

GPU_PLACE = {stage: place for place, (stage, on_card) in enumerate(PATHS) if not on_card}
CARD_PLACE = {stage: place for place, (stage, on_card) in enumerate(PATHS) if on_card}

_GENERATION, _REWARD = GPU_PLACE[Stage.GENERATION], GPU_PLACE[Stage.REWARD]
_ACTOR, _CRITIC = GPU_PLACE[Stage.ACTOR_TRAIN], GPU_PLACE[Stage.CRITIC_TRAIN]


def scaled(work: Work, time: Sequence[Number] | Float64, power: Sequence[Number] | Float64) -> Work:
    """Scale the costs of an iteration's stages.

    Args:
        work: as the tables have them.
        time: `N_TIMES` factors on times, in the order of `PATHS`.
        power: `N_POWERS` factors on mean power over these times.
    """
    joules = [time[place] * power[place] for place in range(ON_CARD)]
    inference = range(_REWARD, _REWARD + len(work.gpu_s))
    return work._replace(
        generation_s=work.generation_s * time[_GENERATION],
        generation_j=work.generation_j * joules[_GENERATION],
        handover_s=tuple(s * time[_GENERATION] for s in work.handover_s),
        gpu_s=tuple(s * time[i] for s, i in zip(work.gpu_s, inference, strict=True)),
        gpu_j=tuple(j * joules[i] for j, i in zip(work.gpu_j, inference, strict=True)),
        card_s=tuple(s * time[ON_CARD + i] for i, s in enumerate(work.card_s)),
        forward_s=work.forward_s * time[_ACTOR],
        backward_s=work.backward_s * time[_ACTOR],
        actor_j=work.actor_j * joules[_ACTOR],
        early_s=work.early_s * time[_ACTOR],
        early_j=work.early_j * joules[_ACTOR],
        critic_s=work.critic_s * time[_CRITIC],
        critic_j=work.critic_j * joules[_CRITIC],
        swap_s=work.swap_s * time[_CRITIC],
        swap_j=work.swap_j * joules[_CRITIC],
        card_active_w=work.card_active_w * power[CARD_POWER],
    )


def expected_of_all(recent: Float64, mean: Float64, spread: Float64, age: Float64) -> Float64:
    """Compute `ecorl.statistics.expected` for many at once; a test holds both to each other.

    Args:
        recent: recent means; arrays of one shape, as all of these.
        mean: plain means of the same readings.
        spread: their standard deviations over their means.
        age: batches since the newest of them.
    """
    off = recent - mean
    by_chance = SCATTER_SHARE * (spread * mean) ** 2
    kept = np.maximum(0.0, 1.0 - by_chance / np.maximum(off * off, _TINY))
    fading = np.exp(-np.maximum(0.0, age - 1.0) / FADING_BATCHES)
    return np.asarray(mean + off * kept * fading)


_TINY = 1e-300


class Beliefs:
    """Readings of each stage on each device.

    Args:
        shape: of the episodes side by side: ``(n,)``, or ``()`` for one alone.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._ratio = np.ones((N_TIMES, *shape))
        self._m2 = np.zeros((N_TIMES, *shape))
        self._mean = np.ones((N_TIMES, *shape))
        self._count = np.zeros((N_TIMES, *shape))
        self._newest = np.zeros((N_TIMES, *shape))
        self._power = np.ones((N_TIMES, *shape))
        self._now = 0
        self._expected = np.ones((N_TIMES, *shape))
        self._spread = np.zeros((N_TIMES, *shape))
        self.time = np.ones((N_TIMES, *shape))
        self.power = np.ones((N_POWERS, *shape))

    def read(self, used: Float64, time: Float64, power: Float64) -> None:
        """Take over the readings of an iteration.

        Args:
            used: ``[N_TIMES, ...]``: 1 where the stage ran on the device, else 0.
            time: ``[N_TIMES, ...]``: measured times over those of the tables.
            power: ``[N_POWERS, ...]``: measured mean powers likewise.
        """
        self._count += used
        n = self._count - 1.0  # the first execution counts in nothing
        counts = used * (n > 0.0)
        weight = counts * recent_weight(np.maximum(n, 1.0), np.maximum)
        self._ratio += weight * (time - self._ratio)
        of_path = power[_POWER_OF_PATH]
        self._power += weight * (of_path - self._power)
        # Welford, over all readings after the first.
        off = time - self._mean
        self._mean += counts / np.maximum(n, 1.0) * off
        self._m2 += counts * off * (time - self._mean)
        self._newest += used * (self._now - self._newest)
        self._now += 1
        recent = np.maximum(n, 0.0)
        # The sum of squares of a single reading is 0 but for rounding, which may be below it.
        squares = np.maximum(self._m2, 0.0) * (recent > 1.0)
        self._spread = np.sqrt(squares / np.maximum(recent - 1.0, 1.0)) / self._mean
        # A decision of batch k sees a reading of batch k - 1 as one batch old.
        age = self._now - self._newest
        self._expected = expected_of_all(self._ratio, self._mean, self._spread, age)
        self.time = level(self._expected, recent)
        joules = level(self._expected * self._power, recent) / self.time
        self.power[:ON_CARD] = joules[:ON_CARD]
        known = (recent[ON_CARD:] > 0.0) * 1.0
        total = np.maximum(known.sum(axis=0), 1.0)
        self.power[CARD_POWER] = 1.0 + ((joules[ON_CARD:] - 1.0) * known).sum(axis=0) / total

    def believed(self, work: Work) -> Work:
        """Compute what the stages of an iteration are believed to cost.

        Args:
            work: as the tables have them.
        """
        if self.time.ndim > 1:
            return scaled(work, self.time, self.power)
        return scaled(work, self.time.tolist(), self.power.tolist())

    def readings(self, stage: Stage) -> tuple[Readings, Readings]:
        """Return what has been measured of a stage, on the GPUs and on the cards."""
        on_card = self._of(CARD_PLACE[stage]) if stage in CARD_PLACE else UNREAD
        return self._of(GPU_PLACE[stage]), on_card

    def _of(self, place: int) -> Readings:
        count = np.maximum(self._count[place] - 1.0, 0.0)
        known, ratio = count > 0.0, self._expected[place]
        made = Readings(
            ratio=np.where(known, ratio, 1.0),
            j_ratio=np.where(known, ratio * self._power[place], 1.0),
            spread=self._spread[place],
            count=count,
            age=(self._now - self._newest[place]) * known,
        )
        return made if self.time.ndim > 1 else Readings._make(map(float, made))


_POWER_OF_PATH = np.array(
    [min(place, CARD_POWER) for place in range(N_TIMES)],
)


_REVEALED = (
    "generation_s", "generation_j", "handover_s", "tail", "gpu_s", "gpu_j", "card_s",
    "forward_s", "backward_s", "actor_j", "early_s", "early_j", "critic_s", "critic_j",
    "swap_s", "swap_j", "late_arriving_s", "lost",
)  # fmt: skip
"""What of a batch is only expected until its rows are there. What the cards lose in this iteration
is part of it: nobody sees a failure before it happens."""


def picked_carry(streaming: Number, hoped: Carry, real: Carry) -> Carry:
    """Return `hoped` where rows are streamed, else `real`.

    Args:
        streaming: 1 where rows are streamed, else 0.
        hoped: the iteration so far at the lengths that are expected.
        real: the same at the real ones.
    """
    if isinstance(streaming, float):
        return hoped if streaming else real
    picked = streaming > 0.0
    return Carry._make(np.where(picked, a, b) for a, b in zip(hoped, real, strict=True))


def mixed(streaming: Number, expected: Work, actual: Work, ops: Ops) -> Work:
    """Return what is known of the costs: where rows are streamed what is expected, else the real.

    Args:
        streaming: 1 where rows are streamed, else 0.
        expected: costs at the lengths that are expected.
        actual: costs at the real ones.
        ops: `SCALAR` for floats, `BATCH` for arrays.
    """
    if not ops.any(streaming):
        return actual._replace(lost=expected.lost)
    if isinstance(streaming, float):
        return expected
    picked = streaming > 0.0

    def mix(hoped: Any, real: Any) -> Any:
        if isinstance(real, tuple):
            return tuple(map(mix, hoped, real))
        return np.where(picked, hoped, real)

    changed = {name: mix(getattr(expected, name), getattr(actual, name)) for name in _REVEALED}
    return actual._replace(**changed | {"lost": expected.lost})
