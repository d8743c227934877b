"""The most memory that a TRL training held, step by step."""

from __future__ import annotations

import contextlib

from ecorl.ledger import LedgerReader
from roll_adapters.trl_hooks import attach
from tests.integration.checks import config


def test_each_step_has_its_peak_memory(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=2)
    attach(trainer, config(tmp_path))
    trainer.train()
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        host = {m.iteration: m.value for m in reader.metrics("peak_memory_host_bytes")}
        device = reader.metrics("peak_memory_device_bytes")
    assert list(host) == [1, 2]
    assert 50e6 < host[1] <= host[2]
    assert device == []  # nobody trains on a GPU here: that is missing, and not 0
