"""A policy as an ONNX file: the network with its normalisation, its schema and how it was made.

Input ``state [n, n_features] float32`` as `ecorl.scheduler.features.features` gives it, output
``logits [n, 3] float32`` of a1, a2, a3. The file's metadata hold the schema (name and names of the
inputs) and the training record as JSON; `ecorl.scheduler.policy_file` refuses another schema.

`network_from_onnx` reads the network back, to go on training it. A policy file has the
normalisation folded into its first layer, and nothing tells the two apart again. The network that
comes back has mean 0 and scale 1 and the folded weights: its logits are those of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ecorl.errors import ConfigError
from ecorl.files import write_whole
from ecorl.policy.training.network import HIDDEN, N_ACTIONS, N_GAINS, WIDTH, Float32, PolicyNetwork
from ecorl.scheduler.features import N_FEATURES, NAMES, SCHEMA
from ecorl.scheduler.policy_file import META_NAMES, META_RECORD, META_SCHEMA, PolicyFile

_OPSET = 17
"""The first with LayerNormalization as an operator."""


def to_onnx(network: PolicyNetwork, record: Mapping[str, object]) -> onnx.ModelProto:
    """The network as a model, with its metadata.

    Args:
        network: trained.
        record: how it was made; plain data.
    """
    nodes, tensors = _layers(network.arrays())
    graph = helper.make_graph(
        nodes,
        "scheduler",
        [helper.make_tensor_value_info("state", TensorProto.FLOAT, ["n", len(NAMES)])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", N_ACTIONS])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    model = helper.make_model(
        graph, producer_name="ecorl", opset_imports=[helper.make_opsetid("", _OPSET)]
    )
    model.ir_version = 10
    helper.set_model_props(
        model,
        {
            META_SCHEMA: SCHEMA,
            META_NAMES: json.dumps(list(NAMES)),
            META_RECORD: json.dumps(record, sort_keys=True, allow_nan=False),
        },
    )
    onnx.checker.check_model(model)
    return model


def _layers(weights: dict[str, Float32]) -> tuple[list[Any], dict[str, npt.NDArray[Any]]]:
    """Return the nodes of the network and its constants by name."""
    tensors: dict[str, npt.NDArray[Any]] = {}
    nodes: list[Any] = []

    def constant(name: str, value: npt.NDArray[Any]) -> str:
        tensors[name] = np.ascontiguousarray(value, dtype=np.float32)
        return name

    def constant_int(name: str, value: int) -> str:
        tensors[name] = np.array([value], dtype=np.int64)
        return name

    def add(operator: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    x = add("Max", ["state", constant("low", weights["trunk.low"])], "at_least")
    x = add("Min", [x, constant("high", weights["trunk.high"])], "clipped")
    # The normalisation is part of the first layer: W ((x - mean) scale) + b.
    scaled = weights["trunk.layers.0.weight"] * weights["trunk.scale"][None, :]
    shift = weights["trunk.layers.0.bias"] - scaled @ weights["trunk.mean"]
    for i in range(len(HIDDEN)):
        weight = scaled if i == 0 else weights[f"trunk.layers.{i}.weight"]
        bias = shift if i == 0 else weights[f"trunk.layers.{i}.bias"]
        x = add("Gemm", [x, constant(f"w{i}", weight.T), constant(f"b{i}", bias)], f"linear{i}")
        scale = constant(f"g{i}", weights[f"trunk.norms.{i}.weight"])
        offset = constant(f"o{i}", weights[f"trunk.norms.{i}.bias"])
        x = add("LayerNormalization", [x, scale, offset], f"norm{i}", axis=-1, epsilon=1e-5)
        x = add("Relu", [x], f"hidden{i}")
    # The gains pass by the hidden layers.
    ends = [constant_int("gains_from", -N_GAINS), constant_int("gains_to", len(NAMES))]
    gains = add("Slice", ["clipped", *ends, constant_int("gains_axis", 1)], "gains")
    x = add("Concat", [x, gains], "hidden_and_gains", axis=1)
    head, bias = weights["head.weight"], weights["head.bias"]
    add("Gemm", [x, constant("w_head", head.T), constant("b_head", bias)], "logits")
    return nodes, tensors


def save_onnx(network: PolicyNetwork, record: Mapping[str, object], path: Path) -> None:
    """Write a policy file; it is whole or not there.

    Args:
        network: trained.
        record: how it was made; plain data.
        path: of the file; folders are made.

    Raises:
        OSError: when the folder cannot be written.
    """
    data = to_onnx(network, record).SerializeToString()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


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
