"""Printed figures of the EcoRL-Sched paper that follow, or do not, from its other figures.

Every derived value is computed here from what is printed; nothing of our simulator is in it but
where a reason says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.studies.papers.printed import FIGURES, SLIPS, printed_value, with_place
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

_INFERENCE = (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)
_TRAINING = (Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN)
_POLICY_PARAMS = 70e9
_TRAIN_BYTES = 16.0
"""A parameter in mixed-precision AdamW: weight, gradient, master copy and two moments."""


@dataclass(frozen=True, slots=True)
class Slip:
    """One printed figure against the paper's others.

    Attributes:
        id: of its figures: ``paper.slip_<id>.printed`` and ``.derived``.
        text: what is printed, with the place.
        unit: of both.
        printed: as printed.
        derived: what the paper's other figures give.
        why: how.
    """

    id: str
    text: str
    unit: str
    printed: float
    derived: float
    why: str


def slips() -> tuple[Slip, ...]:
    """Derive every slip's figure from the paper's others, those that agree included.

    Raises:
        KeyError: when a printed figure has no derivation here.
    """
    derived = _bounds() | _against_one_another() | _volumes() | _scaling() | _right()
    found = []
    for entry in SLIPS:
        printed = printed_value(entry)
        assert isinstance(printed, float)  # no slip is a range
        id = entry["id"]
        found.append(
            Slip(id, with_place(entry), entry["unit"], printed, float(derived[id]), entry["why"])
        )
    return tuple(found)


def inference_energy_share() -> float:
    """Inference's share of an iteration's energy under the paper's shares of time and powers."""
    generation = SHARES[Stage.GENERATION] * GENERATION_W
    inference = sum(SHARES[s] for s in _INFERENCE) * INFERENCE_W
    training = sum(SHARES[s] for s in _TRAINING) * TRAINING_W
    return inference / (generation + inference + training)


def _bounds() -> dict[str, float]:
    """What the whole can be at most, given its parts."""
    gpu = load_profile("h100_sxm")
    peak_ops_per_j = gpu.value("peak_bf16_flops") / gpu.value("active_w")
    return {
        "amdahl_energy": 1.0 / (1.0 - inference_energy_share()),
        "amdahl_speed": 1.0 / (1.0 - sum(SHARES[s] for s in _INFERENCE)),
        "reclaimed_speed": ITERATION_S / (ITERATION_S - FIGURES["reclaimed_s"]),
        "two_passes": U55C_TOKENS_PER_J / 2.0,
        # Training takes 6 N operations a token.
        "training_ops": peak_ops_per_j / (6.0 * _POLICY_PARAMS),
    }


def _against_one_another() -> dict[str, float]:
    """Two printed figures of one thing."""
    p = FIGURES
    gain = p["tokens_per_j"] - p["tokens_per_j_dschat"]
    return {
        "cut_from_ratio": 1.0 - 1.0 / p["tokens_per_j_ratio"],
        "cut_from_co2": 1.0 - p["co2_after_kg"] / p["co2_before_kg"],
        "speedup_table_5": p["speedup_table_5"],
        "speedup_abstract": p["speedup_abstract"],
        "gain_table_5": gain,
        "oracle_gap": 1.0 - p["oracle_share"],
        "sft_gap": gain / (p["tokens_per_j_sft"] - p["tokens_per_j_dschat"]),
    }


def _volumes() -> dict[str, float]:
    """Tokens, operations and bytes that the printed rates imply."""
    p = FIGURES
    gpu = load_profile("h100_sxm")
    samples_per_s = p["samples_per_s_per_gpu"] * N_GPUS
    tokens_per_s = p["tokens_per_j"] * N_GPUS * p["gpu_w"]
    forward_ops = 2.0 * _POLICY_PARAMS * p["forward_rows"] * p["forward_tokens"]
    big_bytes = model_shape("405b").n_params * _TRAIN_BYTES
    return {
        "tokens_per_sample": tokens_per_s / samples_per_s,
        "rows_per_iteration": samples_per_s * ITERATION_S,
        "forward_ms": 1e3 * forward_ops / (N_GPUS * gpu.value("peak_bf16_flops")),
        "card_latency_ms": sum(p["card_parts_ms"]),
        "two_models_gb": 2.0 * model_shape("8b").n_params / 1e9,
        "gpus_405b": big_bytes / gpu.value("memory_bytes"),
    }


FEW, MANY = 16.0, 1024.0


def strong_scaling(message: float, baseline: float = FIGURES["scaling_baseline"]) -> float:
    """Efficiency from 16 to 1,024 GPUs in the paper's T(N) with a smaller all-reduce.

    ``T(N) = C 16 / N + a 2 (N - 1) / N``; a / C is what gives the baseline its printed efficiency.

    Args:
        message: factor on the all-reduce.
        baseline: printed efficiency without it.
    """
    few, many = 2.0 * (FEW - 1.0) / FEW, 2.0 * (MANY - 1.0) / MANY * MANY / FEW
    a = (1.0 - baseline) / (baseline * many - few)
    return (1.0 + message * a * few) / (1.0 + message * a * many)


def message_for(efficiency: float) -> float:
    """Factor on the all-reduce that gives an efficiency, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if strong_scaling(middle) > efficiency else (low, middle)
    return high


def _scaling() -> dict[str, float]:
    """The printed efficiency and the printed cut of the message, each from the other."""
    return {
        "scaling": strong_scaling(1.0 - FIGURES["message_cut"]),
        "message_cut": 1.0 - message_for(FIGURES["scaling"]),
    }


def _right() -> dict[str, float]:
    """Figures that the others confirm."""
    p = FIGURES
    n_stages = len(Stage)
    return {
        "waterfall": p["tokens_per_j_rlhfuse"] + sum(p["rungs_tokens_per_j"]),
        "state_size": 2.0 * N_GPUS + 1.0 + n_stages + 1.0,
        "overhead": n_stages * p["decision_s"] / ITERATION_S,
    }
