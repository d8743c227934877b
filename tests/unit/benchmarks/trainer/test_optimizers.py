"""What the optimizer's benchmark measures, and that it would notice a difference."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.studies.trainer import optimizers


def test_the_weights_are_those_of_a_small_decoder():
    shapes = optimizers.decoder_shapes()
    assert 50 <= len(shapes) <= 70
    assert sum(math.prod(s) for s in shapes) == pytest.approx(5e6, rel=0.1)


def test_ours_equals_torchs():
    assert optimizers.adamw_equal(n_steps=8) is True


class Nearly(torch.optim.AdamW):
    """One that differs in the last bits."""

    def __init__(self, params, **options):
        super().__init__(params, eps=1.001e-8, **options)


def test_a_difference_in_the_last_bits_is_seen(monkeypatch):
    monkeypatch.setattr(optimizers, "PrecisionAdaptiveAdamW", Nearly)
    assert optimizers.adamw_equal(n_steps=8) is False


def test_times_are_ratios_of_one_process(monkeypatch):
    monkeypatch.setattr(optimizers, "N_LAYERS", 1)
    times = optimizers.adamw_times(box_s=0.05)
    assert times.n_tensors == 11
    assert times.n_weights == sum(math.prod(s) for s in optimizers.decoder_shapes())
    assert times.torch_s > 0.0
    for ratio, spread in (
        (times.ours_ratio, times.ours_spread),
        (times.slowed_ratio, times.slowed_spread),
    ):
        assert spread["min"] <= ratio <= spread["max"]
        assert spread["n"] >= 3  # two rounds each
