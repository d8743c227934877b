"""What a run asks about cards: which are real, and whether models fit one together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ecorl import config as cfg
from ecorl.engines.fpga.kernels.banks import WEIGHTS_HIGH, WEIGHTS_LOW
from ecorl.engines.registry import memory_conflict, real_cards


@pytest.mark.parametrize(
    ("bitstream", "cards"),
    [(None, ()), ("ecorl.csim.xclbin", ()), ("ecorl.hw.xclbin", (1, 3))],
)
def test_only_a_bitstream_for_hardware_runs_on_real_cards(bitstream, cards):
    path = None if bitstream is None else Path(bitstream)
    offload = cfg.FpgaEngineConfig(bitstream=path, cards=(1, 3))
    assert real_cards(cfg.EngineConfig(offload=offload)) == cards


def test_an_engine_of_another_kind_has_no_cards():
    assert real_cards(cfg.EngineConfig(offload=cfg.TorchEngineConfig())) == ()


def test_weights_that_fit_alone_may_not_fit_together():
    one = SimpleNamespace(card_banks={WEIGHTS_LOW.group: 3_350 << 20})
    other = SimpleNamespace(card_banks={WEIGHTS_HIGH.group: 3_150 << 20})
    without = SimpleNamespace(card_banks=None)
    assert memory_conflict([one, other, without]) is None
    told = "6,700 MiB of the bank for weights, rows 0 to 7; embedding and angles, which has 6,656"
    assert memory_conflict([one, one]) == told
