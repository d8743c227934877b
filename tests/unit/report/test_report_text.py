"""The summary on the terminal: it fits, breaks no word, and mixes no provenances."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ecorl.records import Action, Placement, Provenance, Stage
from ecorl.report.lines import aligned, wrapped
from ecorl.report.numbers import edi_unit
from ecorl.report.text import PIPED_WIDTH, print_report


def shown(report, width: int | None = None) -> list[str]:
    """Lines as a terminal of that width gets them, or as a pipe does."""
    out = io.StringIO()
    kind = {"force_terminal": True, "no_color": True, "width": width} if width else {"width": 40}
    print_report(report, Console(file=out, color_system=None, **kind))
    return out.getvalue().splitlines()


def fill(run):
    run.config()
    run.standard()
    run.power("gpu0", range(1000, 1018), 110.0)
    lost = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 0.1}
    run.ran(Stage.REFERENCE, (1018, 1019), None, **lost)
    run.ledger.evaluation("reward", "before", [0.0, 1.0])
    run.ledger.evaluation("reward", "after", [1.0, 3.0])
    run.ledger.evaluation("rank_flip", "held_out", [0.0, 1.0])
    run.ledger.fault(2, "EngineTimeout", "fpga0", "no answer within 3 s; the engine restarts", 3)
    for i in range(30):
        action = Action.GPU if i % 3 else Action.CONCURRENT
        reason = "a rather long reason that needs more than one line of eighty columns to be told"
        run.ledger.placement(
            Placement(i, Stage.ACTOR_TRAIN, Action.CONCURRENT, action, "threshold", reason)
        )


@pytest.mark.parametrize("width", [80, 120, None])
def test_no_line_is_too_long_and_no_word_is_broken(run, width):
    fill(run)
    report = run.report()
    lines = shown(report, width)
    assert max(map(len, lines)) <= (width or PIPED_WIDTH)
    told = " ".join(" ".join(lines).split())
    for sentence in (*report.verdict, *report.missing):
        assert " ".join(sentence.split()) in told
    for word in ("actor_train", "generation", "h100", "u55c", "EngineTimeout", "out tokens"):
        assert word in told


def test_a_pipe_gets_a_fixed_width_whatever_the_console_believes(run):
    fill(run)
    lines = shown(run.report())
    assert len(lines[0]) == PIPED_WIDTH
    assert "\x1b" not in "".join(lines)


def test_stage_figures_stand_under_their_provenances(run):
    fill(run)
    lines = shown(run.report(), 80)
    block = lines[lines.index("Stages") : lines.index("Energy")]
    captions = [line.strip(" #") for line in block if line.startswith("  # ")]
    assert captions == [
        "time measured, energy measured",
        "time modelled, energy modelled",
        "time modelled, energy missing",
    ]
    under = {}
    for line in block:
        if line.startswith("  # "):
            under[line.strip(" #")] = found = []
        elif line.split() and line.split()[0] in ("generation", "reward", "reference"):
            found.append(tuple(line.split()[:2]))
    assert under["time measured, energy measured"] == [("generation", "h100"), ("reward", "h100")]
    assert under["time modelled, energy modelled"] == [("reward", "u55c")]
    # A missing figure is a dash, never a nought.
    (lost,) = (line for line in block if line.split()[:1] == ["reference"])
    assert lost.split()[-2:] == ["-", "-"]


def test_totals_of_two_provenances_stand_in_two_columns(run):
    run.config()
    run.standard()
    lines = shown(run.report(), 80)
    start = lines.index("Energy")
    assert lines[start + 1].split() == [
        "measured",
        "modelled",
        "all",
        "together",
        "(as",
        "modelled)",
    ]
    assert lines[start + 2].split()[2:] == ["1,680", "550", "2,230"]
    training = next(line for line in lines[start:] if "training" in line)
    assert training.split() == ["training", "600", "none", "600"]


def test_an_empty_run_still_gives_a_summary(run):
    lines = shown(run.report(), 80)
    assert any("did no steps" in line for line in lines)
    assert "Stages" not in lines
    assert any("No energy figure was recorded" in line for line in lines)


def test_a_console_without_unicode_gets_what_it_can_print(run):
    fill(run)
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    print_report(run.report(), Console(file=out))
    out.flush()
    assert raw.getvalue().startswith(b"r<1> ---")


@given(st.text("ab c/_-", max_size=120), st.integers(20, 60))
def test_wrapping_keeps_every_word(text, width):
    lines = wrapped(text, width)
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)


def test_columns_stand_under_each_other():
    assert aligned([("a", "n"), ("long", "1,000")]) == ["  a         n", "  long  1,000"]


def test_one_unit_for_figures_shown_together():
    assert [edi_unit(v)[1] for v in ([2.0, 0.001], [0.02], [1e-5, None], [None], [])] == [
        "J/token", "mJ/token", "µJ/token", "J/token", "J/token",
    ]  # fmt: skip
    assert edi_unit([0.02])[0] == 1e3
