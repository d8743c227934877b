"""DEPENDENCE pragmas: each is watched in the strict C-simulation, and holds for what runs."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_dataflow import FAULT, report_of

from ecorl.engines.fpga.csim.build import ap_headers, kernel_root, read_flags
from tests.conftest import demand

LOOPS = Path(__file__).with_name("dependence_loops.cpp")
SUFFIXES = frozenset((".c", ".cc", ".cpp", ".h", ".hpp"))
WHOLE_BLOCK = 16
HEAD_WORDS = range(1, 9)  # heads of 16 to 128 values

# ---------------------------------------------------------------- pragmas and their watches

_LOOP = re.compile(
    r"\n *(?P<label>\w+):\n *for \((?:dim_t|std::int64_t) (?P<counter>\w+) = 0; .*\n"
    r"(?P<pragmas>(?:#pragma HLS .*\n)*)(?P<watches>(?: *ECORL_WATCH\([^;]*;\n)*)"
)
_PRAGMA = re.compile(
    r"#pragma HLS DEPENDENCE variable = (\w+) type = inter"
    r"(?: direction = (\w+))?(?: distance = (\d+))? (true|false)\n"
)
_ANY_PRAGMA = re.compile(r"\bHLS[\s\\]+DEPENDENCE\b", re.IGNORECASE)  # as Vitis reads it
_WATCH = re.compile(r"ECORL_WATCH\((\w+), (\w+), (\w+), (\w+), (\w+), ")


def stated(pragma):
    """What a pragma says, as a watch does: array, direction, distance."""
    array, direction, distance, is_true = pragma
    assert (is_true == "true") == bool(distance), pragma
    assert direction in ("", "RAW"), pragma
    return array, direction or "ALL", distance or "NEVER"


def unwatched(text):
    """Pragmas of a source that no watch beside them repeats, and watches that repeat none."""
    pragmas, watches, in_loops = [], [], 0
    for loop in _LOOP.finditer(text):
        found = [stated(groups) for groups in _PRAGMA.findall(loop["pragmas"])]
        in_loops += len(found)
        pragmas += [(*each[:1], loop["label"], *each[1:], loop["counter"]) for each in found]
        watches += _WATCH.findall(loop["watches"])
    n_pragmas, n_watches = len(_ANY_PRAGMA.findall(text)), text.count("ECORL_WATCH(")
    assert n_pragmas == in_loops, "a pragma stands elsewhere, or in another form"
    assert n_watches == len(watches), "a watch stands elsewhere, or in another form"
    return sorted(set(pragmas) ^ set(watches))


def sources():
    root = kernel_root()
    names = [path.relative_to(root) for path in root.rglob("*.[ch]*")]
    found = [name for name in names if name.parts[0] != "sim" and name.suffix in SUFFIXES]
    return {
        name: (root / name).read_text() for name in found if name.name != "ecorl_dependence.hpp"
    }


def test_every_pragma_has_its_watch():
    texts = sources()
    assert {name: unwatched(text) for name, text in texts.items() if unwatched(text)} == {}
    assert any(map(_ANY_PRAGMA.search, texts.values()))


@pytest.mark.parametrize(
    "spelling",
    ["#pragma HLS dependence", "#pragma HLS  DEPENDENCE", "#pragma hls DEPENDENCE",
     "# pragma\tHLS \\\n Dependence"],
)  # fmt: skip
def test_a_pragma_in_another_form_is_found(spelling):
    text = f"\nLOOP:\n    for (dim_t i = 0; i < n; ++i) {{\n{spelling} variable = a false\n"
    with pytest.raises(AssertionError, match="in another form"):
        unwatched(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ECORL_WATCH(bank, MAC, RAW, 9, trip, m, n, k);\n", ""),
        ("ECORL_WATCH(bank, MAC, RAW, 9,", "ECORL_WATCH(bank, MAC, RAW, 8,"),
        ("ECORL_WATCH(bank, MAC, RAW, 9,", "ECORL_WATCH(bank, MAC, ALL, 9,"),
        ("ECORL_WATCH(bank, MAC, RAW, 9,", "ECORL_WATCH(bank, TILE, RAW, 9,"),
        ("ECORL_WATCH(bank, MAC, RAW, 9, trip,", "ECORL_WATCH(bank, MAC, RAW, 9, step,"),
        ("distance = 9 true", "distance = 10 true"),
        ("direction = RAW distance = 9 true", "false"),
        ("variable = bank type = inter", "variable = acc type = inter"),
        ("#pragma HLS DEPENDENCE variable = bank", "#pragma HLS UNROLL // bank"),
    ],
)
def test_a_pragma_that_says_something_else_is_found(old, new):
    text = (kernel_root() / "gemm_int8" / "gemm_int8.cpp").read_text()
    assert unwatched(text) == []
    assert text.count(old) == 1
    assert unwatched(text.replace(old, new)) != []


# ---------------------------------------------------------------- loops


def compiled(target, root):
    """The loops over the kernels' sources under `root`, in the strict build."""
    flags = read_flags(root / "common.mk")
    names = ("CSIM_CXXFLAGS", "CSIM_FLAGS_gcc", "CSIM_FLAGS_strict", "CSIM_LDFLAGS")
    words = [word for name in names for word in flags[name]]
    includes = [f"-I{folder}" for folder in (root, root / "include", root / "sim")]
    chosen = [str(LOOPS), *map(str, sorted(root.glob("sim/dataflow*.cpp")))]
    command = ["g++", *words, "-O1", *includes, "-isystem", str(ap_headers()), *chosen]
    subprocess.run([*command, "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


@pytest.fixture(scope="module")
def needs_strict_build():
    demand("gxx")
    demand("hls_headers")


@pytest.fixture(scope="module")
def loops(needs_strict_build, tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("loops") / "loops.so", kernel_root())


REJECTED = {
    "include/ecorl_products.hpp": [("const dim_t pause = steps_between(tiles);",
                                    "const dim_t pause = 0;")],
    # The partners of a head left while the next one came in.
    "vector_ops/chain.hpp": [("words + PAIR_LAG", "words + call.unit"),
                             ("i >= PAIR_LAG", "i >= call.unit")],
    "mha_int8/softmax.hpp": [("ECORL_WATCH(states, FIRST_LOOK, RAW, NEVER",
                              "ECORL_WATCH(states, FIRST_LOOK, ALL, NEVER")],
}  # fmt: skip
"""What each source said before its dependences were watched."""


@pytest.fixture(scope="module")
def rejected(needs_strict_build, tmp_path_factory):
    """The same loops over sources whose pragmas were untrue."""
    root = tmp_path_factory.mktemp("rejected") / "hls_kernels"
    shutil.copytree(kernel_root(), root, ignore=shutil.ignore_patterns("rtl", "lint", "*.json"))
    for name, changes in REJECTED.items():
        text = (root / name).read_text()
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (root / name).write_text(text)
    return compiled(root / "loops.so", root)


def violations(handle):
    handle.dependence_violations.restype = ctypes.c_int64
    return handle.dependence_violations()


def fails_with(handle, report, call, *arguments):
    """Whether a call ends with this report and is counted, once."""
    before = violations(handle)
    assert call(*arguments) == FAULT
    assert report_of(handle) == report
    assert violations(handle) == before + 1


@pytest.mark.parametrize("distance", [0, 4, 5, 7])
def test_a_distance_that_is_stated_passes(loops, distance):
    before = violations(loops)
    assert loops.reads_back(40, distance) == 0
    assert violations(loops) == before


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_a_distance_below_the_stated_one_fails(loops, distance):
    text = (
        f"LOOP: ring, element 0, is read after it was written, distance {distance}; stated: 4; "
        f"shape (n, distance) = (40, {distance})"
    )
    fails_with(loops, text, loops.reads_back, 40, distance)


def test_a_write_after_a_read_counts_where_all_is_stated(loops):
    assert loops.reads_ahead(0) == 0
    text = (
        "LOOP: ring, element 1, is written after it was read, distance 1; stated: never; "
        "shape (PLACES) = (8)"
    )
    fails_with(loops, text, loops.reads_ahead, 1)


def test_a_second_write_counts_where_all_is_stated(loops):
    text = (
        "LOOP: ring, element 0, is written after it was written, distance 1; stated: never; "
        "shape (PLACES) = (8)"
    )
    fails_with(loops, text, loops.writes_twice)


def test_entries_of_a_loop_do_not_meet(loops):
    before = violations(loops)
    assert loops.enters_thrice() > 0
    assert violations(loops) == before


def test_each_of_two_nested_watches_is_held(loops):
    assert loops.reads_across(2, 0) == 0
    for distance, is_inner, text in (
        (1, 0, "OUTER: ring, element 0, is read after it was written, distance 1; stated: 2; "
               "shape (distance) = (1)"),
        (2, 1, "INNER: ring, element 0, is read after it was written, distance 1; stated: never; "
               "shape (i) = (0)"),
    ):  # fmt: skip
        fails_with(loops, text, loops.reads_across, distance, is_inner)


def test_a_counter_that_leaves_iterations_out_is_refused(loops):
    assert loops.refuses_counter() == 1


# ---------------------------------------------------------------- the kernels, and what they said


@pytest.mark.parametrize("unit", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 9, 32])
@pytest.mark.parametrize("m", [*range(1, 20), 33])
def test_the_buffer_of_products(loops, m, groups, unit):
    assert loops.arranges(m, groups * unit, groups, unit) == 0, report_of(loops)
    if unit == 1:
        assert loops.arranges(m, groups, 0, 1) == 0, report_of(loops)


@pytest.mark.parametrize("unit", [1, 2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2, 3, 4])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 16, 17])
def test_the_buffer_of_products_without_a_pause_fails(rejected, m, groups, unit):
    """It read a place as soon as rows + groups - 1 groups after it was written."""
    rows = m % WHOLE_BLOCK
    distance = (rows + groups - 1) * unit
    if rows == 0 or distance >= 4:
        assert rejected.arranges(m, groups * unit, groups, unit) == 0
    else:
        assert rejected.arranges(m, groups * unit, groups, unit) == FAULT
        report = report_of(rejected)
        assert report.startswith("ARRANGE: block, ")
        assert f"distance {distance}; stated: 4; " in report
        assert report.endswith(f" = (1, {rows}, {groups}, {unit})")


@pytest.mark.parametrize("unit", HEAD_WORDS)
@pytest.mark.parametrize(("m", "heads"), [(1, 1), (1, 2), (1, 15), (17, 3)])
def test_partners_of_rope(loops, m, heads, unit):
    assert loops.pairs(m, heads, unit) == 0, report_of(loops)


@pytest.mark.parametrize("unit", HEAD_WORDS)
def test_partners_of_rope_one_head_behind_fail(rejected, unit):
    distance = max(unit // 2, 1)
    code, report = rejected.pairs(17, 3, unit), report_of(rejected)
    if distance >= 4:
        assert code == 0
    else:
        assert code == FAULT
        assert re.match(r"PAIR_HEADS: (lower|upper), ", report)
        assert f"distance {distance}; stated: 4; " in report
        assert report.endswith(f" = (17, 3, {unit})")


@pytest.mark.parametrize("rows", [1, 4, 5, 64])
def test_states_of_the_softmax(loops, rejected, rows):
    """A step writes the states that the step before has read: only RAW is excluded."""
    assert loops.looks(rows) == 0, report_of(loops)
    text = (
        "FIRST_LOOK: states, element 0, is written after it was read, distance 1; stated: never; "
        f"shape (turn.softmax_rows) = ({rows})"
    )
    fails_with(rejected, text, rejected.looks, rows)
