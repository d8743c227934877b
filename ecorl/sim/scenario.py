"""A scenario: what runs on what, how its lengths vary, and what else the cards must do.

A scenario is data; `ecorl.sim.trace` draws episodes from it. The costs of its stages come from one
of three calibrations: ``roofline`` (bounded by physics), ``paper`` (as printed), or a table fitted
from a run's ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from ecorl.devices import DeviceProfile, load_profile
from ecorl.devices.llama import model_shape
from ecorl.errors import ConfigError
from ecorl.records import Abilities, Algorithm, ModelShape, Stage
from ecorl.scheduler.iteration_costs import AMBIENT_C
from ecorl.scheduler.paper_table import paper_table
from ecorl.scheduler.tables import CostTable, Float64, Setting, length_grid, roofline_table
from ecorl.sim.divergence import EXACT, Divergence
from ecorl.sim.replay import Replay
from ecorl.sim.tasks import PROMPT_STD, SHARES, nominal_length

SimCalibration = Literal["roofline", "paper", "fitted"]
RowLengths = Literal["strata", "drawn"]


MOST_SLOWDOWN = 4.0
"""Cards do not run below a quarter of their clock, whatever the rack leaves them. Assumed."""

FROZEN_ONLY = Abilities(True, True, True, False)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the guards, as in `ecorl.scheduler.Guards`; no policy can override them.

    Attributes:
        q_max: queue at which offloading stops, batches like the one at hand.
        l_max: longest mean row that is offloaded, prompt and completion, tokens.
        energy_margin: an offload may cost at most ``1 + energy_margin`` times the GPU path's
            modelled energy; None switches this guard off.
    """

    q_max: float = 8.0
    l_max: float = 2048.0
    energy_margin: float | None = None


@dataclass(frozen=True)
class Scenario:
    """What one simulated job is.

    Attributes:
        name: for tables.
        calibration: where the costs come from.
        algorithm: of the RL trainer.
        sizes: name of each model's size (see `ecorl.devices.llama`) by stage; critic_train and
            actor_train share the shapes of critic and generation.
        n_rows: completions an iteration.
        group_size: rows that share one prompt (8 to 16 are usual with GRPO and its like). The mix
            and the mean length of a batch vary the more, the fewer prompts it has; what stages cost
            stays as it is. No training pool varies it: the shipped policy has learned at 1. A
            calibration leaves it at 1 too: what it fits are the batches as they came.
        prompt_length: mean tokens of a prompt.
        gpu, n_gpus, card, n_cards: devices; profile names, or a profile.
        reward_calls: scorings of a row while it grows; 1 but for process rewards.
        with_reference: None: as the algorithm prescribes.
        off_policy: one step off-policy: the iteration trains on the batch before.
        adaptive_batch: rows follow the expected length, so that tokens stay even.
        mix: shares of the tasks.
        concentration: of the mix from batch to batch (Dirichlet); small: batches of one task. That
            of batches whose rows all have different prompts.
        length_scale: factor on all lengths.
        max_length: limit of a completion, tokens.
        drift_std, drift_memory: slow change of all lengths, AR(1) of the logarithm.
        noise_std: unforeseen change of a batch's lengths, of the logarithm; again at as many
            prompts as rows.
        load: other jobs' share of the cards' time; 0: the array is this job's alone.
        burst_s: mean work of one of their bursts, in units of this job's GPU-only iteration.
        calm: share of iterations without a burst when the last had none (0.5 to 1).
        failure_rate: chance that a card fails in an iteration.
        repair_iterations: mean iterations that it stays away.
        ambient_c: temperature of the air, degrees Celsius.
        slow: factor by which cards slow while the GPUs work (a common power cap), 1 or more.
        rack_limit_w: power limit of the rack that GPUs and cards share; None: none. What the busy
            GPUs leave of it is the cards'.
        sleeps: whether the cards unload this job's models after an iteration without them.
        asleep_share: power of sleeping cards over that of idle ones, 0 to 1.
        wake_iterations: time until sleeping cards are ready, in GPU-only iterations.
        staleness: limit of asynchronous training, iterations: 2 lets the results of an iteration
            come as late as the end of the next; above 1 only with `off_policy`.
        yielding: share of their work that other jobs take elsewhere while this one keeps the cards
            busy, 0 to 1.
        timeout_iterations: time after which a card that does not answer is given up, in GPU-only
            iterations.
        abilities, limits: what may be done, and the guards.
        n_iterations: of an episode.
        rows: how completions come: ``strata`` represents each task by fixed quantiles and tells the
            tasks of a batch beforehand; ``drawn`` draws each completion, with a heavy tail, and
            tells the usual mix alone.
        divergence: how costs differ from the tables.
        fitted: table of the ``fitted`` calibration.
        replay: of the run that the table was fitted to: its lengths and times come in place of
            drawn ones, and `divergence` on top of its times.
    """

    name: str
    calibration: SimCalibration = "roofline"
    algorithm: Algorithm = Algorithm.PPO
    sizes: Mapping[Stage, str] = field(default_factory=dict)
    n_rows: int = 256
    group_size: int = 1
    prompt_length: float = 256.0
    gpu: str | DeviceProfile = "h100_sxm"
    n_gpus: int = 32
    card: str | DeviceProfile = "u55c"
    n_cards: int = 4
    reward_calls: int = 1
    with_reference: bool | None = None
    off_policy: bool = False
    adaptive_batch: bool = False
    mix: tuple[float, ...] = tuple(float(s) for s in SHARES)
    concentration: float = 4.0
    length_scale: float = 1.0
    max_length: float = 4096.0
    drift_std: float = 0.25
    drift_memory: float = 0.97
    noise_std: float = 0.05
    load: float = 0.0
    burst_s: float = 0.5
    calm: float = 0.9
    failure_rate: float = 0.0
    repair_iterations: float = 10.0
    ambient_c: float = AMBIENT_C
    slow: float = 1.0
    rack_limit_w: float | None = None
    sleeps: bool = False
    asleep_share: float = 1.0
    wake_iterations: float = 0.0
    staleness: int = 1
    yielding: float = 0.0
    timeout_iterations: float = 0.0
    abilities: Abilities = FROZEN_ONLY
    limits: Limits = Limits()
    n_iterations: int = 200
    rows: RowLengths = "strata"
    divergence: Divergence = EXACT
    fitted: CostTable | None = None
    replay: Replay | None = None

    def __post_init__(self) -> None:
        checks = (
            ("n_rows", self.n_rows >= 1, "1 or more"),
            ("group_size", self._has_whole_groups(),
             f"1, or a divisor of n_rows ({self.n_rows}) that leaves two prompts or more"),
            ("n_gpus", self.n_gpus >= 1, "1 or more"),
            ("n_cards", self.n_cards >= 0, "0 or more"),
            ("n_iterations", self.n_iterations >= 1, "1 or more"),
            ("load", 0 <= self.load < 1, "0 or more and below 1"),
            ("calm", 0.5 <= self.calm <= 1, "0.5 to 1"),
            ("drift_memory", 0 <= self.drift_memory < 1, "0 to below 1"),
            ("slow", self.slow >= 1, "1 or more"),
            ("rack_limit_w", self.rack_limit_w is None or self.rack_limit_w > 0, "above 0"),
            ("asleep_share", 0 <= self.asleep_share <= 1, "0 to 1"),
            ("wake_iterations", self.wake_iterations >= 0, "0 or more"),
            ("staleness", self.staleness in ((1, 2) if self.off_policy else (1,)),
             "1, or 2 with off_policy"),
            ("yielding", 0 <= self.yielding <= 1, "0 to 1"),
            ("timeout_iterations", self.timeout_iterations >= 0, "0 or more"),
            ("calibration", self.calibration in get_args(SimCalibration),
             f"one of {list(get_args(SimCalibration))}"),
            ("rows", self.rows in get_args(RowLengths),
             f"one of {list(get_args(RowLengths))}"),
            ("repair_iterations", self.repair_iterations >= 1, "1 or more"),
            ("burst_s", self.burst_s > 0, "above 0"),
            ("concentration", self.concentration > 0, "above 0"),
            ("length_scale", self.length_scale > 0, "above 0"),
            ("max_length", self.max_length >= 4, "4 tokens or more"),
            ("prompt_length", self.prompt_length >= 0, "0 or more"),
            ("drift_std", self.drift_std >= 0, "0 or more"),
            ("noise_std", self.noise_std >= 0, "0 or more"),
            ("failure_rate", 0 <= self.failure_rate <= 1, "0 to 1"),
            ("reward_calls", self.reward_calls >= 1, "1 or more"),
            ("ambient_c", -40 <= self.ambient_c <= 80, "-40 to 80"),
            ("mix", len(self.mix) == len(SHARES), f"{len(SHARES)} shares"),
            ("mix", abs(sum(self.mix) - 1) < 1e-6 and min(self.mix) >= 0,
             "shares that add up to 1"),
            ("fitted", self.calibration != "fitted" or self.fitted is not None,
             "a fitted table (ecorl policy calibrate)"),
            ("replay", self.replay is None or self.calibration == "fitted",
             "a replay beside the table fitted to its run"),
        )  # fmt: skip
        for key, fine, allowed in checks:
            if not fine:
                value = "a replay" if key == "replay" else getattr(self, key)
                raise ConfigError(f"scenario.{key}", value, allowed)

    def _has_whole_groups(self) -> bool:
        # The mix of a single prompt is one task: no Dirichlet draws that.
        g, n = self.group_size, self.n_rows
        return g == 1 or (2 <= g <= n / 2 and n % g == 0)

    @property
    def is_stale(self) -> bool:
        """Whether results may come as late as the next iteration."""
        return self.staleness > 1

    @property
    def slowdown(self) -> float:
        """Factor by which cards slow while the GPUs work, by a common cap or the rack's limit.

        Power above idle is taken to go with the clock, which is more than it falls in truth: a card
        with half of its power is then at half of its speed.
        """
        if self.rack_limit_w is None or not self.n_cards:
            return self.slow
        setting, table = self.setting, self.table
        left_w = self.rack_limit_w - self.n_gpus * setting.gpu.value("active_w")
        above_w = table.card_active_w - table.card_idle_w
        speed = (left_w - table.card_idle_w) / above_w if above_w > 0 else 1.0
        return max(self.slow, 1.0 / min(max(speed, 1.0 / MOST_SLOWDOWN), 1.0))

    @property
    def batch_concentration(self) -> float:
        """Concentration of the Dirichlet from which the mix of a grouped batch is drawn."""
        # A task of mean share m: each of the N rows is of it or not, with variance m (1 - m). A row
        # is of the same task as the g rows of its group for sure, and correlated by rho with the
        # other N - g. So the share, their mean, has the variance m (1 - m) v with
        #     v(g) = g / N + (1 - g / N) rho.
        # A Dirichlet of concentration A has v = 1 / (1 + A). At g = 1 that says what rho is, and
        #     v(g) = 1 / (1 + A') = (1 + A r) / (1 + A)   with   r = (g - 1) / (N - 1).
        # For large N this is the A' = n (1 + A) / (n + A) - 1 of n = N / g prompts whose tasks are
        # drawn from Dirichlet(A) proportions. An adaptive batch counts with its nominal rows.
        r = (self.group_size - 1) / max(self.n_rows - 1, 1)
        return self.concentration * (1.0 - r) / (1.0 + self.concentration * r)

    @property
    def batch_noise_std(self) -> float:
        """Standard deviation of the unforeseen change of a grouped batch's lengths."""
        # The mean over n prompts has the variance PROMPT_STD^2 / n. `noise_std` has that of N
        # prompts in it, so what comes on top is PROMPT_STD^2 (g / N - 1 / N).
        share = (self.group_size - 1) / self.n_rows
        return float(np.hypot(self.noise_std, PROMPT_STD * np.sqrt(share)))

    @cached_property
    def models(self) -> dict[Stage, ModelShape]:
        """Shape of each stage's model."""
        sizes = {stage: self.sizes.get(stage, "8b") for stage in Stage}
        sizes[Stage.ACTOR_TRAIN] = sizes[Stage.GENERATION]
        sizes[Stage.CRITIC_TRAIN] = sizes[Stage.CRITIC]
        scalar = (Stage.REWARD, Stage.CRITIC, Stage.CRITIC_TRAIN)
        return {s: model_shape(size, scalar_head=s in scalar) for s, size in sizes.items()}

    @cached_property
    def setting(self) -> Setting:
        """What runs on what, for the cost tables."""
        return Setting(
            algorithm=self.algorithm,
            models=self.models,
            n_rows=self.n_rows,
            prompt_length=self.prompt_length,
            gpu=profile_of(self.gpu),
            n_gpus=self.n_gpus,
            card=profile_of(self.card),
            n_cards=self.n_cards,
            with_reference=self.with_reference,
            reward_calls=self.reward_calls,
        )

    @cached_property
    def nominal_length(self) -> float:
        """Mean length of a completion without drift, tokens."""
        return nominal_length(np.array(self.mix), self.length_scale, self.max_length)

    @cached_property
    def table(self) -> CostTable:
        """What the stages cost."""
        if self.calibration == "fitted":
            assert self.fitted is not None  # __post_init__
            return self.fitted
        lengths = length_grid(min(8.0, 0.5 * self.nominal_length), self.max_length)
        make = paper_table if self.calibration == "paper" else roofline_table
        return make(self.setting, lengths, self.rows_at(lengths))

    def rows_at(self, length: Float64) -> Float64:
        """Completions an iteration at an expected length, ``[...] float64``.

        An adaptive batch keeps the tokens of an iteration even, within half and twice its rows.
        """
        length = np.asarray(length, dtype=np.float64)
        if not self.adaptive_batch:
            return np.full(length.shape, float(self.n_rows))
        factor = (self.prompt_length + self.nominal_length) / (self.prompt_length + length)
        return np.round(self.n_rows * np.clip(factor, 0.5, 2.0))


def profile_of(device: str | DeviceProfile) -> DeviceProfile:
    """Return the profile of a device that is given by its name or as one.

    Args:
        device: name of a packaged profile, or a profile.
    """
    return load_profile(device) if isinstance(device, str) else device


def column(scenarios: Sequence[Scenario], name: str) -> Float64:
    """One number of each scenario, ``[n] float64``.

    Args:
        scenarios: the scenarios side by side.
        name: of the attribute.
    """
    return np.array([float(getattr(s, name)) for s in scenarios])
