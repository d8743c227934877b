"""What a machine's devices have drawn: executions and what lies beside them add up to it."""

from __future__ import annotations

import math
import time

import pytest

from ecorl.config import NullSourceConfig, ReplaySourceConfig, TelemetryConfig
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.records import Action, Provenance, Stage, StageResult
from ecorl.runtime.handles import Span
from ecorl.runtime.monitor import NodeEnergy, NodeMonitor
from ecorl.runtime.training import this_node
from ecorl.telemetry.sources.specs import MeteredDevice, SourceSpec

POWER_W = 100.0


@pytest.fixture
def settled():
    return []


@pytest.fixture
def start(tmp_path, settled):
    """Starts a real monitor of a source of this machine."""
    opened = []

    def start(*sources):
        ledger = Ledger.create(
            tmp_path / LEDGER_FILE, run_id="t", config_toml="", meta={}, node=this_node()
        )
        specs = [SourceSpec((source,), MeteredDevice()) for source in sources]
        monitor = NodeMonitor(
            this_node(), specs, TelemetryConfig(), ledger, settled.append, lambda *_: None
        )
        opened.append((monitor, ledger))
        monitor.start()
        return monitor

    yield start
    for monitor, ledger in opened:
        monitor.close()
        ledger.close()


@pytest.fixture
def recording(tmp_path):
    file = tmp_path / "power.csv"
    rows = [f"{t / 10},gpu0,{POWER_W},,0.5" for t in range(600)]
    file.write_text("t_s,device_id,power_w,energy_j,utilisation\n" + "\n".join(rows) + "\n")
    return ReplaySourceConfig(path=file, interval_s=0.02)


def result(span):
    return StageResult(
        iteration=1,
        stage=Stage.GENERATION,
        action=Action.GPU,
        device_ids=("gpu0",),
        device="h100_sxm",
        t_start_s=span.t_start_s,
        t_end_s=span.t_end_s,
        time_s=span.t_end_s - span.t_start_s,
        time_provenance=Provenance.MEASURED,
        host_time_s=span.t_end_s - span.t_start_s,
        wait_s=0.0,
        n_sequences=1,
        n_tokens=2,
        n_output_tokens=1,
        energy=None,
    )


def run_for(monitor, serial, seconds):
    """An execution that holds the device for some time."""
    begun_s = time.monotonic()
    monitor.hold(serial, [Span(begun_s, math.inf)])
    time.sleep(seconds)
    span = Span(begun_s, time.monotonic())
    monitor.add(serial, result(span), [span])


def test_executions_and_what_lies_beside_them_are_all_that_was_drawn(start, recording, settled):
    monitor = start(recording)
    monitor.settle()
    time.sleep(0.3)
    begun = monitor.drawn()
    for serial in (1, 2):
        run_for(monitor, serial, 0.3)
        time.sleep(0.2)
    monitor.settle()
    now = monitor.drawn()
    assert len(settled) == 2
    used_j = sum(r.energy.energy_j for r in settled)
    assert used_j > 0.5 * POWER_W
    drawn_j, beside_j = now.drawn_j - begun.drawn_j, now.beside_j - begun.beside_j
    assert beside_j > 0
    assert drawn_j == pytest.approx(used_j + beside_j, rel=1e-6)
    assert now.provenance is Provenance.REPLAYED


def test_where_nobody_tells_of_executions_what_lies_beside_them_is_not_known(start, recording):
    monitor = start(recording)
    time.sleep(0.3)
    monitor.drawn()
    time.sleep(0.1)
    found = monitor.drawn()
    assert found.drawn_j > 0
    assert found.beside_j is None


def test_a_device_without_readings_makes_the_sum_unknown(start, recording):
    monitor = start(recording, NullSourceConfig(interval_s=0.02))
    monitor.settle()
    time.sleep(0.3)
    found = monitor.drawn()
    assert (found.drawn_j, found.beside_j) == (None, None)
    assert found.provenance is not None


def test_a_machine_without_meters_draws_nothing_that_could_be_missing(start):
    monitor = start()
    monitor.settle()
    assert monitor.drawn() == NodeEnergy()


class Edges:
    """Counts the edges that a monitor asks its sampler for."""

    def __init__(self, monitor, monkeypatch):
        self.n = 0
        monkeypatch.setattr(monitor.sampler, "mark_edge", self.mark)

    def mark(self):
        self.n += 1

    def since(self):
        n, self.n = self.n, 0
        return n


def test_readings_are_asked_for_at_the_edges_of_long_executions(start, recording, monkeypatch):
    monitor = start(recording)
    edges, now_s = Edges(monitor, monkeypatch), time.monotonic() - 100.0
    role = Stage.GENERATION.value

    def run(serial, *spans):
        """Hold and add; returns the edges at the begin and at the end."""
        found = []
        for n in range(len(spans)):
            monitor.hold(serial, [*spans[:n], Span(spans[n].t_start_s, math.inf)], role)
        found.append(edges.since())
        monitor.add(serial, result(spans[-1]), list(spans))
        return (*found, edges.since())

    short, long = Span(now_s, now_s + 0.9), Span(now_s, now_s + 1.0)
    assert run(1, short) == (0, 0)
    assert run(2, long) == (0, 1)  # that it would take long was not known
    assert run(3, long) == (1, 1)
    assert run(4, short) == (1, 0)
    assert run(5, short) == (0, 0)
    # A stage in many small pieces is no long one, however long they are together.
    pieces = [Span(now_s + n, now_s + n + 0.5) for n in range(4)]
    assert run(6, *pieces) == (0, 0)
    assert run(7, *pieces) == (0, 0)
    # One in many pieces is read at its begin alone, where the one before was long.
    assert run(8, long) == (0, 1)
    assert run(9, *pieces) == (1, 0)
    # One without times, and one whose role is not told.
    monitor.add(10, result(long), ())
    monitor.hold(11, [Span(now_s, math.inf)])
    monitor.hold(11, [])
    assert edges.since() == 0
