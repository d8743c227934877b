"""Recurrences of pipelined loops: what the analysis finds in small representations and sources."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.errors import BuildError
from hls_kernels.lint.compiling import read_pragma
from hls_kernels.lint.kernels import Kernel, all_kernels
from hls_kernels.lint.recurrences import __main__ as command
from hls_kernels.lint.recurrences import time_loops, timings_of
from hls_kernels.lint.recurrences.carried import read_operators
from hls_kernels.lint.recurrences.graph import DelayGraph
from hls_kernels.lint.recurrences.ir import read_functions

OPERATORS = read_operators()
ADD, EQUAL = OPERATORS.of("add", 32), OPERATORS.of("equal", 32)
CHOOSE = OPERATORS.of("choose", levels=1)
SOURCE = Path("/kernel/adder.cpp")
PLACES = """
!1 = !DIFile(filename: "adder.cpp", directory: "/kernel")
!2 = distinct !DISubprogram(name: "top", scope: !1, file: !1, line: 1)
!3 = !DILocation(line: 10, column: 5, scope: !2)
!4 = !DILocation(line: 20, column: 5, scope: !2)
!5 = distinct !{!5, !3, !4}
"""


def said_at(text, line):
    return read_pragma(text, SOURCE, line)


def timing(body, *pragmas, head="i32 %n"):
    """The one loop of a function; `body` is what it repeats, with what it carries."""
    phis = [line for line in body.splitlines() if "%entry ]" in line]
    rest = [line for line in body.splitlines() if "%entry ]" not in line]
    text = "\n".join([
        f"define void @top({head}) {{", "entry:", "  br label %loop", "loop:", *phis,
        "  %i = phi i32 [ 0, %entry ], [ %i.next, %latch ]",
        "  %goes.on = icmp slt i32 %i, %n", "  br i1 %goes.on, label %body, label %out", "body:",
        *rest, "latch:", "  %i.next = add i32 %i, 1", "  br label %loop, !llvm.loop !5", "out:",
        "  ret void", "}",
    ])  # fmt: skip
    said = {SOURCE: [said_at("PIPELINE II = 1", 11), *(said_at(text, 12) for text in pragmas)]}
    (found,) = timings_of("@table = internal global [64 x i32] zeroinitializer\n" + text + PLACES,
                          said, OPERATORS)  # fmt: skip
    return found


# ---- the graph ------------------------------------------------------------------------------


def test_worst_cycle_is_the_one_with_most_delay_an_iteration():
    graph = DelayGraph({"a": 1.0, "b": 2.0, "c": 5.0, "d": 0.5})
    for start, to, distance in (("a", "b", 0), ("b", "a", 1), ("b", "c", 0), ("c", "a", 4)):
        graph.connect(start, to, distance)
    graph.connect("d", "d", 1)
    found = graph.worst_cycle()
    assert sorted(found.nodes) == ["a", "b"]
    assert (found.delay, found.distance, found.per_iteration) == (3.0, 1, 3.0)
    graph.delays["c"] = 20.0
    assert graph.worst_cycle().per_iteration == pytest.approx(23.0 / 4)


def test_a_graph_without_cycles_has_no_recurrence():
    graph = DelayGraph({"a": 1.0, "b": 2.0})
    graph.connect("a", "b")
    assert graph.worst_cycle() is None


def test_depth_chains_what_fits_a_cycle():
    graph = DelayGraph({"a": 1.0, "b": 1.0, "c": 1.5, "d": 5.0, "e": 0.5})
    for start, to in ("ab", "bc", "cd", "de"):
        graph.connect(start, to)
    # a and b in a cycle of 3 ns, c in the next, d takes two from a register, e one more.
    assert graph.depth(3.0) == 5


# ---- loops ----------------------------------------------------------------------------------


def test_a_counter_takes_an_addition():
    found = timing("  br label %latch")
    assert found.delay_ns == pytest.approx(ADD)
    assert (found.least_ii, found.is_missed) == (1, False)
    assert found.source.path == SOURCE


def test_casts_and_choices_are_parts_of_a_recurrence():
    body = """
  %x = phi i32 [ 0, %entry ], [ %x.next, %latch ]
  %up = add i32 %x, 1
  %wide = sext i32 %up to i64
  %is.end = icmp eq i64 %wide, 77
  %x.next = select i1 %is.end, i32 0, i32 %up
  br label %latch"""
    assert timing(body).delay_ns == pytest.approx(ADD + OPERATORS.of("equal", 64) + CHOOSE)


def test_a_branch_is_a_choice_by_its_condition():
    body = """
  %x = phi i32 [ 0, %entry ], [ %x.next, %latch ]
  %up = add i32 %x, 1
  %is.end = icmp eq i32 %up, 77
  br i1 %is.end, label %reset, label %join
reset:
  %inside = icmp eq i32 %n, 3
  br i1 %inside, label %more, label %join
more:
  br label %join
join:
  %x.next = phi i32 [ %up, %body ], [ 0, %reset ], [ 1, %more ]
  br label %latch"""
    # Three values are one level; two conditions are combined before.
    assert timing(body).delay_ns == pytest.approx(
        ADD + EQUAL + CHOOSE + OPERATORS.of("logic", levels=1)
    )


def test_two_iterations_share_the_delay():
    body = """
  %a = phi i32 [ 0, %entry ], [ %b.next, %latch ]
  %b = phi i32 [ 0, %entry ], [ %a.next, %latch ]
  %a.sum = add i32 %a, 5
  %a.next = add i32 %a.sum, %n
  %b.next = add i32 %b, 3
  br label %latch"""
    found = timing(body)
    assert (found.cycle.distance, found.delay_ns) == (2, pytest.approx(1.5 * ADD))


def test_a_value_over_several_cycles_misses_its_interval():
    body = """
  %x = phi i32 [ 1, %entry ], [ %x.next, %latch ]
  %once = mul i32 %x, %n
  %x.next = add i32 %once, 1
  br label %latch"""
    found = timing(body)
    assert (found.least_ii, found.is_missed) == (3, True)
    slower = replace(found.source, pragmas=(said_at("PIPELINE II = 3", 11),))
    assert replace(found, source=slower).is_missed is False


ARRAY = """
  %at = and i32 %i, 63
  %place = getelementptr [64 x i32], ptr @table, i32 0, i32 %at
  %old = load i32, ptr %place
  %new = add i32 %old, 1
  store i32 %new, ptr %place
  br label %latch"""


def test_an_array_is_met_again_after_the_distance_that_is_stated():
    assert timing(ARRAY).least_ii == 4  # two cycles of reading, one of writing, and an addition
    said = "DEPENDENCE variable = table type = inter"
    assert timing(ARRAY, f"{said} direction = RAW distance = 4 true").least_ii == 1
    assert timing(ARRAY, f"{said} direction = RAW distance = 2 true").least_ii == 2
    assert timing(ARRAY, f"{said} false").delay_ns == pytest.approx(ADD)
    assert timing(ARRAY, f"{said} dependent = false").delay_ns == pytest.approx(ADD)


@pytest.mark.parametrize(
    "said",
    [
        "inter WAR false",
        "intra false",
        "inter direction = WAW distance = 8 true",
        "intra direction = RAW distance = 8 true",
    ],
)
def test_a_pragma_of_another_dependence_leaves_the_recurrence(said):
    found = timing(ARRAY, f"DEPENDENCE variable = table {said}")
    assert (found.least_ii, found.delay_ns) == (4, timing(ARRAY).delay_ns)
    assert timing(ARRAY, f"DEPENDENCE {said} variable = table").least_ii == 4
    # One that speaks of reads after writes counts all the same.
    raw = "DEPENDENCE variable = table inter RAW false"
    assert timing(ARRAY, f"DEPENDENCE variable = table {said}", raw).least_ii == 1


def test_a_loop_that_stays_in_a_pipelined_one_is_refused(snapshot):
    body = """
  br label %inner
inner:
  %j = phi i32 [ 0, %body ], [ %j.next, %inner ]
  %j.next = add i32 %j, 1
  %again = icmp slt i32 %j.next, %n
  br i1 %again, label %inner, label %latch"""
    with pytest.raises(BuildError) as caught:
        timing(body)
    snapshot(str(caught.value))


def test_a_read_that_its_own_result_decides_on_is_a_recurrence():
    body = """
  %x = phi i1 [ true, %entry ], [ %x.next, %latch ]
  call void @llvm.lifetime.start.p0(i64 4, ptr %item)
  br i1 %x, label %take, label %latch.before
take:
  call void @ecorl_fifo_read(ptr %fifo, ptr %item)
  %got = load i32, ptr %item
  br label %latch.before
latch.before:
  %value = phi i32 [ 7, %body ], [ %got, %take ]
  %x.next = icmp eq i32 %value, 1
  br label %latch"""
    found = timing(body, head="i32 %n, ptr %fifo, ptr %item")
    assert found.delay_ns == pytest.approx(OPERATORS.of("fifo") + CHOOSE + EQUAL)


def test_loops_without_a_pipeline_are_left_out():
    text = "define void @top() {\nentry:\n  ret void\n}\n"
    assert timings_of(text + PLACES, {}, OPERATORS) == []


def test_a_switch_leads_to_all_of_its_blocks():
    text = """
define void @top(i32 %x) {
entry:
  switch i32 %x, label %a [
    i32 1, label %b
  ]
a:
  ret void
b:
  ret void
}
"""
    assert read_functions(text)["top"].successors("%entry") == ("%a", "%b")


# ---- sources --------------------------------------------------------------------------------

PHASES = """
#include <ap_int.h>
#include <hls_stream.h>
static int trips_of(int block, int n, int k) {
#pragma HLS INLINE
    const int after = block + 2 - n;
    return after > 1 ? k : after == 1 ? 3 * k : after * k > 9 ? after * k : 9;
}
extern "C" void top(hls::stream<int>& out, int n, int k) {
    int block = 0, left = 4;
RUN:
    for (int i = 0; i < n; ++i) {
#pragma HLS PIPELINE II = 1
        out.write(block);
        if (--left == 0) left = trips_of(++block, n, k);
    }
UNROLLED:
    for (int i = 0; i < n; ++i) {
#pragma HLS PIPELINE II = 1
        ap_int<12> sum = 0;
        for (int j = 0; j < 4; ++j) {
#pragma HLS UNROLL
            sum += i + j;
        }
        out.write(sum);
    }
}
"""


@pytest.fixture
def tools(require_tool):
    require_tool("clang19")
    require_tool("gxx")
    require_tool("hls_headers")


def times_of(folder, name, text):
    """The loops of a kernel of one source, with its text."""
    source = folder / name
    source.write_text(text)
    (folder / "qor.json").write_text(json.dumps({"top": "top", "loops": []}))
    return time_loops([Kernel(folder, (source,))])


def test_a_recurrence_of_the_sources_is_found(tools, tmp_path):
    run, unrolled = times_of(tmp_path, "phases.cpp", PHASES)
    assert (run.label, run.is_missed) == ("RUN", True)
    assert "phases.cpp:6" in run.lines
    assert (unrolled.label, unrolled.least_ii, unrolled.is_missed) == ("UNROLLED", 1, False)


INNER_LOOP = """
#include <hls_stream.h>
extern "C" void top(hls::stream<int>& in, hls::stream<int>& out, int n, int m) {
    int s = 0, x = 1;
    for (int i = 0; i < n; ++i) {
#pragma HLS PIPELINE II = 1
        for (int j = 0; j < m; ++j) s = s * 3 + in.read();
        x = x * s * 7 / (m | 1);
    }
    out.write(x);
}
"""
ONE_TRIP = """
#include <hls_stream.h>
extern "C" void top(hls::stream<int>& in, hls::stream<int>& out, int n) {
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < 1; ++j) {
#pragma HLS PIPELINE II = 1
            out.write(in.read());
        }
    }
}
"""
FUNCTION = """
#include <hls_stream.h>
static int product(int a, int b) {
#pragma HLS PIPELINE II = 1
    return a * b;
}
extern "C" void top(hls::stream<int>& out, int n) { out.write(product(n, n)); }
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [(INNER_LOOP, 5), (ONE_TRIP, 6), (FUNCTION, 4)],
    ids=["inner loop", "one trip", "function"],
)
def test_what_cannot_be_timed_is_refused_with_its_place(tools, tmp_path, text, line):
    with pytest.raises(BuildError) as raised:
        times_of(tmp_path, "refused.cpp", text)
    assert str(raised.value).startswith(f"{tmp_path / 'refused.cpp'}:{line}: ")
    assert "\n" not in str(raised.value)


def test_a_pragma_of_a_pipeline_that_nothing_calls_is_left_out(tools, tmp_path):
    unused = FUNCTION.replace("product(n, n)", "n")
    assert times_of(tmp_path, "unused.cpp", unused) == []


SAME_NAME = """
#include <ap_int.h>
#include <hls_stream.h>
static void first(hls::stream<int>& in, hls::stream<int>& out, int n) {
    static ap_int<8> t[16];
FIRST:
    for (int i = 0; i < n; ++i) {
#pragma HLS PIPELINE II = 1
        const int at = in.read() & 15;
        t[at] = t[at] + 1;
        out.write(t[at]);
    }
}
static void second(hls::stream<int>& in, hls::stream<int>& out, int n) {
    ap_int<8> t[16] = {};
#pragma HLS ARRAY_PARTITION variable = t complete
SECOND:
    for (int i = 0; i < n; ++i) {
#pragma HLS PIPELINE II = 1
        const int at = in.read() & 15;
        t[at] = t[at] + 1;
        out.write(t[at]);
    }
}
extern "C" void top(hls::stream<int>& in, hls::stream<int>& out, int n) {
    first(in, out, n);
    second(in, out, n);
}
"""


@pytest.mark.parametrize("kept", ["", "static "], ids=["local", "static"])
def test_an_array_is_in_registers_only_in_the_function_of_the_pragma(tools, tmp_path, kept):
    text = SAME_NAME.replace("    ap_int<8> t[16] = {};", f"    {kept}ap_int<8> t[16] = {{}};")
    memory, registers = times_of(tmp_path, "arrays.cpp", text)
    assert (memory.label, memory.least_ii) == ("FIRST", 4)
    assert (registers.label, registers.least_ii) == ("SECOND", 1)


@pytest.mark.deep
def test_no_loop_of_the_project_misses_the_clock_and_the_page_says_so(tools):
    loops = time_loops()
    assert [f"{loop.label}: {loop.delay_ns:.2f} ns" for loop in loops if loop.is_missed] == []
    for kernel in all_kernels():
        declared = json.loads((kernel.folder / "qor.json").read_text())["loops"]
        places = Counter((loop.source.path, loop.label) for loop in time_loops([kernel]))
        assert set(places.values()) == {1}
        assert Counter(label for _, label in places) == Counter(e["label"] for e in declared)
    # The page says what is found.
    page = (kernel_root() / "README.md").read_text(encoding="utf-8")
    worst = max(loop.delay_ns / loop.source.ii for loop in loops)
    assert f" {len(loops)} loops" in page
    assert f" {worst:.2f} ns" in page
    by_place = {(loop.source.path.name, loop.label): loop for loop in loops}
    for place, what in (
        (("gemm_int8.cpp", "MAC"), "`MAC` of gemm_int8"),
        (("ecorl_products.hpp", "ARRANGE"), "`ARRANGE`, vector_ops"),
        (("scalars.hpp", "OPEN"), "`OPEN` of vector_ops"),
    ):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {what}"))
        assert line.split("|")[3].strip() == f"{by_place[place].delay_ns:.2f}"
    for places, what in (
        ((("chain.hpp", "FIRST_LOOK"), ("chain.hpp", "SECOND_LOOK")), "lanes of vector_ops"),
        ((("softmax.hpp", "FIRST_LOOK"),), "score of mha_int8"),
        ((("softmax.hpp", "SECOND_LOOK"),), "weight of mha_int8"),
        ((("answers.hpp", "DIVIDE"),), "division of rewards"),
    ):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {what}"))
        depths = ", ".join(str(by_place[place].depth) for place in places)
        assert line.split("|")[2].strip() == depths


def test_absent_compiler_ends_with_one_line(monkeypatch, capsys, snapshot):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert command.main() == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    snapshot(printed.err)


def test_missed_loops_are_named_with_their_lines(monkeypatch, capsys, snapshot):
    good = timing("  br label %latch")
    bad = replace(good, label="SLOW", cycle=good.cycle._replace(delay=4.0), lines=("a.cpp:3",))
    monkeypatch.setattr(command, "time_loops", lambda: [good, bad])
    assert command.main() == 1
    snapshot(capsys.readouterr().out)
    monkeypatch.setattr(command, "time_loops", lambda: [good])
    assert command.main() == 0
