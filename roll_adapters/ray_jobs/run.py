"""A run that is attached to a framework's job on Ray: its config, its cluster, its record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecorl.config import Config, LocalRuntimeConfig, RayRuntimeConfig
from ecorl.edi import EdiMatrix
from ecorl.errors import ConfigError
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.report.sharing.files import write_footprint
from ecorl.runtime.energy.run_energy import recorded_totals
from ecorl.runtime.handles import RunTotals
from ecorl.runtime.ray.cluster import ClusterSilent, join
from ecorl.runtime.runs.folder import in_new_folder, in_newest_folder
from ecorl.runtime.runs.record import open_attached_run, remove_run


def on_ray(config: Config, framework: str) -> Config:
    """Put a run on Ray, where the framework's processes are anyway.

    Args:
        config: as the user wrote it.
        framework: its name, for the message.

    Raises:
        ConfigError: when it asks for a run in one process.
    """
    if isinstance(config.runtime, RayRuntimeConfig):
        return config
    if "runtime" in config.model_fields_set:
        raise ConfigError("runtime.type", config.runtime.type, f"ray: {framework} runs on Ray")
    assert isinstance(config.runtime, LocalRuntimeConfig)
    return config.model_copy(update={"runtime": RayRuntimeConfig()})


def join_or_start(config: Config, n_workers: int, **options: Any) -> bool:
    """Join the config's cluster.

    Where neither the config nor the environment names one and this machine is part of none, one is
    started for this run, with a place for each accelerator worker.

    Args:
        config: of the run, on Ray.
        n_workers: accelerator workers of the run.
        **options: of ``ray.init``.

    Returns:
        Whether one was started.

    Raises:
        ConfigError: when there is no cluster at the config's address, or when one that is named
            or was found does not answer.
    """
    runtime = config.runtime
    assert isinstance(runtime, RayRuntimeConfig)
    try:
        join(runtime.address, n_workers, runtime.patience_s, **options)
    except ClusterSilent:
        raise
    except ConfigError:
        if "address" in runtime.model_fields_set or os.environ.get("RAY_ADDRESS"):
            raise
        join("local", n_workers, **options)
        return True
    return runtime.address == "local"


@dataclass(slots=True)
class OpenedRun:
    """A run's record and what it goes on from.

    Attributes:
        config: of the run, with its folder filled in.
        ledger: the record, open for a new attempt.
        folder: of the run.
        from_step: steps that the framework has behind it; 0 for a fresh start.
        edi: EDI matrix to go on with, or None.
        before: what earlier attempts have drawn.
        existed: what was in the folder before; None when it is new.
    """

    config: Config
    ledger: Ledger
    folder: Path
    from_step: int
    edi: EdiMatrix | None
    before: RunTotals | None
    existed: set[Path] | None

    @classmethod
    def of(
        cls,
        config: Config,
        run_dir: Path | None,
        progress: tuple[int | None, EdiMatrix | None],
        facts: Mapping[str, str],
    ) -> OpenedRun:
        """Open a run's folder for a new attempt.

        Args:
            config: of the run; the time of its ``run_dir`` is filled in here.
            run_dir: its folder; None: that of the config.
            progress: step of the checkpoint that the framework goes on from, None for a fresh
                start, and the EDI matrix that lies there.
            facts: for the ledger's head.

        Raises:
            UserError: for a folder that cannot be used.
        """
        step, edi = progress
        if run_dir is None:
            config = in_new_folder(config) if step is None else in_newest_folder(config)
        folder = run_dir or config.resolved_run_dir()
        existed = (set(folder.iterdir()) if folder.is_dir() else None) or None
        spent = recorded_totals(folder)
        ledger = open_attached_run(config, folder, step, dict(facts), begins_again=True)
        return cls(config, ledger, folder, step or 0, edi, spent, existed)

    def publish(self, weights: object) -> None:
        """Write what the run has drawn and emitted beside its record, and beside saved weights.

        Args:
            weights: folder that the framework saves them in, as it names it; None without one.
        """
        write_footprint(self.folder, [Path(str(weights))] if weights else [])

    def withdraw(self) -> None:
        """Close the record of a run that never began, and remove it where it is new."""
        self.ledger.close()
        if self.existed is None or self.folder / LEDGER_FILE not in self.existed:
            remove_run(self.folder, self.existed)
