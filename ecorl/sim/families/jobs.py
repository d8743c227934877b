"""Jobs on devices that exist: GPUs of one kind, and a second device of another.

`mixed` jobs cost what their tables say, `wrong_tables` and `drift` do not (`Divergence`). In all of
them completions are drawn one by one, nobody tells the tasks of a batch, readings scatter and the
queue is known by an old report. What is kept out of training differs in kind: the A100 in either
place, DAPO, the 3 B models, and the ways in which costs drift. Half of the GPUs of training are
made up, from half to twice the speed and the power of one that exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ecorl.devices import DeviceProfile, load_profile
from ecorl.records import NO_ABILITIES, Algorithm, DeviceKind, Stage
from ecorl.sim.divergence import Divergence
from ecorl.sim.families import pools
from ecorl.sim.families.profiles import cpu_profile, varied_gpu
from ecorl.sim.scenario import Limits, Scenario, profile_of

GPUS = ("h100_sxm", "h200", "b200_sxm", "l4")
SECONDS = ("l4", "h100_sxm", "u55c")
SIZES = ("0.5b", "1b", "8b")
SMALL_SIZES = ("15m", "135m", "360m")
"""Models of jobs whose framework computes on a processor."""

TABLE_ERROR = 0.3

SEEN = Divergence(reading_noise=0.03, report_lag=1, report_noise=0.2)
"""What a run sees of a job that costs what its tables say."""

NOISE, CPU_NOISE = (0.01, 0.1), (0.05, 0.4)
"""Scatter of readings, a share, drawn once a job: of GPUs, where stages take seconds, and of
processors, where they take milliseconds and other programs run beside them. Invented; stages of
small models on a processor were seen to scatter by a tenth to a half."""

Diverging = Callable[[np.random.Generator, bool], Divergence]


def mixed_scenarios(seed: int, n: int, *, held_out: bool = False) -> list[Scenario]:
    """Jobs whose tables are right.

    Args:
        seed: of the draw.
        n: scenarios.
        held_out: of the kinds that training never sees.
    """
    return _drawn("mixed", seed, n, lambda rng, held_out: SEEN, held_out)


def wrong_table_scenarios(seed: int, n: int, *, held_out: bool = False) -> list[Scenario]:
    """Jobs whose tables are off by up to `TABLE_ERROR` for each stage on each device.

    Args:
        seed: of the draw.
        n: scenarios.
        held_out: of the kinds that training never sees.
    """
    return _drawn("wrong_tables", seed, n, _wrong, held_out)


def drift_scenarios(seed: int, n: int, *, held_out: bool = False) -> list[Scenario]:
    """Jobs whose tables are off and whose costs change while they run.

    In training other tenants slow the cards, the GPUs in every other job by a little as well, and
    clocks wander; kept out are longer stays, tenants who slow the GPUs more, and answers that grow.

    Args:
        seed: of the draw.
        n: scenarios.
        held_out: of the kinds that training never sees.
    """
    return _drawn("drift", seed, n, _drifting, held_out)


def _wrong(rng: np.random.Generator, held_out: bool) -> Divergence:
    del held_out
    return replace(SEEN, table_error=TABLE_ERROR, seed=int(rng.integers(1 << 30)))


def _drifting(rng: np.random.Generator, held_out: bool) -> Divergence:
    made = replace(
        _wrong(rng, held_out),
        clock_std=float(rng.uniform(0.02, 0.10)),
        contention=float(rng.uniform(0.15, 0.5)),
        contention_slow=float(rng.uniform(1.5, 4.0)),
        spell=float(rng.uniform(8.0, 20.0)),
    )
    if not held_out:
        share = float(rng.uniform(0.1, 0.3)) if rng.random() < 0.5 else 0.0
        slow = float(rng.uniform(1.1, 1.4)) if share else 1.0
        return replace(made, gpu_contention=share, gpu_contention_slow=slow)
    return replace(
        made,
        spell=float(rng.uniform(15.0, 35.0)),
        gpu_contention=float(rng.uniform(0.0, 0.3)),
        gpu_contention_slow=float(rng.uniform(1.2, 2.0)),
        growth=float(rng.uniform(1.0, 2.5)),
    )


def _drawn(name: str, seed: int, n: int, diverging: Diverging, held_out: bool) -> list[Scenario]:
    rng = np.random.default_rng([seed, 19, *name.encode()])
    found: list[Scenario] = []
    while len(found) < n:
        job = _job(rng, f"{name}-{len(found)}", held_out)
        made = replace(diverging(rng, held_out), reading_noise=_noise(rng, job))
        job = replace(job, divergence=made)
        if pools.is_priced(job):
            found.append(job)
    return found


def _noise(rng: np.random.Generator, job: Scenario) -> float:
    on_cpu = profile_of(job.gpu).kind is DeviceKind.CPU
    return float(rng.uniform(*(CPU_NOISE if on_cpu else NOISE)))


def _job(rng: np.random.Generator, name: str, held_out: bool) -> Scenario:
    on_cpu = bool(rng.random() < 0.15)
    gpu, card = _devices(rng, on_cpu, held_out)
    n_gpus = 1 if on_cpu else int(rng.choice([1, 2, 4, 8]))
    n_cards = int(rng.choice([1, 2, 4, 8][: 1 + n_gpus.bit_length()]))
    sizes = SMALL_SIZES if on_cpu else (*SIZES, pools.HELD_OUT_SIZE) if held_out else SIZES
    policy, reward = str(rng.choice(sizes)), str(rng.choice(sizes))
    algorithms = (
        (*pools.TRAINING_ALGORITHMS, pools.HELD_OUT_ALGORITHM)
        if held_out
        else pools.TRAINING_ALGORITHMS
    )
    max_length = float(rng.choice([256.0, 512.0] if on_cpu else [512.0, 1024.0, 2048.0, 4096.0]))
    off_policy = bool(rng.random() < 0.5)
    return Scenario(
        name,
        algorithm=Algorithm(rng.choice(algorithms)),
        sizes={Stage.GENERATION: policy, Stage.REWARD: reward, Stage.REFERENCE: policy,
               Stage.CRITIC: reward},
        n_rows=int(rng.choice([32, 64, 128, 256])),
        prompt_length=float(rng.choice([64.0, 128.0, 256.0, 512.0])),
        gpu=gpu,
        n_gpus=n_gpus,
        card=card,
        n_cards=n_cards,
        off_policy=off_policy,
        staleness=2 if off_policy and rng.random() < 0.4 else 1,
        concentration=float(rng.uniform(3.0, 16.0)),
        length_scale=max_length / 4096.0 * float(rng.uniform(0.6, 2.0)),
        max_length=max_length,
        drift_std=float(rng.uniform(0.1, 0.35)),
        noise_std=float(rng.uniform(0.02, 0.06)),
        abilities=NO_ABILITIES if rng.random() < 0.6 else pools.FROZEN,
        limits=Limits(8.0, 8192.0, 0.0 if rng.random() < 0.5 else None),
        rows="drawn",
        ambient_c=float(rng.uniform(20.0, 31.0)),
        **_couplings(rng, (gpu, n_gpus), (card, n_cards)),  # type: ignore[arg-type]
    )  # fmt: skip


def _devices(
    rng: np.random.Generator, on_cpu: bool, held_out: bool
) -> tuple[str | DeviceProfile, str | DeviceProfile]:
    """Draw the training's GPU and a second device that draws no more power than it.

    Where one kind is held out, one of the two is of it.
    """
    if on_cpu:
        return cpu_profile(16), "u55c" if rng.random() < 0.5 else cpu_profile(4)
    while True:
        gpu, card = str(rng.choice(GPUS)), str(rng.choice(SECONDS))
        if held_out and rng.random() < 0.5:
            gpu = pools.HELD_OUT_GPU
        elif held_out:
            card = pools.HELD_OUT_GPU
        if load_profile(card).value("active_w") <= load_profile(gpu).value("active_w"):
            break
    if held_out:
        return gpu, card
    # So that a network does not learn three devices by heart.
    return _varied(gpu, rng), _varied(card, rng)


def _varied(name: str, rng: np.random.Generator) -> str | DeviceProfile:
    """Draw a device between those that exist, half of the times; the named one else."""
    if rng.random() < 0.5 or load_profile(name).kind is not DeviceKind.GPU:
        return name
    speed, power = np.exp(rng.uniform(np.log(0.5), np.log(2.0), 2))
    return varied_gpu(name, float(speed), float(power))


def _couplings(
    rng: np.random.Generator,
    gpus: tuple[str | DeviceProfile, int],
    cards: tuple[str | DeviceProfile, int],
) -> dict[str, object]:
    """Draw what couples iterations to one another and this job to others."""
    made: dict[str, object] = {}
    if rng.random() < 0.4:
        made |= {
            "load": float(rng.uniform(0.1, 0.6)),
            "burst_s": float(rng.uniform(0.2, 1.5)),
            "calm": float(rng.uniform(0.85, 0.97)),
            "yielding": float(rng.uniform(0.0, 0.8)),
        }
    elif rng.random() < 0.5:
        made |= {
            "sleeps": True,
            "asleep_share": float(rng.uniform(0.2, 0.8)),
            "wake_iterations": float(rng.uniform(0.02, 0.3)),
        }
    if rng.random() < 0.3:
        made |= {
            "failure_rate": float(rng.uniform(0.0, 0.01)),
            "timeout_iterations": float(rng.uniform(0.2, 1.0)),
        }
    (gpu, n_gpus), (card, n_cards) = (
        (profile_of(gpus[0]), gpus[1]),
        (profile_of(cards[0]), cards[1]),
    )
    if rng.random() < 0.2 and card.kind is not DeviceKind.CPU:
        idle_w, active_w = card.value("idle_w"), card.value("active_w")
        each_w = idle_w + float(rng.uniform(0.4, 1.0)) * (active_w - idle_w)
        made["rack_limit_w"] = n_gpus * gpu.value("active_w") + n_cards * each_w
    return made


def real_pairs() -> list[Scenario]:
    """Pairs of devices that are bought, with jobs that are run on them."""
    common = {"rows": "drawn", "limits": Limits(8.0, 8192.0, None), "divergence": SEEN}
    big = {"n_rows": 256, "max_length": 2048.0, "length_scale": 0.7} | common
    one = {"n_rows": 64, "max_length": 1024.0, "length_scale": 0.4} | common
    small = dict.fromkeys(Stage, "0.5b")
    tiny = dict.fromkeys(Stage, "15m")
    grpo = {"algorithm": Algorithm.GRPO}
    later = {"off_policy": True}
    noisy = replace(SEEN, reading_noise=max(SEEN.reading_noise, sum(CPU_NOISE) / 2))
    cpu = {"gpu": cpu_profile(16), "n_gpus": 1, "n_cards": 1, "sizes": tiny, "prompt_length": 64.0}
    short = {"n_rows": 64, "max_length": 256.0, "length_scale": 0.1} | common
    short |= {"divergence": noisy}
    made = (
        ("h100x8+l4x4", {"n_gpus": 8, "card": "l4", "n_cards": 4} | big),
        ("h100x8+l4x8-async", {"n_gpus": 8, "card": "l4", "n_cards": 8} | later | big),
        ("h100x8+a100x4-grpo", {"n_gpus": 8, "card": "a100_sxm", "n_cards": 4} | grpo | big),
        ("h100x8+a100x8-async", {"n_gpus": 8, "card": "a100_sxm", "n_cards": 8} | later | big),
        ("h100x32+u55cx4", {"n_gpus": 32, "card": "u55c", "n_cards": 4} | big),
        ("a100x8+l4x4-grpo", {"gpu": pools.HELD_OUT_GPU, "n_gpus": 8, "card": "l4", "n_cards": 4}
         | grpo | big),
        ("a100x8+u55cx4", {"gpu": pools.HELD_OUT_GPU, "n_gpus": 8, "card": "u55c", "n_cards": 4}
         | big),
        ("b200x8+h100x8-async", {"gpu": "b200_sxm", "n_gpus": 8, "card": "h100_sxm", "n_cards": 8}
         | later | big),
        ("l4+l4-0.5b", {"gpu": "l4", "n_gpus": 1, "card": "l4", "n_cards": 1, "sizes": small}
         | one),
        ("l4+u55c-0.5b-async", {"gpu": "l4", "n_gpus": 1, "card": "u55c", "n_cards": 1,
                                "sizes": small} | later | one),
        ("cpu16+u55c-15m", {"card": "u55c"} | cpu | short),
        ("cpu16+cpu4-15m-async", {"card": cpu_profile(4)} | cpu | later | short),
    )  # fmt: skip
    return [
        Scenario(name, abilities=NO_ABILITIES, **keys)  # type: ignore[arg-type]
        for name, keys in made
    ]
