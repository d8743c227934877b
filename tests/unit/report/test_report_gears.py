"""Gears and widths of the training stage: tables, shifts, limits, measurements, deadline."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ecorl.config import validate_config
from ecorl.config.trainer import GearsConfig
from ecorl.control import Command, Gear, Why
from ecorl.ledger import DeviceRecord, LedgerReader
from ecorl.records import EventKind, FaultEvent, FaultKind, Provenance, Stage
from ecorl.report.comparison.compare import compare
from ecorl.report.comparison.sections import verdict
from ecorl.report.comparison.write import read_summary
from ecorl.report.render.carbon_tables import pauses_section
from ecorl.report.render.carbon_text import pauses_lines
from ecorl.report.render.gear_tables import training_stage_section
from ecorl.report.render.page import render_html, render_json, sections
from ecorl.report.render.text import print_report
from ecorl.report.run_config import read_config
from ecorl.report.sharing.files import FOOTPRINT_FILE, footprint_texts
from ecorl.report.sharing.printing import model_card
from ecorl.report.training_stage.facts import low_precision
from ecorl.report.training_stage.model import GearAccuracy, ShareLimit
from ecorl.report.training_stage.words import choices_words, gear_notes, gear_verdict
from ecorl.trainer.gears.formats import GearSupport
from ecorl.trainer.gears.gearbox import Gearbox

MEASURED, MODELLED = Provenance.MEASURED, Provenance.MODELLED
BF16, FP8, SIMULATED = "BF16", "FP8", "FP8 simulated"
TABLE = """
provenance = "published"
source = "a data sheet"
widths = [1]
[power_w]
BF16 = [700.0]
FP8 = [700.0]
[tokens_per_s]
BF16 = [8000.0]
FP8 = [10000.0]
"""


def config(run, control=None, **gears):
    gears = {"allowed": [BF16, FP8], "simulate_fp8": True} | gears
    run.config(gears=gears, carbon={"control": control or {}}, trainer={"steps": 6})


def steps(run, gears, *, first=1, energy_j=100.0, **more):
    """Steps of 2 s and 200 tokens of prompt and completion, one every 10 s; FP8 takes 4 s."""
    for n, gear in enumerate(gears, start=first):
        start_s = 1000.0 + 10.0 * n
        time_s = 4.0 if gear and gear.startswith(FP8) else 2.0
        fields = {"gear": gear, "width": 1, "iteration": n} | more
        run.ran(Stage.ACTOR_TRAIN, (start_s, start_s + time_s), energy_j, **fields)


def ended(run, t_s=1100.0):
    run.clock(t_s)
    run.ledger.event(EventKind.TRAINING_END, "")
    run.ledger.event(EventKind.FINISH, "")
    return run.report()


def overflow(run, iteration):
    detail = "FP8 gave no finite gradient: the step was computed anew in BF16"
    run.ledger.fault(FaultEvent(iteration, FaultKind.GEAR_OVERFLOW, "actor_train", detail))


def terminal(report):
    out = io.StringIO()
    print_report(report, Console(file=out, width=100))
    return out.getvalue()


def remarks(report):
    return "\n".join(training_stage_section(report.training_stage).remarks)


# ---------------------------------------------------------------- the table


def test_a_run_without_gears_and_with_one_worker_has_no_section(run):
    run.config()
    steps(run, [None, None])
    report = ended(run)
    assert report.training_stage is None
    assert "training-stage" not in [section.id for section in sections(report)]
    assert json.loads(render_json(report))["training_stage"] is None
    assert "Training stage" not in terminal(report)


def test_steps_stand_by_gear_with_their_tokens_time_and_energy(run):
    config(run)
    steps(run, [BF16, BF16, FP8, BF16])
    facts = ended(run).training_stage
    bf16, fp8 = facts.rows
    assert (bf16.gear, bf16.width, bf16.n_steps, bf16.n_tokens) == (BF16, 1, 3, 600)
    assert (bf16.time_s, bf16.energy_j) == pytest.approx((6.0, 300.0))
    assert (bf16.j_per_token, bf16.tokens_per_s) == pytest.approx((0.5, 100.0))
    assert (fp8.token_share, fp8.tokens_per_s) == pytest.approx((0.25, 50.0))
    assert (bf16.time_provenance, bf16.energy_provenance) == (MEASURED, MEASURED)
    assert facts.simulated == ()
    assert facts.token_shares() == pytest.approx({BF16: 0.75, FP8: 0.25})


def test_a_simulated_gear_says_that_it_saved_nothing_and_is_not_called_fp8(run, snapshot):
    config(run)
    steps(run, [BF16, SIMULATED])
    report = ended(run)
    assert [(r.gear, r.simulated) for r in report.training_stage.rows] == [
        (BF16, False), (SIMULATED, True),
    ]  # fmt: skip
    snapshot(terminal(report))
    page = render_html(report).replace("\u00a0", " ")
    assert all(remark in page for remark in remarks(report).splitlines())
    rows = json.loads(render_json(report))["training_stage"]["rows"]
    assert [(row["gear"], row["simulated"]) for row in rows] == [(BF16, False), (SIMULATED, True)]


def test_figures_of_two_provenances_stand_in_two_tables(run):
    config(run)
    steps(run, [BF16, FP8])
    steps(run, [BF16], first=3, provenance=MODELLED)
    facts = ended(run).training_stage
    assert sorted(r.energy_provenance for r in facts.rows) == [MEASURED, MEASURED, MODELLED]
    assert [len(t.rows) for t in training_stage_section(facts).tables] == [2, 1]
    assert sum(r.token_share for r in facts.rows) == pytest.approx(1.0)


def test_a_step_without_energy_is_counted_and_adds_nothing(run):
    config(run)
    steps(run, [BF16, BF16])
    steps(run, [BF16], first=3, energy_j=None)
    (row,) = ended(run).training_stage.rows
    assert (row.n_steps, row.n_with_energy, row.energy_j) == (3, 2, pytest.approx(200.0))
    assert row.j_per_token == pytest.approx(0.5)


def test_the_critic_s_steps_stand_apart_from_the_actor_s(run):
    config(run)
    steps(run, [BF16, FP8])
    run.ran(Stage.CRITIC_TRAIN, (1015, 1016), 10.0, gear=BF16, width=1)
    facts = ended(run).training_stage
    assert [(str(r.stage), r.gear, r.token_share) for r in facts.rows] == [
        ("actor_train", BF16, 0.5), ("actor_train", FP8, 0.5), ("critic_train", BF16, 1.0),
    ]  # fmt: skip
    assert facts.token_shares() == {BF16: 0.5, FP8: 0.5}
    assert facts.shifts.n == 1
    assert training_stage_section(facts).tables[0].columns[0] == "stage"


# ---------------------------------------------------------------- shifts, overflows, measurements


def test_the_first_step_after_a_shift_is_held_against_the_gear_s_others(run):
    config(run)
    steps(run, [BF16, BF16, FP8, FP8, FP8, BF16])
    # Begins before its step of 1030, so that this step takes 5 s in place of 4.
    run.ran(Stage.ACTOR_TRAIN, (1029, 1030), 1.0, iteration=3, gear=FP8, width=1)
    shifts = ended(run).training_stage.shifts
    assert (shifts.n, shifts.n_timed) == (2, 2)
    assert (shifts.median_extra_s, shifts.most_extra_s) == pytest.approx((0.5, 1.0))


def test_the_begin_of_an_attempt_is_no_shift_and_no_usual_step(run):
    config(run)
    steps(run, [BF16, FP8])
    run.ledger.event(EventKind.STOP, "")
    run.resume(2000.0, 2)
    run.ran(Stage.ACTOR_TRAIN, (2010, 2019), 1.0, iteration=3, gear=BF16, width=1)
    shifts = ended(run, 2100.0).training_stage.shifts
    # Of FP8 there is no step that was not the first after a shift.
    assert (shifts.n, shifts.n_timed, shifts.median_extra_s) == (1, 0, None)


def test_a_redone_step_counts_to_the_gear_it_ended_in_and_prices_none(run, snapshot):
    config(run)
    steps(run, [BF16, FP8])
    # Two micro-batches: the first is recorded in the gear in which the step overflowed.
    run.ran(Stage.ACTOR_TRAIN, (1030, 1031), 50.0, iteration=3, gear=FP8, width=1)
    run.ran(Stage.ACTOR_TRAIN, (1031, 1039), 900.0, iteration=3, gear=BF16, width=1)
    overflow(run, 3)
    report = ended(run)
    bf16, fp8 = report.training_stage.rows
    assert (bf16.n_steps, bf16.n_executions, bf16.n_redone, bf16.n_tokens) == (2, 3, 1, 600)
    assert (bf16.time_s, bf16.energy_j) == pytest.approx((11.0, 1050.0))
    assert (bf16.j_per_token, bf16.tokens_per_s) == pytest.approx((0.5, 100.0))
    assert (fp8.n_tokens, fp8.n_redone) == (200, 0)
    assert report.training_stage.n_redone == 1
    snapshot(remarks(report))


def test_a_skipped_step_is_not_counted_as_redone(run):
    config(run)
    steps(run, [BF16, FP8])
    run.ledger.fault(FaultEvent(2, FaultKind.GEAR_SKIPPED, "actor_train", "1 of 2 was skipped"))
    assert ended(run).training_stage.n_redone == 0


@pytest.mark.parametrize(
    ("allowed", "reference"),
    [([BF16, FP8], BF16), ([FP8, "FP32", BF16], BF16), ([FP8, "FP32"], "FP32")],
)
def test_noise_names_the_gear_that_it_is_held_against(run, allowed, reference):
    config(run, allowed=allowed)
    steps(run, [FP8])
    run.ledger.metric(1, "gradient_noise_ratio_FP8", 1.25)
    (found,) = ended(run).training_stage.accuracy
    assert (found.noise_ratio, found.noise_iteration, found.reference) == (1.25, 1, reference)
    gears = GearsConfig(allowed=allowed)
    assert gears.reference is Gearbox(gears, GearSupport(gears.allowed, ())).safe


def test_without_gears_there_is_nothing_to_hold_noise_against():
    assert GearsConfig().reference is None


def test_forward_passes_for_old_log_probs_are_in_no_row_and_told(run, snapshot):
    config(run)
    # The second half of the steps is in FP8, and each step has a forward pass before it.
    steps(run, [BF16, BF16, FP8, FP8])
    for n in (1, 2, 3, 4):
        start_s = 1000.0 + 10.0 * n - 2.0
        energy_j = None if n == 4 else 70.0
        run.ran(
            Stage.ACTOR_TRAIN, (start_s, start_s + 1.0), energy_j,
            iteration=n, tokens=300, n_output_tokens=0,
        )  # fmt: skip
    report = ended(run)
    facts = report.training_stage
    assert [(r.gear, r.n_executions, r.n_tokens, r.time_s, r.energy_j) for r in facts.rows] == [
        (BF16, 2, 400, 4.0, 200.0), (FP8, 2, 400, 8.0, 200.0),
    ]  # fmt: skip
    assert facts.token_shares() == pytest.approx({BF16: 0.5, FP8: 0.5})
    assert facts.low.share == pytest.approx(0.5)
    assert [r.j_per_token for r in facts.rows] == pytest.approx([0.5, 0.5])
    passes = facts.old_log_probs
    assert (passes.n, passes.time_s, passes.n_with_energy, passes.energy_j) == (4, 4.0, 3, 210.0)
    snapshot(remarks(report))


def test_where_forward_passes_tell_no_time_and_no_energy_they_are_counted(run, snapshot):
    config(run)
    steps(run, [BF16, FP8])
    run.ran(Stage.ACTOR_TRAIN, (1008, 1009), None, n_output_tokens=0, time_s=None)
    report = ended(run)
    passes = report.training_stage.old_log_probs
    assert (passes.n, passes.time_s, passes.energy_j) == (1, None, None)
    snapshot(remarks(report))


def test_measurements_within_a_step_are_told_to_be_in_its_row(run, snapshot):
    config(run)
    steps(run, [BF16, FP8, BF16])
    for n in (1, 3):
        run.ledger.metric(n, "gear_measurement_s", 1.0)
    report = ended(run)
    m = report.training_stage.measurements
    assert (m.n, m.n_inside, m.time_s, m.energy_j) == (2, 2, 2.0, None)
    snapshot("\n".join([remarks(report), *gear_notes(report.training_stage)]))


def test_measurements_of_both_kinds_are_told_apart(run, snapshot):
    config(run)
    steps(run, [BF16, FP8, BF16])
    run.ran(Stage.ACTOR_TRAIN, (1008, 1010), 70.0, iteration=1, tokens=0)
    for n in (1, 3):
        run.ledger.metric(n, "gear_measurement_s", 1.0)
    report = ended(run)
    assert report.training_stage.measurements.n_inside == 1
    snapshot(remarks(report))


def test_retired_and_barred_gears_are_named_with_the_reason(run, snapshot):
    config(run)
    steps(run, [BF16, FP8])
    for kind, detail in ((FaultKind.GEAR_RETIRED, "FP8 is not chosen any more: 3 steps"),
                         (FaultKind.GEAR_BARRED, "too far from the rollout's")):  # fmt: skip
        run.ledger.fault(FaultEvent(2, kind, "actor_train", detail))
    snapshot(remarks(ended(run)))


def test_measurements_are_in_no_row_and_their_cost_is_told(run, snapshot):
    config(run)
    steps(run, [BF16, FP8])
    run.ran(Stage.ACTOR_TRAIN, (1008, 1010), 70.0, iteration=1, tokens=0)
    run.ledger.metric(1, "gear_measurement_s", 1.9)
    run.ledger.metric(1, "gradient_noise_ratio_FP8", 1.5)
    run.ledger.metric(2, "gradient_noise_ratio_FP8", 1.25)
    run.ledger.metric(1, "probability_mismatch_FP8", 1.02)
    report = ended(run)
    facts = report.training_stage
    assert sum(r.n_executions for r in facts.rows) == 2
    m = facts.measurements
    assert (m.n, m.time_s, m.energy_j, m.energy_provenance) == (1, 1.9, 70.0, MEASURED)
    assert facts.accuracy == (GearAccuracy(FP8, 1.25, 2, 1.02, 1, 1.05, BF16),)
    snapshot("\n".join([remarks(report), *gear_notes(facts)]))


# ---------------------------------------------------------------- limits


def test_the_cap_on_the_share_binds_and_is_named(run, snapshot):
    config(run, {"low_share": 0.4})
    steps(run, [BF16, BF16, BF16, FP8])
    report = ended(run)
    low = report.training_stage.low
    assert (low.share, low.limit, low.binds) == (0.25, 0.4, ShareLimit.SHARE)
    snapshot(remarks(report))


def test_the_budget_on_the_noise_binds_where_it_allows_less(run, snapshot):
    config(run, {"low_share": 0.9}, noise_budget=0.05)
    steps(run, [BF16, FP8])
    run.ledger.metric(2, "gradient_noise_ratio_FP8", 1.1)
    report = ended(run)
    low = report.training_stage.low
    assert (low.limit, low.binds) == (pytest.approx(0.05 / 0.21), ShareLimit.NOISE)
    snapshot(remarks(report))


@pytest.mark.parametrize("cap", [0.3, 1.0])
@pytest.mark.parametrize("budget", [None, 0.01, 0.5])
@pytest.mark.parametrize("ratio", [None, 0.99, 1.01, 1.4])
def test_the_limit_is_that_which_the_run_kept_to(run, cap, budget, ratio):
    pytest.importorskip("torch")
    from ecorl.trainer.gears.formats import GearSupport
    from ecorl.trainer.gears.gearbox import Gearbox, Limit

    gears = {"allowed": [BF16, FP8], "noise_budget": budget}
    own = validate_config({"gears": gears, "carbon": {"control": {"low_share": cap}}})
    box = Gearbox(own.gears, GearSupport(own.gears.allowed, ()), cap)
    box.note_noise(Gear.FP8, None if ratio is None else ratio * ratio, 1.0)
    found = low_precision((), [GearAccuracy(FP8, ratio, 1, None, None, 1.05)], own)
    assert found.limit == pytest.approx(box.low_share.share)
    if found.binds is None:
        assert box.low_share.share == 1.0
    else:
        assert (found.binds is ShareLimit.NOISE) is (box.low_share.limit is Limit.NOISE)


# ---------------------------------------------------------------- the table of the config


def test_a_table_of_the_config_is_named_and_with_a_simulated_gear_it_is_a_rehearsal(
    run, tmp_path, snapshot
):
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    config(run, {"table": str(path)})
    steps(run, [BF16, SIMULATED])
    report = ended(run)
    assert report.training_stage.table.provenance is Provenance.PUBLISHED
    snapshot(remarks(report))
    path.unlink()
    gone = run.report()
    assert gone.training_stage.table.provenance is None
    snapshot(remarks(gone), "without the file")


def test_a_table_with_real_gears_is_no_rehearsal(run, tmp_path, snapshot):
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    config(run, {"table": str(path)})
    steps(run, [BF16, FP8])
    snapshot(remarks(ended(run)))


# ---------------------------------------------------------------- widths, decisions, deadline


def test_changes_of_the_width_and_what_they_took(run, snapshot):
    run.config()
    steps(run, [None, None])
    steps(run, [None, None], first=3, width=2)
    run.ledger.metric(3, "width_change_s", 3.5)
    run.ledger.event("width", "1 to 2 workers at step 3")
    # A trainer that is started anew with another number of processes goes on in a new attempt.
    run.ledger.event(EventKind.STOP, "")
    run.resume(2000.0, 4)
    run.ran(Stage.ACTOR_TRAIN, (2010, 2012), 1.0, iteration=5, width=1)
    run.ledger.metric(5, "width_change_s", 8.5)
    report = ended(run, 2100.0)
    facts = report.training_stage
    assert [(r.gear, r.width, r.n_steps) for r in facts.rows] == [(None, 1, 3), (None, 2, 2)]
    w = facts.widths
    assert (w.n, w.n_timed, w.total_s, w.median_s, w.most_s) == (2, 2, 12.0, 6.0, 8.5)
    assert facts.low is None
    snapshot(remarks(report))


def test_decisions_show_gear_and_width_and_are_counted(run, snapshot):
    config(run)
    run.chose(1000.0, Command.RUN, Why.TIMING)
    run.chose(1001.0, Command.RUN, Why.PRICED, gear=Gear.FP8, width=2)
    run.chose(1002.0, Command.PAUSE, Why.PRICED, width=0)
    run.chose(1003.0, Command.RUN, Why.PRICED, gear=Gear.FP8, width=2)
    steps(run, [BF16, SIMULATED])
    report = ended(run)
    table = pauses_section(report.pauses).tables[-1]
    assert table.columns[1:4] == ("decision", "gear", "workers")
    assert [row[1:4] for row in table.rows] == [
        ("run", "-", "-"), ("run", "FP8", "2"), ("pause", "-", "-"), ("run", "FP8", "2"),
    ]  # fmt: skip
    counts = json.loads(render_json(report))["training_stage"]["choices"]
    assert counts == [
        {"gear": "FP8", "width": 2, "n": 2}, {"gear": None, "width": None, "n": 1},
    ]  # fmt: skip
    words = choices_words(report.training_stage)
    assert words in " ".join(terminal(report).split())
    assert words in render_html(report)
    snapshot("\n".join(pauses_lines(report.pauses, 100, words)))


@pytest.mark.parametrize(
    ("deadline_s", "n_steps", "is_kept"),
    [(1150.0, 6, True), (1070.0, 6, False), (1150.0, 4, False)],
)
def test_the_deadline_is_that_of_the_last_decision(run, deadline_s, n_steps, is_kept, snapshot):
    from tests.unit.report.conftest import UNIX_S

    config(run, {"controller": "stochastic", "slack": 2.0})
    choice = {"gear": Gear.BF16}
    run.chose(1000.0, Command.RUN, Why.TIMING, memory={"deadline_s": None}, **choice)
    run.chose(1001.0, Command.RUN, Why.PRICED, memory={"deadline_s": UNIX_S + deadline_s}, **choice)
    steps(run, [BF16] * n_steps)
    report = ended(run)
    budget = report.training_stage.budget
    assert (budget.n_steps_done, budget.n_steps_planned) == (n_steps, 6)
    assert budget.is_kept is is_kept
    assert budget.deadline_unix_s - budget.ended_unix_s == deadline_s - 1100.0
    (*_, words) = gear_verdict(report.training_stage)
    assert words in report.verdict
    assert words in remarks(report)
    snapshot(words)


def test_a_run_without_an_end_has_not_kept_its_deadline_yet(run):
    from tests.unit.report.conftest import UNIX_S

    config(run, {"controller": "stochastic", "slack": 2.0})
    run.chose(1000.0, Command.RUN, Why.PRICED, memory={"deadline_s": UNIX_S + 1015}, gear=Gear.BF16)
    steps(run, [BF16])
    assert run.report().training_stage.budget.is_kept is None
    steps(run, [BF16], first=2)
    run.clock(1030.0)
    run.ledger.event(EventKind.CARBON_BUDGET, "")
    assert run.report().training_stage.budget.is_kept is False


# ---------------------------------------------------------------- the plot


def test_the_plot_has_the_gears_and_the_pauses_of_the_course(run):
    config(run)
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.heard(1000.0, 400.0, interval_s=1000.0)
    run.chose(1001.0, Command.RUN, Why.PRICED, gear=Gear.BF16, g_per_kwh=400.0)
    steps(run, [BF16, BF16])
    run.chose(1025.0, Command.PAUSE, Why.PRICED, g_per_kwh=420.0)
    run.chose(1028.0, Command.RUN, Why.PRICED, gear=Gear.FP8, g_per_kwh=300.0)
    steps(run, [SIMULATED], first=3)
    report = ended(run)
    course = report.training_stage.course
    assert [(b.start_s, b.end_s, b.gear, b.is_pause) for b in course.bands] == [
        (10.0, 22.0, BF16, False), (25.0, 28.0, None, True), (30.0, 34.0, SIMULATED, False),
    ]  # fmt: skip
    assert [g for _, g in course.intensities] == [400.0, 420.0, 300.0]
    assert course.provenance is Provenance.PUBLISHED
    page = render_html(report)
    plot = page[page.index('aria-label="In which gear') :]
    assert "g/kWh (published)" in plot
    for name in (BF16, SIMULATED, "paused"):
        assert f">{name}<" in plot


def test_a_run_in_one_gear_has_no_plot(run):
    config(run)
    steps(run, [BF16, BF16])
    assert 'aria-label="In which gear' not in render_html(ended(run))


# ---------------------------------------------------------------- handed on


def test_another_mix_of_gears_is_a_difference_of_two_runs(run_of, snapshot):
    summaries = []
    for name, gears in (("a", [BF16] * 4), ("b", [BF16, SIMULATED, SIMULATED, BF16])):
        run = run_of(name)
        config(run)
        steps(run, gears)
        ended(run)
        summaries.append(read_summary(run.folder))
    found = compare(*summaries)
    (difference,) = found.differences
    snapshot(difference)
    assert any(difference in sentence for sentence in verdict(found))
    assert compare(summaries[1], summaries[1]).differences == ()


def test_another_number_of_workers_is_a_difference_of_two_runs(run_of, snapshot):
    summaries = []
    for name, width in (("a", 1), ("b", 2)):
        run = run_of(name)
        run.config()
        steps(run, [None], width=width)
        ended(run)
        summaries.append(read_summary(run.folder))
    (difference,) = compare(*summaries).differences
    snapshot(difference)


def test_the_model_card_and_the_footprint_name_the_formats(run, snapshot):
    config(run)
    steps(run, [BF16, BF16, BF16, SIMULATED])
    ended(run)
    card = model_card(read_summary(run.folder))
    snapshot("\n".join(line for line in card.splitlines() if BF16 in line))
    with LedgerReader(run.folder) as reader:
        footprint = json.loads(
            footprint_texts(reader, read_config(reader.run(), run.folder))[FOOTPRINT_FILE]
        )
    assert footprint["training_stage"] == {
        "gears": [
            {"gear": BF16, "simulated": False, "token_share": 0.75},
            {"gear": SIMULATED, "simulated": True, "token_share": 0.25},
        ],
        "widths": [1],
    }
