"""Which run a training belongs to, where one trainer trains several times.

A training that an error has ended is tried again in its run, as a further attempt: after an
out-of-memory error a trainer of transformers starts again by itself (``auto_find_batch_size``), or
its user calls ``train`` once more. A training after one that has ended well, and each trial of a
search for hyperparameters, is a run of its own, in a folder beside that of the first.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecorl.config import Config
from ecorl.errors import EcorlError, RunError
from ecorl.runtime.runs.folder import in_new_folder
from ecorl.runtime.runs.record import is_complete


class BeganAgain(EcorlError):
    """Ends an attempt whose training began again without an error that ecorl was told of."""


@dataclass(slots=True)
class Starts:
    """The trainings of one trainer so far.

    Attributes:
        run_dir: folder of the runs, as the user gave it; None: that of the config.
        folder: of the newest run; None before the first one.
        has_failed: whether an error has ended its training.
        trial: of a search for hyperparameters that it was trained for, or None.
    """

    run_dir: Path | None
    folder: Path | None = None
    has_failed: bool = False
    trial: Any = None

    def next_folder(
        self, config: Config, from_step: int, trial: Any = None
    ) -> tuple[Path | None, bool]:
        """Choose the folder of the training that begins now.

        Args:
            config: of the run.
            from_step: step that training begins with; 0 for a fresh start.
            trial: of a search for hyperparameters; None where there is no search.

        Returns:
            The folder, or None for that of the config; and whether the run in it goes on.

        Raises:
            RunError: when a folder of its own cannot be made.
        """
        if self.folder is None:
            return self.run_dir, False
        if trial is self.trial and (
            self.has_failed or (from_step and not is_complete(self.folder))
        ):
            return self.folder, True
        return self._own_folder(config), False

    def _own_folder(self, config: Config) -> Path:
        if self.run_dir is None and config.names_time:
            return in_new_folder(config).resolved_run_dir()
        first = self.run_dir or config.resolved_run_dir()
        for number in itertools.count(2):
            folder = first.with_name(f"{first.name}-{number}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise RunError(f"{folder} cannot be made ({error.strerror})") from error
            return folder
        raise AssertionError("there is always a next number")
