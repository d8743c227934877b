"""The break-even map: closed forms by hand, what must be monotonic, and nothing above the bound."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.studies.physics.figures import break_even_mfu
from benchmarks.studies.physics.map import (
    QUICK,
    SIDES,
    Axes,
    card_passes,
    charge_passes,
    params_m,
)
from benchmarks.studies.physics.map_files import as_data, draw, write_map
from benchmarks.studies.physics.passes import (
    ACCOUNTINGS,
    ALWAYS,
    ANYWAY,
    ASSUMED_POWER_W,
    BF16,
    BUSY_ENOUGH,
    FP8,
    HUNDREDTH,
    SHAPES,
    TENTH,
    Pass,
    bound_pass,
    break_even_duty,
    card_pass,
    dedicated,
    gpu_pass,
    ideal_ops_per_s,
    ideal_pass,
    scoring,
    silicon_ops_per_s,
    with_idle_w,
)
from benchmarks.studies.physics.ranges import (
    Ends,
    corners,
    ends_of,
    ranged_map,
    scoring_mfus,
)
from benchmarks.studies.physics.tables import (
    WIDTH,
    break_even_table,
    how,
    number,
    short_range,
    slice_table,
)
from ecorl.devices import bound_ops_per_s, load_profile, stage_cost
from tests.examples import examples

U55C, H100 = load_profile("u55c"), load_profile("h100_sxm")

sizes = st.sampled_from(sorted(SHAPES))
rows = st.sampled_from((1, 2, 8, 64))
lengths = st.integers(32, 4096)
mfus = st.floats(0.1, 0.6)
passes = st.builds(
    Pass, st.floats(1e-4, 1e2), st.floats(1e-3, 1e4), st.floats(1.0, 100.0), st.just("compute")
)


@pytest.fixture(scope="module")
def ranged_quick():
    return ranged_map(card_passes(U55C, QUICK), H100, QUICK)


@pytest.fixture(scope="module")
def quick(ranged_quick):
    return ranged_quick.found


@pytest.fixture(scope="module")
def ranged_whole():
    return ranged_map(card_passes(U55C, Axes()), H100, Axes())


@pytest.fixture(scope="module")
def whole(ranged_whole):
    return ranged_whole.found


# ---- by hand ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_params", "card", "bf16", "fp8"),
    [(0.1e9, 833, 3532, 7068), (1e9, 83, 353, 707), (7e9, 11.9, 50.5, 101), (13e9, 6.4, 27, 54)],
)
def test_bare_two_n_by_hand(n_params, card, bf16, fp8):
    """``2 N`` operations a token: 10.8 TOPS at 65 W against 50 % of the H100's peaks at 700 W."""
    peaks = (ideal_ops_per_s(U55C), H100.value("peak_bf16_flops"), H100.value("peak_fp8_flops"))
    assert peaks[0] == 9024 * 2 * 2 * 300e6
    for peak, share, power_w, expected in zip(
        peaks, (1.0, 0.5, 0.5), (ASSUMED_POWER_W, 700.0, 700.0), (card, bf16, fp8), strict=True
    ):
        tokens_per_j = peak * share / (2 * n_params) / power_w
        assert tokens_per_j == pytest.approx(expected, rel=0.01)


def test_h100_by_hand():
    shape = SHAPES["7b"]
    n, tokens = shape.n_params_active, 512
    ops = tokens * (2 * n + 4 * 512 * 4096 * 32)
    one = gpu_pass(scoring(shape, 1, tokens), H100, BF16, 0.5)
    busy_s = ops / (0.5 * 989e12)
    assert one.rules == "compute"
    assert one.time_s == pytest.approx(busy_s + 32 * 50e-6)
    assert one.energy_j == pytest.approx(700 * busy_s + 70 * 32 * 50e-6)
    short = gpu_pass(scoring(shape, 1, 32), H100, BF16, 0.5)
    moved = 2 * n + 2 * 32 * (2 * 32 * 4096 * 2)
    assert short.rules == "memory"
    memory_w = 354 + 5.42e-11 * 0.897 * 3.35e12  # 517 W
    assert short.above_idle_j == pytest.approx((memory_w - 70) * moved / (0.897 * 3.35e12))
    assert gpu_pass(scoring(shape, 1, 32), H100, FP8, 0.5).above_idle_j == pytest.approx(
        short.above_idle_j / 2
    )
    full = gpu_pass(scoring(shape, 1, 32), H100, BF16, 0.5, memory_w=700.0)
    assert full.above_idle_j == pytest.approx(short.above_idle_j * 630 / (memory_w - 70))


@pytest.mark.parametrize(("level", "clock_hz"), [(ideal_pass, 300e6), (bound_pass, 775e6)])
def test_ideal_and_bound_by_hand(level, clock_hz):
    shape = SHAPES["7b"]
    n = shape.n_params_active
    long = level(scoring(shape, 1, 512), U55C)
    # All layers but the last for 512 tokens, the last one and the head for one of them.
    layer = (n - 4096) / 32
    least = 2 * (512 * 31 * layer + layer + 4096) + 2 * 512 * 31 * 4096 * 513
    assert long.rules == "compute"
    assert long.time_s == pytest.approx(least / (9024 * 4 * clock_hz), rel=1e-3)
    assert long.energy_j == pytest.approx(65 * long.time_s)
    one = level(scoring(shape, 1, 1), U55C)
    assert one.rules == "memory"
    assert one.time_s == pytest.approx((n - 44_679_168) / 460e9)
    small = SHAPES["20m"]  # stays on the chip
    assert level(scoring(small, 1, 1), U55C).rules == "compute"


def test_the_silicon_is_above_every_design():
    """The physical guard's own bound; AMD's PG367 has 17.2 TOPS on as many DSPs, above any HLS."""
    assert silicon_ops_per_s(U55C) == bound_ops_per_s(U55C) == pytest.approx(27.97e12, rel=1e-3)
    assert ideal_ops_per_s(U55C) < 17.2e12 < silicon_ops_per_s(U55C)


def test_another_idle_power_changes_nothing_else():
    other = with_idle_w(H100, 120.0)
    assert (other.value("idle_w"), H100.value("idle_w")) == (120.0, 70.0)
    assert str(other.figure("idle_w").provenance) == "modelled"
    work = scoring(SHAPES["1b"], 64, 512)
    one, same = (gpu_pass(work, profile, BF16, 0.5) for profile in (H100, other))
    launches_s = 16 * 50e-6
    assert same.time_s == one.time_s
    assert same.energy_j == pytest.approx(one.energy_j + (120 - 70) * launches_s)


def test_the_h100_is_that_of_the_cost_model():
    work = scoring(SHAPES["7b"], 4, 512)
    cost = stage_cost(work, H100)
    one = gpu_pass(work, H100, BF16, H100.value("mfu_prefill"))
    assert (one.time_s, one.energy_j) == pytest.approx((cost.time_s, cost.energy_j))


def test_our_card_is_the_cycle_model_with_launches_and_link():
    one = card_pass(scoring(SHAPES["1b"], 1, 32), U55C)
    assert one.n_parts == 1
    assert one.energy_j == pytest.approx(73 * one.time_s)
    # More rows than fit beside 13 B run in parts, each with its launches.
    many, part = (card_pass(scoring(SHAPES["13b"], n, 512), U55C) for n in (256, 32))
    assert many.n_parts == 8
    assert many.time_s == pytest.approx(8 * part.time_s)


def test_a_model_that_does_not_fit_has_no_figure(monkeypatch):
    small = load_profile("u55c")
    figures = dict(small.figures)
    figures["memory_channel_bytes"] = figures["memory_channel_bytes"].__class__(
        1e6, "B", figures["memory_bytes"].provenance, "a test"
    )
    tiny = type(small)("tiny", "tiny", "fpga", figures)
    assert card_pass(scoring(SHAPES["50m"], 4, 64), tiny) is None
    axes = Axes(("50m",), (4,), (64,), (0.5,))
    ranged = ranged_map(card_passes(tiny, axes), H100, axes)
    made = ranged.found
    assert np.isnan(made.card_j["ours"]).all()
    assert np.isfinite(made.card_j["bound"]).all()
    for key in ("ratio", "ratio_low", "ratio_high"):
        assert as_data(ranged)[key]["ours"] == [[[[[[None] * len(ACCOUNTINGS)]] * 2]]]
    assert made.largest_winner("ours") is None


# ---- who pays for idle power --------------------------------------------------------------------


def test_accountings_by_hand():
    gpu, card = Pass(1.0, 630.0, 70.0, "compute"), Pass(4.0, 200.0, 20.0, "compute")
    assert ANYWAY.energies(gpu, card) == (630.0, 280.0)
    assert ALWAYS.energies(gpu, card) == (700.0, 280.0)
    # A pass every 10 s: the GPU idles 9 s, the card 6 s.
    assert TENTH.energies(gpu, card) == pytest.approx((700 + 9 * 70, 280 + 6 * 20))
    assert HUNDREDTH.energies(gpu, card) == pytest.approx((700 + 99 * 70, 280 + 96 * 20))


@given(passes, passes)
def test_break_even_duty_is_where_both_take_the_same(gpu, card):
    duty = break_even_duty(gpu, card)
    if duty is None:
        assert gpu.idle_w <= card.idle_w
        for period_s in (gpu.time_s, max(card.time_s, gpu.time_s), 1e3):
            gpu_j, card_j = dedicated(gpu, card, period_s)
            assert card_j > gpu_j
        return
    gpu_j, card_j = dedicated(gpu, card, gpu.time_s / duty)
    assert 0 < duty <= 1
    if duty < 1:
        assert card_j == pytest.approx(gpu_j, rel=1e-6)
    else:
        assert card_j <= gpu_j


def test_break_even_mfu_is_where_both_take_the_same():
    work = scoring(SHAPES["7b"], 1, 512)
    for card in (card_pass(work, U55C), bound_pass(work, U55C), ideal_pass(work, U55C)):
        mfu = break_even_mfu(work, H100, BF16, card)
        assert gpu_pass(work, H100, BF16, mfu).energy_j == pytest.approx(card.energy_j)
    assert 0.11 < mfu < 0.13  # ideal: about 11.8 % by 2 N alone
    assert break_even_mfu(work, H100, BF16, Pass(1e-6, 1e-9, 1.0, "compute")) is None


# ---- what must be monotonic ---------------------------------------------------------------------


@given(sizes, rows, lengths, mfus, mfus)
def test_a_better_used_gpu_takes_no_more_joules(size, n_rows, n_tokens, one, other):
    work = scoring(SHAPES[size], n_rows, n_tokens)
    worse, better = (gpu_pass(work, H100, BF16, m) for m in sorted((one, other)))
    assert better.energy_j <= worse.energy_j * (1 + 1e-12)
    assert gpu_pass(work, H100, FP8, one).energy_j <= gpu_pass(work, H100, BF16, one).energy_j


@given(sizes, rows, lengths, lengths, mfus)
def test_longer_rows_take_more_joules(size, n_rows, one, other, mfu):
    short, long = (scoring(SHAPES[size], n_rows, n) for n in sorted((one, other)))
    assert gpu_pass(short, H100, BF16, mfu).energy_j <= gpu_pass(long, H100, BF16, mfu).energy_j
    assert bound_pass(short, U55C).energy_j <= bound_pass(long, U55C).energy_j


@given(rows, lengths)
def test_larger_models_take_longer(n_rows, n_tokens):
    """Launches aside, since a larger model may have fewer layers."""
    works = [scoring(shape, n_rows, n_tokens) for shape in SHAPES.values()]
    times = [
        gpu_pass(work, H100, BF16, 0.5).time_s - work.model.n_layers * H100.value("launch_s")
        for work in works
    ]
    energies = [bound_pass(work, U55C).energy_j for work in works]
    assert times == sorted(times)
    assert energies == sorted(energies)


@settings(max_examples=examples(30), deadline=None)
@given(sizes, rows, lengths)
def test_our_card_is_never_better_than_ideal_nor_that_than_the_bound(size, n_rows, n_tokens):
    work = scoring(SHAPES[size], n_rows, n_tokens)
    one, ideal, bound = (level(work, U55C) for level in (card_pass, ideal_pass, bound_pass))
    assert one.time_s >= ideal.time_s >= bound.time_s
    assert one.energy_j >= ideal.energy_j >= bound.energy_j


def test_nothing_on_the_map_is_above_the_bound(whole):
    assert whole.gpu_j.shape == (8, 5, 8, 2, 6, len(ACCOUNTINGS))
    assert np.isfinite(whole.card_j["ours"]).all()
    assert (whole.card_j["ours"] >= whole.card_j["ideal"]).all()
    assert (whole.card_j["ideal"] >= whole.card_j["bound"]).all()
    for side in SIDES:
        # The less a GPU that is kept for this works, the better stands the card, until both idle
        # powers alone are left.
        kept = whole.chosen(side, (ALWAYS, TENTH, HUNDREDTH))
        below = kept[..., :-1] <= 70.0 / 21.4
        assert (np.diff(kept, axis=-1)[below] >= -1e-12).all()
        # A better used GPU never makes the card stand better where idle power is not charged.
        assert (np.diff(whole.chosen(side, (ANYWAY,)), axis=4) <= 1e-12).all()


def test_the_map_spans_what_it_says(whole):
    sizes_m = [params_m(size) for size in whole.axes.sizes]
    assert sizes_m == sorted(sizes_m)
    assert sizes_m[0] == pytest.approx(20, rel=0.06)
    assert sizes_m[-1] == pytest.approx(13e3, rel=0.03)
    assert (min(whole.axes.rows), max(whole.axes.rows)) == (1, 256)
    assert (min(whole.axes.tokens), max(whole.axes.tokens)) == (32, 4096)
    assert (min(whole.axes.mfus), max(whole.axes.mfus)) == (0.1, 0.6)


# ---- intervals ----------------------------------------------------------------------------------


def test_corners_are_the_ends_of_the_profile():
    found = corners(H100)
    assert [one.value("idle_w") for one in found] == [60.0, 120.0] * 2
    assert [one.value("busy_w") for one in found] == [306.0] * 2 + [360.0] * 2
    assert [one.value("mbu_decode") for one in found] == [0.91] * 2 + [0.883] * 2
    # What has no interval stays.
    for key in ("active_w", "launch_s", "peak_bf16_flops", "memory_bytes_per_s"):
        assert {one.value(key) for one in found} == {H100.value(key)}
    assert [one.value("idle_w") for one in corners(with_idle_w(H100, 120.0))] == [120.0, 120.0]
    assert scoring_mfus(H100) == (0.4, 0.6)
    assert corners(U55C) == ()


def test_a_missing_end_is_the_lowest():
    assert ends_of([2.0, None, 1.0]) == Ends(None, 2.0)
    assert ends_of([None]) == Ends(None, None)
    assert ends_of([2.0, 1.0]).spread("idle_w") == {"low": 1.0, "high": 2.0, "of": ["idle_w"]}


def test_interval_of_a_memory_bound_cell_by_hand(ranged_whole):
    """7 B, one row of 32 tokens: the weights are read once, and that rules at every MFU from 0.2.

    On a GPU that is there anyway the pass costs most at the dear end of reading and the low end of
    idle power, and the card costs the same whatever the GPU does.
    """
    at = (6, 0, 0, 0, 4, ACCOUNTINGS.index(ANYWAY))
    assert ranged_whole.found.gpu_rules[at[:5]] == "memory"
    card_j = bound_pass(scoring(SHAPES["7b"], 1, 32), U55C).energy_j
    moved = 2 * SHAPES["7b"].n_params_active + 2 * 32 * (2 * 32 * 4096 * 2)
    ends = []
    for busy_w, j_per_byte, mbu, idle_w in (
        (306, 4.91e-11, 0.91, 120), (360, 7.67e-11, 0.883, 60),
    ):  # fmt: skip
        gpu_j = moved * j_per_byte + (busy_w - idle_w) * moved / (mbu * 3.35e12)
        ends.append(gpu_j / card_j)
    low, high = ranged_whole.ratio_ends("bound")
    assert (low[at], high[at]) == pytest.approx(ends)
    assert ends == pytest.approx([1.53, 2.48], abs=0.01)


def test_interval_of_a_compute_bound_cell_by_hand(ranged_whole):
    """Its 700 W have no interval, so that idle power alone is left, and beside it the MFU."""
    work = scoring(SHAPES["7b"], 1, 512)
    low, high = ranged_whole.ratio_ends("ideal")
    at = (6, 0, 4, 0, 4, ACCOUNTINGS.index(ANYWAY))
    assert ranged_whole.found.gpu_rules[at[:5]] == "compute"
    ratio = ranged_whole.found.ratio("ideal")[at]
    assert (low[at], high[at]) == pytest.approx((ratio * 580 / 630, ratio * 640 / 630))
    # In the picture 50 % MFU stands for 40 to 60 %; at 10 % there is nothing to stand for.
    own, least, most = ranged_whole.one_row("ideal", ANYWAY, BF16, 0.5)
    assert own[6, 4] == ratio
    assert least[6, 4] == pytest.approx(ratio * 580 / 630 * 0.5 / 0.6)
    assert most[6, 4] == pytest.approx(ratio * 640 / 630 * 0.5 / 0.4)
    alone = ranged_whole.one_row("ideal", ANYWAY, BF16, 0.1)
    assert alone[1][6, 4] == low[6, 0, 4, 0, 0, 0]
    assert gpu_pass(work, H100, BF16, 0.6).rules == "compute"


idles, ends_of_reading = st.floats(60.0, 120.0), st.floats(0.0, 1.0)


@settings(max_examples=examples(30), deadline=None)
@given(idles, ends_of_reading, ends_of_reading, ends_of_reading)
def test_no_gpu_within_the_intervals_is_outside_the_map_s(idle_w, busy, moving, share):
    axes = Axes(("20m", "7b"), (1,), (32, 512), (0.1, 0.5))
    figures = dict(H100.figures)
    for key, at in (("busy_w", busy), ("j_per_byte", moving), ("mbu_decode", share)):
        one = figures[key]
        figures[key] = replace(one, value=one.low + at * (one.high - one.low), low=None, high=None)
    other = with_idle_w(replace(H100, figures=figures), idle_w)
    cards = card_passes(U55C, axes)
    made, ranged = charge_passes(cards, other, axes), ranged_map(cards, H100, axes)
    for side in SIDES:
        low, high = ranged.ratio_ends(side)
        # Duties below 1 charge the share of bandwidth to both sides: a little can lie between.
        assert (made.ratio(side) >= low * (1 - 2e-3)).all()
        assert (made.ratio(side) <= high * (1 + 2e-3)).all()


def test_what_has_no_interval_is_one_value(ranged_whole):
    axes = Axes(("7b",), (1,), (512,), (0.5,))
    alone = ranged_map(card_passes(U55C, axes), corners(H100)[0], axes)
    assert alone.all == (alone.found,)
    low, high = alone.ends(lambda one: one.best_of("ours").ratio)
    assert low == high
    assert short_range(Ends(low, high)) == f"{low:.2f}"
    assert short_range(Ends(0.0296, 1.5)) == ".030-1.50"
    assert short_range(Ends(None, None)) == "n/a"


def test_the_arithmetic_names_what_has_an_interval_and_what_has_none(snapshot):
    snapshot("\n".join(how(U55C, H100)))


# ---- cells, tables, files -----------------------------------------------------------------------


def test_cells_are_those_of_the_passes(quick):
    work = scoring(SHAPES["360m"], 64, 512)
    gpu, card = gpu_pass(work, H100, FP8, 0.1), card_pass(work, U55C)
    at = (1, 1, 1, 1, 0, ACCOUNTINGS.index(TENTH))
    gpu_j, card_j = TENTH.energies(gpu, card)
    assert quick.gpu_j[at] == gpu_j / work.n_tokens
    assert quick.card_j["ours"][at] == card_j / work.n_tokens
    assert quick.ratio("ours")[at] == pytest.approx(gpu_j / card_j)
    assert (
        quick.chosen("ours", (TENTH,), (FP8,), (0.1,))[1, 1, 1, 0, 0, 0] == quick.ratio("ours")[at]
    )
    assert quick.gpu_rules[at[:5]] == gpu.rules
    assert quick.card_rules["ours"][at[:3]] == card.rules


def test_best_cell_and_largest_winner(quick):
    best = quick.best_of("bound", BUSY_ENOUGH)
    assert best.ratio == quick.chosen("bound", BUSY_ENOUGH).max()
    assert best.size in QUICK.sizes
    assert f"{best.tokens:,} tokens" in best.words()
    for side in SIDES:
        won = quick.chosen(side, BUSY_ENOUGH) > 1
        largest = quick.largest_winner(side, BUSY_ENOUGH)
        expected = [size for size, own in zip(QUICK.sizes, won, strict=True) if own.any()]
        assert largest == (expected[-1] if expected else None)


def test_map_file_has_every_cell(ranged_quick, tmp_path):
    path, quick = tmp_path / "map.json", ranged_quick.found
    write_map(ranged_quick, path)
    data = json.loads(path.read_text())
    shape = tuple(len(data["axes"][name]) for name in data["order"])
    for side in SIDES:
        ratios = np.array(data["ratio"][side])
        assert ratios.shape == shape == quick.gpu_j.shape
        np.testing.assert_allclose(ratios, quick.ratio(side), rtol=6e-3)
        low, high = (np.array(data[key][side]) for key in ("ratio_low", "ratio_high"))
        assert (low <= ratios).all()
        assert (ratios <= high).all()
    np.testing.assert_allclose(
        np.array(data["gpu_mj_per_token"]) / 1e3, quick.gpu_j, rtol=6e-3
    )  # fmt: skip
    assert data["provenance"] == "modelled"
    assert np.array(data["gpu_rules"]).shape == shape[:5]
    assert set(np.unique(data["gpu_rules"])) <= {"compute", "memory", "launch"}


def test_tables_fit_a_terminal(ranged_whole):
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    for side in SIDES:
        console.print(break_even_table(ranged_whole, side))
        console.print(slice_table(ranged_whole, side, ALWAYS, 0.5))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert sum("duty 0.01" in line for line in lines) == len(SIDES)
    # Each interval stands below its figure: of the best ratio at a duty of 0.1, and of 7 B.
    assert any(" 0.55-1.09" in line for line in lines)
    assert any("0.20-0.31" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.00001234, "0.000012"), (0.1234, "0.123"), (12.34, "12.3"), (123.4, "123"),
     (12345.6, "12,346"), (float("nan"), "n/a")],
)  # fmt: skip
def test_numbers_in_words(value, text):
    assert number(value) == text


def test_picture_is_a_png(ranged_quick, tmp_path):
    path = tmp_path / "deep" / "map.png"
    draw(ranged_quick, H100, path)
    assert path.read_bytes().startswith(b"\x89PNG")
