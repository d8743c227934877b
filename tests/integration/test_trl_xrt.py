"""A training whose rewards and reference come through XRT: nothing but the way changes."""

from __future__ import annotations

import contextlib

import pytest

from ecorl.config import load_config
from ecorl.engines.fpga.card.opening import can_emulate
from ecorl.ledger import LedgerReader
from ecorl.records import Action, Provenance, Stage
from roll_adapters.trl_hooks import attach
from tests.conftest import demand
from tests.integration.checks import BOTH, assert_same_bits, config, outcome


@pytest.mark.parametrize("isolated", [True, False])
def test_training_through_xrt_is_bit_equal_to_the_simulation(make_trainer, tmp_path, isolated):
    demand("xrt")
    outcomes = {}
    for host in ("csim", "xrt"):
        trainer = make_trainer(name=host)
        engine = {"offload": {"type": "fpga", "host": host, "isolated": isolated}}
        attach(trainer, config(tmp_path / host, policy=BOTH, engine=engine))
        trainer.train()
        outcomes[host] = outcome(trainer)
    assert_same_bits(outcomes["csim"], outcomes["xrt"])
    with contextlib.closing(LedgerReader(tmp_path / "xrt" / "run")) as reader:
        (card,) = [d for d in reader.devices() if d.device_id.endswith("/fpga0")]
        sent = {
            row.result.stage
            for row in reader.executions()
            if row.result.action is Action.CONCURRENT
        }
        assert not reader.faults()
    assert sent == {Stage.REWARD, Stage.REFERENCE}
    assert card.provenance is Provenance.MODELLED
    assert card.source == (
        "cycle model; computed by C-simulation behind XRT's noop driver on this machine"
    )


def test_the_demo_goes_through_xrt_where_it_is_installed():
    demand("xrt")
    assert load_config("demo").engine.offload.host == "auto"
    assert can_emulate()
