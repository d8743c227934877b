"""A run that is resumed on another machine than the one that it began on."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

from ecorl.ledger import LEDGER_FILE
from ecorl.records import EventKind, Stage
from ecorl.runtime.processes.ranked import RankedRuntime
from ecorl.runtime.training import this_node
from tests.toy_runs import (
    ToyRun,
    make_batch,
    make_toy_plugin,
    same,
    use_toy_plugin,
    work_of,
)


@pytest.fixture(autouse=True)
def toy(tmp_path, monkeypatch):
    use_toy_plugin(make_toy_plugin(tmp_path / "plugin"), monkeypatch)


@pytest.mark.parametrize("ranked", [False, True])
def test_its_devices_keep_one_name(tmp_path, ranked):
    first = ToyRun(tmp_path / "run")
    first.runtime.start()
    first.close()
    with closing(sqlite3.connect(tmp_path / "run" / LEDGER_FILE)) as ledger:
        ledger.execute("UPDATE meta SET value = 'elsewhere' WHERE key = 'node'")
        ledger.commit()
    run = ToyRun(tmp_path / "run", from_step=0, ranked=ranked)
    run.runtime.start()
    assert isinstance(run.runtime, RankedRuntime) is ranked
    batch = make_batch()
    assert same(run.step(1, batch), batch)
    limit_s = time.monotonic() + 240
    while run.runtime.totals().gpu_power_w is None:  # the sampler has not read yet
        assert time.monotonic() < limit_s
        time.sleep(0.05)
    started = run.runtime.on_stage_start(run.iterations[1], work_of(batch, Stage.GENERATION))
    time.sleep(0.2)
    run.runtime.on_stage_end(started)
    run.runtime.settle()
    run.close()
    with run.reader() as reader:
        rows = [row.result for row in reader.executions() if row.attempt == 2]
        read = reader.read_device_ids()
        (note,) = [
            e.detail for e in reader.events() if e.kind is EventKind.GPU_PATH and e.attempt == 2
        ]
    assert {r.node for r in rows} == {"elsewhere"}
    (generated,) = [r for r in rows if r.stage is Stage.GENERATION]
    assert generated.device_ids == ("elsewhere/cpu0",)
    assert generated.energy.energy_j > 0
    assert set(read) == {"elsewhere/cpu0"}
    assert this_node() in note
    assert "elsewhere" in note
