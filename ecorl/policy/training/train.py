"""From nothing to a policy: tables, planner, imitation in rounds, PPO, the better of the two.

Each step leaves its result in the work folder, so that an interrupted training goes on where it
was: ``ecorl policy train --resume``. The same plan and seed give the same policy.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ecorl import __version__
from ecorl.errors import ConfigError, RunError
from ecorl.files import write_whole
from ecorl.policy.planners.search import Codes
from ecorl.policy.training.imitation import Labels, Teacher, fit, joined
from ecorl.policy.training.network import Float32, PolicyNetwork, logits_in_numpy, permitted_codes
from ecorl.policy.training.origin import FIGURES, figures_digest
from ecorl.policy.training.ppo import train_ppo
from ecorl.scheduler.features import SCHEMA
from ecorl.sim.batched import observe
from ecorl.sim.families.training import paper_pool, training_pool
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import CostView, Simulation, play
from ecorl.sim.trace import draw_trace

Family = Literal["roofline", "paper", "fitted"]
Tell = Callable[[str, float], None]
"""Called with the step under way and the share of the whole that is done, 0 to 1."""

PLAN_FILE, RECORD_FILE, NETWORK_FILE = "plan.json", "record.json", "policy.npz"


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a policy is made; the defaults are those of the shipped one.

    Attributes:
        family: which scenarios; ``fitted`` are those of `scenarios` in `train`.
        n_scenarios: in the training pool.
        n_iterations: of a training episode.
        n_rounds: of imitation; from the second on the network plays.
        n_epochs: passes over the labels after each round; the last round has three times as many.
        ppo_steps: decisions of PPO; 0 leaves it out.
        imitate: False: PPO alone.
        measured: False: the network sees the tables alone, as if nothing were measured.
        seed: of all chance.
        runs: names of the runs whose replays were added to the pool.
        runs_digest: of what is replayed; empty without runs.
    """

    family: Family = "roofline"
    n_scenarios: int = 480
    n_iterations: int = 50
    n_rounds: int = 4
    n_epochs: int = 8
    ppo_steps: int = 200_000
    imitate: bool = True
    measured: bool = True
    seed: int = 0
    runs: tuple[str, ...] = ()
    runs_digest: str = ""

    @property
    def view(self) -> CostView:
        """What the network knows of costs."""
        return CostView.MEASURED if self.measured else CostView.NOMINAL

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))  # a list where it was read from JSON
        checks = (
            ("n_scenarios", self.n_scenarios, 1), ("n_iterations", self.n_iterations, 2),
            ("n_rounds", self.n_rounds, 1), ("n_epochs", self.n_epochs, 1),
            ("ppo_steps", self.ppo_steps, 0), ("seed", self.seed, 0),
        )  # fmt: skip
        for key, value, least in checks:
            if value < least:
                raise ConfigError(f"train.{key}", value, f"{least} or more")
        if not self.imitate and not self.ppo_steps:
            raise ConfigError("train.ppo_steps", 0, "above 0 where there is no imitation")


QUICK = TrainingPlan(n_scenarios=8, n_iterations=30, n_rounds=2, n_epochs=3, ppo_steps=0)
"""A plan of seconds, for trying out; its policy is not good."""


@dataclass(slots=True)
class Made:
    """A trained policy.

    Attributes:
        network: its weights.
        record: how it was made, and how long it took.
        imitated: the network before PPO.
    """

    network: PolicyNetwork
    record: dict[str, Any] = field(default_factory=dict)
    imitated: PolicyNetwork | None = None


def pool_of(plan: TrainingPlan) -> list[Scenario]:
    """The training pool of a plan."""
    draw = paper_pool if plan.family == "paper" else training_pool
    drawn = draw(plan.seed, plan.n_scenarios)
    return [replace(s, n_iterations=plan.n_iterations) for s in drawn]


def train(
    plan: TrainingPlan,
    folder: Path,
    *,
    scenarios: Sequence[Scenario] | None = None,
    start: PolicyNetwork | None = None,
    tell: Tell | None = None,
    n_workers: int = 2,
    tensorboard: bool = True,
) -> Made:
    """Make a policy; goes on where an earlier call with the same plan was interrupted.

    Args:
        plan: how.
        folder: work folder; made if need be.
        scenarios: the pool; None: `pool_of` the plan.
        start: network to go on from instead of a new one (adaptation).
        tell: told how far it is.
        n_workers: processes that ask the planner.
        tensorboard: whether to write its log into the folder.

    Raises:
        RunError: when the folder holds the training of another plan.
    """
    _claim(folder, plan)
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    started = time.monotonic()
    spent = _Spent(folder, started)
    tell = tell or (lambda step, share: None)
    drawn = list(scenarios) if scenarios is not None else pool_of(plan)
    for scenario in drawn:
        _ = scenario.table  # computed before worker processes start, and only once
    curves: dict[str, Any] = {}
    network, imitated, labels = start or PolicyNetwork(), None, None
    if plan.imitate:
        network, labels = _imitate(plan, folder, drawn, network, tell, n_workers, curves, start)
        imitated = PolicyNetwork.from_arrays(network.arrays())
    if plan.ppo_steps:
        network = _improve(plan, folder, drawn, imitated, labels, tell, curves, tensorboard)
    if imitated is not None and plan.ppo_steps:
        network = _better(plan, drawn, imitated, network, curves)
    seconds = spent.total()
    record = {
        "ecorl": __version__, "schema": SCHEMA, "plan": asdict(plan), "train_s": round(seconds, 1),
        "n_labels": 0 if labels is None else len(labels), "curves": curves,
        "scenarios": [s.name for s in drawn], "energy_margin": _margin(drawn),
        FIGURES: figures_digest(plan.family),
    }  # fmt: skip
    save_arrays(folder / NETWORK_FILE, network.arrays())
    write_json(folder / RECORD_FILE, record)
    tell("done", 1.0)
    return Made(network, record, imitated)


class NetworkPolicy:
    """A network as a policy on a batched simulation.

    Args:
        arrays: its weights.
    """

    def __init__(self, arrays: dict[str, Float32]) -> None:
        self._arrays = arrays

    def __call__(self, simulation: Simulation) -> Codes:
        """The best action that the guards let through."""
        seen, may = observe(simulation)
        return permitted_codes(logits_in_numpy(self._arrays, seen), may)


def _margin(pool: list[Scenario]) -> float | None:
    """The loosest energy guard of the pool; None where there is none."""
    margins = [s.limits.energy_margin for s in pool]
    known = [m for m in margins if m is not None]
    return max(known) if len(known) == len(margins) else None


def _imitate(
    plan: TrainingPlan,
    folder: Path,
    pool: list[Scenario],
    network: PolicyNetwork,
    tell: Tell,
    n_workers: int,
    curves: dict[str, Any],
    start: PolicyNetwork | None,
) -> tuple[PolicyNetwork, Labels]:
    gathered: list[Labels] = []
    curves["imitation"] = []
    teacher: Teacher | None = None
    share = 0.75 if plan.ppo_steps else 1.0
    try:
        for i in range(plan.n_rounds):
            tell(f"imitation, round {i + 1} of {plan.n_rounds}: labels", share * i / plan.n_rounds)
            kept = folder / f"labels-{i}.npz"
            if kept.is_file():
                found = load_arrays(kept)
                gathered.append(Labels(found["states"], found["regrets"]))
            else:
                teacher = teacher or Teacher(pool, n_workers, plan.seed, plan.view)
                arrays = network.arrays() if i or start is not None else None
                gathered.append(teacher.label(arrays, plan.seed * 100 + i))
                newest = gathered[-1]
                save_arrays(kept, {"states": newest.states, "regrets": newest.regrets})
            labels = joined(gathered)
            fitted = folder / f"network-{i}.npz"
            if fitted.is_file():
                network = PolicyNetwork.from_arrays(load_arrays(fitted))
                curves["imitation"] += json.loads((folder / f"curve-{i}.json").read_text("utf-8"))
                continue
            if i == 0 and start is None:
                network.trunk.normalise_by(labels.states)
            tell(f"imitation, round {i + 1} of {plan.n_rounds}: fit",
                 share * (i + 0.6) / plan.n_rounds)  # fmt: skip
            n_epochs = plan.n_epochs * (3 if i + 1 == plan.n_rounds else 1)
            curve = fit(network, labels, n_epochs=n_epochs, seed=plan.seed + i)
            curves["imitation"] += curve
            write_json(folder / f"curve-{i}.json", curve)
            save_arrays(fitted, network.arrays())
    finally:
        if teacher is not None:
            teacher.close()
    return network, labels


def _improve(
    plan: TrainingPlan,
    folder: Path,
    pool: list[Scenario],
    imitated: PolicyNetwork | None,
    labels: Labels | None,
    tell: Tell,
    curves: dict[str, Any],
    tensorboard: bool,
) -> PolicyNetwork:
    begin = 0.75 if imitated is not None else 0.0

    def on_progress(n_steps: int, mean: float | None) -> None:
        del mean
        done = min(1.0, n_steps / plan.ppo_steps)
        tell(f"PPO, {n_steps:,} of {plan.ppo_steps:,} steps", begin + (1.0 - begin) * done)

    network, curve = train_ppo(
        pool,
        plan.ppo_steps,
        start=imitated,
        normalise_by=_sample_states(pool, plan.seed) if labels is None else labels.states,
        seed=plan.seed,
        view=plan.view,
        learning_rate=5e-5 if imitated is not None else 3e-4,
        tensorboard=folder / "tensorboard" if tensorboard else None,
        checkpoint=folder / "ppo.zip",
        on_progress=on_progress,
    )
    curves["ppo"] = curve
    return network


def _better(
    plan: TrainingPlan,
    pool: list[Scenario],
    imitated: PolicyNetwork,
    improved: PolicyNetwork,
    curves: dict[str, Any],
) -> PolicyNetwork:
    """The better of two networks on fresh episodes of the pool; the imitated one on a tie."""
    trace = draw_trace(pool, np.random.default_rng([plan.seed, 5]))
    before = play(Simulation(trace, view=plan.view), NetworkPolicy(imitated.arrays()))[0]
    after = play(Simulation(trace, view=plan.view), NetworkPolicy(improved.arrays()))[0]
    curves["validation"] = {"imitation": float(before.mean()), "ppo": float(after.mean())}
    return improved if after.mean() > before.mean() else imitated


def _sample_states(pool: list[Scenario], seed: int) -> Float32:
    """States of random play, for the normalisation of a network without imitation."""
    rng = np.random.default_rng([seed, 9])
    simulation = Simulation(draw_trace(pool, rng))
    states = []
    for _ in range(6 * min(20, simulation.trace.n_iterations - 1)):
        states.append(observe(simulation)[0])
        simulation.step(rng.integers(0, 3, len(pool)))
    return np.concatenate(states)


# ---------------------------------------------------------------- files


def other_plan(folder: Path) -> RunError:
    """The error for a folder that holds the training of another plan.

    Args:
        folder: of the training.
    """
    return RunError(f"{folder} holds the training of another plan; choose another folder")


def _claim(folder: Path, plan: TrainingPlan) -> None:
    """Make the folder this plan's, or see that it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PLAN_FILE
    if path.is_file():
        try:
            there = TrainingPlan(**json.loads(path.read_text("utf-8")))
        except TypeError as error:
            raise other_plan(folder) from error
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read ({error})") from error
        if there != plan:
            raise other_plan(folder)
        return
    write_json(path, asdict(plan))


class _Spent:
    """Time spent on a training over all its sessions."""

    def __init__(self, folder: Path, started_s: float) -> None:
        self._path, self._started_s = folder / "spent.json", started_s
        try:
            self._before_s = float(json.loads(self._path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            self._before_s = 0.0

    def total(self) -> float:
        """All seconds so far."""
        total_s = self._before_s + time.monotonic() - self._started_s
        write_json(self._path, total_s)
        return total_s


def save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays; the file is whole or not there.

    Args:
        path: of the ``.npz`` file.
        arrays: by name.
    """
    made = io.BytesIO()
    np.savez(made, **arrays)
    write_whole(path, made.getvalue())


def load_arrays(path: Path) -> dict[str, Any]:
    """Read arrays.

    Raises:
        RunError: when the file cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            f"{path} is not a file of arrays that this program wrote ({error})"
        ) from error


def write_json(path: Path, data: object) -> None:
    """Write JSON; the file is whole or not there.

    Args:
        path: of the file.
        data: plain data, without NaN or infinity.
    """
    write_whole(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
