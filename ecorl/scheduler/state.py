"""The state of Eq. 6 as numbers for a learned policy.

s = [p_1..p_N, u_1..u_N, q_fpga, one-hot stage (6), length]      72 numbers at N = 32

The paper calls the length that of generated sequences; here it is the mean of whole rows, prompt
and completion, the same as the guard's (`ecorl.scheduler.algorithm1` says why). A policy that was
trained on completion lengths alone reads longer rows here than it learned from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ecorl.errors import ConfigError
from ecorl.records import SchedulerState, Stage

UNKNOWN_SHARE = 0.5
"""Stands for a share of which no GPU has a reading: the middle of its range. Invented: NaN would
poison a policy, and 0 would claim that the GPU is idle."""

_STAGES = list(Stage)


def state_size(n_gpus: int = 32) -> int:
    """Length of the encoded state: ``2 N + 1 + 6 + 1``."""
    return 2 * n_gpus + 1 + len(_STAGES) + 1


def encode(
    state: SchedulerState, n_gpus: int = 32, q_max: int = 8, l_max: int = 2048
) -> npt.NDArray[np.float32]:
    """Encode a state for a policy (Eq. 6).

    A missing power or utilisation becomes the mean of the GPUs that have one, or `UNKNOWN_SHARE`
    when none has. Places of GPUs that do not exist (fewer than `n_gpus`) are 0. Shares are clipped
    to 0..2 (a board may exceed its TDP for moments). Queue and length are in units of the guards'
    limits and not clipped, so that 1.0 is the limit and a policy sees how far beyond it stands.

    Args:
        state: the state to encode.
        n_gpus: GPUs that the encoding has places for.
        q_max: queue at which the guard stops offloading, batches.
        l_max: mean row length at which it does, prompt and completion, tokens.

    Returns:
        ``[2 n_gpus + 8] float32``, always finite.

    Raises:
        ConfigError: when the state has more GPUs than places, or a limit is below 1.
    """
    n_known = max(len(state.gpu_power_share), len(state.gpu_utilisation))
    if n_known > n_gpus:
        raise ConfigError("n_gpus", n_gpus, f"at least the {n_known} GPUs of the state")
    if q_max < 1 or l_max < 1:
        raise ConfigError("placement.q_max, l_max", (q_max, l_max), "1 or more each")
    encoded = np.zeros(state_size(n_gpus), dtype=np.float32)
    power, utilisation = _filled(state.gpu_power_share), _filled(state.gpu_utilisation)
    encoded[: len(power)] = power
    encoded[n_gpus : n_gpus + len(utilisation)] = utilisation
    encoded[2 * n_gpus] = state.fpga_queue / q_max
    encoded[2 * n_gpus + 1 + _STAGES.index(state.stage)] = 1.0
    encoded[-1] = state.work.mean_length / l_max
    return encoded


def _filled(shares: Sequence[float | None]) -> list[float]:
    known = [min(max(s, 0.0), 2.0) for s in shares if s is not None and math.isfinite(s)]
    stand_in = sum(known) / len(known) if known else UNKNOWN_SHARE
    return [
        min(max(s, 0.0), 2.0) if s is not None and math.isfinite(s) else stand_in for s in shares
    ]
