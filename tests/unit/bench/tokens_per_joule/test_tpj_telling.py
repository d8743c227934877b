"""What a result looks like: no column of two provenances, missing is a dash, 80 columns."""

from __future__ import annotations

import csv
import html
import io
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tokens_per_joule import bench_figures, figure_settings
from ecorl.bench.stats import LEAST_VALUES
from ecorl.bench.tokens_per_joule.arms import PLACEMENTS
from ecorl.bench.tokens_per_joule.reading.model import PackedRun
from ecorl.bench.tokens_per_joule.result import ArmEntry
from ecorl.bench.tokens_per_joule.running.known_truth import KnownTruth
from ecorl.bench.tokens_per_joule.summary import over_baseline, over_seeds
from ecorl.bench.tokens_per_joule.telling.page import render_page, result_csv, text_lines
from ecorl.bench.tokens_per_joule.telling.tables import sections
from ecorl.bench.tokens_per_joule.telling.verdict import missing, verdict
from ecorl.records import Provenance
from tests.unit.bench.tokens_per_joule.conftest import figures, machine, result_of

MEASURED, MODELLED = Provenance.MEASURED, Provenance.MODELLED


def tables_of(result, id):
    return next(s.tables for s in sections(result) if s.id == id)


def rows_of(table):
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_rates_are_medians_with_intervals_and_ratios_in_pairs(whole):
    alone, with_card = tables_of(whole, "tokens")
    row = rows_of(alone)["gpu_only"]
    assert row["tokens/J"] == "9.80"  # 1,000 over 102 J
    assert row["x base"] == "-"
    found = over_baseline(whole, "learned", lambda run: run.tokens_per_j)
    assert found.values == pytest.approx([(100 + s) / (120 + s) for s in (1, 2, 3)])
    assert rows_of(alone)["learned"]["x base"] == "0.836"
    assert set(rows_of(with_card)) == set(PLACEMENTS) - {"gpu_only"}
    both_j = 0.9 * 107.0 + 201.0
    assert rows_of(with_card)["fpga_sequential"]["tokens/J"] == f"{1000 / both_j:.2f}"


def test_the_simulated_card_is_in_no_figure_of_the_machine(whole):
    without = result_of([replace(run, card=None) for run in whole.runs], arms=whole.arms)
    assert tables_of(whole, "tokens")[0].rows == tables_of(without, "tokens")[0].rows
    assert len(tables_of(without, "tokens")) == 1


def test_an_arm_that_was_not_run_has_dashes_and_a_reason(whole, snapshot):
    row = rows_of(tables_of(whole, "tokens")[0])["gpu_only+clocks"]
    assert set(list(row.values())[1:]) == {"-"}
    snapshot("\n".join(missing(whole)))


def test_a_failed_run_is_a_missing_cell_with_its_reason(snapshot):
    runs = [figures("gpu_only", s) for s in (1, 2, 3)]
    runs += [figures("learned", 1), figures("learned", 2, missing="its process died")]
    result = result_of(runs)
    snapshot("\n".join([*rows_of(tables_of(result, "tokens")[0]), *missing(result)]))
    assert over_seeds(result, "learned", lambda run: run.tokens_per_j).n == 1


def test_a_missing_instrument_gives_missing_cells():
    runs = [figures("gpu_only", 1), figures("learned", 1, machine=None)]
    result = result_of(runs)
    groups = tables_of(result, "tokens")
    assert [("learned" in rows_of(t)) for t in groups] == [False, True]
    assert rows_of(groups[1])["learned"]["tokens/J"] == "-"
    assert "0" not in {*list(rows_of(groups[1])["learned"].values())}


def test_figures_of_two_provenances_never_share_a_column():
    runs = [
        *(figures("gpu_only", s, provenance=MEASURED) for s in (1, 2, 3)),
        *(figures("learned", s, provenance=MODELLED) for s in (1, 2, 3)),
    ]
    result = result_of(runs)
    for id in ("tokens", "energy"):
        measured, modelled = tables_of(result, id)
        assert ("measured" in measured.caption, "modelled" in modelled.caption) == (True, True)
        assert set(rows_of(measured)) == {"gpu_only"}
        assert set(rows_of(modelled)) == {"learned"}
    heads = next(csv.reader(io.StringIO(result_csv(result))))
    rows = list(csv.DictReader(io.StringIO(result_csv(result))))
    assert {"tokens_per_j_measured", "tokens_per_j_modelled"} <= set(heads)
    for row in rows:
        own = "measured" if row["arm"] == "gpu_only" else "modelled"
        other = "modelled" if own == "measured" else "measured"
        assert float(row[f"tokens_per_j_{own}"]) == pytest.approx(10.0)
        assert row[f"tokens_per_j_{other}"] == ""


def test_joules_that_lack_something_make_bounds(snapshot):
    lacking = machine(at_least=True)
    runs = [figures("gpu_only", s, machine=lacking) for s in (1, 2, 3)]
    row = rows_of(tables_of(result_of(runs), "tokens")[0])["gpu_only"]
    assert row["tokens/J"] == "<= 10.0"
    assert row["J/sample"] == ">= 1.00"
    snapshot("\n".join(verdict(result_of(runs))))


def test_a_ratio_to_what_lacks_joules_is_a_bound_and_of_two_such_is_unknown(snapshot):
    lacking = machine(at_least=True)
    whole, short = (
        [figures(name, s, **changes) for s in (1, 2, 3)]
        for name, changes in (("gpu_only", {}), ("learned", {"machine": lacking}))
    )
    row = rows_of(tables_of(result_of([*whole, *short]), "tokens")[0])["learned"]
    assert row["x base"] == "<= 1.00"
    snapshot("\n".join(verdict(result_of([*whole, *short]))))
    both = [figures("gpu_only", s, machine=lacking) for s in (1, 2, 3)]
    row = rows_of(tables_of(result_of([*both, *short]), "tokens")[0])["learned"]
    assert row["x base"] == "-"
    assert rows_of(tables_of(result_of(both), "energy")[0])["gpu_only"]["no stage, %"] == "-"


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_runs_in_another_order_give_the_same_table(seed):
    runs = [
        figures(arm, s, 100.0 + 7 * i + s, MODELLED)
        for s in (1, 2, 3)
        for i, arm in enumerate(("gpu_only", "concurrent", "learned"))
    ]
    arms = [ArmEntry(name, name, "", "") for name in ("gpu_only", "concurrent", "learned")]
    mixed = random.Random(seed).sample(runs, len(runs))
    one, other = result_of(runs, arms=arms), result_of(mixed, arms=arms)
    assert [s.tables for s in sections(one)] == [s.tables for s in sections(other)]


def test_the_terminal_shows_it_in_80_columns(whole, snapshot):
    lines = text_lines(whole, 80)
    assert max(map(len, lines)) <= 80
    snapshot("\n".join(lines))


def test_the_page_has_plots_tables_and_no_script(whole):
    page = render_page(whole)
    assert page.count("<svg") == 3
    assert "<script" not in page
    assert page.count("<table") == sum(len(s.tables) for s in sections(whole))
    shown = html.unescape(page).replace("\u00a0", " ")
    assert all(t.caption in shown for s in sections(whole) for t in s.tables)


def test_a_page_of_nothing_is_a_page(snapshot):
    empty = result_of([figures("gpu_only", 1, missing="it died")])
    page = render_page(empty)
    assert "<svg" not in page
    assert "it died" in page
    snapshot("\n".join(verdict(empty)))
    assert text_lines(empty, 80)


def test_names_that_a_machine_gives_are_shown_as_text(whole):
    stand = replace(whole.stand, machine=replace(whole.stand.machine, cpu="<b>Xeon</b>\x1b[31m"))
    page = render_page(replace(whole, stand=stand))
    assert "<b>Xeon" not in page
    assert "\x1b" not in page


def test_targets_are_told_with_what_they_took(whole):
    reward, card, _, correct_card, final = tables_of(whole, "quality")
    row = rows_of(reward)["gpu_only"]
    # Run 1 sets the target of 1.001 and reaches it after step 10, as the others do.
    assert (row["reached"], row["step"], row["s"], row["J"]) == ("3 of 3", "10", "10.0", "102")
    assert rows_of(card)["learned"]["s"] == "8.00"
    assert set(rows_of(correct_card)) == set(PLACEMENTS) - {"gpu_only"}
    assert rows_of(final)["gpu_only"]["right, %"] == "40.0"


def test_a_target_that_nobody_reached_has_dashes(whole):
    far = replace(whole, targets=tuple(replace(t, value=9.0) for t in whole.targets))
    row = rows_of(tables_of(far, "quality")[0])["learned"]
    assert (row["reached"], row["s"], row["J"]) == ("0 of 3", "-", "-")


# ---------------------------------------------------------------- figures of make bench


def by_id(result):
    found = bench_figures(result)
    assert len({f.id for f in found}) == len(found)
    return {f.id: f for f in found}


def test_bench_figures_have_value_and_provenance(whole):
    found = by_id(whole)
    assert found["tpj.gpu_only"].value == pytest.approx(1000 / 102)
    assert found["tpj.gpu_only"].provenance is MODELLED
    card = found["tpj.learned"]
    assert card.value == pytest.approx(1000 / (0.9 * 122 + 204))
    assert card.provenance is MODELLED
    assert card.spread["this_machine_alone"] == pytest.approx(1000 / 122)
    assert found["tpj.idle_share"].value == pytest.approx(0.2)
    assert found["tpj.joules_to_reward"].value == pytest.approx(102.0)
    assert found["tpj.known_truth_error"].holds is True
    settings = figure_settings(whole)
    assert settings["config_digest"] == "0123456789ab"
    assert len(settings["runs"]) == 18


def test_a_measured_machine_s_figure_is_measured_and_never_with_a_card():
    runs = [figures("gpu_only", s) for s in (1, 2, 3)]
    runs += [figures("concurrent", s, card_j=50.0) for s in (1, 2, 3)]
    found = by_id(result_of(runs))
    assert found["tpj.gpu_only"].provenance is MEASURED
    assert found["tpj.concurrent"].provenance is MODELLED
    assert found["tpj.lookahead"].value is None


def test_bench_figures_without_runs_say_why():
    result = result_of([figures("gpu_only", 1, missing="it died")], known_truth=None)
    found = by_id(result)
    assert all(f.value is None for f in found.values())
    assert found["tpj.gpu_only"].note == "it died"


def test_an_error_beyond_the_limit_falls_short(whole):
    far = by_id(replace(whole, known_truth=KnownTruth(2.0, 2.01)))
    assert far["tpj.known_truth_error"].holds is False
    assert "beyond" in " ".join(verdict(replace(whole, known_truth=KnownTruth(2.0, 2.01))))


def test_an_arm_of_adaptive_batches_says_what_was_packed(snapshot):
    entry = ArmEntry("gpu_only+adaptive_batch", "gpu_only", "adaptive_batch", "")
    arms = (ArmEntry("gpu_only", "gpu_only", "", ""), entry)

    def said(*packed):
        runs = [figures("gpu_only", s) for s, _ in enumerate(packed)]
        runs += [figures(entry.name, s, packing=one) for s, one in enumerate(packed)]
        return "\n".join(verdict(result_of(runs, arms=arms)))

    snapshot(said(PackedRun(60, 100, 1e-7), PackedRun(80, 100, None)))
    snapshot(said(PackedRun(100, 100, None)), "nothing")
    assert said(None) == said(PackedRun(100, 100, None))


def test_a_ratio_of_two_provenances_is_not_made():
    runs = [figures("gpu_only", s, provenance=MEASURED) for s in (1, 2, 3)]
    runs += [figures("learned", s, provenance=MODELLED) for s in (1, 2, 3)]
    found = [rows_of(table) for table in tables_of(result_of(runs), "tokens")]
    (learned,) = [rows["learned"] for rows in found if "learned" in rows]
    assert learned["tokens/J"] != "-"
    assert learned["x base"] == "-"


def test_without_a_baseline_the_others_are_not_said_to_lack_figures(snapshot):
    runs = [figures("gpu_only", s, missing="it died") for s in (1, 2, 3)]
    runs += [figures("learned", s) for s in (1, 2, 3)]
    snapshot("\n".join(verdict(result_of(runs))))


def test_few_seeds_have_a_range_and_many_an_interval():
    few = over_seeds(result_of([figures("gpu_only", s, 100.0 + s) for s in (1, 2, 3)]), "gpu_only",
                     lambda run: run.machine.energy_j)  # fmt: skip
    assert few.interval == (101.0, 103.0)
    assert few.spread_name == "range of 3 runs"
    runs = [figures("gpu_only", s, 100.0 + s) for s in range(LEAST_VALUES)]
    many = over_seeds(result_of(runs), "gpu_only", lambda run: run.machine.energy_j)
    assert many.spread_name == "95 % interval"
    assert 100.0 <= many.interval[0] < many.median < many.interval[1] <= 105.0
