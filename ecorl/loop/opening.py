"""Opens the record of a loop and starts its runtime: a fresh run, or one to go on with."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from ecorl.config import Config, StaticPolicyConfig, load_config
from ecorl.edi import EdiMatrix
from ecorl.ledger import LEDGER_FILE, LedgerReader
from ecorl.loop.processors import training_side
from ecorl.runtime.building import build_runtime
from ecorl.runtime.checkpoints import STATE_FILE, read_state
from ecorl.runtime.energy.recorded_energy import recorded_totals
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.run_record import open_attached_run, remove_run

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
    config = source if isinstance(source, Config) else load_config(str(source))
    unused = sorted(config.model_fields_set & _NOT_USED)
    if unused and not isinstance(source, Config):
        logger.warning("%s: a training loop of your own does not use %s", source, unused)
    on_gpu = config.placement.model_copy(update={"policy": StaticPolicyConfig()})
    return config.model_copy(update={"placement": on_gpu, "adapter": adapter})


def open_runtime(config: Config, folder: Path, from_step: int, facts: Mapping[str, str]) -> Runtime:
    """Open the record, and start what measures the loop.

    Args:
        config: from `loop_config`.
        folder: of the run.
        from_step: the step that training goes on from; 0 for a fresh start.
        facts: for the head of a fresh record.

    Returns:
        The runtime, started. Its record is to be closed after it.

    Raises:
        UserError: for a config or a run folder that cannot be used. Nothing of a run that was
            made just now is left behind then.
    """
    before = set(folder.iterdir()) if folder.is_dir() else None
    spent, edi = recorded_totals(folder), _edi_at(folder, from_step)
    ledger = open_attached_run(config, folder, from_step or None, facts)
    runtime: Runtime | None = None
    try:
        runtime = build_runtime(config, ledger, training_side(config), edi=edi, before=spent)
        runtime.start()
        _wait_for_reading(runtime)
    except BaseException:
        if runtime is not None:
            runtime.close()
        ledger.close()
        if before is None or folder / LEDGER_FILE not in before:
            remove_run(folder, before)
        raise
    return runtime


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
