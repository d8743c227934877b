"""The frozen models during training: whether an engine still stands for the trainer's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ecorl.engines.containment import EngineBoundary
from ecorl.records import Stage
from ecorl.runtime.local import LocalRuntime
from roll_adapters.trl.models import Watch, saved_version


class FrozenModels:
    """Watches the models that engines stand for; a refreshed reference reaches its engine.

    Args:
        trainer: the TRL trainer.
        runtime: its engines.
        watches: by stage, a watch on the model that an engine stands for.
        refresh_dir: where a refreshed reference is saved for its engine; None for a reference that
            must not change.
    """

    def __init__(
        self,
        trainer: Any,
        runtime: LocalRuntime,
        watches: Mapping[Stage, Watch],
        refresh_dir: Path | None,
    ) -> None:
        self._trainer, self._runtime = trainer, runtime
        self._watches, self._refresh_dir = dict(watches), refresh_dir

    def unchanged(self, stage: Stage, model: Any) -> bool:
        """Whether a stage's engine still stands for this model; if not, it is not asked.

        A reference that TRL refreshes is brought to its engine then; any other model that has
        changed stays on the GPU path for good.
        """
        if not self._runtime.offloads(stage):
            return False
        watch = self._watches.get(stage)
        with self._runtime.clock:
            same = watch is not None and watch.same(model)
        if not same and stage is Stage.REFERENCE and self._refresh_dir is not None:
            self._refresh(self._refresh_dir, model)
        elif not same:
            self._runtime.retire(stage, "the model's weights are no longer those that were loaded")
        return same

    def _refresh(self, folder: Path, model: Any) -> None:
        """Save the refreshed reference and have the engine load it; until then the GPU answers.

        One version is under way at a time: a reference that changes again meanwhile is found to
        differ once more when that is done.
        """
        if self._runtime.refreshing(Stage.REFERENCE):
            return
        with EngineBoundary() as boundary, self._runtime.clock:
            checkpoint = saved_version(
                self._trainer.accelerator.unwrap_model(model),
                folder,
                int(self._trainer.state.global_step),
            )
            self._watches[Stage.REFERENCE] = Watch(model)
        if boundary.error is not None:
            why = f"the refreshed reference cannot be saved ({boundary.error})"
            self._runtime.retire(Stage.REFERENCE, why)
            return
        self._runtime.refresh(Stage.REFERENCE, checkpoint)
