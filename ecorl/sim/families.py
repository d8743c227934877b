"""Families of scenarios: what policies are trained on, and what they are compared on.

Training and comparison draw from different seeds, and the comparison's scenarios hold values that
training never draws (`HELD_OUT_GPU`, `HELD_OUT_SIZE`). Cards that are faster or leaner than the
U55C are hypothetical: on most real pairs of a data-centre GPU and a U55C offloading never pays, so
nothing could be learned from them alone. `natural` scenarios keep the real profiles. In all of them
each row has a prompt of its own (`Scenario.group_size` is 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ecorl.devices import DeviceFigure, DeviceProfile, load_profile
from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.records import NO_ABILITIES, Abilities, Algorithm, DeviceKind, Provenance, Stage
from ecorl.scheduler.tables import COLUMN, Float64, roofline_table
from ecorl.sim.scenario import Limits, Scenario
from ecorl.sim.tasks import N_TASKS, SHARES

HELD_OUT_GPU = "a100_sxm"
HELD_OUT_SIZE = "3b"
"""Never drawn for training."""

GPUS = ("h100_sxm", "h200", "l4", "cpu")
SIZES = ("160k", "15m", "135m", "360m", "0.5b", "1b", "8b")
ALGORITHMS = (Algorithm.PPO, Algorithm.GRPO, Algorithm.REINFORCE_PP, Algorithm.DAPO)
LONG_S = 4.0
"""Iterations above which a card's heat can be planned with."""

FROZEN = Abilities(True, True, True, False)
ALL = Abilities(True, True, True, True)


def cpu_profile(n_cores: int = 4) -> DeviceProfile:
    """A CPU as the GPU path, with the assumptions of the ``host_cpu`` profile on fixed cores."""
    source = "assumed: the host_cpu profile's figures a core, 2.5 GHz, 32 FLOP a cycle"
    figures = {
        "idle_w": (1.5 * n_cores, "W"),
        "active_w": (6.0 * n_cores, "W"),
        "tdp_w": (6.0 * n_cores, "W"),
        "peak_fp32_flops": (n_cores * 2.5e9 * 32, "FLOP/s"),
        "memory_bytes": (64e9, "B"),
        "memory_bytes_per_s": (8e9 * n_cores, "B/s"),
        "launch_s": (1e-4, "s"),
        "mfu_prefill": (0.5, "1"),
        "mfu_train": (0.35, "1"),
        "mbu_decode": (0.6, "1"),
        "n_cores": (float(n_cores), "1"),
    }
    made = {
        k: DeviceFigure(v, unit, Provenance.MODELLED, source) for k, (v, unit) in figures.items()
    }
    return DeviceProfile(f"cpu{n_cores}", f"CPU with {n_cores} cores", DeviceKind.CPU, made)


def scaled_card(speed: float, power: float, name: str = "u55c") -> DeviceProfile:
    """Make up a hypothetical card from a known one.

    Args:
        speed: factor on its speed.
        power: factor on its power.
        name: profile of the known card.
    """
    base = load_profile(name)
    factors = {
        "clock_hz": speed, "clock_max_hz": speed, "memory_bytes_per_s": speed,
        "link_bytes_per_s": max(1.0, speed), "launch_s": min(1.0, 1.0 / speed),
        "idle_w": power, "active_w": power, "tdp_w": power, "memory_bytes": 4.0,
    }  # fmt: skip
    source = f"hypothetical: {name} at {speed:.3g} x its speed and {power:.3g} x its power"
    figures: dict[str, DeviceFigure] = dict(base.figures)
    for key, factor in factors.items():
        figure = base.figures.get(key)
        if figure is not None:
            figures[key] = replace(
                figure, value=figure.value * factor, provenance=Provenance.MODELLED, source=source
            )
    return DeviceProfile(
        f"{name}_x{speed:.3g}", f"hypothetical {base.title}", DeviceKind.FPGA, figures
    )


def paper_scenarios(
    seed: int, n: int, *, harder: bool = False, name: str = "paper"
) -> list[Scenario]:
    """Scenarios under the paper's calibration.

    Args:
        seed: of the draw.
        n: scenarios.
        harder: long rows and shared cards, where no simple rule does well.
        name: prefix of the names.
    """
    rng = np.random.default_rng([seed, 1])
    return [_paper(rng, f"{name}-{i}", harder) for i in range(n)]


def _paper(rng: np.random.Generator, name: str, harder: bool) -> Scenario:
    low, high = (2.0, 3.2) if harder else (0.8, 3.4)
    n_gpus = 32 if harder else int(rng.choice([8, 16, 32, 64, 128, 256, 512, 1024]))
    algorithm = Algorithm.PPO if harder or rng.random() < 0.7 else Algorithm(rng.choice(ALGORITHMS))
    return Scenario(
        name,
        calibration="paper",
        algorithm=algorithm,
        sizes={Stage.GENERATION: "70b"},
        n_gpus=n_gpus,
        n_cards=max(1, n_gpus // 8),
        n_rows=256 if harder else int(rng.choice([128, 256, 512, 1024])),
        abilities=ALL,
        limits=Limits(8.0, 8192.0, None),
        max_length=8192.0,
        length_scale=float(rng.uniform(low, high)),
        load=float(rng.uniform(0.45, 0.7) if harder else rng.uniform(0.0, 0.75)),
        burst_s=float(rng.uniform(0.8, 1.6) if harder else rng.uniform(0.4, 2.5)),
        calm=float(rng.uniform(0.85, 0.95)),
        concentration=float(rng.uniform(4.0, 16.0)),
        drift_std=float(rng.uniform(0.15, 0.30)),
        noise_std=float(rng.uniform(0.02, 0.06)),
        failure_rate=0.0 if rng.random() < 0.7 else float(rng.uniform(0.0, 0.01)),
        ambient_c=float(
            rng.uniform(20.0, 30.0) if rng.random() < 0.85 else rng.uniform(36.0, 44.0)
        ),
        slow=1.0 if rng.random() < 0.8 else float(rng.uniform(1.0, 1.4)),
        off_policy=bool(not harder and rng.random() < 0.1),
        reward_calls=1 if harder or rng.random() < 0.9 else 4,
    )


def _ambient_c(rng: np.random.Generator, *, hot: bool) -> float:
    """Air temperature; above 32 degrees a busy card slows."""
    warm = rng.random() < 0.15
    return float(rng.uniform(34.0, 42.0) if warm and hot else rng.uniform(20.0, 31.0))


def at_scale(scenario: Scenario, n_gpus: int) -> Scenario:
    """Move a job to another number of GPUs, with one card for every eight.

    Args:
        scenario: the job.
        n_gpus: GPUs.
    """
    return replace(scenario, name=f"{scenario.name}-n{n_gpus}", n_gpus=n_gpus,
                   n_cards=max(1, n_gpus // 8))  # fmt: skip


def roofline_scenarios(
    seed: int, n: int, *, held_out: bool = False, name: str = "roofline"
) -> list[Scenario]:
    """Scenarios on the physical calibration, most of them on hypothetical cards.

    Args:
        seed: of the draw.
        n: scenarios.
        held_out: on the GPU and the model size that training never sees.
        name: prefix of the names.
    """
    rng = np.random.default_rng([seed, 2])
    found: list[Scenario] = []
    while len(found) < n:
        drawn = _roofline(rng, f"{name}-{len(found)}", held_out)
        if drawn is not None:
            found.append(drawn)
    return found


def _roofline(rng: np.random.Generator, name: str, held_out: bool) -> Scenario | None:
    gpu = HELD_OUT_GPU if held_out else str(rng.choice(GPUS))
    sizes = list(SIZES)
    inference = HELD_OUT_SIZE if held_out else str(rng.choice(sizes[:3] if gpu == "cpu" else sizes))
    policy = (
        inference if rng.random() < 0.6 else str(rng.choice(sizes[:3] if gpu == "cpu" else sizes))
    )
    n_gpus = 1 if gpu in ("cpu", "l4") else int(rng.choice([1, 2, 4, 8, 16, 32]))
    algorithm = Algorithm(rng.choice(ALGORITHMS))
    max_length = float(rng.choice([64.0, 256.0, 1024.0, 4096.0]))
    abilities = (NO_ABILITIES, FROZEN, Abilities(early_forward=True), FROZEN)[int(rng.integers(4))]
    scenario = Scenario(
        name,
        algorithm=algorithm,
        sizes={Stage.GENERATION: policy, Stage.REWARD: inference, Stage.REFERENCE: policy,
               Stage.CRITIC: inference},
        n_rows=int(rng.choice([32, 64, 128, 256, 512])),
        prompt_length=float(rng.choice([16.0, 64.0, 256.0, 512.0])),
        gpu=cpu_profile(int(rng.choice([2, 4, 16]))) if gpu == "cpu" else gpu,
        n_gpus=n_gpus,
        n_cards=int(rng.choice([1, 2, 4, 8])),
        reward_calls=1 if rng.random() < 0.85 else 4,
        off_policy=bool(rng.random() < 0.15),
        adaptive_batch=bool(rng.random() < 0.2),
        concentration=float(rng.uniform(3.0, 16.0)),
        length_scale=max_length / 4096.0 * float(rng.uniform(0.6, 2.0)),
        max_length=max_length,
        drift_std=float(rng.uniform(0.1, 0.35)),
        noise_std=float(rng.uniform(0.02, 0.06)),
        load=0.0 if rng.random() < 0.35 else float(rng.uniform(0.1, 0.75)),
        burst_s=float(rng.uniform(0.4, 2.5)),
        calm=float(rng.uniform(0.85, 0.97)),
        failure_rate=0.0 if rng.random() < 0.7 else float(rng.uniform(0.0, 0.01)),
        ambient_c=_ambient_c(rng, hot=False),
        slow=1.0 if rng.random() < 0.8 else float(rng.uniform(1.0, 1.4)),
        abilities=abilities,
        limits=Limits(8.0, float(rng.choice([2048.0, 8192.0])), 0.0),
    )  # fmt: skip
    iteration_s = _iteration_s(scenario)
    if iteration_s is None:
        return None
    scenario = replace(scenario, ambient_c=_ambient_c(rng, hot=iteration_s > LONG_S))
    if not held_out and rng.random() < 0.12:
        return scenario if _priced(scenario) else None  # natural: the real U55C
    time_share = float(np.exp(rng.uniform(np.log(0.03), np.log(1.5))))
    energy_ratio = float(np.exp(rng.uniform(np.log(0.15), np.log(1.2))))
    return with_card_of(scenario, time_share, energy_ratio)


def with_card_of(scenario: Scenario, time_share: float, energy_ratio: float) -> Scenario | None:
    """The scenario with a hypothetical card of a wanted speed and efficiency.

    Args:
        scenario: on any card.
        time_share: reward and reference on the cards over the GPU-only iteration.
        energy_ratio: their energy on the cards over that on the GPUs.

    Returns:
        None when the stages cannot be priced (a model does not fit the GPUs).
    """
    row = _nominal_row(scenario)
    if row is None:
        return None
    iteration_s = sum(row[name] for name in _GPU_TIMES)
    wanted_s = time_share * iteration_s
    card_s = row["reward_card_s"] + row["reference_card_s"]
    if card_s <= 0 or wanted_s <= 0:
        return None
    speed = card_s / wanted_s
    gpu_j = row["reward_j"] + row["reference_j"]
    active_w = load_profile("u55c").value("active_w") * scenario.n_cards
    power = energy_ratio * gpu_j / (wanted_s * active_w)
    made = replace(scenario, card=scaled_card(speed, power))
    return made if _priced(made) else None


_GPU_TIMES = (
    "generation_short_s", "reward_s", "reference_s", "critic_s", "actor_train_s", "critic_train_s",
)  # fmt: skip


def _iteration_s(scenario: Scenario) -> float | None:
    row = _nominal_row(scenario)
    return None if row is None else sum(row[name] for name in _GPU_TIMES)


def _nominal_row(scenario: Scenario) -> Mapping[str, float] | None:
    length = scenario.nominal_length
    lengths: Float64 = np.array([length, 2.0 * length])
    try:
        values = roofline_table(scenario.setting, lengths).values[0]
    except (ConfigError, PhysicalBoundError):
        return None
    return {name: float(values[i]) for name, i in COLUMN.items()}


def _priced(scenario: Scenario) -> bool:
    try:
        return bool(np.isfinite(scenario.table.values).all())
    except (ConfigError, PhysicalBoundError):
        return False


def longer_outputs(scenario: Scenario) -> Scenario:
    """Out of distribution: completions twice as long."""
    return replace(
        scenario, name=f"{scenario.name}-longer", length_scale=2.0 * scenario.length_scale,
        max_length=2.0 * scenario.max_length,
    )  # fmt: skip


def twice_the_queue(scenario: Scenario) -> Scenario:
    """Out of distribution: other jobs send twice as much, in bursts twice as long."""
    return replace(
        scenario, name=f"{scenario.name}-queue", load=min(2.0 * max(scenario.load, 0.2), 0.9),
        burst_s=2.0 * scenario.burst_s,
    )  # fmt: skip


def other_mix(scenario: Scenario) -> Scenario:
    """Out of distribution: mostly reasoning, and batches of one task."""
    mix = np.roll(SHARES, 2)
    assert len(mix) == N_TASKS
    return replace(scenario, name=f"{scenario.name}-mix", mix=tuple(float(s) for s in mix),
                   concentration=2.0)  # fmt: skip


def half_the_cards(scenario: Scenario) -> Scenario:
    """Out of distribution: half the cards; of a single one, half its speed."""
    if scenario.n_cards > 1:
        return replace(scenario, name=f"{scenario.name}-half", n_cards=scenario.n_cards // 2)
    card = scenario.setting.card
    figures = dict(card.figures)
    for key in ("clock_hz", "memory_bytes_per_s", "active_w", "idle_w"):
        if key in figures:
            figures[key] = replace(figures[key], value=figures[key].value / 2)
    halved = DeviceProfile(f"{card.name}_half", card.title, card.kind, figures)
    return replace(scenario, name=f"{scenario.name}-half", card=halved)


SHIFTS = {
    "longer": longer_outputs,
    "queue": twice_the_queue,
    "mix": other_mix,
    "half": half_the_cards,
}
"""The shifts of distribution under which policies are compared."""
