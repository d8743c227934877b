from __future__ import annotations

import json
import logging
import textwrap
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecorl.config import Config, FaultInjection
from ecorl.edi import EdiMatrix
from ecorl.engines.fpga.kernels.banks import WEIGHTS_LOW
from ecorl.engines.protocol import EngineReport
from ecorl.errors import ConfigError, DataError, EngineCrashed, EngineError
from ecorl.records import Action, FaultKind, GuardRefusal, Provenance, Stage, StageWork
from ecorl.runtime.overhead import HookTime
from ecorl.runtime.protocol import join
from ecorl.runtime.scheduling.offload import LanePlace, OffloadLane
from ecorl.runtime.training import this_node
from ecorl.scheduler import CompletionBarrier, Quarantine
from ecorl.telemetry.sampling.sampler import Sampler
from tests.examples import examples


def bits(values):
    return [np.asarray(v).tobytes() for v in values]


# ---------------------------------------------------------------- the event path, all well


def test_a_step_is_placed_answered_and_recorded(bench, toys, use_engines):
    use_engines(toys.threaded())
    runtime = bench.build(stages=(Stage.REWARD, Stage.REFERENCE))
    runtime.start()
    batch = toys.make_batch(4)
    for stage in (Stage.REWARD, Stage.REFERENCE):
        values = bench.step(1, batch, stage)
        assert bits(values) == bits(toys.answer(batch, stage).values)
        assert all(np.asarray(v).dtype == np.float32 for v in values)
    assert bench.asked == []
    with bench.reader() as reader:
        placements = [row.placement for row in reader.placements()]
        barriers = reader.barriers()
        assert reader.faults() == []
        (device,) = [d for d in reader.devices() if d.device_id == toys.here("fpga0")]
    assert [p.action for p in placements] == [Action.CONCURRENT, Action.CONCURRENT]
    assert [(b.stage, b.n_rows, b.n_missing) for b in barriers] == [
        (Stage.REWARD, 4, 0), (Stage.REFERENCE, 4, 0),
    ]  # fmt: skip
    assert (device.profile, device.provenance) == ("u55c", Provenance.MODELLED)
    for result in bench.executions():
        assert (result.device_ids, result.device) == ((toys.here("fpga0"),), "u55c")
        assert (result.time_s, result.time_provenance) == (0.5, Provenance.MODELLED)
        assert (result.host_time_s, result.energy.energy_j) == (0.01, 4.0)
        assert (result.energy.method, result.n_rows_fallback, result.fault) == (
            "cycle_model", 0, None,
        )  # fmt: skip
    key = (Stage.REWARD, "", "u55c", Provenance.MODELLED, "")
    (cell,) = (cell for cell in runtime.edi.cells() if cell.key == key)
    assert cell.value_j_per_token == pytest.approx(4.0 / sum(batch.n_completion))


def test_a_static_placement_on_the_gpu_loads_no_engine(bench, toys, use_engines):
    loaded = []
    use_engines(lambda stage, device: loaded.append(stage))
    runtime = bench.build(toys.make_config(policy={"type": "static", "reference": "gpu"}))
    runtime.start()
    batch = toys.make_batch(2)
    run = bench.start(toys.work_of(batch))
    assert (loaded, run.placement.action, runtime.offloads(Stage.REWARD)) == ([], Action.GPU, False)
    assert runtime.checkpoint(Stage.REWARD) is None
    assert not runtime.submit(run, lambda: batch)
    (fault,) = bench.faults()
    assert "reward" in fault.detail
    with pytest.raises(EngineError, match="reward"):
        join(runtime, run, bench.exact(batch))


def test_an_empty_batch_passes(bench, toys, use_engines):
    use_engines(toys.threaded())
    bench.build().start()
    assert bench.step(1, toys.make_batch(0)) == []


class Looks:
    """A clock of hooks that goes on by a second with each look, and by an hour with each wait."""

    def __init__(self, monkeypatch):
        self.now_s = 0.0
        clock = SimpleNamespace(perf_counter=self.look)
        monkeypatch.setattr("ecorl.runtime.overhead.time", clock)

    def look(self):
        self.now_s += 1.0
        return self.now_s

    def wait(self):
        self.now_s += 3600.0


def test_the_clock_counts_our_own_time_and_not_the_wait(bench, toys, use_engines, monkeypatch):
    batch, looks, outcomes = toys.make_batch(2), Looks(monkeypatch), []
    engine, wait = toys.Told(lambda rows: None), CompletionBarrier.wait

    def waiting(barrier, ticket, deadline_s):
        looks.wait()
        engine.futures[0].set_result(toys.answer(batch, Stage.REWARD))
        outcomes.append(wait(barrier, ticket, deadline_s))
        return outcomes[0]

    monkeypatch.setattr(CompletionBarrier, "wait", waiting)
    use_engines(lambda stage, device: engine)
    runtime = bench.build()
    runtime.start()
    bench.step(1, batch)
    runtime.settle()
    # Start, submit, land and settle, each a second from its one look to the other.
    assert (runtime.clock.time.n_events, runtime.clock.hook_s) == (4, 4.0)
    with bench.reader() as reader:
        assert [row.wait_s for row in reader.barriers()] == [outcomes[0].wait_s]
    runtime.close()
    with bench.reader() as reader:
        (event,) = [e for e in reader.events() if e.kind == "hook_clock"]
    assert HookTime.read(event.detail).n_events == 4


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize("stage", [Stage.REWARD, Stage.REFERENCE])
@pytest.mark.parametrize(
    ("kind", "bad", "fault"),
    [
        ("raise", (0, 1, 2, 3), "EngineCrashed"),
        ("nan", (1, 2), "InvalidResult"),
        ("shape", (0, 1, 2, 3), "InvalidResult"),
        ("hang", (0, 1, 2, 3), "EngineTimeout"),
    ],
)
def test_a_fault_costs_only_its_rows_and_is_recorded(
    bench, toys, use_engines, hang, stage, kind, bad, fault
):
    use_engines(toys.threaded([FaultInjection(kind=kind, calls=(1,), rows=(1, 2))]))
    runtime = bench.build(toys.make_config(deadline_s=0.05), stages=(stage,))
    runtime.start()
    batches = [toys.make_batch(4, seed=i) for i in range(3)]
    healthy = [toys.answer(b, stage).values for b in batches]

    def step(number):
        """A step that is joined when it has been answered, but for the one that hangs."""
        batch = batches[number - 1]
        bench.iteration = runtime.begin_iteration(number)
        run = bench.start(toys.work_of(batch, stage))
        assert runtime.submit(run, lambda: batch)
        if (kind, number) != ("hang", 2):
            assert runtime._scheduler._pending[run.stage.serial].answered.wait(240)
        return join(runtime, run, bench.exact(batch, stage))

    values = [step(1), step(2)]
    hang.set()
    limit_s = time.monotonic() + 240
    while not runtime._scheduler._lanes[stage].available:
        assert time.monotonic() < limit_s
        time.sleep(0.01)
    values.append(step(3))

    assert bench.asked == [bad]
    assert bits(values[0]) == bits(healthy[0])
    assert bits(values[2]) == bits(healthy[2])
    mended = [healthy[1][i] + np.float32(1000) if i in bad else healthy[1][i] for i in range(4)]
    assert bits(values[1]) == bits(mended)

    (row,) = bench.faults()
    assert (row.kind, row.where, row.iteration, row.n_rows) == (fault, stage, 2, len(bad))
    assert row.detail
    runtime.close()
    results = bench.executions()
    card = [r for r in results if r.device_ids == (toys.here("fpga0"),)]
    assert [r.n_rows_fallback for r in card] == [0, len(bad), 0]
    assert [r.fault for r in card] == [None, fault, None]
    (again,) = [r for r in results if r.device_ids != (toys.here("fpga0"),)]
    assert (again.action, again.iteration, again.n_sequences) == (Action.GPU, 2, len(bad))
    assert again.time_provenance is Provenance.MEASURED
    # Row by row, not by share: long rows are the likely ones to fail.
    assert again.n_tokens == sum(len(batches[1].token_ids[i]) for i in bad)
    assert again.n_output_tokens == sum(batches[1].n_completion[i] for i in bad)
    with bench.reader() as reader:
        (late,) = [sum(b.n_late for b in reader.barriers())]
        barriers = reader.barriers()
    assert barriers[1].n_missing == (0 if kind in ("nan",) else 4)
    assert late == 0  # the given-up call's answer never reaches the barrier


def test_a_late_answer_changes_nothing(bench, toys, use_engines):
    first, second = toys.make_batch(3, seed=1), toys.make_batch(3, seed=2)
    replies = [None, toys.answer(second, Stage.REWARD)]
    engine = toys.Told(lambda batch: replies.pop(0))
    use_engines(lambda stage, device: engine)
    bench.build(toys.make_config(deadline_s=0.02)).start()
    values = bench.step(1, first)
    before = bits(values)
    engine.futures[0].set_result(toys.answer(first, Stage.REWARD))
    assert bits(bench.step(2, second)) == bits(toys.answer(second, Stage.REWARD).values)
    assert bits(values) == before
    with bench.reader() as reader:
        assert [b.n_late for b in reader.barriers()] == [0, 3]


def test_an_engine_that_is_away_is_not_asked(bench, toys, use_engines):
    engine = toys.Told(lambda batch: None)
    engine.available = False
    use_engines(lambda stage, device: engine)
    runtime = bench.build()
    runtime.start()
    run = bench.start(toys.work_of(toys.make_batch(2)))
    assert (run.placement.proposed, run.placement.action) == (Action.CONCURRENT, Action.GPU)
    assert run.placement.reason
    assert engine.futures == []


def test_quarantine_moves_the_stage_to_the_gpu_and_a_probe_brings_it_back(bench, toys, use_engines):
    batch = toys.make_batch(2)
    replies = [EngineCrashed("one"), EngineCrashed("two")]
    engine = toys.Told(lambda b: replies.pop(0) if replies else toys.answer(b, Stage.REWARD))
    use_engines(lambda stage, device: engine)
    runtime = bench.build(toys.make_config(max_faults=2))
    runtime.start()
    clock = [0.0]
    runtime._scheduler._lanes[Stage.REWARD]._quarantine = Quarantine(
        2, 10.0, clock=lambda: clock[0]
    )
    for iteration in (1, 2):
        bench.step(iteration, batch)
    bench.iteration = runtime.begin_iteration(3)
    run = bench.start(toys.work_of(batch))
    assert run.placement.action is Action.GPU
    # A batch that was placed just before the quarantine is answered by the exact path.
    bench.step(3, batch)
    assert [f.kind for f in bench.faults()] == ["EngineCrashed"] * 2 + ["EngineQuarantined"]
    clock[0] = 11.0
    assert bits(bench.step(4, batch)) == bits(toys.answer(batch, Stage.REWARD).values)
    assert bench.start(toys.work_of(batch)).placement.action is Action.CONCURRENT
    assert len(bench.faults()) == 3
    assert bench.asked == [(0, 1)] * 3


def test_a_figure_beyond_physics_is_refused_and_the_rows_are_kept(
    bench, toys, use_engines, snapshot
):
    report = EngineReport(1e-12, 1e-9, Provenance.MODELLED, 0.01)
    use_engines(toys.threaded(report=report))
    runtime = bench.build()
    runtime.start()
    batch = toys.make_batch(3)
    assert bits(bench.step(1, batch)) == bits(toys.answer(batch, Stage.REWARD).values)
    (fault,) = bench.faults()
    assert (fault.kind, fault.where, fault.n_rows) == ("PhysicalBoundError", "reward", 0)
    snapshot(fault.detail)
    (result,) = bench.executions()
    assert (result.time_s, result.energy.energy_j, result.fault) == (
        None, None, "PhysicalBoundError",
    )  # fmt: skip
    assert result.energy.mean_power_w is None
    assert runtime.edi.cells() == ()


def test_an_engine_on_the_host_is_not_booked_as_the_card(bench, toys, use_engines):
    report = EngineReport(0.2, None, Provenance.MEASURED, 0.2)
    use_engines(lambda stage, _: toys.threaded(report=report)(stage, "host_cpu"))
    runtime = bench.build()
    runtime.start()
    bench.step(1, toys.make_batch(3))
    (result,) = bench.executions()
    assert result.device_ids == result.energy.device_ids == (toys.here("host_process"),)
    assert (result.device, result.energy.energy_j) == ("host_cpu", None)
    with bench.reader() as reader:
        assert toys.here("fpga0") not in {d.device_id for d in reader.devices()}


def test_a_crash_of_an_engine_on_the_host_does_not_make_a_card_of_it(bench, toys, use_engines):
    report = EngineReport(0.2, None, Provenance.MEASURED, 0.2)
    faults = [FaultInjection(kind="raise", calls=(0,))]
    use_engines(lambda stage, _: toys.threaded(faults, report=report)(stage, "host_cpu"))
    runtime = bench.build()
    runtime.start()
    bench.step(1, toys.make_batch(3))
    bench.step(2, toys.make_batch(3))
    runtime.close()
    crashed, answered = [
        r for r in bench.executions() if r.device_ids == (toys.here("host_process"),)
    ]
    assert (crashed.fault, crashed.time_s, answered.fault) == ("EngineCrashed", None, None)
    assert crashed.time_provenance is answered.time_provenance is Provenance.MEASURED


ROW_STATES = st.lists(st.sampled_from(["good", "nan", "inf", "id"]), min_size=1, max_size=6)
WHOLE = st.sampled_from(["answer", "answer", "raise", "timeout", "cancel", "nonsense", "one less"])


@pytest.fixture
def running(bench, toys, use_engines):
    use_engines(lambda stage, device: toys.Told(lambda batch: None, stage))
    runtime = bench.build(toys.make_config(deadline_s=0.01), stages=(Stage.REWARD, Stage.REFERENCE))
    runtime.start()
    return runtime


@given(states=ROW_STATES, whole=WHOLE, stage=st.sampled_from([Stage.REWARD, Stage.REFERENCE]))
@settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_join_answers_each_row_once_and_asks_the_exact_path_for_the_bad_ones_alone(
    bench, toys, running, states, whole, stage
):
    batch = toys.make_batch(len(states), seed=len(states))
    healthy = toys.answer(batch, stage)
    ids, values = list(batch.sample_ids), [np.array(v) for v in healthy.values]
    for i, state in enumerate(states):
        if state == "id":
            ids[i] = "someone else's"
        elif state != "good":
            values[i] = np.full_like(values[i], float(state))
    if whole == "one less":
        values = values[:-1]
    packed = tuple(values) if stage is Stage.REFERENCE else np.array(values, dtype=np.float32)
    told = {
        "raise": EngineCrashed("no"), "timeout": None, "cancel": "cancel", "nonsense": object(),
    }.get(whole, toys.replace(healthy, sample_ids=tuple(ids), values=packed))  # fmt: skip
    all_bad = whole not in ("answer",)
    bad = tuple(i for i, state in enumerate(states) if all_bad or state != "good")

    running._scheduler._lanes[stage] = OffloadLane(
        toys.Told(lambda b: told, stage), max_faults=3, place=LanePlace(this_node(), ("fpga0",))
    )
    bench.asked.clear()
    n_before = len(bench.faults())
    answers = bench.step(1, batch, stage)

    assert bench.asked == ([bad] if bad else [])
    wanted = [v + np.float32(1000) if i in bad else v for i, v in enumerate(healthy.values)]
    assert bits(answers) == bits(wanted)
    assert len(bench.faults()) == n_before + bool(bad)


def test_a_stage_ends_when_the_device_has_done_its_work(bench, monkeypatch):
    """As on a GPU, where calls return as soon as their kernels are queued."""
    fences, looks = [], Looks(monkeypatch)

    def fence():
        fences.append(time.monotonic())
        time.sleep(0.05)
        looks.wait()

    runtime = bench.build(stages=(), fence=fence)
    runtime.start()
    run = bench.start(bench_work(Stage.GENERATION))
    assert (len(fences), run.t_start_s >= fences[0] + 0.05) == (1, True)
    runtime.on_stage_end(run)
    assert len(fences) == 2
    # Waiting for the device is not our own work: from one look to the next.
    assert runtime.clock.hook_s == runtime.clock.time.n_events == 2
    runtime.close()
    (result,) = bench.executions()
    assert result.time_s >= 0.05


def bench_work(stage):
    return StageWork(stage, 1, 4, 4, 4, None)


def test_the_queue_counts_what_was_sent_and_not_joined(bench, toys, use_engines):
    """However fast the simulation answers: placements must not depend on this host's speed."""
    use_engines(toys.threaded())
    runtime = bench.build(stages=(Stage.REWARD, Stage.REFERENCE))
    runtime.start()
    batch = toys.make_batch(2)
    bench.iteration = runtime.begin_iteration(1)

    def queue(stage: Stage) -> int:
        scheduler = runtime._scheduler
        state = scheduler._iterations.of(bench.iteration, scheduler._paths)
        return scheduler._states.state(state, toys.work_of(batch, stage)).fpga_queue

    reward = bench.start(toys.work_of(batch))
    assert runtime.submit(reward, lambda: batch)
    pending = runtime._scheduler._pending[reward.stage.serial]
    assert pending.answered.wait(240)
    assert queue(Stage.REFERENCE) == 1
    join(runtime, reward, bench.exact(batch))
    assert queue(Stage.REFERENCE) == 0
    again = bench.start(toys.work_of(batch))
    runtime.submit(again, lambda: batch)
    runtime.forget(again)
    assert queue(Stage.REWARD) == 0


def test_a_retired_stage_stays_where_the_framework_computes(
    bench, toys, use_engines, caplog, snapshot
):
    use_engines(toys.threaded())
    runtime = bench.build()
    runtime.start()
    work = toys.work_of(toys.make_batch(2))
    assert bench.start(work).placement.action is Action.CONCURRENT
    assert bench.start(work, may_offload=False).placement.action is Action.GPU
    runtime.retire(Stage.REWARD, "it changed")
    runtime.retire(Stage.REWARD, "it changed")
    runtime.retire(Stage.REFERENCE, "has no engine")
    assert not runtime.offloads(Stage.REWARD)
    assert bench.start(work).placement.action is Action.GPU
    # These runs have no GPU, and none is named to the user.
    (line,) = caplog.messages
    snapshot(line)
    (fault,) = bench.faults()
    assert (fault.kind, fault.where, fault.detail) == ("EngineRetired", "reward", "it changed")


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("needs", "together"),
    [
        ({"card_bytes": 9_000_000_000}, "18.00 GB"),
        # Each alone fits, and the card's bytes would hold both.
        (
            {"card_bytes": 6_900_000_000, "card_banks": {WEIGHTS_LOW.group: 3_350 << 20}},
            "6,700 MiB",
        ),
    ],
)
def test_of_two_models_that_do_not_fit_one_card_the_second_has_no_engine(
    bench, toys, use_engines, caplog, snapshot, needs, together
):
    made = []

    def make(stage, device):
        engine = toys.Told(lambda batch: toys.answer(batch, stage), stage)
        for name, value in needs.items():
            setattr(engine, name, value)
        made.append(engine)
        return engine

    use_engines(make)
    runtime = bench.build(stages=(Stage.REWARD, Stage.REFERENCE))
    runtime.start()
    (line,) = warnings(caplog)
    assert together in line
    snapshot(line)
    assert [engine.n_closed for engine in made] == [0, 1]
    assert (runtime.offloads(Stage.REWARD), runtime.offloads(Stage.REFERENCE)) == (True, False)
    bench.step(1, toys.make_batch(3))  # the first is asked as ever


# ---------------------------------------------------------------- energy


def test_null_telemetry_leaves_every_figure_missing(bench, toys, use_engines):
    use_engines(toys.threaded())
    runtime = bench.build(stages=())
    runtime.start()
    run = bench.start(toys.work_of(toys.make_batch(2), Stage.GENERATION))
    time.sleep(0.03)
    runtime.on_stage_end(run)
    runtime.close()
    (result,) = bench.executions()
    assert result.time_s >= 0.03
    assert result.energy.energy_j is None
    assert result.energy.method == "none"
    assert runtime.edi.cells() == ()
    with bench.reader() as reader:
        assert all(s.power_w is None for s in reader.raw_samples())


def test_modelled_energy_is_settled_when_the_samples_are_in(bench, toys, use_engines, monkeypatch):
    come, add = threading.Event(), Sampler._add
    come.set()
    monkeypatch.setattr(Sampler, "_add", lambda self, told: come.wait(240) and add(self, told))
    use_engines(toys.threaded())
    data = json.loads(toys.make_config().model_dump_json())
    data["telemetry"] = {
        "gpu": {"type": "modelled", "interval_s": 0.05}, "stale_after_s": 600.0,
    }  # fmt: skip
    runtime = bench.build(Config.model_validate(data), stages=())
    runtime.start()
    limit_s = time.monotonic() + 240
    while runtime._monitor.sampler.smoothed("cpu0").power_w is None:
        assert time.monotonic() < limit_s
        time.sleep(0.02)
    bench.iteration = runtime.begin_iteration(1)
    run = bench.start(toys.work_of(toys.make_batch(2), Stage.GENERATION))
    assert run.placement.action is Action.GPU
    time.sleep(0.2)
    come.clear()
    runtime.on_stage_end(run)
    runtime.settle()
    assert bench.executions() == []  # its last sample is not in yet
    come.set()
    while not runtime.edi.cells():
        assert time.monotonic() < limit_s
        time.sleep(0.02)
        runtime.settle()
    (result,) = bench.executions()
    idle_w, active_w = (runtime._scheduler._gpu.profile.value(k) for k in ("idle_w", "active_w"))
    assert (result.energy.method, result.energy.provenance) == ("model", Provenance.MODELLED)
    assert idle_w * result.time_s * 0.9 <= result.energy.energy_j <= active_w * result.time_s
    (cell,) = runtime.edi.cells()
    assert (cell.stage, cell.device, cell.provenance) == (
        Stage.GENERATION, runtime._scheduler._gpu.profile.name, Provenance.MODELLED,
    )  # fmt: skip
    runtime.close()
    with bench.reader() as reader:
        assert EdiMatrix.from_json(reader.edi()[-1].json) == runtime.edi


def test_the_wall_time_of_the_simulation_never_enters_edi(bench, toys, use_engines):
    use_engines(lambda stage, device: None)
    matrices = []
    for host_time_s in (0.001, 123.0):
        report = EngineReport(0.5, 4.0, Provenance.MODELLED, host_time_s)
        engine = toys.Told(lambda b, r=report: toys.answer(b, Stage.REWARD, r))
        use_engines(lambda stage, device, e=engine: e)
        runtime = bench.build(edi=EdiMatrix())
        runtime.start()
        for iteration in (1, 2, 3):
            bench.step(iteration, toys.make_batch(3, seed=iteration))
        runtime.close()
        matrices.append(runtime.edi)
    assert matrices[0] == matrices[1]
    assert matrices[0].cells()
    assert {r.host_time_s for r in bench.executions()} == {0.001, 123.0}


# ---------------------------------------------------------------- life


def threads():
    return {t.name for t in threading.enumerate() if t.name.startswith("ecorl")} - {"ecorl-ledger"}


def children():
    return {p.pid for p in psutil.Process().children(recursive=True) if p.status() != "zombie"}


BROKEN_PLUGIN = """
import os
from ecorl.engines.protocol import EngineReport, ScoreResult
from ecorl.errors import CheckpointError, ConfigError
from ecorl.records import ModelShape, Provenance, Stage

class Engine:
    name, row_invariant = "half", True
    model = ModelShape(1, 2, 3, 1, 1, 2, 100, 7, 5)
    def __init__(self, checkpoint, stage, device, broken=None):
        if stage is Stage.REFERENCE and broken == "user":
            raise CheckpointError(f"{checkpoint}: no config.json")
        if stage is Stage.REFERENCE and broken == "bug":
            raise RuntimeError("a bug in somebody's plug-in")
        if stage is Stage.REFERENCE and broken == "config":
            raise ConfigError("engine.offload.options.broken", broken, "nothing")
        if stage is Stage.REFERENCE and broken == "dies":
            os._exit(3)
        self.stage, self.device = stage, device
    def score(self, batch):
        raise NotImplementedError
    logprobs = score
    def close(self):
        pass
"""


@pytest.fixture
def half_plugin(tmp_path, monkeypatch):
    """An installed engine that loads for rewards and not for the reference."""
    folder = tmp_path / "plugin"
    info = folder / "half_engine-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "half_engine.py").write_text(BROKEN_PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: half-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        textwrap.dedent("""\
            [ecorl.engines]
            half = half_engine:Engine
            """)
    )
    monkeypatch.syspath_prepend(str(folder))
    yield
    import sys

    sys.modules.pop("half_engine", None)


def half_config(toys, isolated, **options):
    data = json.loads(toys.make_config().model_dump_json())
    data["engine"]["offload"] = {
        "type": "plugin", "name": "half", "isolated": isolated, "options": options,
    }  # fmt: skip
    return Config.model_validate(data)


@pytest.mark.parametrize(
    ("isolated", "broken"),
    [(True, "user"), (False, "user"), (False, "bug"), (True, "bug"), (True, "dies")],
)
def test_a_model_whose_engine_does_not_start_stays_and_the_other_keeps_its_own(
    bench, toys, half_plugin, caplog, snapshot, isolated, broken
):
    before = children()
    config = half_config(toys, isolated, broken=broken)
    runtime = bench.build(config, stages=(Stage.REWARD, Stage.REFERENCE))
    runtime.start()
    (line,) = warnings(caplog)
    snapshot(line)
    reason = line.partition(" (model) ")[2]
    assert len(children() - before) == 1 + isolated  # the sampler, and the engine for rewards
    assert (runtime.offloads(Stage.REWARD), runtime.offloads(Stage.REFERENCE)) == (True, False)
    assert runtime.checkpoint(Stage.REWARD) == bench.folder / "model"
    assert runtime.checkpoint(Stage.REFERENCE) is None
    (fault,) = bench.faults()
    assert (fault.kind, fault.where) == (FaultKind.NO_ENGINE, "reference")
    assert fault.detail == f"model {reason}"
    work = toys.work_of(toys.make_batch(2), Stage.REFERENCE)
    placement = bench.start(work).placement
    assert (placement.action, placement.proposed) == (Action.GPU, Action.GPU)
    assert (placement.reason, placement.refusal) == (reason, GuardRefusal.CANNOT_RUN)


@pytest.mark.parametrize("isolated", [True, False])
def test_a_mistake_of_the_config_ends_the_start_and_leaves_nothing_behind(
    bench, toys, half_plugin, isolated
):
    before, threads_before = children(), threads()
    config = half_config(toys, isolated, broken="config")
    runtime = bench.build(config, stages=(Stage.REWARD, Stage.REFERENCE))
    with pytest.raises(ConfigError, match=r"engine\.offload\.options\.broken"):
        runtime.start()
    assert children() <= before
    assert threads() <= threads_before
    runtime.close()


@pytest.mark.parametrize("policy", ["static on the host", "static", "threshold"])
@pytest.mark.parametrize("there", [(), ("no.xclbin",)])
def test_a_bitstream_that_is_not_there_is_told_once_and_nothing_is_offloaded(
    bench, toys, caplog, snapshot, policy, there
):
    path = bench.folder / "no.xclbin"
    for name in there:
        (bench.folder / name).touch()
    data = json.loads(toys.make_config().model_dump_json())
    data["engine"]["offload"] = {"type": "fpga", "bitstream": str(path)}
    if policy != "static":
        data["placement"]["policy"] = {"type": policy.partition(" ")[0]}
    runtime = bench.build(Config.model_validate(data), stages=(Stage.REWARD, Stage.REFERENCE))
    runtime.start()
    (line,) = warnings(caplog)
    faults = bench.faults()
    assert {fault.kind for fault in faults} == {FaultKind.NO_ENGINE}
    snapshot("\n".join([line, *(f"{fault.where}: {fault.detail}" for fault in faults)]))
    if policy != "static on the host":
        placement = bench.start(toys.work_of(toys.make_batch(2))).placement
        assert placement.action is Action.GPU
        assert faults[0].detail == f"model {placement.reason}"


def test_a_model_in_a_type_that_the_exact_engine_lacks_stays(bench, toys, caplog, snapshot):
    data = json.loads(toys.make_config().model_dump_json())
    data["engine"]["offload"] = {"type": "torch"}
    runtime = bench.build(Config.model_validate(data), dtype="float64")
    runtime.start()
    snapshot("\n".join(warnings(caplog)))


def test_close_ends_engines_and_sampler_and_may_be_called_twice(bench, toys, half_plugin):
    before, threads_before = children(), threads()
    runtime = bench.build(half_config(toys, True))
    runtime.start()
    runtime.start()  # a second start does nothing
    assert len(children() - before) == 2  # the engine's process and the sampler's
    runtime.close()
    runtime.close()
    assert children() <= before
    assert threads() <= threads_before


def test_close_without_start_does_nothing(bench, toys):
    runtime = bench.build()
    runtime.close()
    runtime.close()
    assert bench.executions() == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"devices": {"gpu": "abacus"}}, ConfigError),
        ({"devices": {"accelerator": "abacus"}}, ConfigError),
        ({"placement": {"policy": {"type": "learned", "name": "nobody"}}}, ConfigError),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(bench, changes, error):
    before = children(), threads()
    with pytest.raises(error) as caught:
        bench.build(Config.model_validate(changes))
    assert "\n" not in str(caught.value)
    assert (children(), threads()) == before


def test_a_missing_recording_is_refused_at_the_start(bench, tmp_path, toys, use_engines):
    use_engines(toys.threaded())
    gpu = {"type": "replay", "path": str(tmp_path / "none.csv")}
    data = json.loads(toys.make_config().model_dump_json()) | {"telemetry": {"gpu": gpu}}
    before, threads_before = children(), threads()
    runtime = bench.build(Config.model_validate(data))
    with pytest.raises(DataError, match=r"none\.csv"):
        runtime.start()
    assert children() <= before
    assert threads() <= threads_before
