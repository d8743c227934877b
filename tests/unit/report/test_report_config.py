"""Which config a report goes by, and the source that it names for the factors of its CO2e."""

from __future__ import annotations

import contextlib
import io
import sqlite3

import pytest
from rich.console import Console

from ecorl.config import config_toml, load_config, reading, validate_config
from ecorl.errors import ConfigError
from ecorl.ledger import LEDGER_FILE
from ecorl.report import write_report


def written(run) -> tuple[str, str]:
    """The page and the text on the terminal."""
    assert run.ledger.flush()
    out = io.StringIO()
    page = write_report(run.folder, console=Console(file=out, width=100))
    return page.read_text(), out.getvalue()


def recorded(run, **kwargs) -> None:
    run.recorded_config(config_toml(validate_config(kwargs)))


def test_the_ledger_s_config_stands_whatever_the_file_says(run, snapshot):
    run.standard()
    recorded(run, seed=7, accounting={"pue": 1.5, "intensity_g_per_kwh": 400.0})
    run.config(seed=8, accounting={"pue": 1.0, "intensity_g_per_kwh": 1.0})
    report = run.report()
    assert (report.head.seed, report.spending.accounting.pue) == (7, 1.5)
    remark = report.head.config_remark
    snapshot(remark)
    for shown in written(run):
        assert remark in " ".join(shown.split())
        assert "seed 8" not in shown


@pytest.mark.parametrize("content", [None, "same"])
def test_no_word_of_a_difference_where_there_is_none(run, content):
    run.standard()
    recorded(run, seed=7)
    if content:
        run.config(seed=7)
    assert (run.report().head.seed, run.report().head.config_remark) == (7, None)
    assert not any("config" in gap for gap in run.report().missing)


def test_a_path_that_is_no_text_to_this_process_makes_no_difference(run, monkeypatch):
    run.standard()
    recorded(run, seed=7, run_dir="läufe")
    run.config(seed=7, run_dir="läufe")
    monkeypatch.setattr(reading, "text_refusal", lambda path: "a path in ascii")
    with pytest.raises(ConfigError, match="a path in ascii"):
        load_config(str(run.folder / "config.toml"))
    assert run.report().head.config_remark is None


def test_a_broken_file_beside_a_recorded_config_does_no_harm(run):
    run.standard()
    recorded(run, seed=7)
    (run.folder / "config.toml").write_text("seed = -1")
    head = run.report().head
    assert head.seed == 7
    assert head.config_remark in " ".join(written(run)[1].split())


def test_the_file_stands_in_for_an_empty_record(run):
    run.standard()
    run.config(seed=9)
    report = run.report()
    assert (report.head.seed, report.head.config_remark) == (9, None)


def test_a_recorded_config_that_cannot_be_read_is_told(run, snapshot):
    run.standard()
    run.recorded_config("seed = -1")
    run.config(seed=9)
    report = run.report()
    assert report.head.seed is None
    (gap,) = [m for m in report.missing if "config" in m]
    snapshot(gap)


@pytest.mark.parametrize(
    "accounting",
    [
        {},
        {"intensity_g_per_kwh": 50, "pue": 1.05},
        {"intensity_g_per_kwh": 50, "source": "my grid, 2025"},
    ],
)
def test_the_page_names_a_source_only_for_the_factors_that_it_is_of(run, accounting, snapshot):
    run.stated(**accounting)
    run.standard()
    recorded(run, accounting=accounting)
    (note,) = [note for note in run.report().notes if "Source:" in note]
    snapshot(note)
    page, _ = written(run)
    assert note in page.replace("\u00a0", " ")


# ---------------------------------------------------------------- a factor that no grid has


@pytest.mark.parametrize(
    ("intensity", "doubted"), [(0.38, True), (4.9, True), (0.0, False), (5.0, False), (450, False)]
)
def test_an_intensity_that_no_grid_has_is_doubted(run, intensity, doubted, snapshot):
    accounting = {"intensity_g_per_kwh": intensity, "source": "mine"}
    run.stated(**accounting)
    run.standard()
    recorded(run, accounting=accounting)
    found = [m for m in run.report().missing if "intensity_g_per_kwh" in m]
    assert len(found) == doubted
    for gap in found:
        snapshot(gap)
        assert all(gap in " ".join(shown.split()) for shown in written(run))


# ---------------------------------------------------------------- runs that a script attached


@pytest.fixture
def attached(run):
    """Its stored config has neither a task nor a trainer."""
    facts = {
        "origin": "attach",
        "trainer": "RLOOTrainer",
        "learning_rate": "3e-06",
        "per_device_train_batch_size": "6",
        "num_generations": "3",
        "policy_model": "my/policy",
        "reward_model": "my/reward",
    }
    with contextlib.closing(sqlite3.connect(run.folder / LEDGER_FILE)) as db, db:
        db.executemany("INSERT INTO meta VALUES (?, ?)", list(facts.items()))
    config = validate_config({"algorithm": "rloo"})
    run.recorded_config(config_toml(config, ("task", "trainer")))
    return run


def test_an_attached_run_shows_its_trainer_and_no_default(attached, snapshot):
    attached.ledger.event("start", "training from step 0 of 500")
    attached.standard()
    head = attached.report().head
    assert (head.algorithm, head.seed, head.n_steps_planned) == ("rloo", None, 500)
    assert head.models == {"policy_model": "my/policy", "reward_model": "my/reward"}
    page, text = written(attached)
    for shown in (page, text):
        for own in ("RLOOTrainer", "3e-06", "my/policy") if shown is page else ("RLOOTrainer",):
            assert own in shown
        for default in ("arithmetic", "of 60", "seed"):
            assert default not in shown
    snapshot(text)


def test_the_newest_word_of_the_trainer_is_its_plan(attached, snapshot):
    attached.ledger.event("start", "training from step 0 of 500")
    attached.resume(2000.0, from_step=100)
    attached.ledger.event("resume", "training from step 100 of 700")
    attached.ledger.checkpoint(100, "checkpoint-100")
    attached.ledger.event("width", "training from step 0 of 9")
    attached.ledger.close()
    report = attached.report()
    assert report.head.n_steps_planned == 700
    snapshot("\n".join(report.verdict))


def test_an_attached_run_without_a_word_of_the_trainer_has_no_plan(attached):
    assert attached.report().head.n_steps_planned is None


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        (["start", "training_end", "finish"], "finished"),
        (["start", "training_end"], "killed"),
        (["start", "finish", "power_unread"], "finished"),
        (["start", "stop", "width"], "stopped"),
        (["start", "failure", "training_end"], "failed"),
        (["start", "stop", "resume"], "killed"),
        ([], "no end recorded"),
    ],
)
def test_the_end_is_what_the_last_of_four_events_says(run, kinds, state):
    for kind in kinds:
        run.ledger.event(kind, "")
    if state not in ("killed", "no end recorded"):
        assert run.report().head.state == state
        run.ledger.close()
        assert run.report().head.state == state
        return
    assert run.report().head.state == "running"
    run.ledger.close()
    assert run.report().head.state == state
