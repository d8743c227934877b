"""`ecorl plan`: what offloading would change in a job, an iteration, under several policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ecorl.config import read_toml
from ecorl.devices import cheapest, chosen_profile, dearest, missing_gpu_figures
from ecorl.devices.card import CARD_FIGURES
from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.policy.evaluation.comparison import LITTLE
from ecorl.policy.evaluation.evaluate import FilePolicy, SimPolicy
from ecorl.policy.planners.heuristics import StaticBaseline, always_gpu, best_static
from ecorl.policy.planners.planner import Planner
from ecorl.policy.planners.search import lookahead
from ecorl.records import NO_ABILITIES, Algorithm, DeviceKind, Stage
from ecorl.scheduler.learned import PolicyFile
from ecorl.sim.families import ALL, FROZEN
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.tasks import nominal_length
from ecorl.sim.trace import Trace, draw_trace
from ecorl.stages import stage_graph

_LONGEST = 4.0
"""Limit of a completion over the mean one. Assumed: a usual limit cuts off the last percent."""

_ABILITIES = {"none": NO_ABILITIES, "frozen": FROZEN, "all": ALL}
_ALGORITHMS = [str(a) for a in Algorithm]
_TUNING_SEED, _SEED = 11, 12

RUN_ALGORITHMS = (Algorithm.GRPO, Algorithm.RLOO)
"""Algorithms that `ecorl run` trains, with TRL: those of a plan that names none."""

_WORDS = {"calibration": ["roofline", "paper"], "abilities": list(_ABILITIES)}


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """The job of a plan, by names and numbers that a person types.

    Attributes:
        gpu, n_gpus, card, n_cards: profile names (or files), and how many; a card is the second
            device, of any kind.
        policy_model, inference_model: sizes of actor and reference, and of reward and critic;
            under ``paper``, whose reference has the smaller size, of the actor and of the others.
        algorithm: of the trainer; None: `RUN_ALGORITHMS`.
        rows: completions an iteration.
        prompt, length: mean prompt and mean completion, tokens.
        calibration: ``roofline`` or ``paper``.
        load: other jobs' share of the cards' time.
        abilities: what the framework lets a scheduler do: ``none`` (place reward and reference, as
            runs of this version), ``frozen`` (also stream rows, the early forward pass, putting the
            critic's step off), ``all`` (also the critic on the cards).
    """

    gpu: str = "h100_sxm"
    n_gpus: int = 32
    card: str = "u55c"
    n_cards: int = 4
    policy_model: str = "70b"
    inference_model: str = "8b"
    algorithm: str | None = None
    rows: int = 256
    prompt: float = 256.0
    length: float = 1024.0
    calibration: str = "roofline"
    load: float = 0.0
    abilities: str = "none"

    def __post_init__(self) -> None:
        for key, words in _WORDS.items():
            if getattr(self, key) not in words:
                raise ConfigError(f"plan.{key}", getattr(self, key), f"one of {words}")
        if self.algorithm is not None and self.algorithm not in _ALGORITHMS:
            raise ConfigError("plan.algorithm", self.algorithm, f"one of {_ALGORITHMS}")
        for key, least in (("length", 1.0), ("prompt", 0.0), ("rows", 1), ("n_gpus", 1)):
            value = getattr(self, key)
            if not least <= value < math.inf:
                raise ConfigError(f"plan.{key}", value, f"{least:g} or more")
        if not self.n_cards >= 0:
            raise ConfigError("plan.n_cards", self.n_cards, "0 or more")
        if not 0.0 <= self.load < 1.0:
            raise ConfigError("plan.load", self.load, "0 or more and below 1")

    def scenarios(self, n_iterations: int) -> dict[str, Scenario]:
        """The job in the simulator by algorithm, with its costs computed.

        Algorithms that have the same stages at the same costs are one job: their names stand
        together, as in ``grpo and rloo``.

        Args:
            n_iterations: of an episode.

        Raises:
            ConfigError: for a name that is not known, a profile that cannot stand for its devices,
                or a model that does not fit.
        """
        self._check_profiles()
        wanted = RUN_ALGORITHMS if self.algorithm is None else (Algorithm(self.algorithm),)
        groups: list[tuple[list[str], Scenario]] = []
        for algorithm in wanted:
            made = self._scenario(algorithm, n_iterations)
            like = next((names for names, one in groups if _costs_alike(one, made)), None)
            if like is None:
                groups.append(([str(algorithm)], made))
            else:
                like.append(str(algorithm))
        return {" and ".join(names): one for names, one in groups}

    def _scenario(self, algorithm: Algorithm, n_iterations: int) -> Scenario:
        limit = _LONGEST * self.length
        scale = self.length / nominal_length()
        for _ in range(20):  # the limit cuts a little off the mean
            scale *= self.length / nominal_length(scale=scale, cap=limit)
        actor, other = self.policy_model, self.inference_model
        made = Scenario(
            "plan",
            calibration="paper" if self.calibration == "paper" else "roofline",
            algorithm=algorithm,
            sizes={Stage.GENERATION: actor, Stage.REWARD: other, Stage.CRITIC: other,
                   Stage.REFERENCE: other if self.calibration == "paper" else actor},
            n_rows=self.rows,
            prompt_length=self.prompt,
            gpu=self.gpu,
            n_gpus=self.n_gpus,
            card=self.card,
            n_cards=self.n_cards,
            length_scale=scale,
            max_length=limit,
            load=self.load,
            abilities=_ABILITIES[self.abilities],
            n_iterations=n_iterations,
        )  # fmt: skip
        try:
            _ = made.table
        except PhysicalBoundError as error:
            raise ConfigError("plan", "these devices", f"what physics allows ({error})") from error
        return made

    def _check_profiles(self) -> None:
        """The cards' missing figures would only keep the work on the GPUs, without a word."""
        roofline = self.calibration == "roofline"
        gpu = chosen_profile("plan.gpu", self.gpu, DeviceKind.GPU, DeviceKind.CPU)
        card = chosen_profile("plan.card", self.card, *DeviceKind)
        _check_figures("plan.gpu", self.gpu, missing_gpu_figures(gpu) if roofline else [])
        if self.n_cards:
            priced = CARD_FIGURES if card.kind is DeviceKind.FPGA else missing_gpu_figures(card)
            needed = ("idle_w", *(priced if roofline else ()))
            _check_figures("plan.card", self.card, [k for k in needed if card.get(k) is None])


def _check_figures(key: str, name: str, missing: Sequence[str]) -> None:
    if missing:
        allowed = (
            "a profile with all figures that its costs need: that of "
            f"{name} lacks {', '.join(missing)}; a copy of its file with figures of your own for "
            "these will do"
        )
        raise ConfigError(key, name, allowed)


def _costs_alike(one: Scenario, other: Scenario) -> bool:
    """Whether two jobs have the same stages, in the same order, at the same costs."""
    graphs = [stage_graph(s.algorithm, s.with_reference).needs for s in (one, other)]
    return graphs[0] == graphs[1] and np.array_equal(one.table.values, other.table.values)


def planned_job(path: Path | None, given: Mapping[str, Any]) -> PlannedJob:
    """A job from a TOML file and from options, which go before it.

    Args:
        path: file with keys of `PlannedJob`; None: options and defaults alone.
        given: values by key; None where an option was not given.

    Raises:
        ConfigError: for a file that cannot be read, an unknown key or a wrong value.
    """
    values = {} if path is None else _read(path)
    values |= {key: value for key, value in given.items() if value is not None}
    return PlannedJob(**values)


def _read(path: Path) -> dict[str, Any]:
    data = read_toml(path, "--config")
    kinds = {f.name: _KINDS[str(f.type)] for f in fields(PlannedJob)}
    for key, value in data.items():
        if key not in kinds:
            raise ConfigError(key, value, f"one of {sorted(kinds)}", path)
        allowed_types, word = kinds[key]
        if isinstance(value, bool) or not isinstance(value, allowed_types):
            raise ConfigError(key, value, word, path)
    return data


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "str | None": ((str,), "a text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
}


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One way to run the job, a mean over iterations and episodes.

    Attributes:
        policy: title.
        score: Eq. 7 an iteration, 0 for GPU-only.
        time_s, energy_j, bubble_s: an iteration; energy of GPUs and cards, idle ones included.
        tokens_per_j: completion tokens over that energy.
    """

    policy: str
    score: float
    time_s: float
    energy_j: float
    bubble_s: float
    tokens_per_j: float


NO_CARDS = "GPU-only, no cards"
GPU_ONLY, PLANNER, LEARNED = "GPU-only, cards idle", "causal planner", "learned policy"


def planned(
    scenario: Scenario,
    file: PolicyFile | None,
    *,
    n_seeds: int = 4,
    tell: Callable[[str, float], None] | None = None,
) -> list[PlanRow]:
    """Play the job under each policy on the same episodes.

    Args:
        scenario: the job.
        file: the learned policy; None leaves it out.
        n_seeds: episodes.
        tell: told how far it is.
    """
    tell = tell or (lambda step, share: None)
    trace = draw_trace([scenario] * n_seeds, np.random.default_rng(_SEED))
    tell("best static sequence", 0.0)
    tuning = draw_trace([scenario], np.random.default_rng(_TUNING_SEED))
    policies: dict[str, SimPolicy] = {
        GPU_ONLY: always_gpu,
        "best static": StaticBaseline(best_static(tuning)[0]),
        "look-ahead": lookahead,
    }
    tell("causal planner", 0.6)
    policies[PLANNER] = Planner(trace.scenarios)
    if file is not None:
        policies[LEARNED] = FilePolicy(file)
    rows = [_row(name, trace, policy) for name, policy in policies.items()]
    tell("done", 1.0)
    return [_without_cards(rows[0], scenario), *rows]


@dataclass(frozen=True, slots=True)
class PlanRange:
    """An iteration with the devices' figures at the ends of their intervals, all at once.

    Where work costs least on the GPUs it costs most on the cards, and the other way round: the
    gain of offloading lies between.

    Attributes:
        cheap, dear: the iteration on the GPUs alone, without cards.
        cheap_gain, dear_gain: what the causal planner gains there, Eq. 7 an iteration.
    """

    cheap: PlanRow
    dear: PlanRow
    cheap_gain: float
    dear_gain: float

    @property
    def pays(self) -> tuple[bool, bool]:
        """Whether offloading pays by the score at the cheap end and at the dear one."""
        return self.cheap_gain >= LITTLE, self.dear_gain >= LITTLE


def plan_range(scenario: Scenario, *, n_seeds: int = 4) -> PlanRange | None:
    """What the intervals of the devices' figures leave open; None where they have none.

    Args:
        scenario: the job.
        n_seeds: episodes.
    """
    gpu, card = scenario.setting.gpu, scenario.setting.card
    ends = (cheapest(gpu), dearest(card)), (dearest(gpu), cheapest(card))
    if scenario.calibration != "roofline" or ends[0] == (gpu, card) == ends[1]:
        return None
    found = []
    for gpu_end, card_end in ends:
        moved = replace(scenario, gpu=gpu_end, card=card_end)
        trace = draw_trace([moved] * n_seeds, np.random.default_rng(_SEED))
        idle, planner = (
            _row(name, trace, policy)
            for name, policy in ((GPU_ONLY, always_gpu), (PLANNER, Planner(trace.scenarios)))
        )
        found.append((_without_cards(idle, moved), planner.score))
    (cheap, cheap_gain), (dear, dear_gain) = found
    return PlanRange(cheap, dear, cheap_gain, dear_gain)


def _without_cards(idle: PlanRow, scenario: Scenario) -> PlanRow:
    """The same iteration in a machine that has no cards to idle."""
    tokens = idle.tokens_per_j * idle.energy_j
    energy_j = idle.energy_j - scenario.table.card_idle_w * idle.time_s
    return PlanRow(NO_CARDS, 0.0, idle.time_s, energy_j, 0.0, tokens / energy_j)


def _row(name: str, trace: Trace, policy: SimPolicy) -> PlanRow:
    score, energy_j, time_s, bubble_s, _ = play(Simulation(trace), policy)
    n = trace.n_iterations
    tokens = float((trace.n_rows * trace.length).sum(axis=0).mean())
    mean_j = float(energy_j.mean())
    return PlanRow(
        name,
        float(score.mean()) / n,
        float(time_s.mean()) / n,
        mean_j / n,
        float(bubble_s.mean()) / n,
        tokens / mean_j,
    )


def verdict(rows: list[PlanRow], scenario: Scenario) -> str:
    """Whether offloading pays, and how much, in one sentence."""
    by_name = {row.policy: row for row in rows}
    base, best, bare = by_name[GPU_ONLY], by_name[PLANNER], by_name[NO_CARDS]
    table = scenario.table
    if not any(table.card_usable):
        why = "; ".join(table.notes) or "there is none that can run them"
        return f"Offloading is not possible: the cards cannot run these stages ({why})."
    if best.score < LITTLE:
        gain = 100 * max(best.score, 0.0)
        return (
            "Offloading does not pay: the causal planner, the best plan that knows no "
            f"future, gains {gain:.2f} % by the score over leaving the cards idle, less than "
            f"{100 * LITTLE:g} % ({table.provenance})."
        )
    against_bare = _change(best.energy_j, bare.energy_j)
    return (
        f"Offloading pays by the score (+{best.score:.3f}): the causal planner, the best plan "
        f"that knows no future, changes energy by {_change(best.energy_j, base.energy_j)} and time "
        f"by {_change(best.time_s, base.time_s)} against idle cards; against the same GPUs without "
        f"cards it changes energy by {against_bare} ({table.provenance})."
    )


def _change(value: float, base: float) -> str:
    return f"{100 * (value / base - 1.0):+.1f} %"
