"""The fit of a GPU's parameters: finds those that made the points, and learns from points alone."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from benchmarks.studies.decode_fit import (
    PARAMETERS,
    fit_decoding,
    left_out_errors,
    point_errors,
)
from benchmarks.studies.published import ASSUMED_PROMPT_TOKENS, decode_points, published_shape
from ecorl.devices import load_profile
from ecorl.devices.gpu_pass import PassParameters, decoding_pass, gpu_limits, pass_cost

LIMITS = gpu_limits(load_profile("h100_sxm"))
POINTS = tuple(p for p in decode_points() if p.gpu == "h100_sxm")
HIDDEN = PassParameters(2e-3, 1.2e-5, 9e-5, 0.8, 0.5, 240.0, 8e-11, 7e-13)


def made_by(parameters, points=POINTS):
    """The same settings with the figures that a GPU of these parameters would show."""
    made = []
    for p in points:
        prompt = ASSUMED_PROMPT_TOKENS[p.workload]
        context, share = prompt + p.output_tokens / 2, prompt / p.output_tokens
        work = decoding_pass(published_shape(p.model), p.batch, context, share)
        cost = pass_cost(work, LIMITS, parameters, p.n_shards)
        made.append(
            replace(p, tokens_per_s=p.batch / cost.time_s, j_per_token=cost.energy_j / p.batch)
        )
    return made


def test_it_finds_the_parameters_that_made_the_points():
    fit = fit_decoding(made_by(HIDDEN), LIMITS)
    # Models of 36 to 64 layers tell what a pass costs without rows, but hardly which part of it is
    # a layer's.
    assert _fixed_s(fit.parameters) == pytest.approx(_fixed_s(HIDDEN), rel=0.1)
    assert astuple(fit.parameters)[2:] == pytest.approx(astuple(HIDDEN)[2:], rel=0.15)
    errors = point_errors(made_by(HIDDEN), LIMITS, fit.parameters)
    assert max(abs(e.rate) for e in errors) < 0.03
    assert max(abs(e.energy) for e in errors) < 0.03
    for name, (low, high) in fit.spread.items():
        assert low <= getattr(fit.parameters, name) <= high


def _fixed_s(parameters, n_layers=45):
    return parameters.pass_s + n_layers * parameters.layer_s


def test_one_absurd_point_moves_little():
    points = made_by(HIDDEN)
    points[0] = replace(points[0], tokens_per_s=points[0].tokens_per_s * 5)
    errors = point_errors(points[1:], LIMITS, fit_decoding(points, LIMITS).parameters)
    assert max(abs(e.rate) for e in errors) < 0.1


def test_published_points_are_met_within_bounds_that_physics_sets():
    fit = fit_decoding(POINTS, LIMITS)
    p = fit.parameters
    assert 0.0 < p.mbu_decode <= PARAMETERS["mbu_decode"].high
    assert 0.0 < p.mfu_decode <= PARAMETERS["mfu_decode"].high
    assert LIMITS.power_w * 0.1 < p.busy_w < LIMITS.power_w
    errors = sorted(abs(e.energy) for e in point_errors(POINTS, LIMITS, p))
    assert errors[len(errors) // 2] < 0.15


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm"])
def test_the_packaged_profile_holds_what_the_fit_gives(gpu):
    profile = load_profile(gpu)
    own = [p for p in decode_points() if p.gpu == gpu and not p.host_bound]
    fit = fit_decoding(own, gpu_limits(profile))
    for name, (low, high) in fit.spread.items():
        figure = profile.figure(name)
        found = (getattr(fit.parameters, name), low, high)
        assert (figure.value, figure.low, figure.high) == pytest.approx(found, rel=0.02), name


def test_errors_of_a_model_left_out_do_not_know_it():
    spoiled = [
        replace(p, tokens_per_s=p.tokens_per_s * 3) if p.model == "qwen3-8b" else p
        for p in made_by(HIDDEN)
    ]
    errors = left_out_errors(spoiled, LIMITS)
    assert len(errors) == len(spoiled)
    own = [e.rate for e in errors if e.point.model == "qwen3-8b"]
    assert own == pytest.approx([1 / 3 - 1] * len(own), abs=0.02)


def test_points_of_two_gpus_are_refused():
    with pytest.raises(ValueError, match="one GPU"):
        fit_decoding(decode_points(), LIMITS)
