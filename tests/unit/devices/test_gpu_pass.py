"""A pass on a GPU: no faster than its data sheet, no hungrier than its board."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.devices import load_profile
from ecorl.devices.gpu_pass import (
    GpuLimits,
    PassParameters,
    decoding_pass,
    gpu_limits,
    pass_cost,
)
from ecorl.devices.llama import model_shape
from ecorl.devices.work import generation_phases
from ecorl.errors import ConfigError
from ecorl.records import Stage, StageWork

LIMITS = GpuLimits(1e15, 3e12, 700.0, 4.5e11, 8e-6)
PARAMETERS = PassParameters(1e-3, 2e-5, 6e-5, 0.9, 0.6, 300.0, 6e-11, 1e-12)

sizes = st.sampled_from(("1b", "8b", "70b"))
rows = st.floats(1.0, 2048.0)
contexts = st.floats(1.0, 32_768.0)
shards = st.sampled_from((1, 2, 4, 8))


@given(size=sizes, n_rows=rows, context=contexts, n_shards=shards)
def test_a_pass_keeps_below_the_data_sheet(size, n_rows, context, n_shards):
    work = decoding_pass(model_shape(size), n_rows, context)
    cost = pass_cost(work, LIMITS, PARAMETERS, n_shards)
    assert work.ops / cost.time_s <= n_shards * LIMITS.ops_per_s
    assert work.memory_bytes / cost.time_s <= n_shards * LIMITS.bytes_per_s
    assert cost.power_w <= n_shards * LIMITS.power_w * (1 + 1e-9)
    assert cost.power_w >= n_shards * PARAMETERS.busy_w


@given(size=sizes, n_rows=rows, context=contexts, n_shards=shards)
def test_more_rows_take_longer_and_less_energy_a_token(size, n_rows, context, n_shards):
    model = model_shape(size)
    one = pass_cost(decoding_pass(model, n_rows, context), LIMITS, PARAMETERS, n_shards)
    two = pass_cost(decoding_pass(model, 2 * n_rows, context), LIMITS, PARAMETERS, n_shards)
    assert one.time_s < two.time_s < 2 * one.time_s
    assert two.energy_j < 2 * one.energy_j


def test_a_board_at_its_limit_takes_longer_by_as_much():
    hungry = replace(PARAMETERS, j_per_op=5e-12)
    work = decoding_pass(model_shape("8b"), 512, 100)
    cost = pass_cost(work, LIMITS, hungry)
    assert cost.power_w == pytest.approx(LIMITS.power_w)
    assert cost.time_s > pass_cost(work, LIMITS, PARAMETERS).time_s


def test_shards_share_the_work_and_pay_for_their_sums():
    work = decoding_pass(model_shape("70b"), 64, 1000)
    one, two = (pass_cost(work, LIMITS, PARAMETERS, n) for n in (1, 2))
    assert one.time_s / 2 < two.time_s < one.time_s
    free = pass_cost(work, replace(LIMITS, peer_latency_s=0.0), PARAMETERS, 2)
    assert two.time_s - free.time_s == pytest.approx(2 * 80 * LIMITS.peer_latency_s)


def test_steps_count_what_a_whole_generation_counts():
    model = model_shape("1b")
    n_rows, prompt, output = 16, 100, 300
    whole = StageWork(
        Stage.GENERATION, n_rows, n_rows * (prompt + output), n_rows * output, prompt + output,
        model,
    )  # fmt: skip
    _, decode = generation_phases(whole, model, 2)
    step = decoding_pass(model, n_rows, prompt + output / 2)
    assert output * step.ops == pytest.approx(decode.ops)
    assert output * step.memory_bytes == pytest.approx(decode.memory_bytes)


def test_limits_come_from_a_profile_and_a_missing_one_is_named():
    limits = gpu_limits(load_profile("h100_sxm"))
    assert limits.power_w == 700.0
    assert limits.peer_bytes_per_s == 4.5e11
    with pytest.raises(ConfigError, match="peak_bf16_flops"):
        gpu_limits(load_profile("host_cpu"))
