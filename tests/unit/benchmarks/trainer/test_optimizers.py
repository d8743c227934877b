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
    equal, ratio = optimizers.optimizer_figures(box_s=0.05)
    assert (equal.value, equal.holds) == (1.0, True)
    n_weights = sum(math.prod(s) for s in optimizers.decoder_shapes())
    assert f"{n_weights:,} " in ratio.note
    assert " 11 tensors" in ratio.note
    assert ratio.spread["torch_ms"] > 0.0
    assert ratio.spread["min"] <= ratio.value <= ratio.spread["max"]
    slowed = float(ratio.note.rsplit(" ", 1)[1])
    assert ratio.spread["slowed"]["min"] <= slowed + 1e-3
    assert slowed - 1e-3 <= ratio.spread["slowed"]["max"]
    for spread in (ratio.spread, ratio.spread["slowed"]):
        assert spread["n"] >= 3  # two rounds each
