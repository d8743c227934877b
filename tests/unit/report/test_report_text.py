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
    told = " ".join(" ".join(lines).split())
    for sentence in (*report.verdict, *report.missing):
        assert " ".join(sentence.split()) in told
    for word in ("actor_train", "generation", "h100", "u55c", "EngineTimeout", "out tokens"):
        assert word in told


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch):
    """The machine that runs the tests may have set it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize(("told", "width"), [("80", 80), ("72", 72), ("20", 60), ("400", 110)])
def test_a_pipe_is_as_wide_as_columns_says(run, monkeypatch, told, width):
    fill(run)
    monkeypatch.setenv("COLUMNS", told)
    out = io.StringIO()
    print_report(run.report(), Console(file=out))
    assert len(out.getvalue().splitlines()[0]) == width


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
    assert lines[start + 1].split() == ["measured", "modelled", "together", "simulated", "card"]
    assert lines[start + 2].split() == ["(as", "modelled)", "(modelled)"]
    # The card's joules are in none of the machine's columns.
    assert lines[start + 3].split()[2:] == ["1,680", "120", "1,800", "430"]
    training = next(line for line in lines[start:] if "training" in line)
    assert training.split() == ["training", "600", "none", "600", "none"]
    per_j = next(line for line in lines[start:] if "tokens per J" in line)
    assert per_j.split()[-4:] == ["-", "-", "0.0556", "none"]
    (with_card,) = (line for line in lines if "with the simulated card" in line)
    assert "0.0448 output tokens per J (modelled)" in with_card


# ---------------------------------------------------------------- a card that does not exist


def headline(run) -> str:
    return " ".join(run.report().verdict)


def test_what_the_machine_spent_leads_and_the_card_stands_beside(run):
    run.standard()
    text = headline(run)
    assert "This machine spent 1,680 J (measured)" in text
    assert "Together that is 1,800 J" in text
    assert "would have drawn 390 J idle and 40.0 J at work beside it (modelled)" in text
    # 2,230 J is the sum of what was spent and of what was not.
    assert "2,230" not in text


def test_a_simulated_card_without_work_is_told_too(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 0.0))
    source = "cycle model; computed by C-simulation on this host"
    run.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MODELLED, source, 20.0))
    run.ran(Stage.GENERATION, (1000, 1010), 50.0)
    report = run.report()
    text = " ".join(report.verdict)
    assert "This machine spent 50.0 J (measured): generation 100 %." in text
    assert "would have drawn 200 J idle beside it (modelled) and got no work" in text
    assert "bought nothing" not in text
    assert any("A card was simulated in this run" in note for note in report.notes)
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
def test_a_card_of_which_something_is_unknown_says_so(run, idle_w):
    run.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MODELLED, "cycle model", idle_w))
    card = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 1.0}
    run.ran(Stage.GENERATION, (1000, 1010), 50.0)
    run.ran(Stage.REWARD, (1010, 1012), 40.0, **card)
    run.ran(Stage.REWARD, (1012, 1014), None, iteration=2, **card)
    text = headline(run)
    assert "at least 40.0 J at work beside it" in text
    assert ("idle an unknown amount" in text) == (idle_w is None)


def test_energy_of_a_card_alone_is_not_that_of_the_machine(run):
    card = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 1.0}
    run.ran(Stage.GENERATION, (1000, 1010), None)
    run.ran(Stage.REWARD, (1010, 1012), 40.0, **card)
    report = run.report()
    assert report.spending.columns == ()
    assert "No energy figure of this machine was recorded" in " ".join(report.verdict)
    assert "Energy" in shown(report)


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
    told = [*report.verdict, *shown(report), render_html(report).split("<h2>How the figures")[0]]
    assert any(name in text for text in told)
    assert not any(other in text for text in told)
    assert any(f"1 x {name} instead of card beside {name}: because" in line for line in told)


def test_reasons_that_differ_by_figures_are_shown_by_one_of_them(run):
    for i, figures in enumerate(("0.30 J, 0.1 s", "0.25 J, 0.2 s")):
        reason = f"gpu costs least: {figures} (modelled)"
        run.ledger.placement(
            Placement(i, Stage.REWARD, Action.GPU, Action.GPU, "lookahead", reason)
        )
    report = run.report()
    assert "e.g. gpu costs least: 0.25 J, 0.2 s (modelled)" in " ".join(shown(report))
    page = render_html(report)
    assert "e.g. gpu costs least: 0.25 J, 0.2 s (modelled)" in page
    assert "…" not in page.split("<summary>")[0]


def test_an_empty_run_still_gives_a_summary(run):
    assert any("running now: no steps" in line for line in shown(run.report(), 80))
    run.ledger.close()
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
    rows = [("a", "n"), ("long", "1,000")]
    assert aligned(rows, indent="  ") == ["  a         n", "  long  1,000"]


def test_one_unit_for_figures_shown_together():
    assert [edi_unit(v)[1] for v in ([2.0, 0.001], [0.02], [1e-5, None], [None], [])] == [
        "J/token", "mJ/token", "µJ/token", "J/token", "J/token",
    ]  # fmt: skip
    assert edi_unit([0.02])[0] == 1e3
