"""Printed figures of the EcoRL-Sched paper that follow, or do not, from its other figures.

Every derived value is computed here from what is printed; nothing of our simulator is in it but
where a reason says so.
"""

from __future__ import annotations

from dataclasses import dataclass

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

GPU_W = 700.0
SAMPLES_PER_S = 1.63 * N_GPUS
"""The paper, sections 1 and 4.2."""


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
    """All of them, those that agree included."""
    return (*_bounds(), *_against_one_another(), *_volumes(), *_scaling(), *_right())


def inference_energy_share() -> float:
    """Inference's share of an iteration's energy under the paper's shares of time and powers."""
    generation = SHARES[Stage.GENERATION] * GENERATION_W
    inference = sum(SHARES[s] for s in _INFERENCE) * INFERENCE_W
    training = sum(SHARES[s] for s in _TRAINING) * TRAINING_W
    return inference / (generation + inference + training)


def _bounds() -> tuple[Slip, ...]:
    inference_s = sum(SHARES[s] for s in _INFERENCE)
    gpu = load_profile("h100_sxm")
    peak_ops_per_j = gpu.value("peak_bf16_flops") / gpu.value("active_w")
    free_speed = ITERATION_S / (ITERATION_S - 3.8)
    return (
        Slip("amdahl_energy", "Tokens/J over RLHFuse, 28.7 / 18.6 (section 4.5)", "1", 28.7 / 18.6,
             1.0 / (1.0 - inference_energy_share()),
             "Inference is 21 % of the time at 60 to 75 % less power: a tenth of the energy. Were "
             "it free, tokens/J would rise by this factor (420 W while decoding is assumed)."),
        Slip("amdahl_speed", "Throughput over RLHFuse (section 4.2)", "1", 1.38,
             1.0 / (1.0 - inference_s),
             "Inference is 21 % of the time (section 1). Were all of it free, this is the speed."),
        Slip("reclaimed_speed", "Throughput over RLHFuse (section 4.2)", "1", 1.38, free_speed,
             "Fig. 1A reclaims 3.8 s of an iteration of 21 s."),
        Slip("two_passes", "Tokens/J of EcoRL-Sched (section 4.2)", "token/J", 28.7,
             U55C_TOKENS_PER_J / 2.0,
             "Each token passes reward and reference at 13.7 tokens/J each. Those two alone keep "
             "the whole below this."),
        Slip("training_ops", "Tokens/J of EcoRL-Sched, 70 B (section 4.2)", "token/J", 28.7,
             peak_ops_per_j / (6.0 * _POLICY_PARAMS),
             "Training takes 6 N operations a token. An H100 at its full peak and 700 W does this "
             "many tokens a joule with training alone; the SFT rows of Table 6 exceed it alike."),
    )  # fmt: skip


def _against_one_another() -> tuple[Slip, ...]:
    return (
        Slip("cut_from_ratio", "Energy reduction (abstract)", "1", 0.384, 1.0 - 1.0 / 4.63,
             "4.63 times the tokens per joule of DeepSpeed-Chat are this reduction at equal "
             "tokens."),
        Slip("cut_from_co2", "Energy reduction (abstract)", "1", 0.384, 1.0 - 204.0 / 342.0,
             "342 to 204 kg CO2e at a fixed PUE and grid must be the same reduction."),
        Slip("speedup_table_5", "Speedup over DeepSpeed-Chat, 70 B, 32 H100 (section 4.2)", "1",
             3.97, 9.4, "Table 5 prints this for the same default configuration."),
        Slip("speedup_abstract", "Speedup over DeepSpeed-Chat (section 4.2)", "1", 3.97, 14.6,
             "The abstract and section 6 print this on the same 32-GPU cluster."),
        Slip("gain_table_5", "Tokens/J above DeepSpeed-Chat, default (Table 5)", "token/J", 14.5,
             28.7 - 6.2, "Table 6 prints 28.7 and 6.2."),
        Slip("oracle_gap", "Gap to the oracle (Fig. 8C)", "1", 0.08, 1.0 - 0.83,
             "The same caption prints 83 % for the scheduler."),
        Slip("sft_gap", "Share of the energy gap to SFT that is closed (section 4.8)", "1", 0.71,
             (28.7 - 6.2) / (32.1 - 6.2),
             "From 6.2, 28.7 and 32.1 tokens/J of Table 6; in joules a token it is 97 %."),
    )  # fmt: skip


def _volumes() -> tuple[Slip, ...]:
    shape = model_shape("8b")
    big = model_shape("405b").n_params * _TRAIN_BYTES
    memory = load_profile("h100_sxm").value("memory_bytes")
    peak = load_profile("h100_sxm").value("peak_bf16_flops")
    return (
        Slip("tokens_per_sample", "Longest mean length that is offloaded (Lemma 1)", "token",
             2048.0, 28.7 * N_GPUS * GPU_W / SAMPLES_PER_S,
             "28.7 tokens/J at 32 x 700 W are 643,000 tokens/s; at 52.2 samples/s each has this "
             "many tokens, so nothing would ever be offloaded."),
        Slip("rows_per_iteration", "Rollout batch (Table A1: 256, per GPU)", "1", 256.0,
             SAMPLES_PER_S * ITERATION_S,
             "52.2 samples/s over an iteration of 21 s; neither 256 nor 256 x 32 = 8,192."),
        Slip("forward_ms", "Forward pass that hides the cards' work, 70 B, batch 32 (section 3.1)",
             "ms", 14.8, 1e3 * 2.0 * _POLICY_PARAMS * 32 * 512 / (N_GPUS * peak),
             "2 N operations for 32 rows of 512 tokens at the full peak of all 32 H100."),
        Slip("card_latency_ms", "Cards' latency at batch 32 (Lemma 1)", "ms", 6.3, 4.2 + 2.1 + 0.8,
             "Fig. 3C adds up the same three parts and prints 7.1 ms."),
        Slip("two_models_gb", "HBM of a card that holds reward and reference (Table 2)", "GB", 16.0,
             2.0 * shape.n_params / 1e9,
             "Weights of two 8 B models in INT8, without activations and caches."),
        Slip("gpus_405b", "GPUs of the cluster that trains 405 B (abstract)", "1", 32.0,
             big / memory,
             "Weights, gradients and AdamW states at 16 B a parameter over 80 GB a GPU."),
    )  # fmt: skip


FEW, MANY = 16.0, 1024.0


def strong_scaling(message: float, baseline: float = 0.31) -> float:
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


def _scaling() -> tuple[Slip, ...]:
    return (
        Slip("scaling", "Strong scaling efficiency at 1,024 GPUs (section 4.3)", "1", 0.72,
             strong_scaling(1.0 - 0.23),
             "The paper's own T(N), fitted to the 31 % of its baseline, with the message smaller "
             "by the printed 23 %."),
        Slip("message_cut", "Cut of the all-reduce message (section 4.3)", "1", 0.23,
             1.0 - message_for(0.72),
             "What the printed 72 % would take. Frozen models have no gradients, so placing them "
             "elsewhere cuts nothing of it."),
    )  # fmt: skip


def _right() -> tuple[Slip, ...]:
    n_stages = len(Stage)
    return (
        Slip("waterfall", "Sum of the waterfall (section 4.5)", "token/J", 28.7,
             18.6 + 1.5 + 4.7 + 1.6 + 2.3, "The five figures add up; this is right."),
        Slip("state_size", "Size of the state at N = 32 (Eq. 6)", "1", 72.0,
             2.0 * N_GPUS + 1.0 + n_stages + 1.0, "This is right."),
        Slip("overhead", "Overhead of the scheduler, at most (section 3.6)", "1", 0.001,
             6 * 0.08e-3 / ITERATION_S,
             "Six forward passes of 0.08 ms in an iteration of 21 s; below the limit."),
    )  # fmt: skip
