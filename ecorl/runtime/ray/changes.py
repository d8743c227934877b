"""What has changed in a run's models since it began, kept for a scheduler that is started anew.

An engine that answered with weights that the trainer has no more would be wrong without a fault:
what is retired must stay so, and what was refreshed must be loaded as it is now.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ecorl.files import write_whole
from ecorl.records import Role
from ecorl.runtime.training import KeptModel

FILE = ".models.json"
"""In the run folder, while the run is under way."""


@dataclass(slots=True)
class ModelChanges:
    """The roles whose model is another one than at the start.

    Attributes:
        refreshed: checkpoint folder of each model that was refreshed.
        retired: why a role went back to the GPU path for the rest of the run.
        kept: models that had no engine from the start, whose workers were ended.
    """

    refreshed: dict[Role, Path] = field(default_factory=dict)
    retired: dict[Role, str] = field(default_factory=dict)
    kept: dict[Role, KeptModel] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> ModelChanges:
        """Read what was kept; nothing where no file is.

        Args:
            folder: the run folder.

        Raises:
            OSError: when there is a file that cannot be read.
        """
        try:
            told = json.loads((folder / FILE).read_text("utf-8"))
        except FileNotFoundError:
            return cls()
        refreshed = {role: Path(path) for role, path in told["refreshed"].items()}
        kept = {role: KeptModel(**own) for role, own in told["kept"].items()}
        return cls(refreshed, dict(told["retired"]), kept)

    def write(self, folder: Path) -> None:
        """Keep them.

        Args:
            folder: the run folder.

        Raises:
            OSError: when they cannot be written.
        """
        refreshed = {role: str(path) for role, path in self.refreshed.items()}
        kept = {role: asdict(own) for role, own in self.kept.items()}
        told = {"refreshed": refreshed, "retired": self.retired, "kept": kept}
        write_whole(folder / FILE, json.dumps(told))

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove what an attempt has kept: the next one begins with its trainer's models.

        Args:
            folder: the run folder.
        """
        (folder / FILE).unlink(missing_ok=True)
