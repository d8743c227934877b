"""`Config`, the whole configuration of one run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, model_validator

from ecorl.config.base import Model, SomePath, Text
from ecorl.config.carbon import CarbonConfig
from ecorl.config.devices import DeviceConfig, LocalRuntimeConfig, Place, Places, RuntimeConfig
from ecorl.config.mistakes import RefusedValue
from ecorl.config.placement import EngineConfig, PlacementConfig
from ecorl.config.telemetry import AccountingConfig, LedgerConfig, TelemetryConfig
from ecorl.config.trainer import ArithmeticTask, GearsConfig, Task, TrainerConfig
from ecorl.records import Algorithm, Role, stage_of


class Config(Model):
    """The whole configuration of one run; keys that are left out have their defaults."""

    algorithm: Literal["ppo", "grpo", "rloo", "reinforce++", "dapo"] = Field(
        "grpo",
        description="RL algorithm; `ecorl run` trains with grpo or rloo (TRL), the others are for "
        "trainers of other frameworks",
    )
    adapter: Text = Field(
        "trl",
        description="framework that `ecorl run` trains with: trl, or a name that another package "
        "registers in the entry-point group ecorl.adapters",
    )
    seed: StrictInt = Field(
        42, ge=0, le=2**32 - 1, description="seed of all that is random in the run"
    )
    run_dir: SomePath = Field(
        Path("runs/{name}-{seed}"),
        description="folder for the record and the report of this run; {name}, {seed} and the time "
        "of its start as {time} are filled in, other braces are doubled",
    )
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] = Field(
        "run", description="name of the run, in the name of its folder and in the report"
    )
    task: Task = Field(
        default_factory=ArithmeticTask,
        description="models and prompts of `ecorl run`; not used by a trainer of your own",
    )
    trainer: TrainerConfig = Field(
        default_factory=TrainerConfig,
        description="the trainer that `ecorl run` makes; of a trainer of your own the keys of "
        "micro-batches count alone",
    )
    placement: PlacementConfig = Field(
        default_factory=PlacementConfig,
        description="who decides whether reward and reference leave for the card, and the limits",
    )
    engine: EngineConfig = Field(
        default_factory=EngineConfig, description="what computes the stages that are offloaded"
    )
    devices: DeviceConfig = Field(
        default_factory=DeviceConfig,
        description="hardware of the run, by whose device profiles time and energy are modelled",
    )
    telemetry: TelemetryConfig = Field(
        default_factory=TelemetryConfig,
        description="where power readings come from, and how they are smoothed",
    )
    runtime: RuntimeConfig = Field(
        default_factory=LocalRuntimeConfig,
        description="processes and machines in which the parts of ecorl run",
    )
    places: Places = Field(
        default_factory=dict,
        description="machine and devices of a role: a stage, or one of its models as in "
        "reward:math",
    )
    ledger: LedgerConfig = Field(
        default_factory=LedgerConfig, description="how much of the record of the run is kept"
    )
    accounting: AccountingConfig = Field(
        default_factory=AccountingConfig,
        description="by which factors energy is turned into emissions, and their budget",
    )
    carbon: CarbonConfig = Field(
        default_factory=CarbonConfig,
        description="where the carbon intensity of the grid is asked for, and waiting for clean "
        "hours",
    )
    gears: GearsConfig = Field(
        default_factory=GearsConfig,
        description="numeric formats (gears) in which the training stage may compute",
    )

    @model_validator(mode="after")
    def _keys_agree(self) -> Config:
        t = self.trainer
        if t.per_device_batch_size % t.num_generations:
            n_rows, n_group = t.per_device_batch_size, t.num_generations
            allowed = f"a divisor of trainer.per_device_batch_size = {n_rows}"
            group = RefusedValue("trainer.num_generations", n_group, allowed)
            allowed = f"a multiple of trainer.num_generations = {n_group}"
            raise RefusedValue("trainer.per_device_batch_size", n_rows, allowed, group)
        try:
            self.run_dir_at("0")
        except (LookupError, ValueError, AttributeError) as error:
            allowed = (
                "a path in quotes; {name}, {seed} and {time} are filled in, "
                "other braces are doubled"
            )
            raise RefusedValue("run_dir", str(self.run_dir), allowed) from error
        return self

    @property
    def algorithm_enum(self) -> Algorithm:
        """The algorithm as a record enum."""
        return Algorithm(self.algorithm)

    def place(self, role: Role) -> Place | None:
        """Look up the place of a role: its own, else that of its stage, else None.

        Raises:
            ValueError: when the role begins with no stage's name.
        """
        stage = stage_of(role)
        return self.places.get(role, self.places.get(stage))

    @property
    def names_time(self) -> bool:
        """Whether ``{time}`` in ``run_dir`` is still to be filled in."""
        return self.run_dir_at("0") != self.run_dir_at("1")

    def run_dir_at(self, time: str) -> Path:
        """The run folder with ``{name}``, ``{seed}`` and ``{time}`` filled in.

        Args:
            time: what stands for ``{time}``.
        """
        filled = str(self.run_dir).format(name=self.name, seed=self.seed, time=time)
        return Path(filled).expanduser()

    def resolved_run_dir(self) -> Path:
        """The run folder with ``{name}`` and ``{seed}`` filled in.

        Raises:
            ValueError: where ``{time}`` is to be filled in first, once a run
                (`ecorl.runtime.runs.folder`).
        """
        if self.names_time:
            raise ValueError(f"run_dir = {self.run_dir}: the time is not filled in yet")
        return self.run_dir_at("")

    def in_folder(self, folder: Path) -> Config:
        """Copy the config with a run folder in which nothing is to be filled in.

        Args:
            folder: the folder; its braces are kept as they are.
        """
        doubled = str(folder).replace("{", "{{").replace("}", "}}")
        return self.model_copy(update={"run_dir": Path(doubled)})

    def anchored(self) -> Config:
        """Copy the config with absolute paths, so that it means the same from any folder."""
        return Config.model_validate(_absolute(self.model_dump()))


def _absolute(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _absolute(item) for key, item in value.items()}
    if isinstance(value, Path):
        return value.expanduser().absolute()
    return value
