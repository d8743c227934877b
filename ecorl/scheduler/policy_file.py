"""A learned policy's file: an ONNX network with its schema and training record in the metadata.

`PolicyFile` checks the file and runs it by ONNX Runtime on one thread with bound input and output
buffers. A file whose inputs have another meaning than `ecorl.scheduler.features` gives them is
refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.errors import ConfigError
from ecorl.scheduler.features import N_FEATURES, NAMES, SCHEMA
from ecorl.stages.figures import ACTIONS

META_SCHEMA, META_NAMES, META_RECORD = "ecorl.schema", "ecorl.inputs", "ecorl.record"

SHIPPED = "scheduler.onnx"
"""The policy that travels with the package, in ``ecorl/scheduler/shipped``."""

_KEY = "placement.policy.path"
_PACKED = struct.Struct(f"{N_FEATURES}f")
"""Floats straight into the network's input, in half the time of an array assignment."""


class PolicyFile:
    """A policy file, checked and loaded.

    Args:
        path: an ONNX file made by ``ecorl policy export``; None: the shipped one.

    Attributes:
        record: how the policy was made.
        energy_margin: the energy guard under which it was trained, or None.

    Raises:
        ConfigError: when it cannot be read, is no policy file, or has another schema.
    """

    def __init__(self, path: Path | None = None) -> None:
        import onnxruntime as ort

        self.path = path or shipped_path()
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            content = self.path.expanduser().read_bytes()
        except OSError as error:
            raise ConfigError(_KEY, str(self.path), f"a readable file ({error})") from error
        try:
            # ONNX Runtime has no exception of its own that all its failures share.
            self._session = ort.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except _ort_errors() as error:
            allowed = f"an ONNX file that ecorl policy export made ({_one_line(error)})"
            raise ConfigError(_KEY, str(self.path), allowed) from error
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self._check()
        self.record = self._read_record()
        margin = self.record.get("energy_margin")
        # A policy is only as good as the guards that it learned beside: one that was never let
        # through at a loss does not know what that costs. So it keeps them where a run has none.
        self.energy_margin = float(margin) if isinstance(margin, int | float) else None
        self._state = np.zeros((1, N_FEATURES), dtype=np.float32)
        self._logits = np.zeros((1, len(ACTIONS)), dtype=np.float32)
        self._binding = self._session.io_binding()
        # Both live as long as the file does, so the pointers stay good.
        self._binding.bind_input(
            "state", "cpu", 0, np.float32, self._state.shape, self._state.ctypes.data
        )
        self._binding.bind_output(
            "logits", "cpu", 0, np.float32, self._logits.shape, self._logits.ctypes.data
        )

    def logits(self, state: tuple[float, ...]) -> npt.NDArray[np.float32]:
        """Logits of one state ``[3] float32``; valid until the next call."""
        _PACKED.pack_into(self._state.data, 0, *state)
        self._session.run_with_iobinding(self._binding)
        return np.asarray(self._logits[0])

    def batch(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Logits of many states, ``[n, n_features]`` to ``[n, 3] float32``."""
        (found,) = self._session.run(["logits"], {"state": states})
        return np.asarray(found, dtype=np.float32)

    def _read_record(self) -> dict[str, Any]:
        try:
            found = json.loads(self.metadata.get(META_RECORD, "{}"))
        except ValueError as error:
            allowed = "a policy file whose training record is JSON"
            raise ConfigError(_KEY, str(self.path), allowed) from error
        return found if isinstance(found, dict) else {}

    def _check(self) -> None:
        schema = self.metadata.get(META_SCHEMA)
        if schema != SCHEMA:
            allowed = f"a policy with the schema {SCHEMA} (this one has {schema or 'none'})"
            raise ConfigError(_KEY, str(self.path), allowed)
        try:
            names = tuple(json.loads(self.metadata.get(META_NAMES, "[]")))
        except (ValueError, TypeError):
            names = ()
        if names != NAMES:
            other = sorted(set(map(str, names)) ^ set(NAMES))[:4]
            allowed = f"a policy whose inputs are those of {SCHEMA} (they differ in {other})"
            raise ConfigError(_KEY, str(self.path), allowed)
        shapes = {i.name: i.shape for i in self._session.get_inputs()}
        outputs = {o.name: o.shape for o in self._session.get_outputs()}
        if shapes.get("state", [0])[-1] != N_FEATURES or outputs.get("logits", [0])[-1] != 3:
            allowed = f"state [n, {N_FEATURES}] in and logits [n, 3] out"
            raise ConfigError(_KEY, str(self.path), allowed)


def shipped_path() -> Path:
    """Where the policy lies that travels with the package.

    Raises:
        ConfigError: when it is not there (``make policy`` makes it).
    """
    path = Path(str(resources.files("ecorl.scheduler") / "shipped" / SHIPPED))
    if not path.is_file():
        raise ConfigError(_KEY, None, f"a policy file; the shipped one is not at {path}")
    return path


def _ort_errors() -> tuple[type[Exception], ...]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = ("InvalidProtobuf", "InvalidGraph", "InvalidArgument", "Fail", "NoModel",
             "NoSuchFile", "NotImplemented", "RuntimeException", "EPFail")  # fmt: skip
    found = [getattr(state, name) for name in names if hasattr(state, name)]
    return (RuntimeError, ValueError, *found)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
