"""The order of a layer's steps: one list for the C-simulation, the card's plan and the cycles."""

import pytest

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.cycles.kernel_calls import token_calls
from ecorl.engines.fpga.kernels.sequence import (
    AFTER_ATTENTION,
    ATTENTION,
    BEFORE_ATTENTION,
    LAYER_STARTS,
    layer_steps,
)
from ecorl.errors import BuildError
from ecorl.records import ModelShape


def names(steps):
    return [getattr(step, "operation", step.kernel) for step in steps]


def test_a_layer_has_the_steps_of_the_header():
    assert names(BEFORE_ATTENTION) == ["norm", "gemm_int8", "head"]
    assert names(ATTENTION) == ["kv_cache_router", "mha_int8"]
    assert names(AFTER_ATTENTION) == [
        "context", "gemm_int8", "residual", "norm", "gemm_int8", "gate", "gemm_int8", "residual",
    ]  # fmt: skip
    assert [step.linear for step in AFTER_ATTENTION if step.kernel == "gemm_int8"] == [
        "output", "gate_up", "down",
    ]  # fmt: skip
    assert LAYER_STARTS == 13


def test_the_order_is_read_from_the_header():
    text = (kernel_root() / "sim" / "decoder_steps.hpp").read_text()
    head = "    step(operation::HEAD, &decoder_layer::qkv),\n"
    assert head in text
    assert names(layer_steps("BEFORE_ATTENTION", text.replace(head, ""))) == ["norm", "gemm_int8"]
    assert names(layer_steps("BEFORE_ATTENTION", text.replace(head, head + head))) == [
        "norm", "gemm_int8", "head", "head",
    ]  # fmt: skip


def test_a_header_that_is_not_understood_is_refused():
    text = (kernel_root() / "sim" / "decoder_steps.hpp").read_text()
    with pytest.raises(BuildError, match=r"SORT.*NORM, MULTIPLY"):
        layer_steps("ATTENTION", text.replace("step(operation::ROUTE)", "step(operation::SORT)"))
    with pytest.raises(BuildError, match="BEFORE_ALL"):
        layer_steps("BEFORE_ALL")


def test_the_calls_of_a_forward_follow_it():
    model = ModelShape(1, 64, 128, 4, 2, 16, 256, 0, 0)
    calls = token_calls(model, 32, 4, 1, 4)
    layer = [getattr(call, "op", call.kernel) for call, times in calls if times == 1]
    assert layer[1:4] == names(BEFORE_ATTENTION)
