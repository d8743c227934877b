"""Runs on several machines: energy by hand, lost records, names, and stages with several models."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator

import pytest
from rich.console import Console

from ecorl.ledger import DeviceRecord, Ledger, NodeRecord, node_file
from ecorl.records import (
    Action,
    BarrierWait,
    EventKind,
    FaultEvent,
    Placement,
    PowerSample,
    Provenance,
    Stage,
)
from ecorl.report.energy.model import Cause
from ecorl.report.render.event_tables import fault_place, waits_section
from ecorl.report.render.page import render_html, render_json
from ecorl.report.render.text import print_report
from tests.unit.report.conftest import RunMaker

OFFSET_S = 500.0
JOINED_S, END_S = 1005.0, 1020.0


@contextlib.contextmanager
def machine(run, node: str = "b", joined_s: float = JOINED_S, **known) -> Iterator[RunMaker]:
    """Another machine, whose clock is ahead; `ran` takes the times of that clock."""
    run.clock(joined_s)
    known = {"offset_s": OFFSET_S, "offset_error_s": 0.002, **known}
    run.ledger.node(NodeRecord(node, node_file(node, run.ledger.attempt), **known))
    run.clock(joined_s + OFFSET_S)
    maker = RunMaker.__new__(RunMaker)
    maker.ledger = Ledger.create(
        run.folder / node_file(node, run.ledger.attempt),
        run_id="r<1>",
        config_toml="",
        meta={},
        node=node,
        attempt=run.ledger.attempt,
    )
    with maker.ledger:
        yield maker
    run.clock(END_S)


def drew(ledger: Ledger, start_s: float, end_s: float, power_w: float) -> None:
    """Two readings a second on the machine's clock, the last one at the end."""
    ledger.samples(
        PowerSample(
            "gpu0", OFFSET_S + start_s + i / 2, power_w, None, None, Provenance.MEASURED, "nvml"
        )
        for i in range(round(2 * (end_s - start_s)) + 1)
    )


def own(report, device_id: str) -> dict[Cause, tuple[float | None, float | None]]:
    return {
        p.cause: (p.energy_j, p.time_s)
        for p in report.spending.parts
        if p.device_ids == (device_id,)
    }


def text(report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=100))
    return out.getvalue()


def gpu(idle_w: float | None = 20.0) -> DeviceRecord:
    return DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", idle_w)


def test_a_machine_that_joins_later_counts_from_then_on(named_run):
    named_run.standard()
    with machine(named_run) as b:
        b.ledger.device(gpu())
        b.ran(Stage.REFERENCE, (OFFSET_S + 1013, OFFSET_S + 1018), 500.0)
        drew(b.ledger, JOINED_S, END_S, 100.0)
    report = named_run.report()
    # 100 W for 15 s, of which 5 s and 500 J were the execution; 1.5 s of the rest were a wait.
    parts = own(report, "b/gpu0")
    assert parts[Cause.SCORING] == (500.0, 5.0)
    assert parts[Cause.BARRIER_WAIT] == pytest.approx((150.0, 1.5))
    assert parts[Cause.BESIDE_STAGES] == pytest.approx((850.0, 8.5))
    assert not [gap for gap in report.spending.gaps if "b/gpu0" in gap]
    # The head's own devices count from the start of the attempt.
    assert own(report, "head/fpga0")[Cause.IDLE] == pytest.approx((20.0 * 19.5, 19.5))
    assert {i for p in report.spending.parts for i in p.device_ids} == {
        "head/gpu0",
        "head/fpga0",
        "b/gpu0",
    }
    assert report.head.run_time_s == 20.0


def test_idle_power_counts_for_the_machines_own_time(named_run):
    named_run.standard()
    with machine(named_run) as b:
        b.ledger.device(gpu(20.0))
    report = named_run.report()
    assert own(report, "b/gpu0") == {Cause.IDLE: (20.0 * 15.0, 15.0)}


@pytest.mark.parametrize("left", [True, False])
def test_a_record_that_just_ends_is_a_gap_and_one_that_says_so_is_none(named_run, left, snapshot):
    named_run.standard()
    with machine(named_run) as b:
        b.ledger.device(gpu())
        drew(b.ledger, JOINED_S, 1015.0, 100.0)
        if left:
            named_run.clock(OFFSET_S + 1015.0)
            b.ledger.event(EventKind.STOP, "no longer needed")
            assert b.ledger.flush()
    report = named_run.report()
    gaps = [gap for gap in report.spending.gaps if gap.startswith("b/gpu0")]
    assert bool(gaps) != left
    snapshot("\n".join(gaps))
    # A machine's own stop is not the run's.
    assert report.head.state == "finished"


@pytest.mark.parametrize("kept", [True, False])
def test_a_lost_record_is_missing_energy(named_run, kept, snapshot):
    named_run.standard()
    if kept:
        with machine(named_run, lost="the copy broke off") as b:
            b.ledger.device(gpu(None))
    else:
        named_run.ledger.node(NodeRecord("b", node_file("b", 1)))
    report = named_run.report()
    (gap,) = [gap for gap in report.missing if gap.startswith("b: ")]
    assert gap in report.spending.gaps
    assert report.spending.columns[-1].at_least
    assert [(n.name, n.lost is None) for n in report.nodes] == [("head", True), ("b", False)]
    assert gap in " ".join(text(report).split())
    assert gap.split("(")[0] in render_html(report)
    snapshot("\n".join([*report.verdict, *report.missing]))


def test_damage_that_only_the_readings_show_is_told_of(named_run):
    named_run.standard()
    with machine(named_run) as b:
        b.ledger.device(gpu())
        b.ledger.samples(
            PowerSample("gpu0", 1500.0 + i, 50.0, None, None, Provenance.MEASURED, "nvml")
            for i in range(1300)
        )
        assert b.ledger.flush()
        b.ledger._writer.put(lambda c: c.execute("UPDATE power_block SET packed = zeroblob(9)"))
        assert b.ledger.flush()
    report = named_run.report()
    assert any(gap.startswith("b: ") for gap in report.missing)
    assert report.spending.columns[-1].at_least


def test_the_machines_are_listed_where_there_are_several(named_run, snapshot):
    named_run.standard()
    with machine(named_run) as b:
        b.ledger.device(gpu())
        b.ledger.fault(FaultEvent(1, "DeviceLost", "gpu0", "fell off the bus"))
    named_run.ledger.node(NodeRecord("c", lost="no route"))
    report = named_run.report()
    assert [(n.name, n.devices, n.is_head) for n in report.nodes] == [
        ("head", ("fpga0", "gpu0"), True),
        ("b", ("gpu0",), False),
        ("c", (), False),
    ]
    snapshot(text(report))
    page = render_html(report)
    assert 'id="machines"' in page
    assert fault_place(report.faults[0], report.nodes) in page
    assert [n["offset_s"] for n in json.loads(render_json(report))["nodes"]] == [None, 500.0, None]


def test_devices_of_one_machine_go_by_their_short_names(named_run):
    named_run.standard()
    report = named_run.report()
    assert report.nodes == ()
    shown = text(report) + render_html(report) + render_json(report)
    assert "gpu0" in shown
    assert "head/" not in shown
    assert 'id="machines"' not in shown


def test_a_named_machine_changes_no_figure(named_run, tmp_path_factory, now):
    bare = RunMaker(tmp_path_factory.mktemp("bare"), now)
    with bare.ledger:
        bare.standard()
        now[0] = 1000.0
        named_run.standard()
        named, plain = named_run.report(), bare.report()
    assert named.spending == plain.spending
    assert named.stages == plain.stages
    assert plain.stages


# ---------------------------------------------------------------- stages with several models

CARD = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 0.5}


def test_the_models_of_a_stage_stand_apart(run):
    for name, gpu_j, card_j in (("math", 100.0, 50.0), ("code", 10.0, 40.0)):
        run.ran(Stage.REWARD, (1000, 1001), gpu_j, role_name=name)
        run.ran(Stage.REWARD, (1001, 1002), card_j, role_name=name, **CARD)
        run.ledger.placement(
            Placement(1, Stage.REWARD, Action.GPU, Action.GPU, "static", "because", role_name=name)
        )
    run.ran(Stage.REFERENCE, (1003, 1004), 5.0, role_name="only")
    report = run.report()
    rows = {(r.role, r.on_gpu_path): r.energy_j for r in report.stages}
    assert rows == {
        ("reward:math", True): 100.0,
        ("reward:math", False): 50.0,
        ("reward:code", True): 10.0,
        ("reward:code", False): 40.0,
        ("reference", True): 5.0,
    }
    ratios = {c.role: c.ratio for c in report.comparisons}
    assert ratios == {"reward:code": 4.0, "reward:math": 0.5, "reference": None}
    assert [d.role for d in report.decisions] == ["reward:code", "reward:math"]
    for shown in (text(report), render_html(report)):
        assert "reward:math" in shown
        assert "reference:only" not in shown


def test_a_wait_is_paired_with_the_call_of_its_own_model(run):
    run.standard()
    run.ran(Stage.REWARD, (1010, 1012), 40.0, iteration=2, role_name="math", **CARD)
    slow = {**CARD, "time_s": 3.0}
    run.ran(Stage.REWARD, (1010, 1012), 40.0, iteration=2, role_name="code", **slow)
    run.clock(1012.0)
    run.ledger.barrier(BarrierWait(2, Stage.REWARD, 2.0, 10, 0, 0, role_name="code"))
    timeline = run.report().card_timeline
    assert timeline is not None
    assert timeline.n_waits == 2
    # Of the wait for `code` 3.0 s are left after its submission at 1010, not 0.5 s.
    assert timeline.modelled_waits_s > 2.5


def test_rows_delivered_twice_or_to_nobody_are_told_of(run, snapshot):
    run.standard()
    assert "twice" not in text(run.report())
    run.ledger.barrier(BarrierWait(2, Stage.REWARD, 1.0, 10, 0, 0, 3, 4))
    report = run.report()
    assert (report.barriers.n_duplicates, report.barriers.n_unknown) == (3, 4)
    (block,) = [block for block in text(report).split("\n\n") if "twice" in block]
    (table,) = waits_section(report).tables
    snapshot("\n".join([block, *map(" | ".join, [table.columns, *table.rows])]))
