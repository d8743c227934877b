"""Published points of decoding: whole, and consistent with themselves."""

from __future__ import annotations

import pytest

from benchmarks.studies.published import ASSUMED_PROMPT_TOKENS, decode_points, published_shape


def test_all_points_are_there_and_those_of_a_slow_host_are_told_apart():
    points = decode_points()
    assert len(points) == 86
    assert sum(not point.host_bound for point in points) == 71
    slow = [point for point in points if point.host_bound]
    assert all(0.030 < point.inter_token_s < 0.050 for point in slow)
    assert {point.workload for point in points} == set(ASSUMED_PROMPT_TOKENS)


@pytest.mark.parametrize("point", decode_points(), ids=lambda p: "-".join(map(str, p.curve)))
def test_power_is_energy_by_rate(point):
    assert point.j_per_token * point.tokens_per_s == pytest.approx(point.power_w, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "n_params"), [("qwen3-8b", 8.19e9), ("qwen3-14b", 14.77e9), ("qwen3-32b", 32.76e9)]
)
def test_shapes_have_as_many_parameters_as_the_models_are_said_to_have(model, n_params):
    assert published_shape(model).n_params == pytest.approx(n_params, rel=1e-3)


def test_a_model_that_nobody_published_is_refused():
    with pytest.raises(KeyError):
        published_shape("qwen3-9b")
