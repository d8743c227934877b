"""How a trainer obeys the control path: it stands still at the boundary of two steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ecorl.control import AS_IT_IS, Command, GearChoice, TrainingStage
from ecorl.runtime.protocol import Runtime

logger = logging.getLogger(__name__)

POLL_S = 0.25
"""Time between two questions of a trainer that stands still, s. Invented: short enough that nobody
notices it, long enough to cost nothing."""


def stand(
    runtime: Runtime,
    *,
    steps_left: int | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    stage: TrainingStage = AS_IT_IS,
) -> GearChoice:
    """Stand at the boundary of two steps for as long as the control path asks for it.

    Nothing of the training's state is touched: it goes on as if it had not stood.

    Args:
        runtime: of the run.
        steps_left: steps that training has before it; None: unknown.
        is_stopping: tells whether training was asked to stop meanwhile, which ends the wait.
        stage: what the training stage did in the last step, and what it can be told to do.

    Returns:
        The decision that let it go on: to run, or to save and stop.
    """
    has_stood = False
    while True:
        choice = runtime.tick(
            time.monotonic(), steps_left=steps_left, is_stopping=is_stopping(), stage=stage
        )
        if choice.command is not Command.PAUSE:
            if has_stood:
                logger.warning("training goes on: %s", choice.reason)
            return choice
        if not has_stood:
            logger.warning("training waits: %s", choice.reason)
            has_stood = True
        time.sleep(POLL_S)
