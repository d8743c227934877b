"""Frozen models of a run: where their checkpoints lie, and whether they are still the same.

An engine answers in place of a model in the trainer's memory. It loads a checkpoint folder that
holds exactly that model (`frozen_model`), and is asked only as long as the model has not changed
since (`Watch`, `FrozenModels`). This module needs torch and transformers; nothing that only
configures or reports imports it.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from ecorl.engines.models.decoder_config import unsupported_reason
from ecorl.engines.validate import EngineBoundary
from ecorl.records import Role, Stage
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.training import FrozenModel, plain_name

logger = logging.getLogger(__name__)

_SAMPLES = 32
"""Values of each tensor that `Watch` keeps: training, a reset or a merge changes nearly all values
of a tensor, so a few show it, and 300 tensors are read in a few milliseconds."""

_NOT_OF_THE_FORWARD = {
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "pad_token_id",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
"""Config keys that may differ between disk and memory without another result: the adapter itself
cuts rows where the model would read its reward, and takes the dtype from the model."""


class Watch:
    """Notices when the trainer's model is no longer the one that its engine loaded.

    Compares `_SAMPLES` values of every floating-point tensor, bit for bit. Counters that torch
    keeps of in-place changes would not do: a refresh through ``.data`` leaves them as they are.
    An iteration waits for this, so the values are looked up once, and again where a tensor has
    moved.

    Args:
        model: the trainer's model, as it was when the engine loaded it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._places: list[tuple[object, ...]] = []
        self._views: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        self._loaded = self._sample()

    def same(self, model: Any) -> bool:
        """Whether this is the watched object, with the weights that it had when it was loaded."""
        if model is not self._model:
            return False
        now = self._sample()
        return now.keys() == self._loaded.keys() and all(
            torch.equal(values, self._loaded[kind]) for kind, values in now.items()
        )

    def _sample(self) -> dict[tuple[torch.device, torch.dtype], torch.Tensor]:
        """Sampled values by device and dtype, in one tensor each."""
        tensors = [
            tensor
            for tensor in (*self._model.parameters(), *self._model.buffers())
            if tensor.is_floating_point() and tensor.numel()
        ]
        places: list[tuple[object, ...]] = [
            (t.data_ptr(), t.device, t.dtype, t.shape, t.stride()) for t in tensors
        ]
        # Views keep their memory, so no other tensor can have taken its place unnoticed. A tensor
        # without memory of its own, such as a distributed one, tells no place: its address is 0.
        if places != self._places or not all(place[0] for place in places):
            self._places, self._views = places, {}
            for tensor in tensors:
                kind = tensor.device, tensor.dtype
                self._views.setdefault(kind, []).append(_spread_out(tensor.detach()))
        return {
            kind: torch.cat([view.reshape(-1) for view in views])
            for kind, views in self._views.items()
        }


def _spread_out(tensor: torch.Tensor) -> torch.Tensor:
    """View about `_SAMPLES` values of a tensor, evenly spread over it."""
    if tensor.is_contiguous():
        return tensor.view(-1)[:: max(1, tensor.numel() // _SAMPLES)]
    along = math.ceil(_SAMPLES ** (1 / tensor.dim()))  # values along each dimension
    return tensor[tuple(slice(None, None, max(1, size // along)) for size in tensor.shape)]


class FrozenModels:
    """Checks that a role's engine has the weights of the trainer's model, and brings it new ones.

    Args:
        runtime: its engines.
        watches: by role, a watch on the model that an engine stands for.
        save_reference: saves a reference that the trainer refreshes, as it is now, and returns its
            checkpoint folder; None for a reference that must not change.
    """

    def __init__(
        self,
        runtime: Runtime,
        watches: Mapping[Role, Watch],
        save_reference: Callable[[Any], Path] | None,
    ) -> None:
        self._runtime, self._watches = runtime, dict(watches)
        self._save_reference = save_reference

    def unchanged(self, role: Role, model: Any) -> bool:
        """Whether a role's engine has the weights of this model; if not, it must not be asked.

        A reference that the trainer refreshes is then given to its engine; any other model that
        has changed stays on the GPU path for good.

        Args:
            role: of the model.
            model: the trainer's model, as it is about to be called.
        """
        if not self._runtime.offloads(role):
            return False
        watch = self._watches.get(role)
        with self._runtime.clock:
            same = watch is not None and watch.same(model)
        if not same and role == Stage.REFERENCE and self._save_reference is not None:
            self._refresh(self._save_reference, model)
        elif not same:
            self._runtime.retire(role, "the model's weights are no longer those that were loaded")
        return same

    def _refresh(self, save: Callable[[Any], Path], model: Any) -> None:
        """Save the refreshed reference and have the engine load it; until then the GPU answers.

        One version is under way at a time: a reference that changes again meanwhile is found to
        differ once more when that is done.
        """
        if self._runtime.refreshing(Stage.REFERENCE):
            return
        with EngineBoundary() as boundary, self._runtime.clock:
            checkpoint = save(model)
            # A new watch right away: what the engine will load is what was just saved.
            self._watches[Stage.REFERENCE] = Watch(model)
        if boundary.error is not None:
            why = f"the refreshed reference cannot be saved ({boundary.error})"
            self._runtime.retire(Stage.REFERENCE, why)
            return
        self._runtime.refresh(Stage.REFERENCE, checkpoint)


def frozen_model(model: Any, spare: Path) -> FrozenModel:
    """Describe a loaded model by a checkpoint folder and the dtype in which it computes.

    Args:
        model: the trainer's model.
        spare: folder to save it to when no folder on disk holds exactly this model.
    """
    folder = frozen_checkpoint(model, spare)
    return FrozenModel(folder, str(model.dtype).removeprefix("torch."), model_name(model))


def model_name(model: Any) -> str:
    """What the user calls a loaded model: its name on the hub, or that of its folder.

    Args:
        model: the trainer's model.
    """
    return plain_name(str(getattr(model.config, "_name_or_path", "") or ""))


def int8_objection(model: Any) -> str | None:
    """Tell why the INT8 engine cannot run a loaded model, as far as its config shows it.

    It is asked before the model is saved, which may take as long and as much disk as it is large.

    Args:
        model: the trainer's model.

    Returns:
        A clause; None where its config says nothing against it.
    """
    told = json.loads(model.config.to_json_string())
    return unsupported_reason(told | {"architectures": [type(model).__name__]})


def frozen_checkpoint(model: Any, spare: Path) -> Path:
    """Find or make a checkpoint folder that holds exactly a loaded model, weights and config.

    The folder that the model was loaded from, when both on disk are still those in memory;
    otherwise the model is saved to `spare`. An engine that loads the folder therefore never
    scores with another model than the trainer's own.

    Args:
        model: the trainer's model.
        spare: folder to save it to.
    """
    source = Path(str(getattr(model.config, "_name_or_path", "") or ""))
    if (
        (source / "config.json").is_file()
        and _same_config(model, source)
        and _same_weights(model, source)
    ):
        return source
    logger.info("%s differs from its checkpoint on disk; saved to %s", type(model).__name__, spare)
    spare.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(spare)
    return spare


_VERSION = "reference-step-"


def saved_version(model: Any, folder: Path, step: int) -> Path:
    """Save a refreshed reference as it is after `step`; all but the version before are removed.

    That one stays: an engine that is just starting anew may be reading it.

    Args:
        model: the trainer's reference model.
        folder: holds the versions, one folder each.
        step: the step after which it was refreshed.

    Returns:
        Folder of the new version.

    Raises:
        OSError: when it cannot be saved.
    """
    versions = sorted(folder.glob(f"{_VERSION}*"), key=lambda path: path.stat().st_mtime)
    for old in versions[:-1]:
        shutil.rmtree(old, ignore_errors=True)
    target = folder / f"{_VERSION}{step}"
    if target.exists():  # of an attempt that was cut short
        shutil.rmtree(target)
    target.mkdir(parents=True)
    model.save_pretrained(target)
    return target


def _same_config(model: Any, folder: Path) -> bool:
    """Whether the config on disk is the one in memory, in all that the forward depends on."""
    try:
        disk = AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
    except (OSError, ValueError, KeyError):
        return False
    mine = model.config.to_dict()
    keys = (disk.keys() | mine.keys()) - _NOT_OF_THE_FORWARD
    return all(disk.get(key) == mine.get(key) for key in keys)


def _same_weights(model: Any, folder: Path) -> bool:
    """Whether every weight on disk equals the one in memory, bit for bit in the model's dtype."""
    state = dict(model.state_dict())
    seen = 0
    try:
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a dict
                    mine = state.get(name)
                    if mine is None:
                        continue
                    seen += 1
                    disk = tensors.get_tensor(name).to(mine.dtype)
                    if disk.shape != mine.shape or not torch.equal(disk, mine.cpu()):
                        return False
    except (OSError, SafetensorError):
        return False
    tied = len(getattr(model, "_tied_weights_keys", None) or ())
    return seen >= len(state) - tied and seen > 0
