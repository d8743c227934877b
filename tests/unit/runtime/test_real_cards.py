"""Stages on real cards: time by the clock, joules by XRT's electrical report in another process."""

from __future__ import annotations

import textwrap

import pytest

from ecorl.config import Config
from ecorl.engines.lanes.threaded import ThreadedEngine
from ecorl.engines.protocol import CardLoad, EngineReport
from ecorl.records import Provenance, Stage
from ecorl.runtime.equipment.hardware import card_power
from ecorl.runtime.protocol import join
from tests.fakes.grids import until

POWER_W = 42.0


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """A pyxrt for the sampler's process: two cards that draw `POWER_W` each."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "pyxrt.py").write_text(
        textwrap.dedent(f"""
            class xrt_info_device:
                name, bdf, electrical = "name", "bdf", "electrical"

            def enumerate_devices():
                return 2

            class device:
                def __init__(self, index):
                    self.index = index

                def get_info(self, key):
                    if key == "electrical":
                        return '{{"power_consumption_watts": "{POWER_W}"}}'
                    return f"{{key}}{{self.index}}"
        """)
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def real_config(toys, tmp_path, cards=(0,)):
    data = toys.make_config().model_dump()
    for name in ("ecorl.hw.xclbin", "ecorl.hw.json"):  # the toy engine reads neither
        (tmp_path / name).touch()
    data["engine"]["offload"] = {
        "type": "fpga",
        "bitstream": tmp_path / "ecorl.hw.xclbin",
        "cards": cards,
    }
    return Config.model_validate(data)


def busy_engine(toys, busy_s, occupancy=0.75):
    """An engine as on real cards: it takes its time, and knows no joules."""
    queues = (CardLoad(0, True, occupancy), CardLoad(1, False, 0.0))
    report = EngineReport(busy_s, None, Provenance.MEASURED, busy_s, queues)

    def make(stage, device):
        toy = toys.Toy(stage, device, delay_s=busy_s, report=report)
        toy.host = "xrt"
        return ThreadedEngine(toy)

    return make


def await_reading(runtime):
    until(lambda: runtime._monitor.sampler.watermark_s("fpga0") is not None)


def test_the_joules_of_a_card_are_its_readings(bench, toys, use_engines, cards, tmp_path):
    use_engines(busy_engine(toys, 0.6))
    runtime = bench.build(real_config(toys, tmp_path))
    runtime.start()
    await_reading(runtime)
    batch = toys.make_batch(4)
    bench.step(1, batch)
    runtime.close()
    (result,) = bench.executions()
    assert (result.device_ids, result.time_provenance) == (
        (toys.here("fpga0"),),
        Provenance.MEASURED,
    )
    assert result.energy.provenance is Provenance.MEASURED
    length_s = result.t_end_s - result.t_start_s
    assert length_s >= 0.6
    assert result.energy.energy_j == pytest.approx(POWER_W * length_s, rel=1e-6)
    with bench.reader() as reader:
        devices = {d.device_id: d for d in reader.devices()}
    assert devices[toys.here("fpga0")].provenance is Provenance.MEASURED
    assert devices[toys.here("fpga0")].profile == "u55c"
    assert "xrt:electrical" in devices[toys.here("fpga0")].source
    assert toys.here("fpga1") not in devices  # it is there, and not this run's


def test_two_stages_at_once_share_the_joules_of_a_card(bench, toys, use_engines, cards, tmp_path):
    use_engines(busy_engine(toys, 0.4))
    stages = (Stage.REWARD, Stage.REFERENCE)
    runtime = bench.build(real_config(toys, tmp_path, cards=(0, 1)), stages=stages)
    runtime.start()
    await_reading(runtime)
    batch = toys.make_batch(4)
    bench.iteration = runtime.begin_iteration(1)
    runs = []
    for stage in stages:
        run = bench.start(toys.work_of(batch, stage))
        assert runtime.submit(run, lambda batch=batch: batch)
        runs.append((run, stage))
    for run, stage in runs:
        join(runtime, run, bench.exact(batch, stage))
    runtime.close()
    results = bench.executions()
    assert {r.device_ids for r in results} == {(toys.here("fpga0"), toys.here("fpga1"))}
    begin = min(r.t_start_s for r in results)
    end = max(r.t_end_s for r in results)
    total_j = sum(r.energy.energy_j or 0.0 for r in results)
    assert 0 < total_j <= 2 * POWER_W * (end - begin) * (1 + 1e-6)


def test_the_scheduler_sees_how_busy_real_cards_are(bench, toys, use_engines, cards, tmp_path):
    use_engines(busy_engine(toys, 0.01))
    runtime = bench.build(real_config(toys, tmp_path))
    runtime.start()
    batch = toys.make_batch(4)
    work = toys.work_of(batch, Stage.REWARD)

    def occupancy():
        scheduler = runtime._scheduler
        state = scheduler._iterations.of(scheduler._iterations.newest, scheduler._paths)
        return scheduler._states.state(state, work).fpga_occupancy

    assert occupancy() is None  # nothing is known yet
    bench.step(1, batch)
    assert occupancy() == 0.75  # of the card in service


def test_a_card_that_tells_nothing_leaves_the_joules_missing(
    bench, toys, use_engines, cards, tmp_path
):
    (cards / "pyxrt.py").write_text(
        (cards / "pyxrt.py").read_text().replace(f'"{POWER_W}"', '"N/A"')
    )
    use_engines(busy_engine(toys, 0.2))
    runtime = bench.build(real_config(toys, tmp_path))
    runtime.start()
    await_reading(runtime)
    bench.step(1, toys.make_batch(4))
    runtime.close()
    (result,) = bench.executions()
    assert result.energy is not None
    assert result.energy.energy_j is None
    assert result.time_s == 0.2


def test_the_card_of_a_simulation_is_not_sampled(toys, tmp_path):
    assert card_power(toys.make_config()) is None
    data = real_config(toys, tmp_path).model_dump()
    data["engine"]["offload"]["bitstream"] = tmp_path / "ecorl.csim.xclbin"
    assert card_power(Config.model_validate(data)) is None
    assert card_power(real_config(toys, tmp_path)).type == "xrt"
