"""Online adaptation: a policy is re-tuned to the workload that a run's ledger records.

    ledger -> calibration -> variations of its scenario -> imitation from the present weights
           -> old and new on the same fresh episodes -> swapped only if better

Between starts of a run, not within one: a running job has read its policy file once and keeps it.
It picks up a swapped policy at its next start (or resume), when its config names the folder's
``current.onnx``. Everything is judged in the simulator, so all scores are modelled, whatever the
provenance of the readings behind the calibration.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ecorl.errors import RunError
from ecorl.policy.adaptation.shift import WORKLOAD, RecordedWorkload, Shift, read_workload, shifted
from ecorl.policy.adaptation.versions import Versions, make_folder, write_file
from ecorl.policy.evaluation.comparison import Difference, paired
from ecorl.policy.evaluation.pools import MOST_LOAD
from ecorl.policy.training.export import network_from_onnx, to_onnx
from ecorl.policy.training.network import PolicyNetwork, logits_in_numpy
from ecorl.policy.training.train import NetworkPolicy, Tell, TrainingPlan, train
from ecorl.scheduler.features import SCORE_WORDS
from ecorl.scheduler.policy_file import PolicyFile, shipped_path
from ecorl.scheduler.tables import COLUMN, Float64
from ecorl.sim.batched import observe
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import draw_trace

ADAPTING = TrainingPlan(
    family="fitted", n_scenarios=16, n_iterations=60, n_rounds=3, n_epochs=8, ppo_steps=0
)
"""A small budget: it starts from a policy that knows the task, and only one workload is learned."""

N_SEEDS = 20
"""Episodes of the comparison."""

SURE = 4.0
"""Greatest logit less the least, at the 90th percentile of states, from which a tuning starts.
Assumed: the worst action then has a probability of about 2 %, and still learns."""

_JUDGE_SEED, _POOL_SEED, _SURE_SEED = 83, 89, 97

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Result of one adaptation.

    Attributes:
        run_id: the run whose ledger it followed.
        shift: how the workload had changed.
        old, new: mean score, Eq. 7 an iteration; None where nothing was tuned.
        difference: of the scores, over episodes; None where nothing was tuned.
        swapped: whether the new policy was written.
        decision: in words.
    """

    run_id: str
    shift: Shift
    old: float | None
    new: float | None
    difference: Difference | None
    swapped: bool
    decision: str

    def record(self) -> dict[str, Any]:
        """The result as plain data for the history."""
        d = self.difference
        return {
            "decision": self.decision,
            "run": self.run_id,
            "shift": str(self.shift),
            "changes": [asdict(change) for change in self.shift.changes],
            "old_score": self.old,
            "new_score": self.new,
            "p_value": None if d is None else d.p_value,
            "scores": f"modelled, an iteration in the calibrated simulator; {SCORE_WORDS}",
        }


def adapt(
    run_dir: Path,
    policy_path: Path | None,
    out_path: Path,
    *,
    plan: TrainingPlan = ADAPTING,
    seeds: int = N_SEEDS,
    force: bool = False,
    n_workers: int = 2,
    tell: Tell | None = None,
) -> Adaptation:
    """Re-tune a policy to a run, and write it if it is better.

    A run that is going on keeps its policy: the file is read once, at its start.

    Args:
        run_dir: the run folder, or the ledger in it.
        policy_path: the present policy; None: the shipped one. Never changed.
        out_path: where the new policy goes; not touched unless it is better.
        plan: budget of the tuning; `n_scenarios` variations, `n_iterations` of every episode.
        seeds: fresh episodes of the calibrated scenario that old and new both play; 2 or more.
        force: tune even when the workload did not shift.
        n_workers: processes that ask the planner.
        tell: told how far the tuning is.

    Raises:
        RunError: when the ledger cannot be calibrated, or `out_path` cannot be written.
        ConfigError: when the present policy cannot be read, or is no network of ours.
    """
    policy_path = policy_path or shipped_path()
    old = network_from_onnx(policy_path)
    before = PolicyFile(policy_path).record
    workload = read_workload(run_dir)
    run_id = workload.calibration.run_id
    shift = shifted(workload, before)
    if not shift and not force:
        decision = "kept: the workload did not shift"
        return Adaptation(run_id, shift, None, None, None, False, decision)
    scenario = adapted_scenario(workload, shift, plan.n_iterations)
    pool = tuning_pool(scenario, plan.n_scenarios, plan.seed)
    start = unsure(old, pool, plan.seed)
    with tempfile.TemporaryDirectory(prefix="ecorl-adapt-") as folder:
        made = train(
            plan, Path(folder), scenarios=pool, start=start, tell=tell, n_workers=n_workers,
            tensorboard=False,
        )  # fmt: skip
    scores = [score(network, scenario, seeds, plan.seed) for network in (old, made.network)]
    difference = judge(*scores)
    better = difference.significant and difference.mean > LEAST_GAIN
    found = Adaptation(
        run_id, shift, float(scores[0].mean()), float(scores[1].mean()), difference, better,
        _decision(better, difference),
    )  # fmt: skip
    if better:
        record = {**made.record, WORKLOAD: workload.record(), "adapted": found.record()}
        record["base"] = {k: v for k, v in before.items() if k not in ("base", "curves")}
        out_path = Path(out_path)
        make_folder(out_path.parent)
        write_file(out_path, to_onnx(made.network, record).SerializeToString())
    return found


def judge(old: Float64, new: Float64) -> Difference:
    """Compare two policies on the same episodes.

    Args:
        old: scores of the policy in use, ``[n_seeds]``.
        new: those of the new one, ``[n_seeds]``.
    """
    return paired(new, old)


def score(network: PolicyNetwork, scenario: Scenario, n_seeds: int, seed: int) -> Float64:
    """Score of a network in fresh episodes, ``[n_seeds] float64``, Eq. 7 an iteration.

    The same seed gives the same episodes, none of which a tuning has seen.

    Args:
        network: the policy.
        scenario: that it plays.
        n_seeds: episodes.
        seed: of the episodes.
    """
    trace = draw_trace([scenario] * n_seeds, np.random.default_rng([seed, _JUDGE_SEED]))
    total = play(Simulation(trace), NetworkPolicy(network.arrays()))[0]
    return np.broadcast_to(np.asarray(total, dtype=np.float64), (n_seeds,)) / trace.n_iterations


def unsure(network: PolicyNetwork, pool: list[Scenario], seed: int) -> PolicyNetwork:
    """A copy of a network that chooses alike and can still learn otherwise.

    A policy may be so sure of itself that what it rules out has no probability and no gradient.
    All logits are scaled by one factor, which leaves their order as it is.

    Args:
        network: the present policy; not changed.
        pool: scenarios whose states count.
        seed: of the episodes.
    """
    arrays = network.arrays()
    policy = NetworkPolicy(arrays)
    simulation = Simulation(draw_trace(pool, np.random.default_rng([seed, _SURE_SEED])))
    spreads = []
    while not simulation.done:
        spreads.append(np.ptp(logits_in_numpy(arrays, observe(simulation)[0]), axis=1))
        simulation.step(policy(simulation))
    factor = min(1.0, SURE / max(float(np.quantile(np.concatenate(spreads), 0.9)), 1e-9))
    scaled = {k: v * np.float32(factor) if k.startswith("head.") else v for k, v in arrays.items()}
    return PolicyNetwork.from_arrays(scaled)


def adapted_scenario(workload: RecordedWorkload, shift: Shift, n_iterations: int) -> Scenario:
    """Scale the calibrated scenario to the run's recent batches.

    A calibration is fitted to the whole run. What shifted within it is scaled by the recent mean
    over that of all batches.

    Args:
        workload: of the run.
        shift: that was found.
        n_iterations: of an episode.
    """
    scenario = workload.calibration.scenario(n_iterations=n_iterations)
    for change in shift.found:
        _, values = workload.series[change.name]
        recent = workload.level(change.name, recent=True)
        if recent is None:
            continue
        moved = recent.mean - float(values.mean())
        if change.name == "row_length":
            scenario = replace(scenario, length_scale=scenario.length_scale * float(np.exp(moved)))
        elif change.name == "other_load":
            factor = recent.mean / max(float(values.mean()), 1e-9)
            scenario = replace(scenario, load=min(scenario.load * factor, MOST_LOAD))
        else:
            columns = [COLUMN[f"{stage}_card_s"] for stage in ("reward", "reference", "critic")]
            table = scenario.table
            table = replace(table, values=table.values.copy())
            table.values[:, columns] *= np.exp(moved)
            scenario = replace(scenario, fitted=table)
    return scenario


def tuning_pool(scenario: Scenario, n: int, seed: int) -> list[Scenario]:
    """A scenario and variations of it that cover the errors of a fit and further shifts.

    Wider than `ecorl.policy.evaluation.pools.variations`, which stay with what a run was found to
    be: a workload that has shifted once may go on, and other jobs may come where there were none.
    The factors are assumed: about the errors that a calibration of some hundred batches has, and
    more.

    Args:
        scenario: the first of them.
        n: how many.
        seed: of the factors.
    """
    rng = np.random.default_rng([seed, _POOL_SEED])

    def factor(spread: float) -> float:
        return float(np.exp(rng.uniform(-spread, spread)))

    found = [scenario]
    while len(found) < n:
        load = scenario.load * factor(0.7) + float(rng.uniform(0.0, 0.1))
        found.append(
            replace(
                scenario,
                name=f"{scenario.name}-{len(found)}",
                length_scale=scenario.length_scale * factor(0.4),
                drift_std=scenario.drift_std * factor(0.4),
                noise_std=scenario.noise_std * factor(0.4),
                load=min(load, MOST_LOAD),
                burst_s=scenario.burst_s * factor(0.5),
                calm=float(np.clip(scenario.calm + rng.uniform(-0.1, 0.1), 0.5, 1.0)),
            )
        )
    return found


def adapt_command(
    run_dir: Path,
    folder: Path,
    policy_path: Path | None,
    force: bool,
    say: Say,
    *,
    plan: TrainingPlan = ADAPTING,
    seeds: int = N_SEEDS,
    n_workers: int = 2,
) -> Adaptation:
    """Adapt the policy of a folder to a run, and print the result.

    A job that is running keeps the policy that it started with; its next start takes the new one.

    Args:
        run_dir: the run folder, or the ledger in it.
        folder: of the policy's versions; a new one begins with `policy_path`.
        policy_path: policy that the folder begins with; None: the shipped one.
        force: adapt even when the workload did not shift.
        say: prints a line.
        plan: budget of the tuning.
        seeds: episodes of the comparison.
        n_workers: processes that ask the planner.

    Raises:
        RunError: when the ledger cannot be calibrated, the folder holds another policy than
            `policy_path`, or another command is at work in it.
        ConfigError: when the policy cannot be read.
    """
    versions = Versions(folder)
    with versions.locked(), tempfile.TemporaryDirectory(prefix="ecorl-adapt-") as scratch:
        present = _present(versions, policy_path)
        made = Path(scratch) / "new.onnx"
        found = adapt(
            run_dir, present, made, plan=plan, seeds=seeds, force=force, n_workers=n_workers,
            tell=lambda step, share: say(f"  {step} ({share:.0%})"),
        )  # fmt: skip
        if versions.number is None:
            versions.take(present.read_bytes(), {"decision": "begun", "from": str(present)})
        if found.swapped:
            versions.take(made.read_bytes(), found.record())
        else:
            versions.note(found.record())
    say(str(found.shift))
    if found.old is not None and found.new is not None:
        say(f"score in the simulator (modelled): {found.old:.5f} before, {found.new:.5f} after")
    say(found.decision)
    say(f"in use: version {versions.number} in {versions.current}")
    if found.swapped:
        say("a running job keeps the policy that it read at its start")
    return found


def rollback(folder: Path) -> int:
    """Put the policy back that was in use before the present one.

    Args:
        folder: of the policy.

    Returns:
        Number of the version that is in use now.

    Raises:
        RunError: when there is none before.
    """
    if not Path(folder).is_dir():
        raise RunError(f"{folder}: there is no policy here to go back from")
    versions = Versions(folder)
    with versions.locked():
        versions.settle()
        return versions.rollback()


def rollback_command(folder: Path, say: Say) -> int:
    """Put the policy before the present one back, and print what is in use now.

    Args:
        folder: of the policy.
        say: prints a line.

    Raises:
        RunError: when there is none before.
    """
    number = rollback(folder)
    say(f"rolled back: version {number} is in use in {folder}")
    say("a running job keeps the policy that it read at its start")
    return number


def _present(versions: Versions, policy_path: Path | None) -> Path:
    """The policy to start from: the folder's own, or the one that it is to begin with."""
    versions.settle()
    if versions.number is None:
        return (policy_path or shipped_path()).expanduser()
    if policy_path is not None and _bytes(policy_path) != versions.current.read_bytes():
        raise RunError(
            f"{versions.folder} holds another policy than {policy_path}: leave the policy out to "
            "go on with the folder's, or choose another folder"
        )
    return versions.current


def _bytes(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from error


LEAST_GAIN = 2e-4
"""Eq. 7 an iteration below which a policy is not swapped: on the same episodes far less is
significant, and the calibration is not that exact. Assumed: a fiftieth of a percent."""


def _decision(better: bool, difference: Difference) -> str:
    p = "" if difference.p_value is None else f", p = {difference.p_value:.2g}"
    told = f"{difference.mean:+.5f} an iteration{p}"
    if better:
        return f"swapped: the new policy is better ({told})"
    return f"kept: the new policy is not better by more than the noise ({told})"
