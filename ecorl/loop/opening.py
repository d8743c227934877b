"""Opens the record of a loop and starts its runtime: a fresh run, or one to go on with."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ecorl.config import Config, StaticPolicyConfig, load_config
from ecorl.edi import EdiMatrix
from ecorl.ledger import LEDGER_FILE, LedgerReader
from ecorl.loop.processors import training_side
from ecorl.runtime.building import build_runtime
from ecorl.runtime.checkpoints import STATE_FILE, read_state
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.runs.notices import tell_start
from ecorl.runtime.runs.record import AttachedRun

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
    with contextlib.closing(LedgerReader(folder)) as reader:
        saved = [Path(c.path) for c in reader.checkpoints() if c.iteration == step]
    for path in reversed(saved):
        if (path / STATE_FILE).is_file():
            return read_state(path)[1]
    logger.warning("no checkpoint of step %d has %s: the EDI matrix starts anew", step, STATE_FILE)
    return None
