"""The configuration: frozen pydantic models, read from TOML, overridden by flags.

`load_config` turns every mistake into one `ConfigError` that names the key, the value, what is
allowed, and the file and line where that is known. Back-ends are chosen by a ``type`` key.
The resolved config is saved with each run by `save_config` and reads back equal.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomlkit
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ecorl.errors import ConfigError
from ecorl.explain import NOT_GIVEN, Mistake, explain, line_of, mistake
from ecorl.records import Action, Algorithm


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_enum_values=False, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, data: Any) -> Any:
        for name, value in data.items() if isinstance(data, Mapping) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field and field.annotation in (int, float, float | None):
                raise PydanticCustomError(
                    "truth_value", "{name} is a number", {"name": name, "value": value}
                )
        return data


# ---------------------------------------------------------------- task


class ArithmeticTask(_Model):
    """A small self-made task: policy, reward model, prompts and pairs are made and cached."""

    type: Literal["arithmetic"] = "arithmetic"
    cache_dir: Path = Field(
        Path("~/.cache/ecorl/tasks"), description="folder in which prepared checkpoints are kept"
    )
    n_eval: int = Field(256, ge=16, le=4096, description="held-out prompts for before and after")


class FilesTask(_Model):
    """The user's own checkpoints and prompts."""

    type: Literal["files"] = "files"
    policy: Path = Field(description="Hugging Face checkpoint folder of the policy")
    reward: Path = Field(description="checkpoint folder of the reward model (scalar head)")
    prompts: Path = Field(description='JSON lines with a "prompt" string, one a line')
    eval_prompts: Path | None = Field(None, description="held-out prompts, same form")
    pairs: Path | None = Field(
        None, description='held-out preference pairs: "prompt", "chosen", "rejected", one a line'
    )


Task = Annotated[ArithmeticTask | FilesTask, Field(discriminator="type")]


# ---------------------------------------------------------------- trainer


class TrainerConfig(_Model):
    """What the RL trainer is told. Names follow TRL."""

    steps: int = Field(60, ge=1, description="optimizer steps")
    per_device_batch_size: int = Field(64, ge=2, description="completions per step")
    num_generations: int = Field(8, ge=2, description="completions per prompt (group size)")
    max_completion_length: int = Field(16, ge=1, le=4096, description="tokens")
    learning_rate: float = Field(1e-4, gt=0, description="peak learning rate")
    beta: float = Field(0.02, ge=0, description="KL coefficient; 0 needs no reference")
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    num_threads: int = Field(1, ge=1, le=1024, description="torch threads of the trainer")
    save_every: int = Field(20, ge=1, description="steps between checkpoints")
    log_every: int = Field(1, ge=1, description="steps between logged metrics")


# ---------------------------------------------------------------- placement


class StaticPolicy(_Model):
    """A fixed action for each offloadable stage."""

    type: Literal["static"] = "static"
    reward: Action = Field(Action.GPU, description="action for the reward stage")
    reference: Action = Field(Action.GPU, description="action for the reference stage")


class ThresholdPolicy(_Model):
    """Concurrent while rows are short and the FPGA's queue is short, else GPU."""

    type: Literal["threshold"] = "threshold"
    max_length: int = Field(2048, ge=1, description="longest mean row that is offloaded, tokens")
    max_queue: int = Field(4, ge=0, description="longest FPGA queue that is added to, batches")


class LookaheadPolicy(_Model):
    """The action of least modelled energy and time, waiting included; idle cards not counted."""

    type: Literal["lookahead"] = "lookahead"
    energy_weight: float = Field(0.5, ge=0, le=1, description="weight of energy")
    time_weight: float = Field(0.5, ge=0, le=1, description="weight of time")


class LearnedPolicy(_Model):
    """A policy from elsewhere, by entry point in the group ``ecorl.policies``."""

    type: Literal["learned"] = "learned"
    name: str = Field(description="name of the entry point")
    path: Path | None = Field(None, description="file handed to the entry point's factory")


Policy = Annotated[
    StaticPolicy | ThresholdPolicy | LookaheadPolicy | LearnedPolicy, Field(discriminator="type")
]


class PlacementConfig(_Model):
    """How stages are placed (Algorithm 1 and its guards)."""

    policy: Policy = Field(default_factory=StaticPolicy, description="who proposes an action")
    q_max: int = Field(8, ge=1, le=1024, description="FPGA queue at which offload stops, batches")
    l_max: int = Field(2048, ge=1, le=131072, description="mean row length limit, tokens")
    energy_margin: float | None = Field(
        None,
        ge=0,
        description="refuse an offload whose modelled energy is above (1 + margin) x the GPU "
        "path's; leave out to switch this guard off",
    )
    deadline_s: float = Field(
        60.0, gt=0, le=3600, description="limit of the waits at one iteration's barrier, s"
    )
    max_faults: int = Field(3, ge=1, description="faults in a row that quarantine an engine")
    n_profiling: int = Field(20, ge=0, description="iterations of the EDI profiling phase")
    profile_both_paths: bool = Field(
        False,
        description="during the profiling phase every other iteration keeps the offloadable stages "
        "on the GPU path, so that the EDI matrix can compare the two",
    )
    edi_alpha: float = Field(0.05, gt=0, le=1, description="alpha of Eq. 5")


# ---------------------------------------------------------------- engines


class FpgaEngine(_Model):
    """INT8 kernels; here as C-simulation, the card's time and energy from the cycle model."""

    type: Literal["fpga"] = "fpga"
    build: Literal["fast", "strict"] = Field("fast", description="native or bit-true ap_int")
    threads: int = Field(1, ge=1, le=256, description="host threads of the C-simulation")
    isolated: bool = Field(True, description="run in a process of its own")


class TorchEngine(_Model):
    """The exact path as an engine in another process."""

    type: Literal["torch"] = "torch"
    threads: int = Field(1, ge=1, le=256, description="torch threads")
    isolated: bool = Field(True, description="run in a process of its own")


class PluginEngine(_Model):
    """An engine from elsewhere, by entry point in the group ``ecorl.engines``."""

    type: Literal["plugin"] = "plugin"
    name: str = Field(description="name of the entry point")
    options: dict[str, Any] = Field(default_factory=dict, description="handed to its factory")
    isolated: bool = Field(True, description="run in a process of its own")


class FaultInjection(_Model):
    """Faults to inject into the offload engine, to rehearse what the run survives."""

    kind: Literal["raise", "hang", "nan", "shape", "exit"] = Field(description="what goes wrong")
    calls: tuple[int, ...] = Field(description="0-based calls of the engine that fail")
    rows: tuple[int, ...] = Field((0,), description="rows that turn NaN (kind nan)")


OffloadEngine = Annotated[FpgaEngine | TorchEngine | PluginEngine, Field(discriminator="type")]


class EngineConfig(_Model):
    """Which engine answers offloaded stages."""

    offload: OffloadEngine = Field(default_factory=FpgaEngine, description="offload engine")
    faults: tuple[FaultInjection, ...] = Field((), description="faults to inject (rehearsal)")


# ---------------------------------------------------------------- devices and telemetry


class DeviceConfig(_Model):
    """Which device profiles stand for the GPU path and the card."""

    gpu: str = Field(
        "auto", description="profile of the GPU path: auto, or a name from `ecorl doctor`"
    )
    n_gpus: int = Field(1, ge=1, le=4096, description="GPUs that the run uses")
    fpga: str = Field("u55c", description="profile of the card")
    n_fpgas: int = Field(1, ge=1, le=64, description="cards")
    calibration: Literal["roofline", "paper"] = Field(
        "roofline", description="cost model: bounded by physics, or as printed in the paper"
    )


class AutoSource(_Model):
    """NVML, else RAPL, else modelled, whichever answers first."""

    type: Literal["auto"] = "auto"


class NvmlSource(_Model):
    """NVIDIA GPUs by NVML."""

    type: Literal["nvml"] = "nvml"
    interval_s: float = Field(0.1, ge=0.05, le=10, description="polling interval, s")


class RaplSource(_Model):
    """The host's CPU package by RAPL."""

    type: Literal["rapl"] = "rapl"
    interval_s: float = Field(0.1, ge=0.01, le=10, description="polling interval, s")
    root: Path = Field(Path("/sys/class/powercap"), description="powercap folder")


class XrtSource(_Model):
    """Alveo cards by XRT's electrical report."""

    type: Literal["xrt"] = "xrt"
    interval_s: float = Field(0.05, ge=0.05, le=10, description="polling interval, s")


class ModelledSource(_Model):
    """Power from a device profile and utilisation."""

    type: Literal["modelled"] = "modelled"
    interval_s: float = Field(0.1, ge=0.01, le=10, description="polling interval, s")


class ReplaySource(_Model):
    """Readings from a recorded CSV file."""

    type: Literal["replay"] = "replay"
    path: Path = Field(description="CSV with t_s, device_id, power_w, energy_j, utilisation")
    interval_s: float = Field(0.1, ge=0.01, le=10, description="polling interval, s")


class NullSource(_Model):
    """No readings at all: every energy figure is missing."""

    type: Literal["null"] = "null"
    interval_s: float = Field(1.0, ge=0.01, le=10, description="polling interval, s")


GpuPower = Annotated[
    AutoSource | NvmlSource | RaplSource | ModelledSource | ReplaySource | NullSource,
    Field(discriminator="type"),
]


class TelemetryConfig(_Model):
    """How power is read."""

    gpu: GpuPower = Field(default_factory=AutoSource, description="source for the GPU path")
    tau_s: float = Field(1.0, gt=0, le=600, description="time constant of the EMA, s")
    stale_after_s: float = Field(2.0, gt=0, le=600, description="age at which power is missing")


class LedgerConfig(_Model):
    """How much of the raw record is kept."""

    raw_samples: int = Field(20_000, ge=0, le=10_000_000, description="ring of raw samples")


class AccountingConfig(_Model):
    """Factors of the carbon figure. No default intensity hides behind a run."""

    pue: float = Field(1.2, ge=1.0, le=3.0, description="power usage effectiveness")
    intensity_g_per_kwh: float = Field(
        450.0, ge=0, le=3000, description="grid carbon intensity, gCO2e/kWh"
    )
    source: str = Field(
        "450 g/kWh: world average as used by the EcoRL-Sched paper; PUE 1.2: assumed",
        description="where the two factors come from",
    )


class Config(_Model):
    """The whole configuration of one run."""

    algorithm: Literal["grpo", "rloo"] = Field("grpo", description="RL algorithm of the trainer")
    adapter: str = Field("trl", description="framework adapter (group ecorl.adapters)")
    seed: int = Field(42, ge=0, le=2**31 - 1, description="seed of the whole run")
    run_dir: Path = Field(Path("runs/{name}-{seed}"), description="folder of this run")
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
            allowed = f"a multiple of trainer.num_generations = {t.num_generations}"
            raise mistake("trainer.per_device_batch_size", t.per_device_batch_size, allowed)
        return self

    @model_validator(mode="after")
    def _run_dir_can_be_filled_in(self) -> Config:
        try:
            str(self.run_dir).format(name=self.name, seed=self.seed)
        except (LookupError, ValueError, AttributeError) as error:
            allowed = "a path in quotes; {name} and {seed} are filled in, other braces are doubled"
            raise mistake("run_dir", str(self.run_dir), allowed) from error
        return self

    @property
    def algorithm_enum(self) -> Algorithm:
        """The algorithm as a record enum."""
        return Algorithm(self.algorithm)

    def resolved_run_dir(self) -> Path:
        """The run folder with ``{name}`` and ``{seed}`` filled in."""
        return Path(str(self.run_dir).format(name=self.name, seed=self.seed)).expanduser()


# ---------------------------------------------------------------- reading and writing


def preset_names() -> list[str]:
    """Names of the presets that travel with the package."""
    folder = resources.files("ecorl") / "presets"
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def read_config_text(source: str) -> tuple[str, str]:
    """Text and display name of a config: a file's path, or the name of a preset.

    Raises:
        ConfigError: when neither exists or the file cannot be read.
    """
    path = Path(source).expanduser()
    if path.is_file():
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ConfigError("--config", source, f"a readable file ({error.strerror})") from error
        try:
            return raw.decode("utf-8-sig"), str(path)
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            allowed = f"a TOML file in UTF-8 (byte 0x{raw[error.start]:02x} is not)"
            raise ConfigError("--config", source, allowed, path, line) from error
    if source in preset_names():
        return (resources.files("ecorl") / "presets" / f"{source}.toml").read_text("utf-8"), (
            f"preset {source}"
        )
    raise ConfigError(
        "--config", source, f"an existing TOML file or one of the presets {preset_names()}"
    )


def load_config(source: str, overrides: Sequence[str] = ()) -> Config:
    """Read, override and validate a config.

    Args:
        source: path of a TOML file, or name of a preset.
        overrides: ``dotted.key=value`` with a TOML value; a bare word counts as a string.

    Raises:
        ConfigError: for the first mistake found, with file and line when known.
    """
    text, name = read_config_text(source)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(error, text, name) from error
    overridden = set()
    for item in overrides:
        key, value = _parse_override(item)
        _set_dotted(data, key, value)
        overridden.add(key)
    return validate_config(data, name, text, overridden)


def validate_config(
    data: Mapping[str, Any],
    name: str | None = None,
    text: str = "",
    overridden: set[str] | None = None,
) -> Config:
    """Validate plain data into a `Config`; see `load_config` for the errors."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        found = explain(error, Config)
        if any(_comes_from(override, found) for override in overridden or ()):
            raise ConfigError(f"--set {found.key}", found.value, found.allowed) from error
        line = line_of(text, found.parts)
        raise ConfigError(found.key, found.value, found.allowed, name, line) from error


def config_toml(config: Config) -> str:
    """The resolved config as TOML text; None values are left out."""
    return tomlkit.dumps(_plain_data(config.model_dump()))


def save_config(config: Config, path: Path) -> None:
    """Write the resolved config as TOML; `load_config` reads it back equal."""
    path.write_text(config_toml(config), encoding="utf-8")


def _plain_data(value: Any) -> Any:
    """What TOML knows; numbers, text and dates stay as they are."""
    if isinstance(value, Mapping):
        return {key: _plain_data(item) for key, item in value.items() if item is not None}
    if isinstance(value, tuple | list):
        return [_plain_data(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _syntax_error(error: tomllib.TOMLDecodeError, text: str, name: str) -> ConfigError:
    lines = text.rstrip().split("\n")
    found = re.search(r"\(at line (\d+)", str(error))
    line = min(int(found[1]), len(lines)) if found else len(lines)
    reason = re.sub(r" \(at (line|end).*\)$", "", str(error))
    return ConfigError("(syntax)", lines[line - 1].strip(), f"valid TOML ({reason})", name, line)


def _parse_override(item: str) -> tuple[str, Any]:
    key, sep, raw = item.partition("=")
    key = key.strip()
    if not sep or not all(key.split(".")):
        raise ConfigError("--set", item, "dotted.key=value")
    try:
        data = tomllib.loads(f"v = {raw}")
    except tomllib.TOMLDecodeError:
        return key, raw.strip()
    if len(data) > 1:
        raise ConfigError("--set", item, "one dotted.key=value; repeat --set for more")
    return key, data["v"]


def _set_dotted(data: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node = data
    for part in parents:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set {key}", value, f"a key below a table; {part} is a value")
        node = child
    node[last] = value


def _comes_from(override: str, found: Mistake) -> bool:
    """Whether a mistake lies in (or below, or above) what ``--set`` gave for a key."""
    if f"{found.key}.".startswith(f"{override}.") or override.startswith(f"{found.key}."):
        return True
    # Another type was asked for, and what it needs is not there.
    table = found.key.rpartition(".")[0]
    return found.value is NOT_GIVEN and override == f"{table}.type"
