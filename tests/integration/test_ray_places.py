"""A run over a Ray cluster whose stages compute on further machines: each is metered where it is.

GPUs are those of a stand-in for NVML's library, which nvidia-ml-py opens on every node.
"""

from __future__ import annotations

import contextlib
import time

import pytest

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.errors import ConfigError
from ecorl.ledger import LedgerReader
from ecorl.records import Action, Provenance, Stage
from ecorl.report import RunConfig, build_report
from ecorl.runtime.training import MachineDevices, this_node
from tests.cluster import CARDS, node_behind
from tests.fakes.nvml.fake_nvml import (
    BASE_W,
    PEAK_W,
    fake_nvml,  # noqa: F401
    fake_nvml_library,  # noqa: F401
    true_energy_j,
)
from tests.integration.checks import BOTH, MODELLED
from tests.integration.two_processes import (
    N_ROWS,
    N_STEPS,
    assert_close,
    outcomes,
    run_trainings,
    training,
)
from tests.toy_runs import REWARD_ALONE, ToyRun, make_batch, same, work_of

pytestmark = pytest.mark.timeout(900)  # several processes that train share two slow cores

SERVER = {"elsewhere": {Stage.GENERATION: "a vLLM server"}}
POWER = {"gpu": {"type": "auto"}, "stale_after_s": 600.0}
SECOND = "second"

CLOSE = 0.08
"""How far off a GPU's joules may be: readings of a busy machine come late. Time that two stages
share, counted twice, would be twice as far off."""


@pytest.fixture
def cluster(ray_cluster):
    return ray_cluster


@pytest.fixture
def make(cluster, tmp_path):
    made = []

    def run(**options):
        table = {"type": "ray", "address": cluster.address, "patience_s": 60.0}
        options = {"placement": REWARD_ALONE, "telemetry": POWER, **options}
        made.append(ToyRun(tmp_path / "run", table, **options))
        made[-1].runtime.start()
        return made[-1]

    yield run
    for one in made:
        one.close()


def await_power(run):
    """Wait until the devices of all machines are read."""
    limit_s = time.monotonic() + 240
    while run.runtime.totals().drawn_j is None:
        assert time.monotonic() < limit_s
        time.sleep(0.1)


def lasting(run, stage, time_s):
    """A stage of the GPU path in the newest iteration."""
    started = run.runtime.on_stage_start(run.iterations[1], work_of(make_batch(), stage))
    time.sleep(time_s)
    run.runtime.on_stage_end(started)


def test_a_role_on_another_machine_is_charged_that_machine_s_gpus(make):
    run = make(places={"generation": {"node": CARDS, "devices": ["1"]}}, side=SERVER)
    batch = make_batch()
    assert same(run.step(1, batch), batch)
    await_power(run)
    lasting(run, Stage.GENERATION, 3.0)  # readings come late where the machine is busy
    lasting(run, Stage.ACTOR_TRAIN, 0.3)
    run.close()
    rows = {r.stage: r for r in run.executions()}
    served, trained = rows[Stage.GENERATION], rows[Stage.ACTOR_TRAIN]
    assert (served.node, served.device_ids) == (CARDS, (f"{CARDS}/gpu1",))
    assert served.energy.provenance is Provenance.MEASURED
    assert BASE_W < served.energy.energy_j / served.time_s < PEAK_W
    assert trained.node == this_node()
    assert trained.energy.provenance is Provenance.MODELLED
    with run.reader() as reader:
        (device,) = [d for d in reader.devices() if d.device_id == f"{CARDS}/gpu1"]
        assert device.provenance is Provenance.MEASURED
        assert "POWER_UNREAD" not in {e.kind.name for e in reader.events()}


@pytest.mark.parametrize(
    ("place", "key", "allowed"),
    [
        ({"node": CARDS, "devices": ["7"]}, "places.generation.devices", f"finds on {CARDS}"),
        ({"node": "nowhere", "devices": ["0"]}, "places.generation.node", CARDS),
    ],
)
def test_a_machine_or_a_gpu_that_is_not_there_is_refused(make, place, key, allowed):
    with pytest.raises(ConfigError, match=key) as refused:
        make(places={"generation": place}, side=SERVER)
    assert allowed in str(refused.value)


def test_a_driver_without_a_device_is_charged_nothing(make):
    run = make(
        places={
            "generation": {"node": CARDS, "devices": ["0"]},
            "actor_train": {"node": CARDS, "devices": ["0", "1"]},
        },
        side={"device": "none"},
        devices={"gpu": "h100_sxm"},
    )
    batch = make_batch()
    assert same(run.step(1, batch), batch)
    await_power(run)
    for stage in (Stage.GENERATION, Stage.ACTOR_TRAIN, Stage.CRITIC):
        lasting(run, stage, 0.5)
    run.close()
    rows = {r.stage: r for r in run.executions()}
    assert rows[Stage.GENERATION].device_ids == (f"{CARDS}/gpu0",)
    assert rows[Stage.ACTOR_TRAIN].device_ids == (f"{CARDS}/gpu0", f"{CARDS}/gpu1")
    for stage in (Stage.GENERATION, Stage.ACTOR_TRAIN):
        assert rows[stage].energy.energy_j > 0
    # Nobody has named its devices: its energy is missing, not that of the driver's machine.
    assert rows[Stage.CRITIC].energy is None or rows[Stage.CRITIC].energy.energy_j is None
    with run.reader() as reader:
        details = [e.detail for e in reader.events() if e.kind.name == "POWER_UNREAD"]
        assert any(d.startswith("critic ran on") for d in details)
        assert not any(d.startswith("generation ran on") for d in details)
        assert {d.device_id for d in reader.devices()} >= {f"{CARDS}/gpu0", f"{CARDS}/gpu1"}
        assert not any(d.device_id.startswith(this_node()) for d in reader.devices())


def drew_j(gpu, *held):
    """What a GPU drew while any of some executions held it."""
    t_s = [(r.t_start_s, r.t_end_s) for r in held]
    start_s, end_s = min(t for t, _ in t_s), max(t for _, t in t_s)
    return true_energy_j(end_s, gpu) - true_energy_j(start_s, gpu)


@pytest.mark.usefixtures("fake_nvml")  # the driver asks its own machine's NVML
def test_a_role_on_gpus_of_two_machines_is_charged_on_each(make):
    both = (MachineDevices(this_node(), ("0",)), MachineDevices(CARDS, ("0", "1")))
    shared = (MachineDevices(CARDS, ("1",)),)
    places = {Stage.ACTOR_TRAIN: both, Stage.GENERATION: shared}
    run = make(side={"device": "none", "places": places}, devices={"gpu": "h100_sxm"})
    batch = make_batch()
    assert same(run.step(1, batch), batch)
    await_power(run)
    work = work_of(batch, Stage.ACTOR_TRAIN)
    # One that does not end gives back the devices of both machines.
    run.runtime.forget(run.runtime.on_stage_start(run.iterations[1], work))
    trained = run.runtime.on_stage_start(run.iterations[1], work)
    time.sleep(0.6)
    served = run.runtime.on_stage_start(run.iterations[1], work_of(batch, Stage.GENERATION))
    time.sleep(2.0)
    # Its energy is known before the other stage's: that one must have been told to hold the GPU.
    run.runtime.on_stage_end(served)
    time.sleep(0.6)
    run.runtime.on_stage_end(trained)
    run.close()

    rows = {(r.stage, r.node): r for r in run.executions()}
    here, there = (rows.pop((Stage.ACTOR_TRAIN, node)) for node in (this_node(), CARDS))
    beside = rows.pop((Stage.GENERATION, CARDS))
    assert {stage for stage, _ in rows} == {Stage.REWARD}
    assert here.device_ids == (f"{this_node()}/gpu0",)
    assert there.device_ids == (f"{CARDS}/gpu0", f"{CARDS}/gpu1")
    assert here.energy.energy_j == pytest.approx(drew_j(0, here), rel=CLOSE)
    # Of the GPU that both held at once each has its part, and all of it is counted once.
    assert there.energy.energy_j + beside.energy.energy_j == pytest.approx(
        drew_j(0, there) + drew_j(1, there, beside), rel=CLOSE
    )
    assert there.energy.energy_j < 0.92 * (drew_j(0, there) + drew_j(1, there))
    parts = [(r.n_sequences, r.n_tokens, r.n_output_tokens) for r in (here, there)]
    whole = (work.n_sequences, work.n_tokens, work.n_output_tokens)
    assert tuple(map(sum, zip(*parts, strict=True))) == whole
    assert [n for n, *_ in parts] == [2, 3]
    run.expected |= {(1, str(stage)): len(batch) for stage in places}
    assert run.counts() == (0, 0)
    assert_reported_once(run, here, there, beside)


def assert_reported_once(run, *executions):
    """The report's totals are those of the executions, and name no gap of these roles."""
    with run.reader() as reader:
        report = build_report(reader, RunConfig(run.config))
    stages = {row.stage: row for row in report.stages}
    for stage in {r.stage for r in executions}:
        own = [r for r in executions if r.stage is stage]
        row = stages[stage]
        assert (row.n_calls, row.n_with_energy) == (len(own), len(own))
        assert row.energy_j == pytest.approx(sum(r.energy.energy_j for r in own))
        assert row.n_output_tokens == sum(r.n_output_tokens for r in own)
        assert row.edi_j_per_token == pytest.approx(row.energy_j / row.n_output_tokens)
        assert not any(gap.startswith(f"{stage} ran on") for gap in report.missing)
    assert any("counts once on each" in note for note in report.notes)


def test_what_is_drawn_beside_all_stages_is_known(make):
    run = make(telemetry=MODELLED)
    batch = make_batch()
    assert same(run.step(1, batch), batch)
    await_power(run)
    lasting(run, Stage.GENERATION, 0.3)
    limit_s = time.monotonic() + 240
    while not run.runtime.totals().beside_j:
        assert time.monotonic() < limit_s
        run.runtime.settle()
        time.sleep(0.2)
    totals = run.runtime.totals()
    assert 0 < totals.beside_j < totals.drawn_j


def test_a_trainer_over_two_machines_has_one_record_and_the_numbers_of_plain_trl(
    cluster, tiny, tmp_path
):
    name_it = ["unshare", "--uts", "sh", "-c", f'hostname {SECOND} && exec "$@"', "sh"]
    tables = {
        "runtime": {"type": "ray", "address": cluster.address},
        "telemetry": MODELLED,
    }
    engine = {"offload": {"type": "torch"}}
    with node_behind(cluster.address, "of-the-second", name_it, n_fpgas=0):
        run_trainings(
            training(tiny, tmp_path / "plain"),
            training(tiny, tmp_path / "attached", BOTH, engine, tables),
            second=name_it,
        )
    assert_close(outcomes(tmp_path / "plain"), outcomes(tmp_path / "attached"))
    expected = {
        (step, str(stage)): 2 * N_ROWS
        for step in range(1, N_STEPS + 1)
        for stage in (Stage.REWARD, Stage.REFERENCE)
    }
    with contextlib.closing(LedgerReader(tmp_path / "attached" / "run")) as reader:
        assert count_samples(reader, expected) == (0, 0)
        assert reader.faults() == []
        assert reader.lost_nodes() == []
        machines = {row.node for row in reader.nodes()}
        rows = [row.result for row in reader.executions()]
    assert machines == {this_node(), "of-the-second", CARDS}
    for stage in (Stage.REWARD, Stage.REFERENCE):
        own = [(r.node, r.action, r.n_sequences) for r in rows if r.stage is stage]
        assert own == [(CARDS, Action.CONCURRENT, 2 * N_ROWS)] * N_STEPS
    # Each machine's own part of a stage, with what its own devices drew.
    generated = [r for r in rows if r.stage is Stage.GENERATION]
    for machine in (this_node(), "of-the-second"):
        own = [r for r in generated if r.node == machine]
        assert [r.n_sequences for r in own] == [N_ROWS] * N_STEPS
        assert {i for r in own for i in r.device_ids} == {f"{machine}/cpu0"}
        assert all(r.energy.energy_j > 0 for r in own)
