"""Calls shorter than the polling step: how many there were, and what their joules are worth."""

from __future__ import annotations

import io

from rich.console import Console

from ecorl.records import Provenance, Stage
from ecorl.report.render.spending_tables import stages_section
from ecorl.report.render.text import print_report


def stages(report) -> str:
    """What the terminal says of the stages."""
    out = io.StringIO()
    print_report(report, Console(file=out, width=100))
    (block,) = (block for block in out.getvalue().split("\n\n") if block.startswith("Stages\n"))
    return block


def rows(run):
    return {(str(r.stage), r.device): r for r in run.report().stages}


def short_and_long(run):
    for i in range(4):
        run.ran(Stage.GENERATION, (1000 + 10 * i, 1005 + 10 * i), 50.0)
        # Three of four saw fewer than two readings.
        run.ran(Stage.REWARD, (1005 + 10 * i, 1005.1 + 10 * i), 1.0, n_samples=i // 3 * 2 or i % 2)


def test_the_share_of_short_calls_is_counted_by_hand(run):
    short_and_long(run)
    found = rows(run)
    assert found["reward", "h100"].n_interpolated == 3
    assert found["generation", "h100"].n_interpolated == 0


def test_it_stands_in_the_table_and_on_the_terminal(run, snapshot):
    short_and_long(run)
    report = run.report()
    section = stages_section(report.stages)
    (made,) = section.tables
    at = made.columns.index("very short calls")
    assert made.columns[at - 1].startswith("J/token") or "J/token" in made.columns[at - 1]
    assert {row[0]: row[at] for row in made.rows} == {
        "generation": "none",
        "reward": "75 % (3 of 4)",
    }
    snapshot(section.lead, "page")
    snapshot(stages(report), "terminal")


def test_nothing_is_said_where_every_call_was_resolved(run, snapshot):
    run.standard()
    report = run.report()
    section = stages_section(report.stages)
    assert all("very short calls" not in made.columns for made in section.tables)
    snapshot(section.lead, "page")
    snapshot(stages(report), "terminal")


def test_the_cycle_model_reads_nothing_so_it_interpolates_nothing(run):
    card = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 0.1}
    run.ran(Stage.REWARD, (1000, 1001), 1.0, method="cycle_model", n_samples=0, **card)
    assert rows(run)["reward", "u55c"].n_interpolated == 0


def test_a_call_without_energy_is_not_called_interpolated(run, snapshot):
    run.ran(Stage.REWARD, (1000, 1001), None, n_samples=0, method="none")
    run.ran(Stage.REWARD, (1001, 1002), 1.0, n_samples=0)
    row = rows(run)["reward", "h100"]
    assert (row.n_with_energy, row.n_interpolated) == (1, 1)
    snapshot(stages(run.report()))
