"""Reads the network of a policy file back, to go on training it: the inverse of `export`.

A policy file has the normalisation folded into its first layer, and nothing tells the two apart
again. The network that comes back has mean 0 and scale 1 and the folded weights: its logits are
those of the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from ecorl.errors import ConfigError
from ecorl.policy.training.network import HIDDEN, N_ACTIONS, WIDTH, Float32, PolicyNetwork
from ecorl.scheduler.features import N_FEATURES
from ecorl.scheduler.policy_file import PolicyFile

_KEY = "policy"


def network_from_onnx(path: Path) -> PolicyNetwork:
    """Read the weights of a policy file.

    Args:
        path: an ONNX file made by ``ecorl policy export``.

    Returns:
        A network with the file's logits, to 1e-5.

    Raises:
        ConfigError: when the file cannot be read, has another schema, or is not of our network's
            form (a policy from elsewhere may have the same inputs and other layers).
    """
    file = PolicyFile(path)  # the checks that a run makes
    graph = onnx.load(str(file.path.expanduser())).graph
    found = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    arrays: dict[str, Float32] = {
        "trunk.mean": np.zeros(N_FEATURES, dtype=np.float32),
        "trunk.scale": np.ones(N_FEATURES, dtype=np.float32),
    }
    for key, name, transposed, shape in _layout():
        value = found.get(name)
        if value is None or value.shape != shape:
            seen = "is not there" if value is None else f"has the shape {list(value.shape)}"
            allowed = f"a file that ecorl policy export made ({name} {seen})"
            raise ConfigError(_KEY, str(path), allowed)
        arrays[key] = np.array(value.T if transposed else value, dtype=np.float32)
    return PolicyNetwork.from_arrays(arrays)


def _layout() -> list[tuple[str, str, bool, tuple[int, ...]]]:
    """Name of each weight here and in the file, whether it is transposed, its shape there."""
    rows: list[tuple[str, str, bool, tuple[int, ...]]] = [
        ("trunk.low", "low", False, (N_FEATURES,)),
        ("trunk.high", "high", False, (N_FEATURES,)),
        ("head.weight", "w_head", True, (WIDTH, N_ACTIONS)),
        ("head.bias", "b_head", False, (N_ACTIONS,)),
    ]
    n_inputs = N_FEATURES
    for i, n_outputs in enumerate(HIDDEN):
        rows += [
            (f"trunk.layers.{i}.weight", f"w{i}", True, (n_inputs, n_outputs)),
            (f"trunk.layers.{i}.bias", f"b{i}", False, (n_outputs,)),
            (f"trunk.norms.{i}.weight", f"g{i}", False, (n_outputs,)),
            (f"trunk.norms.{i}.bias", f"o{i}", False, (n_outputs,)),
        ]
        n_inputs = n_outputs
    return rows
