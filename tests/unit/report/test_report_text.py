"""The summary on the terminal: it fits, breaks no word, and mixes no provenances."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ecorl.ledger import DeviceRecord
from ecorl.records import (
    Action,
    ActionCost,
    FaultEvent,
    FaultKind,
    Placement,
    Provenance,
    Stage,
)
from ecorl.report.render.lines import aligned, wrapped
from ecorl.report.render.numbers import edi_unit
from ecorl.report.render.page import render_html
from ecorl.report.render.text import PIPED_WIDTH, print_report


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
    detail = "no answer within 3 s; the engine restarts"
    run.ledger.fault(FaultEvent(2, FaultKind.ENGINE_TIMEOUT, "fpga0", detail, 3))
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
    text = " ".join(" ".join(lines).split())
    for sentence in (*report.verdict, *report.missing):
        assert " ".join(sentence.split()) in text
    for word in ("actor_train", "generation", "h100", "u55c", "EngineTimeout", "out tokens"):
        assert word in text


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch):
    """The machine that runs the tests may have set it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("72", 72), ("20", 60), ("400", 110)])
def test_a_pipe_is_as_wide_as_columns_says(run, monkeypatch, columns, width):
    fill(run)
    monkeypatch.setenv("COLUMNS", columns)
    out = io.StringIO()
    print_report(run.report(), Console(file=out))
    assert len(out.getvalue().splitlines()[0]) == width


def test_a_pipe_gets_a_fixed_width_whatever_the_console_believes(run):
    fill(run)
    lines = shown(run.report())
    assert len(lines[0]) == PIPED_WIDTH
    assert "\x1b" not in "".join(lines)


def test_stage_figures_stand_under_their_provenances(run, snapshot):
    fill(run)
    lines = shown(run.report(), 80)
    block = lines[lines.index("Stages") : lines.index("Energy")]
    # A missing figure is a dash, never a nought.
    (lost,) = (line for line in block if line.split()[:1] == ["reference"])
    assert lost.split()[-2:] == ["-", "-"]
    snapshot("\n".join(lines))


def test_totals_of_two_provenances_stand_in_two_columns(run, snapshot):
    run.config()
    run.standard()
    report = run.report()
    spending = report.spending
    # The card's joules are in none of the machine's columns.
    totals_j = [c.energy_j for c in (*spending.columns, spending.card)]
    assert totals_j == pytest.approx([1680.0, 120.0, 1800.0, 430.0])
    assert spending.columns[-1].tokens_per_joule == pytest.approx(100 / 1800)
    assert spending.with_card.tokens_per_joule == pytest.approx(100 / 2230)
    snapshot("\n".join(shown(report, 80)))


# ---------------------------------------------------------------- a card that does not exist


def test_a_simulated_card_without_work_is_told_too(run, snapshot):
    run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 0.0))
    source = "cycle model; computed by C-simulation on this host"
    run.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MODELLED, source, 20.0))
    run.ran(Stage.GENERATION, (1000, 1010), 50.0)
    report = run.report()
    snapshot("\n".join([*report.verdict, *report.notes]))
    assert [c.title for c in report.spending.columns] == ["measured", "modelled", "together"]
    assert report.spending.columns[-1].tokens_per_joule == pytest.approx(2.0)
    assert report.spending.with_card.tokens_per_joule == pytest.approx(100 / 250)


def test_without_a_card_there_is_no_word_of_one(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 30.0))
    run.ran(Stage.GENERATION, (1000, 1010), 50.0)
    report = run.report()
    assert (report.spending.card, report.spending.with_card) == (None, None)
    assert not any("simulated" in s for s in (*report.verdict, *shown(report)))
    assert not any("A card was simulated" in note for note in report.notes)
    assert not any("several machines" in note for note in report.notes)


def test_a_card_that_was_not_simulated_is_part_of_the_machine(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 0.0))
    run.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MEASURED, "xrt:0000:3b", 20.0))
    run.ran(Stage.GENERATION, (1000, 1010), 50.0)
    run.ran(
        Stage.REWARD,
        (1010, 1012),
        60.0,
        device="fpga0:u55c",
        time_provenance=Provenance.MEASURED,
    )
    spent = run.report().spending
    assert spent.card is None
    assert spent.columns[0].energy_j == pytest.approx(110.0)


@pytest.mark.parametrize("idle_w", [None, 20.0])
def test_a_card_of_which_something_is_unknown_says_so(run, idle_w, snapshot):
    run.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MODELLED, "cycle model", idle_w))
    card = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 1.0}
    run.ran(Stage.GENERATION, (1000, 1010), 50.0)
    run.ran(Stage.REWARD, (1010, 1012), 40.0, **card)
    run.ran(Stage.REWARD, (1012, 1014), None, iteration=2, **card)
    snapshot("\n".join(run.report().verdict))


def test_energy_of_a_card_alone_is_not_that_of_the_machine(run, snapshot):
    card = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 1.0}
    run.ran(Stage.GENERATION, (1000, 1010), None)
    run.ran(Stage.REWARD, (1010, 1012), 40.0, **card)
    report = run.report()
    assert report.spending.columns == ()
    assert "Energy" in shown(report)
    snapshot("\n".join(report.verdict))


# ---------------------------------------------------------------- where the framework computes


@pytest.mark.parametrize(
    ("device", "name", "other"),
    [
        ("cpu0:host_cpu", "host", "GPU"),
        ("cpu0:my-desk", "host", "GPU"),
        ("gpu0:h100", "GPU", " host"),
        ("gpu0:l4", "GPU", " host"),
    ],
)
def test_no_gpu_is_named_where_there_is_none(run, device, name, other):
    run.config()
    device_id, profile = device.split(":")
    run.ledger.device(DeviceRecord(device_id, profile, Provenance.MEASURED, "meter", 30.0))
    card = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 0.5}
    run.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MODELLED, "cycle model", 20.0))
    run.ran(Stage.GENERATION, (1000, 1010), 1000.0, device=device, action=Action.GPU)
    on_path = {"device": device, "action": Action.GPU}
    run.ran(Stage.REWARD, (1010, 1011), 40.0, **on_path, provenance=Provenance.MEASURED)
    run.ran(Stage.REWARD, (1011, 1012), 20.0, iteration=2, **card)
    costs = (ActionCost(Action.GPU, 1.0, 2.0, 0.0),)
    run.ledger.placement(
        Placement(1, Stage.REWARD, Action.CONCURRENT, Action.GPU, "x", "because", costs)
    )
    report = run.report()
    assert report.head.path == name
    texts = [*report.verdict, *shown(report), render_html(report).split("<h2>How the figures")[0]]
    assert any(name in text for text in texts)
    assert not any(other in text for text in texts)


def test_reasons_that_differ_by_figures_are_shown_by_one_of_them(run):
    for i, figures in enumerate(("0.30 J, 0.1 s", "0.25 J, 0.2 s")):
        reason = f"gpu costs least: {figures} (modelled)"
        run.ledger.placement(
            Placement(i, Stage.REWARD, Action.GPU, Action.GPU, "lookahead", reason)
        )
    report = run.report()
    (group,) = report.decisions
    assert group.example == reason
    assert reason in " ".join(shown(report))
    page = render_html(report)
    assert group.told in page
    assert "…" not in page.split("<summary>")[0]


def test_an_empty_run_still_gives_a_summary(run, snapshot):
    snapshot("\n".join(shown(run.report(), 80)), "running")
    run.ledger.close()
    snapshot("\n".join(shown(run.report(), 80)), "ended")


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
    rows = [("a", "n"), ("long", "1,000")]
    assert aligned(rows, indent="  ") == ["  a         n", "  long  1,000"]


def test_one_unit_for_figures_shown_together():
    assert [edi_unit(v)[1] for v in ([2.0, 0.001], [0.02], [1e-5, None], [None], [])] == [
        "J/token", "mJ/token", "µJ/token", "J/token", "J/token",
    ]  # fmt: skip
    assert edi_unit([0.02])[0] == 1e3
