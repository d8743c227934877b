"""The tables of a config and `Config` itself: frozen, strict about unknown keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from ecorl.config.backends import (
    MANY,
    ArithmeticTask,
    AutoSourceConfig,
    FaultInjection,
    FpgaEngineConfig,
    GpuPower,
    Model,
    OffloadEngine,
    Policy,
    SomePath,
    StaticPolicyConfig,
    Task,
    Text,
)
from ecorl.config.mistakes import RefusedValue
from ecorl.records import Algorithm

_PUE = 1.2
_INTENSITY_G_PER_KWH = 450.0
_DEFAULT_SOURCE = "450 g/kWh: world average as used by the EcoRL-Sched paper; PUE 1.2: assumed"


class TrainerConfig(Model):
    """What the RL trainer is told. Names follow TRL."""

    steps: StrictInt = Field(60, ge=1, le=MANY, description="optimizer steps")
    per_device_batch_size: StrictInt = Field(
        64, ge=2, le=1_000_000, description="completions per step"
    )
    num_generations: StrictInt = Field(
        8, ge=2, le=1_000_000, description="completions per prompt (group size)"
    )
    max_completion_length: StrictInt = Field(16, ge=1, le=4096, description="tokens")
    learning_rate: StrictFloat = Field(1e-4, gt=0, description="peak learning rate")
    beta: StrictFloat = Field(0.02, ge=0, description="KL coefficient; 0 needs no reference")
    temperature: StrictFloat = Field(1.0, gt=0, description="sampling temperature")
    num_threads: StrictInt = Field(1, ge=1, le=1024, description="torch threads of the trainer")
    save_every: StrictInt = Field(20, ge=1, le=MANY, description="steps between checkpoints")
    log_every: StrictInt = Field(1, ge=1, le=MANY, description="steps between logged metrics")


class PlacementConfig(Model):
    """How stages are placed (Algorithm 1 and its guards)."""

    policy: Policy = Field(default_factory=StaticPolicyConfig, description="who proposes an action")
    q_max: StrictInt = Field(
        8, ge=1, le=1024, description="FPGA queue at which offload stops, batches"
    )
    l_max: StrictInt = Field(
        2048, ge=1, le=131072, description="mean row length limit, prompt and completion, tokens"
    )
    energy_margin: StrictFloat | None = Field(
        None,
        ge=0,
        description="refuse an offload whose modelled energy is above (1 + margin) x the GPU "
        "path's; leave out to switch this guard off",
    )
    deadline_s: StrictFloat = Field(
        60.0, gt=0, le=3600, description="limit of the waits at one iteration's barrier, s"
    )
    max_faults: StrictInt = Field(
        3, ge=1, le=MANY, description="faults in a row that quarantine an engine"
    )
    n_profiling: StrictInt = Field(
        20,
        ge=0,
        le=MANY,
        description="rollout batches of the EDI profiling phase, and readings for which a cell is "
        "the running mean; 20 = 1 / edi_alpha (the paper: 500 steps)",
    )
    profile_both_paths: StrictBool = Field(
        False,
        description="during the profiling phase every other batch keeps the offloadable stages "
        "on the GPU path, so that the EDI matrix can compare the two",
    )
    edi_alpha: StrictFloat = Field(0.05, gt=0, le=1, description="alpha of Eq. 5")


class EngineConfig(Model):
    """Which engine answers offloaded stages."""

    offload: OffloadEngine = Field(default_factory=FpgaEngineConfig, description="offload engine")
    faults: tuple[FaultInjection, ...] = Field((), description="faults to inject (rehearsal)")


class DeviceConfig(Model):
    """Which device profiles stand for the GPU path and the card."""

    gpu: Text = Field(
        "auto", description="profile of the GPU path: auto, or a name from `ecorl doctor`"
    )
    n_gpus: StrictInt = Field(1, ge=1, le=4096, description="GPUs that the run uses")
    fpga: Text = Field("u55c", description="profile of the card")
    n_fpgas: StrictInt = Field(
        1, ge=1, le=1, description="cards; one card is modelled until several are real"
    )
    calibration: Literal["roofline", "paper"] = Field(
        "roofline",
        description="cost model: bounded by physics (roofline for the GPU, cycle model for the "
        "card), or as printed in the paper",
    )


class TelemetryConfig(Model):
    """How power is read."""

    gpu: GpuPower = Field(default_factory=AutoSourceConfig, description="source for the GPU path")
    tau_s: StrictFloat = Field(
        1.0,
        gt=0,
        le=600,
        description="time constant of the EMA, s; 1.0 is "
        "the paper's n = 10 samples at 100 ms (weight 1/n a sample)",
    )
    stale_after_s: StrictFloat = Field(
        2.0, gt=0, le=600, description="age at which power is missing"
    )


class LedgerConfig(Model):
    """How much of the raw record is kept."""

    raw_samples: StrictInt = Field(20_000, ge=0, le=MANY, description="ring of raw samples")


class AccountingConfig(Model):
    """Factors of the carbon figure, and where they come from.

    Without a word in the config the defaults hold; the report names them and their source. That
    source speaks for the defaults alone: whoever changes a factor states its source, or the report
    says that none was stated.
    """

    pue: StrictFloat = Field(_PUE, ge=1.0, le=3.0, description="power usage effectiveness")
    intensity_g_per_kwh: StrictFloat = Field(
        _INTENSITY_G_PER_KWH, ge=0, le=3000, description="grid carbon intensity, gCO2e/kWh"
    )
    source: Text | None = Field(None, description="where the two factors come from")

    @property
    def origin(self) -> str:
        """Where the two factors come from, for the report."""
        if (self.pue, self.intensity_g_per_kwh) == (_PUE, _INTENSITY_G_PER_KWH):
            return self.source or _DEFAULT_SOURCE
        # Configs of earlier versions hold the default's source beside any factors.
        stated = None if self.source == _DEFAULT_SOURCE else self.source
        return stated or "given in the config, no source stated"


class Config(Model):
    """The whole configuration of one run."""

    algorithm: Literal["grpo", "rloo"] = Field("grpo", description="RL algorithm of the trainer")
    adapter: Text = Field("trl", description="framework adapter (group ecorl.adapters)")
    seed: StrictInt = Field(42, ge=0, le=2**31 - 1, description="seed of the whole run")
    run_dir: SomePath = Field(Path("runs/{name}-{seed}"), description="folder of this run")
    name: str = Field("run", pattern=r"^[A-Za-z0-9._-]+$", description="name of the run")
    task: Task = Field(default_factory=ArithmeticTask, description="models and prompts")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="RL trainer")
    placement: PlacementConfig = Field(default_factory=PlacementConfig, description="placement")
    engine: EngineConfig = Field(default_factory=EngineConfig, description="offload engine")
    devices: DeviceConfig = Field(default_factory=DeviceConfig, description="device profiles")
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig, description="power")
    ledger: LedgerConfig = Field(default_factory=LedgerConfig, description="the run's record")
    accounting: AccountingConfig = Field(
        default_factory=AccountingConfig, description="carbon factors"
    )

    @model_validator(mode="after")
    def _group_divides_batch(self) -> Config:
        t = self.trainer
        if t.per_device_batch_size % t.num_generations:
            n_rows, n_group = t.per_device_batch_size, t.num_generations
            allowed = f"a divisor of trainer.per_device_batch_size = {n_rows}"
            group = RefusedValue("trainer.num_generations", n_group, allowed)
            allowed = f"a multiple of trainer.num_generations = {n_group}"
            raise RefusedValue("trainer.per_device_batch_size", n_rows, allowed, group)
        return self

    @model_validator(mode="after")
    def _run_dir_can_be_filled_in(self) -> Config:
        try:
            str(self.run_dir).format(name=self.name, seed=self.seed)
        except (LookupError, ValueError, AttributeError) as error:
            allowed = "a path in quotes; {name} and {seed} are filled in, other braces are doubled"
            raise RefusedValue("run_dir", str(self.run_dir), allowed) from error
        return self

    @property
    def algorithm_enum(self) -> Algorithm:
        """The algorithm as a record enum."""
        return Algorithm(self.algorithm)

    def resolved_run_dir(self) -> Path:
        """The run folder with ``{name}`` and ``{seed}`` filled in."""
        return Path(str(self.run_dir).format(name=self.name, seed=self.seed)).expanduser()

    def anchored(self) -> Config:
        """A copy with absolute paths: what a run saves means the same from any folder."""
        return Config.model_validate(_absolute(self.model_dump()))


def _absolute(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _absolute(item) for key, item in value.items()}
    if isinstance(value, Path):
        return value.expanduser().absolute()
    return value
