"""What a benchmark runs, and where it ran: both are kept with its results.

Results of two devices, of two configs or of two drivers are never put together.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ecorl
from ecorl.bench.machine import Machine, commit, describe_machine
from ecorl.config import Config, FilesTask, TrainerConfig, config_toml, load_config
from ecorl.config.carbon import ControlConfig
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import ConfigError, DriverError

DEFAULT_SEEDS = (42, 1337, 2025)
DEFAULT_STEPS, DEFAULT_WARM_UP = 40, 8
IDLE_S = 3.0
"""For how long idle power is read before the first run and after the last one, s. Invented: thirty
readings of an instrument that is read ten times a second."""

_VERSIONS = ("torch", "transformers", "trl")
_IDENTITY = Path("/etc/machine-id")
_NOT_COMPARED = ("name", "run_dir", "seed")
"""Keys of a config that say nothing of what is measured."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is run.

    Attributes:
        base: the config that all arms share.
        placements: names of `ecorl.bench.tokens_per_joule.arms.PLACEMENTS`.
        extras: what arms do beside: `GEARS`, `ADAPTIVE`, `CLOCKS`.
        seeds: of the runs; each arm has a run for each of them.
        warm_up: steps at the begin of each run that count in no figure.
        idle_s: for how long idle power is read, before and after, s.
        supervised: whether the same policy is trained on reference answers too.
        reward, correct: held-out quality that the arms are to reach; None: the highest that all of
            them reach.
    """

    base: Config
    placements: tuple[str, ...]
    extras: tuple[str, ...] = ()
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    warm_up: int = DEFAULT_WARM_UP
    idle_s: float = IDLE_S
    supervised: bool = True
    reward: float | None = None
    correct: float | None = None

    def __post_init__(self) -> None:
        steps = self.base.trainer.steps
        if not 0 <= self.warm_up < steps:
            allowed = f"0 to {steps - 1}, fewer than the {steps} steps of a run"
            raise ConfigError("--warm-up", self.warm_up, allowed)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError("--seeds", list(self.seeds), "at least one seed, each once")
        most = 2**32 - 1
        if not all(0 <= seed <= most for seed in self.seeds):
            raise ConfigError("--seeds", list(self.seeds), f"whole numbers from 0 to {most:,}")
        if self.reward is not None and not math.isfinite(self.reward):
            raise ConfigError("--reward", self.reward, "a finite number")
        if self.correct is not None and not 0 <= self.correct <= 1:
            raise ConfigError("--correct", self.correct, "a share from 0 to 1")
        if not self.placements or len(set(self.placements)) < len(self.placements):
            allowed = "at least one placement, each once"
            raise ConfigError("--placements", list(self.placements), allowed)

    def digest(self) -> str:
        """Short hash of all that the figures of one run depend on, but for its arm and seed."""
        data = self.base.model_dump(mode="json", exclude=set(_NOT_COMPARED))
        told = {"config": data, "warm_up": self.warm_up, "files": _files_digest(self.base)}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]

    def with_more(self, other: BenchPlan) -> BenchPlan:
        """Add the arms and seeds of another plan of the same config, behind those of this one.

        Args:
            other: what is asked for now; its targets count where it has some.
        """
        return replace(
            self,
            placements=tuple(dict.fromkeys((*self.placements, *other.placements))),
            extras=tuple(dict.fromkeys((*self.extras, *other.extras))),
            seeds=tuple(dict.fromkeys((*self.seeds, *other.seeds))),
            supervised=self.supervised or other.supervised,
            reward=self.reward if other.reward is None else other.reward,
            correct=self.correct if other.correct is None else other.correct,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "config": config_toml(self.base),
            "placements": list(self.placements),
            "extras": list(self.extras),
            "seeds": list(self.seeds),
            "steps": self.base.trainer.steps,
            "warm_up": self.warm_up,
            "idle_s": self.idle_s,
            "supervised": self.supervised,
            "reward": self.reward,
            "correct": self.correct,
        }


def usual_warm_up(steps: int) -> int:
    """The warm-up where none is asked for: `DEFAULT_WARM_UP`, or a fifth of a short run.

    Args:
        steps: of a run.
    """
    return min(DEFAULT_WARM_UP, steps // 5)


def default_config(steps: int, warm_up: int | None = None, overrides: Sequence[str] = ()) -> Config:
    """The demo's config, with a short profiling phase that the warm-up holds.

    Args:
        steps: of each run.
        warm_up: of them that do not count; None: the usual ones.
        overrides: further ``key=value`` settings, which go before.

    Raises:
        ConfigError: for a setting that cannot be used.
    """
    warm_up = usual_warm_up(steps) if warm_up is None else warm_up
    own = [
        "name=tokens-per-joule",
        f"trainer.steps={steps}",
        f"trainer.evaluate_every={_evaluate_every(steps)}",
        f"trainer.save_every={steps}",
        # Half the rows of the demo, so that a run takes seconds, and an eighth of its learning
        # rate: with a quarter, some runs end with a held-out reward below where they began.
        "trainer.per_device_batch_size=32",
        "trainer.learning_rate=5e-5",
        f"placement.n_profiling={warm_up}",
    ]
    return load_config("demo", [*own, *overrides])


def users_config(source: str, overrides: Sequence[str], steps: int | None) -> Config:
    """A user's config, evaluated along training where it says nothing of that.

    Runs neither wait for the grid nor change their number of processes, and no budget stops them:
    all arms are to do the same work, whenever they come.

    Args:
        source: path of a TOML file, or name of a preset.
        overrides: ``key=value`` settings.
        steps: of each run; None: those of the config.

    Raises:
        ConfigError: for a mistake in it.
    """
    own = [] if steps is None else [f"trainer.steps={steps}"]
    config = load_config(source, [*overrides, *own])
    if "evaluate_every" not in config.trainer.model_fields_set:
        every = _evaluate_every(config.trainer.steps)
        trainer = config.trainer.model_copy(update={"evaluate_every": every})
        config = config.model_copy(update={"trainer": trainer})
    # Absolute paths, so that the benchmark goes on from any folder.
    return _by_no_grid(config).anchored()


def _by_no_grid(config: Config) -> Config:
    """Leave out what acts by the hour at which a run happens to be made: pauses, widths, budget.

    What the grid's intensity is stays, for the grams.
    """
    carbon = config.carbon.model_copy(
        update={
            "threshold_g_per_kwh": None,
            "threshold_percentile": None,
            "control": ControlConfig(),
        }
    )
    return config.model_copy(
        update={
            "carbon": carbon,
            "trainer": config.trainer.model_copy(update={"widths": TrainerConfig().widths}),
            "accounting": config.accounting.model_copy(update={"over_budget": "warn"}),
        }
    )


def _evaluate_every(steps: int) -> int:
    """Steps between two held-out evaluations, so that a run has four of them after its first."""
    return max(1, steps // 4)


_PROBE_BYTES = 2**20
"""How much is read of the begin and of the end of a model's file: all of it would take minutes."""


def _files_digest(base: Config) -> str:
    """Hash of the prompts and models of a task that is given as files; empty for one that is made.

    Of a file its size, its begin and its end count.
    """
    if not isinstance(base.task, FilesTask):
        return ""
    found = hashlib.sha256()
    for name, value in sorted(base.task):
        for path in _files_of(value):
            size = path.stat().st_size
            with path.open("rb") as file:
                parts = [file.read(_PROBE_BYTES)]
                file.seek(max(0, size - _PROBE_BYTES))
                parts.append(file.read(_PROBE_BYTES))
            found.update(f"{name} {path.name} {size}".encode())
            for part in parts:
                found.update(hashlib.sha256(part).digest())
    return found.hexdigest()


def _files_of(value: Any) -> list[Path]:
    """The files that a key of a task names: a file, or those of a model's folder."""
    values = value if isinstance(value, (list, tuple)) else [value]
    paths = [one.expanduser() for one in values if isinstance(one, Path)]
    return [
        file
        for path in paths
        for file in (sorted(path.iterdir()) if path.is_dir() else [path])
        if file.is_file()
    ]


@dataclass(frozen=True, slots=True)
class Stand:
    """Where and with what a benchmark ran.

    Attributes:
        machine: its processor, memory and GPU.
        unit: short hash that tells two machines, or the GPUs that are used, of one kind apart; None
            where the system names none.
        driver: NVIDIA's driver, else the kernel of the system.
        versions: of ecorl and the framework's packages.
        commit: of the sources; None without git.
        digest: of the config, see `BenchPlan.digest`.
        computes_on: ``cuda`` or ``cpu``: where the framework computes; empty until it has told.
    """

    machine: Machine
    unit: str | None
    driver: str
    versions: Mapping[str, str]
    commit: str | None
    digest: str
    computes_on: str = ""

    def computing_on(self, device: str, gpu_uuids: Sequence[str]) -> Stand:
        """The stand, once the framework has told where it computes.

        Args:
            device: ``cuda`` or ``cpu``.
            gpu_uuids: of the GPUs that it sees; none on a processor.
        """
        unit = _short("".join(sorted(gpu_uuids))) if gpu_uuids else self.unit
        return replace(self, computes_on=device, unit=unit)

    def differences(self, other: Stand) -> list[str]:
        """Say why results of both cannot be put together; nothing where they can.

        Args:
            other: where other results come from.
        """
        found = []
        # A stand that does not know yet where it computes does not know which GPUs are in use.
        is_alike = bool(self.computes_on) is bool(other.computes_on)
        own, theirs = (
            (s.machine, *((s.unit, s.computes_on) if is_alike else ())) for s in (self, other)
        )
        if own != theirs:
            found.append(f"another device ({_device(self)}, and not {_device(other)})")
        if self.driver != other.driver:
            found.append(f"another driver ({self.driver}, and not {other.driver})")
        for name in sorted({*self.versions} & {*other.versions}):
            own_version, their_version = self.versions[name], other.versions[name]
            if own_version != their_version:
                found.append(f"another version of {name} ({own_version}, and not {their_version})")
        if self.digest != other.digest:
            found.append(f"another config ({self.digest}, and not {other.digest})")
        return found


def _device(stand: Stand) -> str:
    """Name the device of a stand and, in brackets, which one of its kind it is."""
    name = f"{stand.machine.cpu}, {stand.machine.n_cores} cores"
    if stand.machine.gpu and stand.computes_on != "cpu":
        name = stand.machine.gpu
    return f"{name} [{stand.unit}]" if stand.unit else name


def stand_of(plan: BenchPlan) -> Stand:
    """Describe this machine and these sources.

    Args:
        plan: of the benchmark.
    """
    driver, unit = _driver_and_unit()
    versions = {"ecorl": ecorl.__version__}
    for package in _VERSIONS:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return Stand(describe_machine(), unit, driver, versions, commit(), plan.digest())


def stand_from(data: Mapping[str, Any]) -> Stand:
    """Read back what `dataclasses.asdict` wrote of a stand.

    Raises:
        ValueError: when it is something else.
    """
    try:
        return Stand(**{**data, "machine": Machine(**data["machine"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"no description of a machine ({error})") from error


def _driver_and_unit() -> tuple[str, str | None]:
    """NVIDIA's driver and the GPUs themselves, else the system's kernel and the machine itself."""
    driver = NvmlDriver()
    try:
        driver.open()
        uuids = [device.uuid for device in driver.devices()]
        if uuids:
            return f"NVIDIA {driver.version()}", _short("".join(uuids))
    except DriverError:
        pass
    finally:
        driver.close()
    kernel = f"{platform.system()} {platform.release()}"
    try:
        return kernel, _short(_IDENTITY.read_text("utf-8").strip())
    except OSError:
        return kernel, None


def _short(text: str) -> str | None:
    return hashlib.sha256(text.encode()).hexdigest()[:8] if text else None
