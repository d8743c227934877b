"""The trainings of one TRL trainer, which may train several times."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from ecorl.engines.validate import EngineBoundary
from ecorl.runtime.runs.starts import Starts

logger = logging.getLogger(__name__)

Checkpoint = str | Path | bool | None
"""What ``train`` takes as ``resume_from_checkpoint``."""


Attachment = TypeVar("Attachment")


class Trainings(Generic[Attachment]):
    """Attaches to a trainer again for each further training of it.

    Args:
        attach: attaches for a training that goes on from a checkpoint, or from none; the runs so
            far say where its record lies.
        run_dir: folder of the runs, as the user gave it; None: that of the config.

    Attributes:
        starts: the runs so far.
        newest: the attachment of the newest training; None while there is none.
    """

    def __init__(
        self,
        attach: Callable[[Trainings[Attachment], Checkpoint], Attachment],
        run_dir: Path | None,
    ) -> None:
        self._attach = attach
        self.starts = Starts(run_dir)
        self.newest: Attachment | None = None

    def begin(self, checkpoint: Checkpoint) -> Attachment:
        """Attach for a training.

        Args:
            checkpoint: that it goes on from, as ``train`` is given it.

        Raises:
            UserError: for what cannot be used.
        """
        attachment = self._attach(self, checkpoint)
        self.newest = attachment
        self.starts.has_failed = False
        return attachment

    def begin_again(self, resume_from_checkpoint: Checkpoint = None, *_: Any, **__: Any) -> bool:
        """Attach for a further training; what goes wrong costs its record and not the training.

        Args:
            resume_from_checkpoint: as ``train`` is given it; its other arguments say nothing here.

        Returns:
            Whether the training is measured.
        """
        with EngineBoundary() as boundary:
            self.begin(resume_from_checkpoint)
        if boundary.error is not None:
            logger.warning("this training is not measured: %s", boundary.error)
        return boundary.error is None
