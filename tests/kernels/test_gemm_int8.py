"""gemm_int8: every build and every path against NumPy's 64-bit sums, bit for bit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecorl.engines.fpga.csim import library as gemm_module
from ecorl.engines.fpga.csim.library import CsimLibrary, GemmCounts, gemm_counts
from ecorl.errors import BuildError
from tests.examples import examples
from tests.fakes.gemm_library import GemmLibrary

PATHS = ("kernel", "portable", "avx2", "vnni", "amx")
VNNI = {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"}
CPU_FLAGS = {"avx2": {"avx2"}, "vnni": VNNI, "amx": {*VNNI, "amx_tile", "amx_int8"}}
GUARD = -0x5A5A5A5A

SMALL = [(1, 1, 1), (1, 1, 5), (1, 40, 3), (12, 12, 32), (3, 5, 7), (64, 16, 4), (65, 17, 9)]
SHAPES = [*SMALL, (130, 33, 70), (97, 64, 64), (7, 129, 31), (13, 48, 12), (200, 1, 65)]


@pytest.fixture(scope="module")
def fast() -> GemmLibrary:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not on this machine")
    return GemmLibrary.load("fast")


@pytest.fixture(scope="module")
def strict() -> GemmLibrary:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not on this machine")
    return GemmLibrary.load("strict")


@pytest.fixture(autouse=True)
def _gate(require_tool, request):
    if {"fast", "strict"} & set(request.fixturenames):
        require_tool("gxx")
    if "strict" in request.fixturenames:
        require_tool("hls_headers")


@pytest.fixture(params=PATHS)
def on_path(request, fast):
    """The fast library with one path forced."""
    if not fast.use_path(request.param):
        assert request.param in CPU_FLAGS, "the portable paths are always there"
        pytest.skip(f"this CPU has no {request.param}")
    yield fast
    assert fast.use_path("auto")


def matrices(m: int, n: int, k: int, fill: str = "random", seed: int = 0):
    rng = np.random.default_rng([seed, m, n, k])
    a = rng.integers(-128, 128, (m, k), dtype=np.int8)
    w = rng.integers(-128, 128, (n, k), dtype=np.int8)
    if fill == "all_min":
        a[:], w[:] = -128, -128
    elif fill == "min_max":
        a[:], w[:] = 127, -128
    elif fill == "half":  # neighbouring rows of A of opposite sign: the borrow of a packed pair
        a[0::2], a[1::2], w[:] = -128, 127, 127
    return a, w


def golden(a, w):
    return a.astype(np.int64) @ w.astype(np.int64).T


def guarded_gemm(library: GemmLibrary, a, w):
    """The product, written into the middle of a larger buffer whose edges must stay."""
    shape, edge = (a.shape[0], w.shape[0]), 64
    buffer = np.full(shape[0] * shape[1] + 2 * edge, GUARD, dtype=np.int32)
    out = buffer[edge:-edge].reshape(shape)
    result = library.gemm(a, library.pack(w), out)
    assert result is out
    assert (buffer[:edge] == GUARD).all()
    assert (buffer[-edge:] == GUARD).all()
    return out


@pytest.mark.parametrize("fill", ["random", "all_min", "min_max", "half"])
@pytest.mark.parametrize("shape", SMALL)
def test_strict_is_exact(strict, shape, fill):
    a, w = matrices(*shape, fill)
    np.testing.assert_array_equal(guarded_gemm(strict, a, w), golden(a, w))


@pytest.mark.parametrize("fill", ["random", "all_min", "min_max", "half"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_fast_path_is_exact(on_path, shape, fill):
    a, w = matrices(*shape, fill)
    np.testing.assert_array_equal(guarded_gemm(on_path, a, w), golden(a, w))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 230), st.integers(1, 150), st.integers(1, 200), st.integers(0, 2**31))
def test_fast_is_exact_for_any_shape(fast, m, n, k, seed):
    a, w = matrices(m, n, k, seed=seed)
    expected = golden(a, w)
    for path in PATHS[1:]:
        if fast.use_path(path):
            np.testing.assert_array_equal(fast.gemm(a, fast.pack(w)), expected)
    fast.use_path("auto")


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 70), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**31))
def test_strict_equals_fast_for_any_shape(fast, strict, m, n, k, seed):
    a, w = matrices(m, n, k, seed=seed)
    np.testing.assert_array_equal(fast.gemm(a, fast.pack(w)), strict.gemm(a, strict.pack(w)))


def test_longest_k_at_full_range(on_path):
    a, w = matrices(2, 3, gemm_module.MAX_K, "all_min")
    assert (on_path.gemm(a, on_path.pack(w)) == 2**14 * gemm_module.MAX_K).all()


def test_model_sized_product(fast):
    a, w = matrices(1000, 384, 512)
    expected = a.astype(np.float64) @ w.astype(np.float64).T  # exact: far below 2^53
    np.testing.assert_array_equal(fast.gemm(a, fast.pack(w)), expected)


def test_results_do_not_depend_on_batch_mates(on_path):
    a, w = matrices(150, 70, 50)
    packed = on_path.pack(w)
    whole = on_path.gemm(a, packed)
    for rows in (slice(0, 1), slice(3, 20), slice(149, 150)):
        np.testing.assert_array_equal(on_path.gemm(a[rows], packed), whole[rows])


@pytest.mark.parametrize("shape", [(5, 12, 12, 32), (3, 1, 7, 5), (2, 20, 33, 6)])
def test_batched_equals_single(on_path, shape):
    batch, m, n, k = shape
    rng = np.random.default_rng(1)
    a = rng.integers(-128, 128, (batch, m, k), dtype=np.int8)
    w = rng.integers(-128, 128, (batch, n, k), dtype=np.int8)
    expected = np.stack([golden(x, y) for x, y in zip(a, w, strict=True)])
    np.testing.assert_array_equal(on_path.gemm_batched(a, w), expected)


def test_strict_batched(strict):
    rng = np.random.default_rng(2)
    a = rng.integers(-128, 128, (3, 4, 6), dtype=np.int8)
    w = rng.integers(-128, 128, (3, 5, 6), dtype=np.int8)
    expected = np.stack([golden(x, y) for x, y in zip(a, w, strict=True)])
    np.testing.assert_array_equal(strict.gemm_batched(a, w), expected)


def test_strided_input_is_accepted(fast):
    a, w = matrices(40, 24, 36)
    np.testing.assert_array_equal(
        fast.gemm(a[::2, ::3], fast.pack(w[::2, ::3])), golden(a[::2, ::3], w[::2, ::3])
    )


@pytest.mark.parametrize(("n", "k"), [(16, 4), (17, 5), (1, 1), (40, 10)])
def test_tile_order(fast, strict, n, k):
    _, w = matrices(1, n, k)
    padded = np.zeros((-(-n // 16) * 16, -(-k // 4) * 4), dtype=np.int8)
    padded[:n, :k] = w
    words = padded.reshape(-1, 16, padded.shape[1] // 4, 4).transpose(0, 2, 1, 3)
    for library in (fast, strict):
        packed = library.pack(w)
        assert (packed.n, packed.k) == (n, k)
        np.testing.assert_array_equal(packed.data, words.ravel())
        assert packed.data.ctypes.data % 64 == 0


# ---- counters


@pytest.mark.parametrize(
    "shape", [*SMALL, (130, 33, 21), (200, 8, 64), (192, 16, 16), (200, 16, 400)]
)
def test_counters_equal_the_closed_form(fast, strict, shape):
    a, w = matrices(*shape)
    expected = gemm_counts(*shape)
    for library, path in ((strict, "kernel"), (fast, "kernel"), (fast, "auto")):
        assert library.use_path(path)
        library.reset_counters()
        library.gemm(a, library.pack(w))
        assert library.counters() == expected, path


def test_counts_of_a_known_shape():
    # 130 rows: blocks of 64, 64 and 2; 3 tiles of columns; 18 steps of k. A tile lasts 64 trips,
    # until the 64 rows of the one before have left: 46 of them without a product. The second block
    # brings four groups of 16 rows: 72 words in the 192 trips of the first block's work.
    assert gemm_counts(130, 33, 70) == GemmCounts(
        calls=1,
        tiles=9,
        mac_cycles=9 * 18,
        fill_cycles=4 * 18 + 8,
        drain_cycles=9 * 46 + 2,
        bytes_a=9 * 18 * 64,
        bytes_w=3 * 3 * 18 * 64,
        bytes_c=3 * 130 * 64,
        macs=130 * 33 * 70,
    )


def test_a_narrow_product_waits_for_the_activations_of_the_next_block():
    # 200 rows, one tile of columns, 100 steps: blocks of 64 rows bring 400 words each, of which 100
    # come in beside the work; the last one, of 8 rows, brings 100, and settles after them.
    counts = gemm_counts(200, 16, 400)
    assert (counts.tiles, counts.mac_cycles) == (4, 400)
    assert counts.fill_cycles == (400 + 8) + 2 * (400 + 8 - 100) + (100 + 8 - 100)
    assert counts.drain_cycles == 8


@given(st.integers(1, 500), st.integers(1, 300), st.integers(1, 300))
def test_the_array_never_does_more_than_its_peak(m, n, k):
    counts = gemm_counts(m, n, k)
    assert counts.macs <= counts.mac_cycles * gemm_module.TILE_M * 16 * 4
    assert all(value >= 1 for value in asdict(counts).values())


def test_counters_add_up_over_a_batch(fast):
    one = gemm_counts(12, 12, 32)
    fast.reset_counters()
    fast.gemm_batched(np.ones((7, 12, 32), np.int8), np.ones((7, 12, 32), np.int8))
    assert asdict(fast.counters()) == {name: 7 * v for name, v in asdict(one).items()}


# ---- threads


@pytest.mark.parametrize("path", ["kernel", "auto"])
def test_concurrent_calls(fast, path):
    assert fast.use_path(path)
    problems = [matrices(70 + i, 40, 30 + i, seed=i) for i in range(24)]
    fast.reset_counters()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda p: fast.gemm(p[0], fast.pack(p[1])), problems))
    for (a, w), result in zip(problems, results, strict=True):
        np.testing.assert_array_equal(result, golden(a, w))
    assert fast.counters().calls == 24
    assert fast.counters().macs == sum(a.size * w.shape[0] for a, w in problems)
    fast.use_path("auto")


# ---- choice of path


def test_strict_knows_only_the_kernel(strict):
    assert strict.path_in_use == "kernel"
    assert not strict.use_path("portable")
    assert not strict.use_path("vnni")
    assert strict.use_path("auto")
    assert strict.path_in_use == "kernel"


def test_automatic_choice_is_the_best_of_this_cpu(fast):
    fast.use_path("auto")
    flags: set[str] = set()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        flags = {word for line in lines if line.startswith("flags") for word in line.split()}
    best = next((p for p in ("amx", "vnni", "avx2") if CPU_FLAGS[p] <= flags), "portable")
    assert fast.path_in_use == best


@pytest.mark.parametrize("name", ["portable", "kernel", "no-such-path"])
def test_environment_sets_the_initial_path(fast, name):
    code = (
        "import sys; from pathlib import Path; "
        "from tests.fakes.gemm_library import GemmLibrary; "
        "print(GemmLibrary(Path(sys.argv[1])).path_in_use)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, str(fast.path)],
        env={**os.environ, "ECORL_GEMM_PATH": name},
        capture_output=True,
        text=True,
        check=True,
    )
    fast.use_path("auto")
    assert finished.stdout.strip() == (fast.path_in_use if name == "no-such-path" else name)


# ---- the wrapper's refusals


def test_a_weight_that_cannot_be_packed_is_refused(fast):
    _, w = matrices(4, 6, 8)
    for wrong, told in (
        (w.astype(np.int16), "int8"),
        (w[0], "2"),
        (w[:0], "at least 1"),
        (np.zeros((1, gemm_module.MAX_K + 1), np.int8), "at most"),
    ):
        with pytest.raises(ValueError, match=told):
            fast.pack(wrong)


def test_a_file_that_is_no_library_is_refused(tmp_path):
    path = tmp_path / "broken.so"
    path.write_bytes(b"not an ELF file")
    with pytest.raises(BuildError, match=r"broken\.so"):
        CsimLibrary(path)
