"""What a job that has left its training tells who starts the next one, in a file of JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ecorl.files import write_whole

VARIABLE = "ECORL_WIDTH_HANDOVER"
"""Environment variable that names the file; without it the width of a job stays."""


class WidthLeft(Exception):
    """The training ended behind a checkpoint, for other processes to go on from it.

    Args:
        width: number of processes that are to train the policy.
        step: last one done, which the checkpoint is of.
        ended_s: when that ended, s since 1970.
        usual_s: what a step usually takes, s; None: unknown.
    """

    def __init__(self, width: int, step: int, ended_s: float, usual_s: float | None) -> None:
        # All of them, so that it can be pickled on its way through Ray.
        super().__init__(width, step, ended_s, usual_s)
        self.width, self.step = width, step
        self.ended_s, self.usual_s = ended_s, usual_s


@dataclass(frozen=True, slots=True)
class Handover:
    """Where a training was left, and what is known of widths since.

    Attributes:
        width: number of processes that go on.
        step: last one done.
        ended_s: when that ended, s since 1970.
        usual_s: what a step usually takes, s; None: unknown.
        barred: widths that could not be begun with.
        reason: why the last of them could not; None: `width` is the one that was chosen.
    """

    width: int
    step: int
    ended_s: float
    usual_s: float | None = None
    barred: tuple[int, ...] = ()
    reason: str | None = None

    def write(self, file: Path) -> None:
        """Write it whole, or not at all.

        Args:
            file: where.
        """
        write_whole(file, json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> Handover | None:
        """Read one; None where nothing was left.

        Args:
            file: where.
        """
        try:
            told = json.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            return None
        return cls(**(told | {"barred": tuple(told["barred"])}))


def handover_file() -> Path | None:
    """The file of this process's job; None where nobody would start it again."""
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None
