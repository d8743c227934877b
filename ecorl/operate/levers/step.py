"""A step of RLHF on GPUs alone: what each stage takes and draws, and of what that is made up.

The figures are those of the cost model (`ecorl.scheduler.costs`). They are split by what a lever
can act on: time that kernels wait for the host, for memory and for arithmetic, and the energy of
GPUs that stand ready, of bytes and of operations::

    time   = fixed + memory + compute
    energy = busy power x time + energy of bytes + energy of operations
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ecorl.config import DeviceConfig
from ecorl.devices import DeviceProfile, StageCost, peak_ops_per_s
from ecorl.devices.gpu_pass import pass_parameters
from ecorl.devices.work import TRAINING_STAGES
from ecorl.errors import ConfigError
from ecorl.records import ModelShape, Provenance, Stage
from ecorl.scheduler.costs import CostModel
from ecorl.scheduler.tables import Setting, stage_calls, stage_work
from ecorl.stages.figures import Number

LONGEST_OVER_MEAN = 2.0
"""Longest completion of a batch over the mean one. Assumed: the longest of some hundred completions
of usual spread. It decides the number of decoding steps."""


@dataclass(frozen=True, slots=True)
class StageDraw:
    """What one stage takes and draws on all GPUs of the job; floats, or arrays side by side.

    Attributes:
        stage: the stage.
        fixed_s: time in which kernels wait for the host or for other GPUs, s.
        memory_s: time that memory traffic takes, s.
        compute_s: time that arithmetic takes, s.
        busy_w: power of all GPUs while the stage runs, without that of bytes and operations, W.
        idle_w: power of all GPUs while they wait, W.
        memory_j: energy of the bytes, J.
        compute_j: energy of the operations, J.
        n_params: parameters that a token passes through; sets how much a number format gains.
        unlimited_w: power that all GPUs would draw at their greatest clock if the board set no
            limit, W; above the limit where that holds the clock down.
    """

    stage: Stage
    fixed_s: Number
    memory_s: Number
    compute_s: Number
    busy_w: Number
    idle_w: Number
    memory_j: Number
    compute_j: Number
    n_params: float
    unlimited_w: float

    @property
    def time_s(self) -> Number:
        """Time of the stage, s."""
        return self.fixed_s + self.memory_s + self.compute_s

    @property
    def energy_j(self) -> Number:
        """Energy of all GPUs over that time, J."""
        return self.busy_w * self.time_s + self.memory_j + self.compute_j

    @property
    def power_w(self) -> Number:
        """Mean power of all GPUs, W."""
        return self.energy_j / self.time_s

    def scaled(self, time: float, energy: float) -> StageDraw:
        """Return the stage with another time and energy that are made up in the same way.

        Args:
            time: factor of the time.
            energy: factor of the energy.
        """
        return replace(
            self,
            fixed_s=self.fixed_s * time,
            memory_s=self.memory_s * time,
            compute_s=self.compute_s * time,
            busy_w=self.busy_w * energy / time,
            memory_j=self.memory_j * energy,
            compute_j=self.compute_j * energy,
            unlimited_w=self.unlimited_w * energy / time,
        )


StageLevels = Mapping[Stage, tuple[float, float]]
"""Time and energy of stages over what the model says of them."""


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A step whose stages follow one another on the same GPUs.

    Attributes:
        draws: of its stages, in their order.
        gpu: profile of the GPUs.
        n_tokens: completion tokens of the step.
        limit_w: what all GPUs may draw together, W; None where the profile has no limit.
        provenance: of all figures.
    """

    draws: tuple[StageDraw, ...]
    gpu: DeviceProfile
    n_tokens: float
    limit_w: float | None
    provenance: Provenance = Provenance.MODELLED

    @property
    def time_s(self) -> float:
        """Time of the step, s."""
        return math.fsum(draw.time_s for draw in self.draws)

    @property
    def energy_j(self) -> float:
        """Energy of all GPUs over the step, J."""
        return math.fsum(draw.energy_j for draw in self.draws)

    def shares(self) -> dict[Stage, float]:
        """Share of each stage in the step's energy."""
        total = self.energy_j
        return {draw.stage: draw.energy_j / total for draw in self.draws}

    def with_shares(self, energy: Mapping[Stage, float], time: Mapping[Stage, float]) -> PricedStep:
        """Return the step as its user has measured it: what each stage takes of time and energy.

        The totals stay those of the model, and so does what each stage's figures are made up of.

        Args:
            energy: share of the energy by stage; of the stages that are not in it the share stays
                what it is among themselves.
            time: share of the time likewise.

        Raises:
            ConfigError: for shares that are negative or add up to more than 1, or of a stage that
                the step does not have.
        """
        if not energy and not time:
            return self
        known_s = {draw.stage: draw.time_s / self.time_s for draw in self.draws}
        energies = _completed("energy", energy, self.shares())
        times = _completed("time", time, known_s)
        for stage, share in times.items():
            if share == 0.0 < energies[stage]:
                raise ConfigError(f"shares.{stage}", energies[stage], "0, as it takes no time")
        draws = tuple(
            draw.scaled(times[draw.stage] / known_s[draw.stage],
                        energies[draw.stage] / self.shares()[draw.stage])
            for draw in self.draws
            if energies[draw.stage] > 0.0 or times[draw.stage] > 0.0
        )  # fmt: skip
        return replace(self, draws=draws)

    def levels_over(self, nominal: PricedStep) -> StageLevels:
        """Return this step's figures over those of the same step as the model has priced it.

        Args:
            nominal: as the model has priced it.
        """
        own = {draw.stage: draw for draw in self.draws}
        return {
            draw.stage: (
                own[draw.stage].time_s / draw.time_s,
                own[draw.stage].energy_j / draw.energy_j,
            )
            for draw in nominal.draws
            if draw.stage in own
        }

    def at_levels(self, levels: StageLevels) -> PricedStep:
        """Return the step with its stages at such levels; a stage without one is left out.

        Args:
            levels: from `levels_over`, of a like job.
        """
        draws = tuple(d.scaled(*levels[d.stage]) for d in self.draws if d.stage in levels)
        return replace(self, draws=draws)

    def scaled_to(self, time_s: float, energy_j: float) -> PricedStep:
        """Return the step with other totals, all stages by the same factors.

        Args:
            time_s: time of the step, s.
            energy_j: its energy, J.
        """
        factors = time_s / self.time_s, energy_j / self.energy_j
        return replace(self, draws=tuple(draw.scaled(*factors) for draw in self.draws))

    def with_figures(
        self, time_s: Mapping[Stage, float], energy_j: Mapping[Stage, float]
    ) -> PricedStep:
        """Return the step with measured times and energies, made up as the model says.

        Args:
            time_s: time by stage, s; a stage that is not in it keeps the model's.
            energy_j: energy by stage, J; likewise.

        Raises:
            ConfigError: for a figure that is not above 0.
        """
        for key, figures in (("time_s", time_s), ("energy_j", energy_j)):
            for stage, value in figures.items():
                if not 0.0 < value < math.inf:
                    raise ConfigError(f"{key} of {stage}", value, "above 0")
        draws = tuple(
            draw.scaled(time_s.get(draw.stage, draw.time_s) / draw.time_s,
                        energy_j.get(draw.stage, draw.energy_j) / draw.energy_j)
            for draw in self.draws
        )  # fmt: skip
        return replace(self, draws=draws)


def _completed(
    what: str, given: Mapping[Stage, float], known: Mapping[Stage, float]
) -> dict[Stage, float]:
    """Fill shares up to 1 by those of the stages that were not given."""
    for stage, value in given.items():
        if stage not in known:
            raise ConfigError(f"shares.{stage}", value, f"a stage of the job: {', '.join(known)}")
        if not 0.0 <= value <= 1.0:
            raise ConfigError(f"shares.{stage}", value, "0 to 1")
    total = math.fsum(given.values())
    others = {stage: value for stage, value in known.items() if stage not in given}
    left, of_others = 1.0 - total, math.fsum(others.values())
    if left < -1e-6 or (left > 1e-6 and not others):
        raise ConfigError(f"shares of {what}", round(total, 4), "shares that add up to 1")
    rest = max(left, 0.0) / of_others if of_others > 0.0 else 0.0
    return {stage: given.get(stage, known[stage] * rest) for stage in known}


def priced_step(setting: Setting, length: float) -> PricedStep:
    """Price a step on the GPUs alone.

    Args:
        setting: job and devices; its cards are left out.
        length: mean completion, tokens.

    Raises:
        ConfigError: when a stage cannot be priced.
    """
    costs = CostModel(setting.gpu, setting.card, DeviceConfig(n_gpus=setting.n_gpus),
                      setting.models, setting.by_role)  # fmt: skip
    draws = []
    for stage in setting.stages:
        work = stage_work(setting, stage, length, setting.n_rows)
        if stage is Stage.GENERATION:
            work = replace(
                work, max_length=round(LONGEST_OVER_MEAN * length + setting.prompt_length)
            )
        calls = stage_calls(setting, stage)
        one = _draw(stage, costs.gpu_cost(work), setting, setting.models[stage])
        draws.append(one.scaled(calls, calls))
    limit_w = setting.gpu.get("tdp_w")
    return PricedStep(
        draws=tuple(draws),
        gpu=setting.gpu,
        n_tokens=setting.n_rows * length,
        limit_w=None if limit_w is None else limit_w * setting.n_gpus,
    )


def _draw(stage: Stage, cost: StageCost, setting: Setting, model: ModelShape) -> StageDraw:
    """Split the cost of a stage into what levers act on."""
    time_s, energy_j = cost.time_s, cost.energy_j
    if time_s is None or energy_j is None:
        raise ConfigError(f"costs of {stage} on {cost.device}", None, cost.note)
    launch_s, moved, ops = cost.launch_s, cost.memory_bytes, cost.ops
    if launch_s is None or moved is None or ops is None or cost.memory_s is None:
        raise ConfigError(f"costs of {stage} on {cost.device}", None, "what they are made up of")
    fixed_s = min(launch_s, time_s)
    working_s = time_s - fixed_s
    idle_w = setting.n_gpus * setting.gpu.value("idle_w")
    passes = pass_parameters(setting.gpu)
    if passes is None:
        # Nothing says what a part of the power is drawn for: all of it is that of a busy device.
        compute_s = working_s if cost.bound == "compute" else 0.0
        return StageDraw(stage, fixed_s, working_s - compute_s, compute_s, energy_j / time_s,
                         idle_w, 0.0, 0.0, float(model.n_params_active),
                         energy_j / time_s)  # fmt: skip
    memory_j = min(moved * passes.j_per_byte, energy_j)
    if stage is Stage.GENERATION:
        # Terms of a pass add. Of what the board's limit takes longer, arithmetic is the reason.
        memory_s = min(cost.memory_s, working_s)
        compute_j = min(ops * passes.j_per_op, energy_j - memory_j)
        peak = setting.n_gpus * peak_ops_per_s(setting.gpu) * passes.mfu_decode
        unlimited_s = min(fixed_s + memory_s + ops / peak, time_s)
        moving_w = (memory_j + compute_j) / unlimited_s
    else:
        # A roofline: the longer of both. Power beyond that of a busy GPU is that of arithmetic.
        memory_s = working_s if cost.bound == "memory" else 0.0
        standing_j = min(passes.busy_w * cost.n_devices * time_s, energy_j - memory_j)
        compute_j = energy_j - memory_j - standing_j
        moving_w = memory_j / time_s
        if cost.bound == "compute":
            mfu = "mfu_train" if stage in TRAINING_STAGES else "mfu_prefill"
            reached = peak_ops_per_s(setting.gpu) * setting.gpu.value(mfu)
            moving_w += setting.n_gpus * reached * passes.j_per_op
    busy_w = (energy_j - memory_j - compute_j) / time_s
    return StageDraw(stage, fixed_s, memory_s, working_s - memory_s, busy_w, idle_w,
                     memory_j, compute_j, float(model.n_params_active),
                     setting.n_gpus * passes.busy_w + moving_w)  # fmt: skip
