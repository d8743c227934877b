from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecorl.edi import EdiMatrix
from ecorl.records import (
    Action,
    EnergyMethod,
    PowerSample,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)
from ecorl.report.energy.readings import merged
from ecorl.runtime.energy.held_devices import DeviceWindow
from ecorl.runtime.energy.run_energy import RunEnergy
from ecorl.runtime.energy.stage_energy import (
    PATIENCE_S,
    StageAccounts,
    card_energy,
    split_energy,
    total_energy,
)
from ecorl.runtime.training import this_node
from ecorl.telemetry.history import PowerHistory
from tests.examples import examples

M = Provenance.MEASURED
HERE = f"{this_node()}/"


def result(t_start_s, t_end_s, energy=None, host_time_s=0.5, **changes):
    fields = {
        "iteration": 1,
        "stage": Stage.GENERATION,
        "action": Action.GPU,
        "device_ids": ("gpu0",),
        "device": "h100_sxm",
        "t_start_s": t_start_s,
        "t_end_s": t_end_s,
        "time_s": t_end_s - t_start_s,
        "time_provenance": M,
        "host_time_s": host_time_s,
        "wait_s": 0.0,
        "n_sequences": 4,
        "n_tokens": 40,
        "n_output_tokens": 20,
        "energy": energy,
    }
    return StageResult(**{**fields, **changes})


def sample(t_s, power_w=100.0, device_id="gpu0", provenance=M):
    return PowerSample(device_id, t_s, power_w, None, 0.5, provenance, "test")


class Books:
    """Accounts over a real history and the bench's ledger."""

    def __init__(self, bench, devices=("gpu0",), n_profiling=20):
        self.bench = bench
        self.history = PowerHistory(hold_s=2.0)
        self.devices = list(devices)
        self.now_s = 0.0
        self.energy = RunEnergy(EdiMatrix(0.05, n_profiling))
        self.accounts = StageAccounts(
            bench.ledger,
            self.history,
            self.energy.add,
            clock=lambda: self.now_s,
        )
        self.n_added = 0

    def add(self, execution, devices=None):
        """Add an execution that held all devices for all of its time."""
        self.n_added += 1
        held = self.devices if devices is None else devices
        windows = [DeviceWindow(d, execution.t_start_s, execution.t_end_s) for d in held]
        own = [] if execution.energy else windows
        self.accounts.add(execution, own, self.n_added)

    @property
    def edi(self):
        return self.energy.edi

    def samples(self, *times_s, **fields):
        self.history.add([sample(t, **fields) for t in times_s])

    @property
    def booked(self):
        return self.bench.executions()


def test_energy_waits_for_the_reading_behind_the_end(bench):
    books = Books(bench)
    books.samples(0.0, 1.0)
    books.add(result(0.5, 1.5))
    books.accounts.settle()
    assert books.booked == []
    books.samples(1.5)  # at the end is not behind it
    books.accounts.settle()
    assert books.booked == []
    books.samples(2.0)
    books.accounts.settle()
    (row,) = books.booked
    assert row.energy.energy_j == pytest.approx(100.0)
    assert row.energy.method == "integral"
    (cell,) = books.edi.cells()
    assert (cell.device, cell.value_j_per_token) == ("h100_sxm", pytest.approx(5.0))


def test_the_slowest_device_decides_and_an_unsampled_one_holds_all_back(bench):
    books = Books(bench, ("gpu0", "gpu1"))
    books.add(result(0.0, 1.0))
    books.samples(0.0, 1.0, 2.0)
    books.accounts.settle()
    assert books.booked == []
    books.samples(0.0, 0.9, device_id="gpu1")
    books.accounts.settle()
    assert books.booked == []
    books.samples(1.1, device_id="gpu1", power_w=50.0)
    books.accounts.settle()
    (row,) = books.booked
    assert row.energy.device_ids == (HERE + "gpu0", HERE + "gpu1")
    assert row.energy.energy_j == pytest.approx(100.0 + 100.0)


def test_one_device_without_figures_makes_the_sum_missing_and_edi_stays_empty(bench):
    books = Books(bench, ("gpu0", "gpu1"))
    books.samples(0.0, 1.0, 2.0)
    books.samples(0.0, 1.0, 2.0, device_id="gpu1", power_w=None)
    books.add(result(0.0, 1.0))
    books.accounts.settle()
    (row,) = books.booked
    assert (row.energy.energy_j, row.energy.mean_power_w) == (None, None)
    assert row.energy.coverage == 0.0
    assert books.edi.cells() == ()


def test_an_execution_without_readings_reaches_the_ledger_all_the_same(bench):
    """No power source opened, or its sampler is gone: the record must not wait for the end."""
    books = Books(bench)
    books.add(result(0.0, 1.0))
    books.accounts.settle()
    assert books.booked == []
    books.now_s = 1.0 + PATIENCE_S + 0.1
    books.accounts.settle()
    (row,) = books.booked
    assert row.energy is None or row.energy.energy_j is None


def test_closing_books_the_rest_as_missing_after_a_bounded_wait(bench):
    books = Books(bench)
    books.samples(0.0)
    books.add(result(10.0, 11.0))
    books.add(result(11.0, 12.0))
    books.accounts.close(patience_s=0.05)
    assert [r.energy.energy_j for r in books.booked] == [None, None]
    books.accounts.close(patience_s=0.0)
    assert len(books.booked) == 2


def test_closing_without_any_device_books_no_energy_record(bench):
    books = Books(bench, devices=())
    books.add(result(0.0, 1.0))
    books.accounts.close(patience_s=0.0)
    assert [r.energy for r in books.booked] == [None]


def test_a_faulty_execution_counts_in_the_ledger_and_not_as_a_price(bench):
    books = Books(bench)
    energy = card_energy("fpga0", 0.0, 1.0, 7.0, Provenance.MODELLED)
    books.add(result(0.0, 1.0, energy, fault="InvalidResult"))
    assert books.booked[0].energy.energy_j == 7.0
    assert books.edi.cells() == ()


def test_the_weaker_of_time_and_energy_names_the_cell(bench):
    books = Books(bench)
    energy = card_energy("fpga0", 0.0, 1.0, 7.0, M)
    books.add(result(0.0, 1.0, energy, time_provenance=Provenance.MODELLED))
    assert books.edi.cells()[0].provenance is Provenance.MODELLED


@given(
    runs=st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 1e4), st.floats(0, 1e4)), max_size=8)
)
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_host_time_has_no_say_in_edi(bench, runs):
    matrices = []
    for which in (1, 2):
        books = Books(bench, n_profiling=3)
        books.samples(*range(0, 60, 1))
        t_s = 0.0
        for run in runs:
            energy = card_energy("fpga0", t_s, run[0], 3.0 * run[0], Provenance.MODELLED)
            books.add(result(t_s, t_s + run[0], host_time_s=run[which]))
            books.add(result(t_s, t_s + run[0], energy, host_time_s=run[which], device="u55c"))
            t_s += run[0]
        books.accounts.settle()
        matrices.append(books.edi)
    assert matrices[0] == matrices[1]
    assert bool(matrices[0].cells()) == bool(runs)


FIGURE = st.none() | st.floats(0, 1e9)


@st.composite
def energies(draw):
    energy_j = draw(FIGURE)
    return StageEnergy(
        device_ids=(draw(st.sampled_from(["gpu0", "gpu1"])),),
        t_start_s=1.0,
        t_end_s=3.0,
        energy_j=energy_j,
        mean_power_w=None if energy_j is None else energy_j / 2.0,
        counter_energy_j=draw(FIGURE),
        integral_energy_j=draw(FIGURE),
        n_samples=draw(st.integers(0, 99)),
        coverage=draw(st.floats(0, 1)),
        method=draw(st.sampled_from(EnergyMethod)),
        provenance=draw(st.sampled_from(Provenance)),
    )


@given(st.lists(energies(), min_size=1, max_size=5))
def test_a_total_is_the_sum_or_missing_when_any_part_is(parts):
    total = total_energy(parts)
    for figure in ("energy_j", "mean_power_w", "counter_energy_j", "integral_energy_j"):
        values = [getattr(p, figure) for p in parts]
        if None in values:
            assert getattr(total, figure) is None
        else:
            assert getattr(total, figure) == pytest.approx(sum(values))
    order = list(Provenance)
    assert order.index(total.provenance) == max(order.index(p.provenance) for p in parts)
    assert total.coverage == min(p.coverage for p in parts)
    assert (total.t_start_s, total.t_end_s) == (1.0, 3.0)
    methods = {p.method for p in parts}
    doubtful = methods & {
        EnergyMethod.DISPUTED,
        EnergyMethod.INTEGRAL_COUNTER_FOREIGN,
        EnergyMethod.INTEGRAL_COUNTER_STOPPED,
    }
    alike = methods.pop() if len(methods) == 1 else EnergyMethod.MIXED
    assert total.method is (min(doubtful) if doubtful else alike)


def test_the_total_of_one_device_is_that_device():
    part = card_energy(("gpu0",), 0.0, 1.0, 5.0, M)
    assert total_energy([part]) is part
    assert total_energy([part, replace(part, energy_j=None)]).energy_j is None


@pytest.mark.parametrize(
    ("time_s", "energy_j", "mean_power_w", "method", "coverage"),
    [
        (2.0, 6.0, 3.0, "cycle_model", 1.0),
        (None, 6.0, None, "cycle_model", 1.0),
        (2.0, None, None, "none", 0.0),
        (0.0, 0.0, None, "cycle_model", 1.0),
        (None, None, None, "none", 0.0),
    ],
)
def test_what_a_card_says_of_its_energy(time_s, energy_j, mean_power_w, method, coverage):
    energy = card_energy(("fpga0",), 10.0, time_s, energy_j, Provenance.MODELLED)
    assert (energy.energy_j, energy.mean_power_w) == (energy_j, mean_power_w)
    assert (energy.method, energy.coverage) == (method, coverage)
    assert (energy.t_start_s, energy.t_end_s) == (10.0, 10.0 + (time_s or 0.0))
    assert (energy.counter_energy_j, energy.integral_energy_j) == (None, None)


# ---------------------------------------------------------------- devices that are shared


def test_time_that_two_executions_share_is_split_and_the_rest_is_not(bench):
    books = Books(bench)
    books.samples(*range(12))
    books.accounts.hold(1, [DeviceWindow("gpu0", 0.0)])
    books.accounts.add(result(2.0, 4.0), [DeviceWindow("gpu0", 2.0, 4.0)], 2)
    books.accounts.settle()  # the first is still under way
    books.accounts.add(result(0.0, 10.0), [DeviceWindow("gpu0", 0.0, 10.0)], 1)
    books.accounts.settle()
    short, long = books.booked
    assert short.energy.energy_j == pytest.approx(100.0)
    assert long.energy.energy_j == pytest.approx(900.0)
    assert long.energy.coverage == pytest.approx(1.0)


def test_an_execution_that_was_given_up_shares_nothing(bench):
    books = Books(bench)
    books.samples(*range(12))
    books.accounts.hold(1, [DeviceWindow("gpu0", 0.0)])
    books.accounts.drop(1)
    books.accounts.add(result(2.0, 4.0), [DeviceWindow("gpu0", 2.0, 4.0)], 2)
    books.accounts.settle()
    assert books.booked[0].energy.energy_j == pytest.approx(200.0)


def test_a_stage_is_charged_its_own_devices_and_the_times_that_it_held_them(bench):
    """Two training processes with a GPU each: the second comes later and ends earlier."""
    books = Books(bench)
    books.samples(*range(12))
    books.samples(*range(12), device_id="gpu1", power_w=10.0)
    books.samples(*range(12), device_id="gpu2", power_w=1000.0)
    windows = [DeviceWindow("gpu0", 1.0, 6.0), DeviceWindow("gpu1", 2.0, 5.0)]
    books.accounts.add(result(1.0, 6.0), windows, 1)
    books.accounts.settle()
    (row,) = books.booked
    assert row.energy.energy_j == pytest.approx(500.0 + 30.0)
    assert row.energy.device_ids == (HERE + "gpu0", HERE + "gpu1")


@st.composite
def holdings(draw):
    """Executions with windows on three devices, in the order in which they end."""
    found = []
    for _ in range(draw(st.integers(1, 7))):
        windows = []
        for device in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3)):
            start = draw(st.integers(0, 90))
            windows.append((device, start / 4, (start + draw(st.integers(1, 40))) / 4))
        found.append(windows)
    return sorted(found, key=lambda ws: max(end for _, _, end in ws))


@given(
    executions=holdings(),
    watts=st.lists(st.floats(0, 700), min_size=3, max_size=3),
    counter=st.booleans(),
)
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_parts_of_a_device_add_up_to_what_it_drew(executions, watts, counter):
    """Whatever overlaps: the parts are those of the time in which somebody held the device."""
    history = PowerHistory(hold_s=2.0)
    for device, mean_w in zip("abc", watts, strict=True):
        drawn_j = 0.0
        for i in range(150):
            power_w = mean_w * (1 + (i % 7) / 10)
            reading = PowerSample(
                device, i / 4, power_w, drawn_j if counter else None, None, M, "test"
            )
            history.add([reading])
            drawn_j += power_w / 4
    settled = []
    now_s = [0.0]
    accounts = StageAccounts(Sink(), history, settled.append, clock=lambda: now_s[0])
    for serial, windows in enumerate(executions):
        now_s[0] = ends = max(end for _, _, end in windows)
        for other in range(serial, len(executions)):  # as far as they have come by now
            begun = [w for w in executions[other] if w[1] <= ends]
            accounts.hold(
                other, [DeviceWindow(d, s, e if e <= ends else math.inf) for d, s, e in begun]
            )
        accounts.add(result(0.0, ends), [DeviceWindow(*w) for w in windows], serial)
        accounts.settle()
    accounts.close(patience_s=0.0)
    assert len(settled) == len(executions)
    total_j = sum(r.energy.energy_j for r in settled)
    held_j = 0.0
    for device in "abc":
        own = [(s, e) for windows in executions for d, s, e in windows if d == device]
        held_j += sum(history.energy(device, s, e).energy_j for s, e in merged(own))
    assert total_j == pytest.approx(held_j, rel=1e-9, abs=1e-6)


class Sink:
    def result(self, r):
        pass


def test_a_piece_without_energy_leaves_the_whole_missing():
    known, unknown = (replace(card_energy(("gpu0",), t, 1.0, 5.0, M)) for t in (0.0, 1.0))
    found = split_energy([(known, 2), (replace(unknown, energy_j=None), 1)])
    assert (found.energy_j, found.mean_power_w) == (None, None)
    assert split_energy([(known, 2), (unknown, 1)]).energy_j == pytest.approx(7.5)
