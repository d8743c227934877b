"""What the EcoRL-Sched paper prints of its scheduler, and where its figures do not fit each other.

Claims and slips lie in ``ecorl_sched.toml``. Nothing of our simulator is in what is derived but
where a reason says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.studies.papers.claims import claim_of, read_file
from ecorl.devices import load_profile
from ecorl.devices.llama import model_shape
from ecorl.devices.paper import U55C_TOKENS_PER_J
from ecorl.records import Stage
from ecorl.scheduler.paper_table import (
    GENERATION_W,
    INFERENCE_W,
    ITERATION_S,
    N_GPUS,
    SHARES,
    TRAINING_W,
)

_FOUND = read_file("ecorl_sched.toml")

FIGURES: Mapping[str, Any] = _FOUND["figures"]
"""Printed figures that others are derived from, by name."""

FEW, MANY = 16.0, 1024.0
_INFERENCE = (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)
_TRAINING = (Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN)


def inference_energy_share() -> float:
    """Inference's share of an iteration's energy under the paper's shares of time and powers."""
    generation = SHARES[Stage.GENERATION] * GENERATION_W
    inference = sum(SHARES[s] for s in _INFERENCE) * INFERENCE_W
    training = sum(SHARES[s] for s in _TRAINING) * TRAINING_W
    return inference / (generation + inference + training)


def strong_scaling(message: float) -> float:
    """Efficiency from 16 to 1,024 GPUs in the paper's T(N) with a smaller all-reduce.

    ``T(N) = C 16 / N + a 2 (N - 1) / N``; a / C is what gives the baseline its printed efficiency.

    Args:
        message: factor on the all-reduce.
    """
    baseline = FIGURES["scaling_baseline"]
    few, many = 2.0 * (FEW - 1.0) / FEW, 2.0 * (MANY - 1.0) / MANY * MANY / FEW
    a = (1.0 - baseline) / (baseline * many - few)
    return float((1.0 + message * a * few) / (1.0 + message * a * many))


def message_for(efficiency: float) -> float:
    """Factor on the all-reduce that gives an efficiency, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if strong_scaling(middle) > efficiency else (low, middle)
    return high


_GPU = load_profile("h100_sxm")
_NAMES = {
    **FIGURES,
    "inference_energy": inference_energy_share(),
    "inference_time": sum(SHARES[s] for s in _INFERENCE),
    "iteration_s": ITERATION_S,
    "n_gpus": N_GPUS,
    "n_stages": len(Stage),
    "card_tokens_per_j": U55C_TOKENS_PER_J,
    "peak_ops_per_s": _GPU.value("peak_bf16_flops"),
    "peak_w": _GPU.value("active_w"),
    "gpu_bytes": _GPU.value("memory_bytes"),
    "policy_params": 70e9,
    "params_8b": model_shape("8b").n_params,
    "params_405b": model_shape("405b").n_params,
    "strong_scaling": strong_scaling,
    "message_for": message_for,
}
"""What a derivation may name."""

CLAIMS = tuple(claim_of(entry, _NAMES, _FOUND["reasons"]) for entry in _FOUND["claims"])

SLIPS = tuple(
    claim_of({**entry, "id": f"slip_{entry['id']}"}, _NAMES, {}) for entry in _FOUND["slips"]
)
"""Printed figures that are held against the paper's others, in the order of the table."""
