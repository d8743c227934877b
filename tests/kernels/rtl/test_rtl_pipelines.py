"""The pipelines' RTL under Verilator: bit by bit what the C-simulation's functions give, after as
many cycles as qor.json says."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks.kernel_checks import FAMILIES, TOOLS, build_benches, rtl_mismatches, run_family
from ecorl.engines.fpga.csim.build import kernel_root

RTL = kernel_root() / "rtl"
QOR = json.loads((RTL / "qor.json").read_text())
LATENCIES = {pipeline["name"]: pipeline["latency"] for pipeline in QOR["pipelines"]}
OF_THE_ARRAY = {"mac", "array"}
"""Pipelines whose latencies test_rtl.py measures."""
AFTER_PEAKS = LATENCIES["peak"] + LATENCIES["maximum"]
FIRST, SECOND = LATENCIES["first_look"], LATENCIES["second_look"]
AFTER_MARKS = LATENCIES["any_bit"] + 1
SQUARE = LATENCIES["norm"] + 1
GROUP = {
    "group_values": FIRST,
    "group_value_peak": FIRST + AFTER_PEAKS,
    "group_value_mark": FIRST + AFTER_MARKS,
    "group_results": SECOND,
    "group_result_peak": SECOND + AFTER_PEAKS,
    "group_result_mark": SECOND + AFTER_MARKS,
    "group_squares": SQUARE + LATENCIES["total"] + 1,
    "group_codes": LATENCIES["quantise"],
}
"""Results of the lane group; marks and sums of a row are one more register behind their trees."""


@pytest.fixture(autouse=True)
def _gate(require_tool):
    for tool in ("verilator", "gxx", "make"):
        require_tool(tool)


@pytest.fixture(scope="module")
def benches(tmp_path_factory):
    """All benches, built once; None without the tools (`_gate` then ends the test)."""
    if any(shutil.which(tool) is None for tool in TOOLS):
        return None
    folder = tmp_path_factory.mktemp("pipelines")
    build_benches(folder)
    return folder


def declared(name):
    return GROUP[name] if name in GROUP else LATENCIES[name]


@pytest.mark.parametrize("family", FAMILIES)
def test_pipelines_are_exact_and_as_long_as_declared(benches, family):
    checks = run_family(benches, family, vectors=200_000, seed=1)
    assert {c.name: c.mismatches for c in checks} == {c.name: 0 for c in checks}
    assert {c.name: c.latency for c in checks} == {c.name: declared(c.name) for c in checks}
    for check in checks:
        if check.name not in GROUP:
            assert check.vectors == 200_000


@pytest.mark.deep
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(2, 6))
def test_pipelines_are_exact_with_many_operands(benches, family, seed):
    checks = run_family(benches, family, vectors=1_000_000, seed=seed)
    assert {c.name: c.mismatches for c in checks} == {c.name: 0 for c in checks}


def test_every_pipeline_is_played(benches):
    played = {c.name for family in FAMILIES for c in run_family(benches, family, 2000, seed=9)}
    assert played - set(GROUP) == set(LATENCIES) - OF_THE_ARRAY
    assert played >= set(GROUP)


FAULTS = {
    "exponential": ("lanes/exponential.sv", "COEFFICIENT(7846)", "COEFFICIENT(7847)"),
    "quantise": ("lanes/quantise.sv", "48'd1 << 22", "48'd1 << 21"),
    "times": ("scalars/times.sv", "exponent_6 + 32'(over)", "exponent_6 + 32'(zero)"),
    "plus": ("scalars/plus.sv", "a_below > 32'sd31 ? 5'd31", "a_below > 32'sd31 ? 5'd20"),
    "make_fixed": ("scalars/make_fixed.sv", "lost_3 <= by < -32'sd16", "lost_3 <= by < -32'sd17"),
    "inverse_root": ("scalars/root_seed.sv", "38'd33", "38'd41"),
    "move": ("moves/move.sv", "held <= read;", "if (read_valid) held <= read + 1;"),
    "any_bit": ("arithmetic/or_tree.sv", "<= some[WIDTH*0+:WIDTH] |", "<= some[WIDTH*0+:WIDTH] ^"),
    "first_look": ("group/first_look.sv", "!has_bias_choice", "has_bias_choice"),
    "second_look": ("group/second_look.sv", "lost_end & gate_changed", "(lost_end | gate_changed)"),
    "group_squares": ("group/row_total.sv", "first_sum ? 46'd0", "first_sum ? 46'd1"),
}
"""A change of the RTL for each of these pipelines, which must break it."""


def with_faults(folder):
    """A copy of the RTL, and of the sources beside it that its benches read, with all `FAULTS` in
    it, and a register too many in room_of."""
    rtl = folder / "kernels" / "rtl"
    shutil.copytree(kernel_root(), rtl.parent)
    late = ("scalars/room_of.sv", "room <= 5'd30 - place[4:0];",
            "begin early <= 5'd30 - place[4:0]; room <= early; end reg [4:0] early;")  # fmt: skip
    for source, right, wrong in (*FAULTS.values(), late):
        path = rtl / source
        text = path.read_text()
        assert text.count(right) == 1, source
        path.write_text(text.replace(right, wrong))
    return rtl


@pytest.mark.parametrize(
    "families",
    [("lanes", "scalars", "moves"), pytest.param(("arithmetic", "group"), marks=pytest.mark.deep)],
    ids="-".join,
)
def test_the_benches_see_faults(tmp_path, families):
    build_benches(tmp_path, with_faults(tmp_path), families)
    checks = [c for family in families for c in run_family(tmp_path, family, 20_000, seed=1)]
    played = {c.name for c in checks}
    assert played & set(FAULTS)
    assert set(FAULTS) & played <= {c.name for c in checks if c.mismatches}
    for check in checks:
        if check.name == "room":
            assert (check.latency, check.mismatches) == (LATENCIES["room"] + 1, 0)


@pytest.mark.deep
def test_the_figure_of_the_benchmark():
    vectors, mismatches = rtl_mismatches(vectors=2000)
    assert vectors > 2000 * (len(LATENCIES) - len(OF_THE_ARRAY))
    assert mismatches == 0
