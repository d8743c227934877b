"""What `write_report` leaves where it cannot write, and what it keeps from the terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ecorl.ledger import LedgerReader
from ecorl.records import (
    Action,
    ActionCost,
    FaultEvent,
    Placement,
    Stage,
)
from ecorl.report import build_report, read_config, write_report
from ecorl.report.render.lines import visible
from ecorl.report.render.page import render_json

HOSTILE = "a\x1b[2Jb\x00c\x9bd\x07e\rf\u202eg"
SHOWN = r"a\x1b[2Jb\x00c\x9bd\x07e"


def shown(run) -> tuple[object, str]:
    assert run.ledger.flush()
    out = io.StringIO()
    return write_report(run.folder, console=Console(file=out, width=200)), out.getvalue()


# ---------------------------------------------------------------- where it cannot write


def test_the_text_comes_first_and_a_page_that_cannot_be_written_is_a_warning(run, caplog, snapshot):
    run.standard()
    run.config()
    for name in ("report.html", "report.json"):
        (run.folder / name).mkdir()
    page, text = shown(run)
    assert page is None
    assert text.startswith("r<1> ")
    snapshot("\n".join(caplog.messages))
    assert not list(run.folder.glob(".report*")), "half a file is left"


def test_one_file_that_cannot_be_written_does_not_cost_the_other(run, caplog):
    run.standard()
    (run.folder / "report.json").mkdir()
    page, _ = shown(run)
    assert page == run.folder / "report.html"
    assert page.is_file()
    assert len(caplog.records) == 1


# ---------------------------------------------------------------- size


def test_the_json_does_not_repeat_the_ledger_s_decisions(run):
    run.standard()
    sizes = []
    for n in (50, 500):
        for i in range(n):
            costs = (ActionCost(Action.GPU, 1.0, 2.0, 0.0),)
            run.ledger.placement(
                Placement(i, Stage.REWARD, Action.GPU, Action.GPU, "static", f"queue {i}", costs)
            )
        data = json.loads(render_json(run.report()))
        sizes.append(len(json.dumps(data)))
        assert "placements" not in data
    assert data["decisions"][0]["n"] == 550
    assert data["expectation"]["n"] == 550
    assert sizes[1] - sizes[0] < 100


# ---------------------------------------------------------------- control characters


def test_control_characters_become_visible():
    assert visible(HOSTILE).startswith(SHOWN)
    assert visible(HOSTILE).isprintable()
    assert visible("é ± 漢\n\tx") == "é ± 漢\n\tx"


def hostile(run):
    run.config(accounting={"source": HOSTILE.replace("\x00", "")})
    run.standard()
    run.ran(Stage.REWARD, (1018, 1019), 1.0, device=f"gpu0:{HOSTILE}")
    run.ledger.fault(FaultEvent(2, HOSTILE, HOSTILE, HOSTILE, 3))
    run.ledger.evaluation(HOSTILE, "before", [0.0, 1.0])
    run.ledger.evaluation(HOSTILE, "after", [1.0, 3.0])
    run.ledger.metric(1, "reward", 1.0)
    run.ledger.metric(1, f"kl {HOSTILE}", 1.0)
    run.power(HOSTILE, range(1000, 1010), 100.0)
    run.ledger.placement(Placement(1, Stage.REWARD, Action.GPU, Action.GPU, HOSTILE, HOSTILE))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("width", [80, 200])
def test_no_control_character_of_a_user_s_text_reaches_the_terminal(run, width):
    hostile(run)
    assert run.ledger.flush()
    out = io.StringIO()
    write_report(run.folder, console=Console(file=out, width=width))
    text = out.getvalue()
    assert all(line.isprintable() for line in text.split("\n"))
    assert SHOWN in text


def test_no_control_character_reaches_the_page(run):
    hostile(run)
    page, _ = shown(run)
    html = page.read_bytes().decode()
    assert not {c for c in html if not c.isprintable()} - {"\n", "\t", "\xa0"}
    assert SHOWN in html


def test_the_page_itself_is_not_changed_by_that(run):
    """Style and drawings keep their lines and their markup."""
    run.standard()
    page, _ = shown(run)
    html = page.read_text()
    assert "<svg" in html
    assert ":root {\n" in html
    with LedgerReader(run.folder) as reader:
        assert build_report(reader, read_config(reader.run(), run.folder)).stages
