"""A policy as an ONNX file: the network with its normalisation, its schema and how it was made.

Input ``state [n, n_features] float32`` as `ecorl.scheduler.features.features` gives it, output
``logits [n, 3] float32`` of a1, a2, a3. The file's metadata hold the schema (name and names of the
inputs) and the training record as JSON; `ecorl.scheduler.learned` refuses another schema.
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

from ecorl.files import write_whole
from ecorl.policy.training.network import HIDDEN, N_ACTIONS, N_GAINS, Float32, PolicyNetwork
from ecorl.scheduler.features import NAMES, SCHEMA
from ecorl.scheduler.policy_file import META_NAMES, META_RECORD, META_SCHEMA

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
