"""The trainings of one TRL trainer, which may train several times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecorl.engines.containment import EngineBoundary
from ecorl.runtime.runs.starts import Starts

if TYPE_CHECKING:
    from roll_adapters.trl.attachment import TrlAttachment

logger = logging.getLogger(__name__)

Checkpoint = str | Path | bool | None
"""What ``train`` takes as ``resume_from_checkpoint``."""


@dataclass(frozen=True, slots=True)
class Start:
    """A training that begins.

    Attributes:
        checkpoint: that it goes on from, as ``train`` is given it.
        trial: of a search for hyperparameters, or None.
    """

    checkpoint: Checkpoint = None
    trial: Any = None

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Start:
        """The training that a call of ``train`` begins.

        Args:
            args: of the call.
            kwargs: of the call.
        """
        named = dict(zip(("resume_from_checkpoint", "trial"), args, strict=False)) | dict(kwargs)
        return cls(named.get("resume_from_checkpoint"), named.get("trial"))


class Trainings:
    """Attaches to a trainer again for each further training of it.

    Args:
        attach: attaches for a training; the runs so far say where its record lies.
        run_dir: folder of the runs, as the user gave it; None: that of the config.

    Attributes:
        starts: the runs so far.
        newest: the attachment of the newest training; None while there is none.
    """

    def __init__(
        self, attach: Callable[[Trainings, Start], TrlAttachment], run_dir: Path | None
    ) -> None:
        self._attach = attach
        self.starts = Starts(run_dir)
        self.newest: TrlAttachment | None = None

    def begin(self, start: Start) -> TrlAttachment:
        """Attach for a training.

        Args:
            start: of the training.

        Raises:
            UserError: for what cannot be used.
        """
        attachment = self._attach(self, start)
        attachment.trainings, self.newest = self, attachment
        self.starts.has_failed, self.starts.trial = False, start.trial
        return attachment

    def begin_again(self, start: Start) -> None:
        """Attach for a further training; what goes wrong costs its record and not the training.

        Args:
            start: of the training.
        """
        with EngineBoundary() as boundary:
            self.begin(start)
        if boundary.error is not None:
            logger.warning("this training is not measured: %s", boundary.error)
