"""The job of a plan, by names and numbers that a person types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ecorl.config import read_toml
from ecorl.devices import chosen_profile, missing_gpu_figures
from ecorl.devices.card import CARD_FIGURES
from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.records import NO_ABILITIES, Algorithm, DeviceKind, Stage
from ecorl.sim.families.pools import ALL, FROZEN
from ecorl.sim.scenario import Scenario
from ecorl.sim.tasks import nominal_length
from ecorl.stages.graph import stage_graph

_LONGEST = 4.0
"""Limit of a completion over the mean one. Assumed: a usual limit cuts off the last percent."""

_ABILITIES = {"none": NO_ABILITIES, "frozen": FROZEN, "all": ALL}
_ALGORITHMS = [str(a) for a in Algorithm]
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


def job_keys() -> list[str]:
    """Names of the keys of a job, in alphabetical order."""
    return sorted(f.name for f in fields(PlannedJob))


def plan_values(
    path: Path | None, given: Mapping[str, Any], kinds: Sequence[type]
) -> list[dict[str, Any]]:
    """Read values by key from a TOML file and from options, which go before it.

    Args:
        path: the file; None: options alone.
        given: values by key; None where an option was not given.
        kinds: dataclasses whose fields are the keys; no two share one.

    Returns:
        The values of each of `kinds`.

    Raises:
        ConfigError: for a file that cannot be read, an unknown key or a wrong value.
    """
    names = {f.name for kind in kinds for f in fields(kind)}
    values: dict[str, Any] = {}
    if path is not None:
        for key, value in read_toml(path, "--config").items():
            if key not in names:
                raise ConfigError(key, value, f"one of {sorted(names)}", path)
            values[key] = checked_value(key, value, path, kinds)
    values |= {key: value for key, value in given.items() if value is not None}
    return [{f.name: values[f.name] for f in fields(k) if f.name in values} for k in kinds]


def checked_value(key: str, value: Any, path: Path, kinds: Sequence[type] = (PlannedJob,)) -> Any:
    """Return a value of a file if it is of the kind that its key wants.

    Args:
        key: a field of one of `kinds`.
        value: what the file holds.
        path: the file.
        kinds: dataclasses.

    Raises:
        ConfigError: when it is of another kind.
    """
    kind = next(str(f.type) for one in kinds for f in fields(one) if f.name == key)
    allowed_types, word = _KINDS[kind]
    if isinstance(value, bool) or not isinstance(value, allowed_types):
        raise ConfigError(key, value, word, path)
    return value


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "str | None": ((str,), "a text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "float | None": ((int, float), "a number"),
}
