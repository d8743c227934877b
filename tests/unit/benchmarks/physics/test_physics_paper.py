"""The paper's card figures: limits by hand, cross-checks by hand, and what cannot be true."""

from __future__ import annotations

import pytest

from benchmarks.studies.physics.audit import (
    GPU_FIGURES,
    Check,
    about_gpus,
    checks,
    printed_figures,
    violations,
)
from benchmarks.studies.physics.paper import (
    DSPS,
    LIMITS,
    TABLE_3,
    PaperRow,
    array_ops_per_s,
    least_work,
    rows,
    stream_ms,
    tokens_per_ms,
)
from benchmarks.studies.physics.tables import WIDTH, paper_table, violation_table
from ecorl.devices import bound_ops_per_s, load_profile
from ecorl.devices.paper import U55C_TOKENS_PER_J, U55C_TOKENS_PER_S

U55C, H100 = load_profile("u55c"), load_profile("h100_sxm")


@pytest.fixture(scope="module")
def printed():
    return {row.id: row for row in rows(U55C, H100, 3072)}


@pytest.fixture(scope="module")
def found():
    return {check.id: check for check in checks(U55C, H100)}


@pytest.fixture(scope="module")
def broken(printed, found):
    return {v.id: v for v in violations(tuple(printed.values()), tuple(found.values()))}


def test_the_array_by_hand():
    assert array_ops_per_s(DSPS) == pytest.approx(3.07e12, rel=2e-3)
    assert 1e3 * tokens_per_ms(array_ops_per_s(DSPS)) == pytest.approx(220, rel=3e-3)
    assert 1e3 * tokens_per_ms(array_ops_per_s(DSPS)) / 73 == pytest.approx(3.0, rel=5e-3)
    assert U55C_TOKENS_PER_S * 14e9 / array_ops_per_s(DSPS) == pytest.approx(647, rel=1e-3)
    assert stream_ms(460e9) == pytest.approx(15.2, rel=2e-3)


def test_the_least_work_is_below_the_usual_count():
    """7.0 B products of which the last of 32 layers is needed for one token in 512."""
    least = least_work()
    assert least.products == pytest.approx(2 * 6.98e9 * (31 + 1 / 512) / 32, rel=2e-3)
    assert least.attention == pytest.approx(2 * 31 * 4096 * 513, rel=1e-3)
    assert least.ops < 14e9


@pytest.mark.parametrize(
    ("id", "limit"),
    [
        ("gemm_rate", 2048 * 4 * 245e6 / 13.53e9 / 1e3),
        ("mha_rate", 1024 * 4 * 245e6 / 0.1303e9 / 1e3),
        ("fp16_rate", 3136 * 2 * 245e6 / 13.66e9 / 1e3),
        ("int8_rate", 3136 * 4 * 245e6 / 13.66e9 / 1e3),
        ("int4_rate", 3136 * 12 * 245e6 / 13.66e9 / 1e3),
        ("int8_tokens_per_j", 3136 * 4 * 245e6 / 13.66e9 / 73),
        ("int8_rate_die", 9024 * 4 * 775e6 / 13.66e9 / 1e3),
        ("kernel_ms", 7e9 / 460e9 * 1e3),
        ("h100_ms", 14e9 / 3.35e12 * 1e3),
        ("dma_in_ms", 32 * 512 * 4096 / 31.5e9 * 1e3),
        ("forward_ms", 2 * 70e9 * 32 * 512 / (32 * 989e12) * 1e3),
        ("hbm_total", 460.0),
    ],
)
def test_limits_by_hand(printed, id, limit):
    assert printed[id].limit == pytest.approx(limit, rel=3e-3)


def test_ours_of_a_gpu_has_the_interval_of_the_mfu(printed):
    ends = {id: row.ours_ends for id, row in printed.items() if row.ours_ends is not None}
    assert set(ends) == set(GPU_FIGURES)
    assert ends["h100_tokens_per_j"] == pytest.approx(
        [mfu * 989e12 / 14e9 / 700 for mfu in (0.4, 0.6)], rel=1e-6
    )
    for id in ("h100_ms", "forward_ms"):
        own = printed[id].ours
        assert ends[id] == pytest.approx((own * 0.5 / 0.6, own * 0.5 / 0.4))


def test_each_limit_says_whose_it_is(printed):
    """The paper's own array where it prints one, an H100 for GPUs, else the card's data sheets."""
    whose = {
        key: {row.id for row in printed.values() if row.limit is not None and row.against == key}
        for key in LIMITS
    }
    assert whose["printed"] == {
        "mha_rate", "gemm_rate", "fp16_rate", "fp16_tokens_per_j", "int8_rate",
        "int8_tokens_per_j", "int4_rate", "int4_tokens_per_j", "peak_tokens_per_j", "l_max",
    }  # fmt: skip
    assert whose["h100"] == set(GPU_FIGURES)
    assert {"int8_rate_die", "kernel_ms", "hbm_total", "clock"} <= whose["silicon"]
    assert "245 MHz" in printed["int8_rate"].why
    assert "775 MHz" in printed["int8_rate_die"].why


def test_our_figures_keep_to_the_limits(printed):
    compared = [row for row in printed.values() if row.limit is not None and row.ours is not None]
    assert len(compared) > 15
    for row in compared:
        if row.id == "dma_in_ms":
            continue  # ours sends token ids, the limit is that of embeddings
        at_most = row.sense == "at most"
        assert (row.ours <= row.limit) if at_most else (row.ours >= row.limit), row.id


def test_every_figure_of_the_tables_is_there(printed):
    places = [row.place for row in printed.values()]
    assert list(dict.fromkeys(places)) == ["Table 2", "Table 3", "Fig. 3B", "Fig. 3C", "Lemma 1"]
    for name, (rate, per_j) in TABLE_3.items():
        assert printed[f"{name.lower()}_rate"].published == rate
        assert printed[f"{name.lower()}_tokens_per_j"].published == per_j
    for row in printed.values():
        assert row.why
        assert row.ours is not None or row.note, f"{row.id} does not say why there is none of ours"


def test_what_has_no_limit_is_neither_flagged_nor_given_one(printed):
    without = [row.id for row in printed.values() if row.limit is None]
    assert without == ["aggregator_ms", "fp16_kept", "int8_kept", "int4_kept", "dma_out_ms"]
    for id in without:
        assert not printed[id].flagged
        assert printed[id].beyond(None) is None


@pytest.mark.parametrize(
    ("sense", "published", "beyond", "flagged"),
    [("at most", 30.0, 3.0, True), ("at most", 10.4, 1.04, False), ("at most", 5.0, 0.5, False),
     ("at least", 5.0, 2.0, True), ("at least", 20.0, 0.5, False)],
)  # fmt: skip
def test_beyond_goes_the_right_way(sense, published, beyond, flagged):
    row = PaperRow("x", "Table", "x", "1", published, 10.0, "so", None, sense)
    assert row.beyond(row.limit) == pytest.approx(beyond)
    assert row.flagged is flagged


@pytest.mark.parametrize(
    ("id", "derived"),
    [
        ("int8_power", 142_000 / 13.7),
        ("fp16_power", 71_000 / 6.9),
        ("int4_power", 261_000 / 22.1),
        ("card_batch", 13.7 * 73 * 7.1e-3),
        ("h100_batch", 4.8 * 700 * 5.9e-3),
        ("ratio_abstract", 13.7 / 4.8),
        ("ratio_powers", 700 / 65 * 5.9 / 7.1),
        ("lemma_total", 7.1),
        ("batch_ms", 32 * 512 / 142),
        ("gemm_stream", 7e9 / 98e9 * 1e3),
        ("h100_peak", 142 * 7.1 * 14e9 / 989e12 * 1e3),
        ("dma_32", 32 * 512 * 4096 / 32e9 * 1e3),
        ("dma_share", 100 * 4.2 / 7.1),
        ("dsp_share", 100 * 3136 / 9024),
        ("bram_share", 100 * 124 / 2016),
        ("uram_share", 100 * 192 / 960),
    ],
)
def test_contradictions_by_hand(found, broken, id, derived):
    assert found[id].derived == pytest.approx(derived, rel=1e-6)
    assert broken[id].kind == "contradiction"
    assert broken[id].ratio > 1.05


def test_what_is_right_is_not_counted(found, broken):
    right = {"dma_64", "lut_share", "ff_share", "dsp_sum", "hbm_sum", "total_sum", "within_20",
             "int8_sum", "int4_sum"}  # fmt: skip
    assert {id for id, check in found.items() if check.holds} == right
    assert not right & set(broken)


def test_a_lower_limit_is_no_contradiction_where_it_holds():
    assert Check("x", "at least", "1", 32.0, 1000.0, "so", is_least=True).holds
    assert not Check("x", "at least", "1", 32.0, 7.0, "so", is_least=True).holds
    assert not Check("x", "equal", "1", 32.0, 1000.0, "so").holds


def test_violations_each_with_its_arithmetic(printed, broken):
    assert all(v.arithmetic and v.ratio > 1.05 for v in broken.values())
    above = {id for id, v in broken.items() if v.kind != "contradiction"}
    assert above == {
        "mha_rate", "gemm_rate", "fp16_rate", "fp16_tokens_per_j", "int8_rate",
        "int8_tokens_per_j", "int4_rate", "int4_tokens_per_j", "kernel_ms", "total_ms",
        "lemma_ms", "forward_ms", "l_max",
    }  # fmt: skip
    # A figure that the paper prints twice counts once.
    assert printed["peak_tokens_per_j"].flagged
    assert "peak_tokens_per_j" not in broken
    silicon = {id for id, v in broken.items() if v.kind == "silicon"}
    assert silicon == {"kernel_ms", "total_ms", "lemma_ms"}


def test_findings_are_not_counted_as_figures(printed, found, broken):
    """Three powers are one printed 73 W; six findings of batch times are three printed times."""
    every = tuple(broken.values())
    assert len(every) == 31
    assert printed_figures(every) == len(printed_once := {v.concerns for v in every}) == 23
    assert printed_once <= set(printed) | {id for id, c in found.items() if not c.concerns}
    assert sum(v.concerns == "power" for v in every) == 3
    assert sum(v.concerns == "total_ms" for v in every) == 4
    gpus = about_gpus(every)
    assert {v.id for v in gpus} == {"forward_ms", "h100_batch", "h100_peak"}
    assert printed_figures(gpus) == 2
    assert all(c.concerns in printed or c.concerns in found for c in found.values() if c.concerns)


def test_the_worst_survive_the_bound_of_the_silicon():
    """All DSPs at the 775 MHz of their slices; and the board at its idle power."""
    hardest = bound_ops_per_s(U55C)
    assert U55C_TOKENS_PER_S * least_work().ops / hardest > 60
    at_idle = 1e3 * tokens_per_ms(array_ops_per_s(DSPS), least_work().ops) / U55C.value("idle_w")
    assert 1.25 * at_idle < U55C_TOKENS_PER_J


def test_tables_fit_a_terminal_and_flag(printed, found, broken, capsys):
    from rich.console import Console

    console = Console(width=200)
    console.print(paper_table(tuple(printed.values())))
    console.print(violation_table(tuple(broken.values()), tuple(found.values())))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert sum("ABOVE" in line for line in lines) == 1 + sum(r.flagged for r in printed.values())
    assert any("9 of 27" in line for line in lines)
