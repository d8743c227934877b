"""Whether the card paid, and the run without the simulation, against figures worked out by hand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ecorl.control import Command, Why
from ecorl.ledger import DeviceRecord
from ecorl.records import BarrierWait, Provenance, Stage
from ecorl.report.energy.model import Cause
from ecorl.report.render.page import sections
from ecorl.report.render.text import print_report

MODELLED = Provenance.MODELLED
CARD = {"device": "fpga0:u55c", "provenance": MODELLED}


def said(report):
    return "\n".join(report.verdict)


def whole_run(report):
    """The table of the page that sums up the whole run."""
    tables = (table for section in sections(report) for table in section.tables)
    (found,) = (table for table in tables if table.caption.startswith("The whole run"))
    return "\n".join(": ".join(row) for row in found.rows)


def wait(run, t_s: float, wait_s: float, stage: Stage = Stage.REWARD, iteration: int = 1):
    run.clock(t_s)
    run.ledger.barrier(BarrierWait(iteration, stage, wait_s, 10, 0, 0))


def test_the_balance_by_hand(run):
    run.standard()
    b = run.report().balance
    # 100 tokens at 0.8 J on the GPU against 40 J. The wait of 1.5 s for the simulation falls away:
    # 20 W idle for 18 of 18.5 s.
    assert (b.card_j, b.gpu_would_j, b.saved_j) == pytest.approx((40.0, 80.0, 40.0))
    assert (b.idle_j, b.net_j) == pytest.approx((360.0, -320.0))
    assert b.idle_share == pytest.approx(18.0 / 18.5)
    assert (b.is_simulated, b.in_modelled_time, b.paused_j, b.left_out) == (True, True, 0.0, ())
    assert (b.provenance, b.at_most) == (MODELLED, False)


def test_a_card_that_pays_is_said_to_pay(run, snapshot):
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", 1.0))
    run.ran(Stage.REWARD, (1000, 1010), 40.0, time_s=9.0, **CARD)
    run.ran(Stage.REWARD, (1010, 1020), 100.0)
    report = run.report()
    # 60 J saved, 1 W idle for 11 of 20 s.
    assert report.balance.net_j == pytest.approx(49.0)
    snapshot(said(report))


def test_what_the_card_cost_is_told_gross_and_net(run, snapshot):
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", 1.0))
    run.ran(Stage.REWARD, (1000, 1010), 81.2, time_s=9.0, **CARD)
    run.ran(Stage.REWARD, (1010, 1020), 8.7)
    report = run.report()
    b = report.balance
    assert (b.card_j, b.gpu_would_j, b.saved_j) == pytest.approx((81.2, 8.7, -72.5))
    console = Console(file=io.StringIO(), width=100)
    print_report(report, console)
    snapshot(console.file.getvalue())
    snapshot(whole_run(report), "table of the page")


def test_one_figure_tells_the_idle_draw_everywhere(run, snapshot):
    run.standard()
    report = run.report()
    assert report.balance.idle_j == report.card_timeline.idle_j
    # The card's draw over the host's time is another question, and says so.
    assert report.spending.card.by_cause[Cause.IDLE] == pytest.approx(390.0)
    snapshot(said(report))


def test_a_real_card_idles_over_the_whole_run(run, snapshot):
    run.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MEASURED, "xrt", 10.0))
    real = {"device": "fpga0:u55c", "time_provenance": Provenance.MEASURED}
    run.ran(Stage.REWARD, (1000, 1010), 40.0, **real)
    wait(run, 1010.0, 9.0)
    run.ran(Stage.REWARD, (1010, 1020), 100.0)
    report = run.report()
    assert (report.balance.idle_j, report.balance.is_simulated) == (pytest.approx(100.0), False)
    snapshot(said(report))


def test_what_the_card_drew_in_a_pause_counts_against_offloading(run, snapshot):
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", 1.0))
    run.ran(Stage.REWARD, (1000, 1010), 40.0, time_s=9.0, **CARD)
    run.ran(Stage.REWARD, (1010, 1020), 100.0)
    run.chose(1020.0, Command.PAUSE, Why.DIRTY)
    run.chose(1050.0, Command.RUN, Why.CLEAN)
    report = run.report()
    b = report.balance
    # 60 J saved; 1 W idle for 11 s, and for the 30 s of the pause.
    assert (b.idle_j, b.paused_j) == pytest.approx((11.0, 30.0))
    assert b.net_j == pytest.approx(19.0)
    snapshot(said(report))
    snapshot(whole_run(report), "table of the page")


def test_a_stage_without_energy_on_both_sides_is_named(run, snapshot):
    run.standard()
    run.ran(Stage.REFERENCE, (1018, 1019), 30.0, time_s=0.5, **CARD)
    report = run.report()
    assert report.balance.left_out == ("reference",)
    snapshot(said(report))


def test_an_unknown_idle_draw_leaves_it_open(run, snapshot):
    run.ran(Stage.REWARD, (1000, 1010), 40.0, time_s=9.0, **CARD)
    run.ran(Stage.REWARD, (1010, 1020), 100.0)
    report = run.report()
    assert (report.balance.idle_j, report.balance.net_j) == (None, None)
    snapshot(said(report))


def test_rows_that_the_exact_path_answered_save_nothing(run, snapshot):
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", 1.0))
    run.ran(Stage.REWARD, (1000, 1010), 100.0)
    run.ran(Stage.REWARD, (1010, 1011), 40.0, time_s=1.0, iteration=2, **CARD)
    # Ran, but 4 of 10 rows were bad: its joules count, its price per token does not.
    faulty = {"n_rows_fallback": 4, "fault": "InvalidResult"}
    run.ran(Stage.REWARD, (1011, 1012), 30.0, time_s=1.0, iteration=3, **CARD, **faulty)
    # Crashed: no joules known, and nothing served.
    lost = {"n_rows_fallback": 10, "fault": "EngineCrashed"}
    run.ran(Stage.REWARD, (1012, 1013), None, time_s=None, iteration=4, **CARD, **lost)
    report = run.report()
    (c,) = report.comparisons
    assert c.card.edi_j_per_token == pytest.approx(0.4)
    assert (c.card.n_calls, c.card.n_with_energy, c.card.n_edi) == (3, 2, 1)
    assert c.card.n_tokens_served == pytest.approx(160.0)
    assert (c.gpu_would_j, c.card_j, c.saved_j) == pytest.approx((160.0, 70.0, 90.0))
    assert c.card_at_least
    assert report.balance.at_most
    snapshot(said(report))


def test_without_a_second_path_nothing_is_claimed(run, snapshot):
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", 20.0))
    run.ran(Stage.REWARD, (1000, 1010), 40.0, time_s=1.0, **CARD)
    report = run.report()
    assert report.balance is None
    snapshot(said(report))


# ---------------------------------------------------------------- the run without the simulation


def test_waits_shrink_to_what_the_modelled_times_leave(run):
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", 10.0))
    run.ran(Stage.REWARD, (1000, 1006), 1.0, time_s=3.0, **CARD)
    wait(run, 1006.0, 4.0)  # entered at 1002; modelled done at 1003: 1 s instead of 4 s
    run.ran(Stage.REWARD, (1008, 1010), 1.0, time_s=0.5, iteration=2, **CARD)
    wait(run, 1010.0, 1.0, iteration=2)  # done before the thread comes: no wait
    run.clock(1020.0)
    run.ledger.event("finish", "")
    t = run.report().card_timeline
    assert (t.run_time_s, t.waits_s, t.modelled_waits_s) == pytest.approx((20.0, 5.0, 1.0))
    assert t.modelled_run_time_s == pytest.approx(16.0)
    assert (t.n_waits, t.n_kept) == (2, 0)
    assert t.idle_j == pytest.approx(10.0 * (16.0 - 3.5))


def test_one_card_serves_one_call_at_a_time(run):
    run.ran(Stage.REWARD, (1000, 1005), 1.0, time_s=2.0, **CARD)
    run.ran(Stage.REFERENCE, (1000, 1008), 1.0, time_s=2.0, **CARD)
    wait(run, 1005.0, 4.0)  # entered at 1001, done at 1002: 1 s
    wait(run, 1008.0, 3.0, Stage.REFERENCE)  # entered at 1002 now; done at 1004: 2 s
    t = run.report().card_timeline
    assert t.modelled_waits_s == pytest.approx(3.0)
    assert t.modelled_run_time_s == pytest.approx(8.0 - 4.0)
    assert t.idle_j is None


def test_a_slower_card_makes_the_run_longer(run):
    run.ran(Stage.REWARD, (1000, 1001), 1.0, time_s=6.0, **CARD)
    wait(run, 1002.0, 0.0)
    t = run.report().card_timeline
    assert (t.modelled_waits_s, t.modelled_run_time_s) == pytest.approx((4.0, 6.0))


def test_waits_without_a_modelled_time_stay_as_they_were(run, snapshot):
    run.ran(Stage.REWARD, (1000, 1001), 1.0, time_s=1.0, **CARD)
    wait(run, 1001.0, 1.0)
    run.ran(Stage.REWARD, (1002, 1005), None, time_s=None, iteration=2, fault="X", **CARD)
    wait(run, 1005.0, 3.0, iteration=2)
    report = run.report()
    t = report.card_timeline
    assert (t.n_waits, t.n_kept) == (1, 1)
    assert t.modelled_run_time_s == pytest.approx(5.0)
    snapshot(said(report))


def test_a_real_card_needs_no_such_statement(run):
    run.ran(Stage.GENERATION, (1000, 1001), 1.0)
    real = {"device": "fpga0:u55c", "time_provenance": Provenance.MEASURED}
    run.ran(Stage.REWARD, (1001, 1002), 1.0, **real)
    wait(run, 1002.0, 1.0)
    assert run.report().card_timeline is None


# ---------------------------------------------------------------- steps


def test_steps_are_those_that_were_trained(run):
    run.config()
    run.ran(Stage.GENERATION, (1000, 1001), 1.0, iteration=1)
    run.ran(Stage.ACTOR_TRAIN, (1001, 1002), 1.0, iteration=1)
    run.ran(Stage.GENERATION, (1002, 1003), 1.0, iteration=2)
    run.ledger.checkpoint(1, "checkpoint-1")
    head = run.report().head
    assert (head.n_steps_done, head.checkpoint_step) == (1, 1)


def test_a_step_that_a_checkpoint_holds_was_done(run):
    run.ran(Stage.ACTOR_TRAIN, (1000, 1001), 1.0, iteration=1)
    run.ledger.checkpoint(2, "checkpoint-2")
    assert run.report().head.n_steps_done == 2
