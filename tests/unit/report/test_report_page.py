"""The page, the JSON and the terminal text: self-contained, well-formed, and honest about gaps."""

from __future__ import annotations

import io
import json
import re
import shutil
from html import unescape
from html.parser import HTMLParser

import pytest
from rich.console import Console

from ecorl.errors import LedgerError, RunError
from ecorl.ledger import LEDGER_FILE
from ecorl.records import (
    BarrierWait,
    FaultEvent,
    FaultKind,
    Provenance,
    Stage,
)
from ecorl.report import write_report

VOID = {"meta", "br", "hr", "img", "link", "input", "use", "path", "rect", "image", "stop"}


class Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self._look(attrs)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self._look(attrs)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.stack.pop() == tag

    def _look(self, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "data", "action", "xlink:href"):
                self.links.append(value)


def rendered(run):
    assert run.ledger.flush()
    out = io.StringIO()
    page = write_report(run.folder, console=Console(file=out, width=100))
    checker = Checker()
    html = page.read_text(encoding="utf-8")
    checker.feed(html)
    assert checker.stack == []
    return html, checker, out.getvalue()


def words(page):
    """What the page says beside its plots, a line for each sentence and row of a table."""
    shown = re.sub(r"<(style|svg)\b.*?</\1>", "", " ".join(page.split()))
    rows = re.sub(r"</(?:t[dh]|dt)> ?<(?:t[dh]|dd)\b[^>]*>", " | ", shown)
    lines = (" ".join(line.split()) for line in re.sub(r"<[^>]*>", "\n", rows).splitlines())
    return unescape("\n".join(line for line in lines if line))


def fill(run):
    run.config()
    run.stated()
    run.standard()
    run.power("gpu0", range(1000, 1020), 100.0)
    for i in range(1, 6):
        run.ledger.metric(i, "reward", i / 5)
        run.ledger.metric(i, "kl", None if i == 3 else 0.1)
        run.ledger.barrier(BarrierWait(i, Stage.REFERENCE, 0.1 * i, 8, 0, 0))
    run.ledger.evaluation("reward", "before", [0.0, 1.0])
    run.ledger.evaluation("reward", "after", [1.0, 3.0])
    run.ledger.evaluation("rank_flip", "held_out", [0.0, 1.0])
    detail = "<script>alert(1)</script> $x$ [bold]"
    run.ledger.fault(FaultEvent(2, FaultKind.ENGINE_TIMEOUT, "fpga0", detail, 3))


def test_the_page_is_self_contained_and_well_formed(run):
    fill(run)
    html, checker, _ = rendered(run)
    assert "//" not in re.sub(r"\s//\s", "", html)
    assert not re.search(r"https?:|url\((?!#)|@import|@font-face", html)
    assert all(link.startswith("#") for link in checker.links)
    assert {link[1:] for link in checker.links} <= set(checker.ids)
    assert len(checker.ids) == len(set(checker.ids))
    assert not checker.tags & {"script", "iframe", "img", "object", "embed", "form"}
    assert html.count("<svg") == 5
    assert "prefers-color-scheme: dark" in html
    # No colour of the drawings is left that the two schemes do not know.
    assert not re.search(r"#0[01]0[0-9]0[0-9]", html)
    assert "&lt;script&gt;" in html


def test_the_page_speaks_to_who_cannot_see_it(run):
    fill(run)
    html, _, _ = rendered(run)
    assert html.count("<th ") == html.count('scope="col"') > 20
    assert "<th>" not in html
    labels = re.findall(r'<(?:table|svg)\b[^>]* aria-label="([^"]*)"', html)
    assert len(labels) == html.count("<table") + html.count("<svg")
    for label in labels:
        assert re.match(r"[A-Z].*[\w)]\.$", label), label


def test_what_is_wider_than_a_phone_says_that_it_can_be_scrolled(run):
    """Each table and each plot stands in a box that shades the edge behind which there is more."""
    fill(run)
    html, _, _ = rendered(run)
    style = html.split("<style>")[1].split("</style>")[0]
    box = style.split(".scroll {")[1].split("}")[0]
    assert "overflow-x: auto" in box
    assert (box.count(" local"), box.count(" scroll")) == (2, 2)
    assert style.count("--edge:") == 2
    for tag in ("table", "svg"):
        for before in html.split(f"<{tag}")[:-1]:
            assert 'class="scroll"' in before[before.rindex("<") :]


def test_the_page_says_the_figures(run, snapshot):
    fill(run)
    html, _, text = rendered(run)
    snapshot(words(html), "page")
    snapshot(text, "terminal")


def test_the_json_holds_every_figure_with_its_provenance(run):
    fill(run)
    rendered(run)
    data = json.loads((run.folder / "report.json").read_text())
    columns = {c["title"]: c for c in data["spending"]["columns"]}
    assert columns["measured"]["energy_j"] == pytest.approx(2000.0)
    assert list(columns) == ["measured"]
    card, both = data["spending"]["card"], data["spending"]["with_card"]
    assert (card["provenance"], both["provenance"]) == ("modelled", "modelled")
    assert card["energy_j"] == pytest.approx(430.0)
    assert both["tokens_per_joule"] == pytest.approx(100 / 2430)
    assert all("energy_provenance" in r for r in data["stages"])
    assert data["metrics"]["kl"][2]["value"] is None
    assert data["head"]["run_id"] == "r<1>"


def test_no_table_column_mixes_provenances(run, snapshot):
    """Every stage row stands under the caption of its own two provenances."""
    from ecorl.report.render.spending_tables import stages_section

    run.config()
    run.standard()
    run.ran(Stage.REFERENCE, (1018, 1019), 5.0, provenance=Provenance.MODELLED)
    report = run.report()
    tables = stages_section(report.stages).tables
    assert [{row[0:2] for row in t.rows} for t in tables] == [
        {("generation", "h100"), ("reward", "h100"), ("actor_train", "h100")},
        {("reference", "h100")},
        {("reward", "u55c")},
    ]
    snapshot("\n".join(t.caption for t in tables))


def test_an_empty_run_gives_a_report_that_says_so(run, snapshot):
    run.ledger.close()
    html, _, text = rendered(run)
    assert "<svg" not in html
    snapshot(words(html), "page")
    snapshot(text, "terminal")


def test_a_killed_run_gives_a_report(run, tmp_path):
    """A copy taken while the ledger is open: WAL and all, as a kill leaves it."""
    fill(run)
    run.ledger.flush()
    left = tmp_path / "left"
    left.mkdir()
    for file in run.folder.glob(f"{LEDGER_FILE}*"):
        shutil.copy(file, left)
    assert write_report(left, console=Console(file=io.StringIO())) == left / "report.html"
    assert json.loads((left / "report.json").read_text())["balance"]["net_j"] < 0


def test_a_broken_config_is_told_not_raised(run, snapshot):
    run.standard()
    (run.folder / "config.toml").write_text("seed = -1\n")
    html, _, _ = rendered(run)
    (gap,) = [gap for gap in run.report().missing if "config.toml" in gap]
    assert gap.split("(")[0] in html
    snapshot(gap)
    data = json.loads((run.folder / "report.json").read_text())
    assert data["spending"]["columns"][0]["carbon_g"] is None


def test_no_run_is_one_clear_error(tmp_path):
    console = Console(file=io.StringIO())
    with pytest.raises(RunError, match="no ledger"):
        write_report(tmp_path, console=console)
    (tmp_path / LEDGER_FILE).write_bytes(b"rubbish" * 1000)
    with pytest.raises(LedgerError, match="readable ledger"):
        write_report(tmp_path, console=console)
