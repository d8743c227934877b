"""Opens the record of a loop, with its facts, and starts its runtime."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecorl.config import Config, NvmlSourceConfig, StaticPolicyConfig, load_config
from ecorl.edi import EdiMatrix
from ecorl.errors import ConfigError
from ecorl.ledger import LEDGER_FILE, LedgerReader
from ecorl.ledger.nodes import NODE
from ecorl.runtime.checkpoints import STATE_FILE, read_state
from ecorl.runtime.local import build_runtime
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.runs.found import GO_ON, ORIGIN
from ecorl.runtime.runs.notices import tell_start
from ecorl.runtime.runs.record import AttachedRun, run_facts
from ecorl.runtime.training import TrainingSide

_KEPT_AS = {
    "accumulation_steps": "gradient_accumulation_steps",
    "batch_size": "per_device_train_batch_size",
    "effective_batch": "effective_batch_size",
}
"""Facts that count, by the names under which the record keeps them."""

_RESERVED = (ORIGIN, GO_ON, NODE)
_PACKAGES = ("torch", "transformers", "numpy", "jax")


def told_facts(facts: Mapping[str, object]) -> dict[str, str]:
    """Check the facts that a user gives, and write them as the record keeps them.

    ``accumulation_steps``, ``batch_size`` (rows of one backward pass) and ``effective_batch`` (rows
    of one optimizer step) are kept as ``gradient_accumulation_steps``,
    ``per_device_train_batch_size`` and ``effective_batch_size``; the last is the product of the
    others where it is not given. All others keep their names.

    Args:
        facts: by name; a value of None is left out.

    Raises:
        ConfigError: for a count that is none, counts that contradict each other, or a name that
            the record uses itself.
    """
    given = {name: value for name, value in facts.items() if value is not None}
    for name in _RESERVED:
        if name in given:
            raise ConfigError(
                f"facts.{name}", given[name], "another name: the record uses this one"
            )
    counted = {name for pair in _KEPT_AS.items() for name in pair}
    for name in given.keys() & counted:
        given[name] = count(f"facts.{name}", given[name])
    known = {_KEPT_AS.get(name, name): value for name, value in given.items()}
    steps, rows, both = (known.get(name) for name in _KEPT_AS.values())
    if isinstance(steps, int) and isinstance(rows, int):
        if both is not None and both != steps * rows:
            allowed = f"{steps * rows}, accumulation_steps {steps} times batch_size {rows}"
            raise ConfigError("facts.effective_batch", both, allowed)
        known["effective_batch_size"] = steps * rows
    return {name: str(value) for name, value in known.items()}


def loop_facts(trainer: str, go_on: str, facts: Mapping[str, str]) -> dict[str, str]:
    """Put together what the head of a loop's record says.

    Args:
        trainer: what trains, in words.
        go_on: how a run that was cut off is gone on with, in words.
        facts: what the user says, from `told_facts`.
    """
    own = run_facts("", "", _PACKAGES)
    own = {name: value for name, value in own.items() if value}
    return {"trainer": trainer, **own, **facts, GO_ON: go_on}


def count(key: str, value: object, least: int = 1) -> int:
    """Check a count.

    Args:
        key: what it is given as, for the error.
        value: what was given; NumPy's whole numbers serve as well.
        least: the smallest that is allowed.

    Raises:
        ConfigError: when it is no whole number, or too small.
    """
    allowed = f"a whole number, {least} or more"
    if isinstance(value, bool | str) or not hasattr(value, "__index__"):
        raise ConfigError(key, value, allowed)
    number = int(value.__index__())
    if number < least:
        raise ConfigError(key, value, allowed)
    return number


logger = logging.getLogger(__name__)

FIRST_READING_S = 1.0
"""How long the first reading of the power is waited for, s: the first step would else have no
energy. Invented: several times what a sensor takes, and short beside any training."""

_NOT_USED = frozenset({"task", "trainer", "placement", "engine", "adapter"})
"""Tables and keys of a config that say nothing of a loop."""


def loop_config(source: Config | str | Path, adapter: str) -> Config:
    """Read the config of a loop.

    A loop has no frozen models: where a config would place them says nothing of it, and no engine
    is loaded.

    Args:
        source: a config, the path of a TOML file, or a preset's name.
        adapter: what the record names as the framework.

    Raises:
        ConfigError: for a mistake in the config.
    """
    config = source if isinstance(source, Config) else load_config(str(source), key="config")
    unused = sorted(config.model_fields_set & _NOT_USED)
    if unused and not isinstance(source, Config):
        logger.warning("%s: a training loop of your own does not use %s", source, unused)
    on_gpu = config.placement.model_copy(update={"policy": StaticPolicyConfig()})
    return config.model_copy(update={"placement": on_gpu, "adapter": adapter})


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """What is known of a loop before it begins.

    Attributes:
        run_dir: folder of the run's record; None: that of the config.
        total_steps: steps of the whole training; None: unknown.
        from_step: the step that it goes on from; 0 for a fresh start.
        goes_on: whether the run in the folder goes on at step 0 too; at a later one it always does.
        facts: for the head of a fresh record.
        handles_signals: whether SIGINT and SIGTERM end the training in good order.
        overwrites: whether a run that lies in the folder is removed first.
    """

    run_dir: Path | None
    total_steps: int | None = None
    from_step: int = 0
    goes_on: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    handles_signals: bool = False
    overwrites: bool = False


def open_runtime(config: Config, plan: LoopPlan) -> tuple[Runtime, Path]:
    """Open the record, and start what measures the loop.

    Args:
        config: from `loop_config`.
        plan: what is known of the loop.

    Returns:
        The runtime, started, whose record is to be closed after it; and the run's folder.

    Raises:
        UserError: for a config or a run folder that cannot be used. Nothing of a run that was
            made just now is left behind then.
    """
    from_step = plan.from_step if plan.goes_on else plan.from_step or None
    opened = AttachedRun.open(
        config, plan.run_dir, from_step, plan.facts, overwrite=plan.overwrites
    )
    config, runtime = opened.config, None
    try:
        edi = _edi_at(opened.folder, plan.from_step)
        runtime = build_runtime(
            config, opened.ledger, training_side(config), edi=edi, before=opened.spent
        )
        runtime.start()
        _wait_for_reading(runtime)
    except BaseException:
        if runtime is not None:
            runtime.close()
        opened.withdraw()
        raise
    tell_start(opened.folder, config, runtime.record, goes_on=not opened.is_new)
    return runtime, opened.folder


def _wait_for_reading(runtime: Runtime) -> None:
    """Wait until the power has been read once, for a short time at most."""
    end_s = time.monotonic() + FIRST_READING_S
    while runtime.totals().drawn_j is None and time.monotonic() < end_s:
        time.sleep(0.02)


def _edi_at(folder: Path, step: int) -> EdiMatrix | None:
    """The EDI matrix as it was at the checkpoint of a step; None where nobody kept it."""
    if not step or not (folder / LEDGER_FILE).is_file():
        return None
    with LedgerReader(folder) as reader:
        saved = [Path(c.path) for c in reader.checkpoints() if c.iteration == step]
    for path in reversed(saved):
        if (path / STATE_FILE).is_file():
            return read_state(path)[1]
    logger.warning("no checkpoint of step %d has %s: the EDI matrix starts anew", step, STATE_FILE)
    return None


def check_one_process() -> None:
    """Refuse to measure one of several training processes.

    One that stands still would leave the others waiting in an exchange that may time out.

    Raises:
        ConfigError: when the process is one of several.
    """
    torch = sys.modules.get("torch")
    told = os.environ.get("WORLD_SIZE", "1")
    if torch is not None and torch.distributed.is_available():
        dist = torch.distributed
        told = str(dist.get_world_size()) if dist.is_initialized() else told
    if told != "1":
        allowed = "1: a loop over several processes is not measured yet, a trainer of TRL's is"
        raise ConfigError("WORLD_SIZE", told, allowed)


def training_side(config: Config) -> TrainingSide:
    """Describe the devices on which this process trains.

    It trains on GPUs if PyTorch has begun to use one, or if the config reads their power by NVML
    (a loop without PyTorch); else on the host. A model has to be on its GPU before this is asked.

    Args:
        config: of the run; ``devices.n_gpus`` tells how many GPUs the loop uses.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        if torch.cuda.is_initialized():
            gpus = _used_gpus(torch, config.devices.n_gpus)
            return TrainingSide("cuda", _uuids(torch, gpus), fence=wait_for_gpus)
        logger.warning(
            "PyTorch has not begun to use a GPU: the loop counts as one on the CPU; move the model "
            "to its GPU before ecorl.measure if it trains there"
        )
    if isinstance(config.telemetry.gpu, NvmlSourceConfig):
        return TrainingSide("cuda", fence=wait_for_gpus)
    return TrainingSide("cpu", fence=wait_for_gpus)


def wait_for_gpus() -> None:
    """Wait until the GPU has done all that PyTorch launched; at once where PyTorch uses none."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _used_gpus(torch: Any, n_gpus: int) -> range:
    """Numbers of the GPUs that the loop uses: the current one, or the first of several."""
    current = int(torch.cuda.current_device())
    if n_gpus == 1:
        return range(current, current + 1)
    return range(min(n_gpus, int(torch.cuda.device_count())))


def _uuids(torch: Any, gpus: range) -> tuple[str, ...]:
    """UUIDs as NVML writes them: CUDA and NVML number GPUs differently."""
    found = [getattr(torch.cuda.get_device_properties(gpu), "uuid", None) for gpu in gpus]
    named = [str(uuid) for uuid in found if uuid is not None]
    return tuple(u if u.startswith(("GPU-", "MIG-")) else f"GPU-{u}" for u in named)
