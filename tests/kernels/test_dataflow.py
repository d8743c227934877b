"""Dataflow regions of the C-simulation: FIFOs of their declared depth, and deadlocks that show."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_benches import kernels_chosen

from ecorl.engines.fpga.csim.build import ap_headers, kernel_root, read_flags
from ecorl.errors import DataflowError, EngineError
from tests.examples import examples
from tests.fakes.gemm_library import GemmLibrary
from tests.kernels.decoder_models import VOCAB, decoder, library, same, saved_decoder

REGIONS = Path(__file__).with_name("dataflow_regions.cpp")
FAULT = 3
BLOCK = 8  # of dataflow_regions.cpp


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


def compiled(folder, name, *options, build="fast"):
    """The regions of dataflow_regions.cpp, with the flags of the C-simulation."""
    root, target = kernel_root(), folder / name
    flags = read_flags(root / "common.mk")
    words = [*flags["CSIM_CXXFLAGS"], *flags["CSIM_FLAGS_gcc"], *flags[f"CSIM_FLAGS_{build}"]]
    if build == "strict":
        words += ["-isystem", str(ap_headers())]
    words += [f"-I{root / 'include'}", f"-I{root / 'sim'}", "-pthread", *options]
    sources = [str(REGIONS), *map(str, sorted(root.glob("sim/dataflow*.cpp")))]
    subprocess.run(["g++", *words, *sources, "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def regions(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("regions")
    return ctypes.CDLL(str(compiled(folder, "regions.so", "-shared")))


@pytest.fixture
def as_declared():
    """Libraries whose FIFOs may be made shallower; deep as declared again at the end."""
    used = []

    def limit(handle, depth):
        handle.dataflow_set_depth.argtypes = [ctypes.c_int64]
        used.append(handle)
        handle.dataflow_set_depth(depth)

    yield limit
    for handle in used:
        handle.dataflow_set_depth(0)


def called(function, n, *arguments):
    """The code of a call and what it wrote."""
    out = np.full(n, -1, np.int32)
    return function(ctypes.c_void_p(out.ctypes.data), *arguments), out


def report_of(handle):
    text = ctypes.create_string_buffer(4096)
    handle.dataflow_report(text, ctypes.c_int64(len(text)))
    return text.value.decode()


def deadlocks_of(handle):
    handle.dataflow_deadlocks.restype = ctypes.c_int64
    return handle.dataflow_deadlocks()


# ---------------------------------------------------------------- a region of its own


def test_a_region_runs_through_at_its_depth_and_stands_still_below(regions, snapshot):
    before = deadlocks_of(regions)
    code, out = called(regions.pairs_7, 800, 800)
    assert code == 0
    assert np.array_equal(out, 4 * np.arange(800))
    assert deadlocks_of(regions) == before

    code, out = called(regions.pairs_6, 800, 800)
    assert code == FAULT
    assert deadlocks_of(regions) == before + 1
    assert regions.objects_alive() == 0
    snapshot(report_of(regions))


@settings(max_examples=examples(60), deadline=None)
@given(block=st.integers(1, 40), blocks=st.integers(1, 5), depth=st.integers(1, 60))
def test_any_depth_that_is_enough_gives_the_same_results(regions, block, blocks, depth):
    """One item waits in `join` and not in the FIFO, so a block needs one place less."""
    n = block * blocks
    regions.dataflow_set_depth(ctypes.c_int64(depth))
    try:
        code, out = called(regions.pairs, n, n, block)
    finally:
        regions.dataflow_set_depth(ctypes.c_int64(0))
    assert code == (0 if depth >= block - 1 else FAULT)
    if code == 0:
        assert np.array_equal(out, 4 * np.arange(n))


def test_a_region_within_a_process(regions):
    code, out = called(regions.nested, 80, 80, 0)
    assert code == 0
    assert np.array_equal(out, 2 * np.arange(80))


def test_a_region_within_a_process_that_stands_still(regions, snapshot):
    code, out = called(regions.nested, 80, 80, 1)
    assert code == FAULT
    assert np.array_equal(out, 2 * np.arange(80))
    assert regions.objects_alive() == 0
    snapshot(report_of(regions))


@pytest.mark.parametrize("within", [0, 1])
@pytest.mark.parametrize("after", [0, 1, 30])
def test_what_a_process_throws_comes_out_of_the_region(regions, after, within):
    before = deadlocks_of(regions)
    assert regions.throws(after, within) == 0
    assert regions.objects_alive() == 0
    assert deadlocks_of(regions) == before


def test_items_that_nobody_reads_are_a_fault(regions, snapshot):
    before = regions.dataflow_leftovers()
    assert called(regions.leaves_items, 40, 40, 0)[0] == 0
    code, out = called(regions.leaves_items, 40, 40, 3)
    assert code == FAULT
    assert np.array_equal(out, np.arange(40))
    assert regions.dataflow_leftovers() == before + 1
    snapshot(report_of(regions))


def test_two_readers_of_a_fifo_are_refused(regions):
    assert called(regions.reads_twice, 2)[0] == 1


def test_a_process_alone_has_streams_without_a_limit(regions):
    code, out = called(regions.alone, 100, 100)
    assert code == 0
    assert np.array_equal(out, np.arange(100))


def test_a_stream_of_the_caller_belongs_to_no_region(regions):
    assert called(regions.beside_another, 80, 80)[0] == 0


@pytest.mark.parametrize("build", ["fast", "strict"])
def test_regions_under_sanitisers_from_two_threads(require_tool, tmp_path, build):
    require_tool("hls_headers")
    sanitize = read_flags(kernel_root() / "common.mk")["CSIM_SANITIZE"]
    program = compiled(tmp_path, "regions", *sanitize, build=build)
    finished = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.startswith("PASS: ")
    assert re.findall(r"\d+", finished.stdout) == ["0", "0", "200"]


# ---------------------------------------------------------------- the kernels


def test_a_kernel_with_a_fifo_too_shallow_ends_its_bench(require_tool, tmp_path):
    require_tool("make")
    root = tmp_path / "hls_kernels"
    shutil.copytree(kernel_root(), root, ignore=shutil.ignore_patterns("rtl", "lint", "*.json"))
    source = root / "score_aggregator" / "score_aggregator.cpp"
    # A row waits in this FIFO until its maximum is known.
    text, n = re.subn(
        r"(hls::stream<word_t, )ROW_WORDS(> scaled\()", r"\g<1>8\2", source.read_text()
    )
    assert n == 1
    source.write_text(text)
    command = ["make", "-s", "-C", str(root / "score_aggregator"), "tb", "BUILD=fast"]
    finished = subprocess.run(
        [*command, f"PYTHON={sys.executable}", f"BUILD_DIR={tmp_path / 'build'}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode != 0
    assert "PASS" not in finished.stdout
    assert "region score_aggregator: " in finished.stderr
    assert "FIFO scaled" in finished.stderr
    assert "FIFO tops" in finished.stderr
    assert "scaled 8/8" in finished.stderr


def test_a_kernel_gives_the_same_at_every_depth_that_is_enough(as_declared):
    lib = GemmLibrary.load("fast")
    rng = np.random.default_rng(5)
    a, w = (rng.integers(-128, 128, (n, 300)).astype(np.int8) for n in (130, 77))
    packed, wanted = lib.pack(w), a.astype(np.int32) @ w.T.astype(np.int32)
    runs = []
    assert lib.use_path("kernel")
    try:
        for depth in [*(1 << i for i in range(11)), 0]:  # 0: as declared
            as_declared(lib.handle, depth)
            try:
                assert np.array_equal(lib.gemm(a, packed), wanted)
                runs.append(True)
            except DataflowError:
                runs.append(False)
    finally:
        lib.use_path("auto")
    assert runs == sorted(runs)
    assert runs[-1]
    assert not runs[0]


def test_the_library_raises_a_deadlock_and_goes_on(tmp_path, as_declared):
    lib, model = library("fast"), decoder(saved_decoder(tmp_path, "llama64"))
    rows = [np.random.default_rng(n).integers(0, VOCAB, n) for n in (70, 20)]
    wanted, before = model.score(rows, [30, 10]), lib.deadlocks
    with kernels_chosen(lib):
        as_declared(lib.handle, 1)
        with pytest.raises(DataflowError) as raised:
            model.score(rows, [30, 10])
        assert isinstance(raised.value, EngineError)
        assert "1/1 (full)" in str(raised.value)
        assert str(raised.value) == lib.dataflow_report()
        assert lib.deadlocks > before
        as_declared(lib.handle, 0)
        before = lib.deadlocks
        assert same(model.score(rows, [30, 10]), wanted)
    assert lib.deadlocks == before
    assert lib.leftovers == 0
