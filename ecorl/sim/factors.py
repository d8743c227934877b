"""True costs over those of the tables, stage by stage and device by device.

The same arithmetic serves the truth (what a job's stages really cost) and what a run believes of it
(what it has measured, over what its tables say).
"""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.records import Stage
from ecorl.scheduler.tables import Float64
from ecorl.stages import Number, Work

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
