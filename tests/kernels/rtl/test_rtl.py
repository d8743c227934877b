"""The array as RTL under Verilator: cycle by cycle and bit by bit what NumPy's integers say."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.csim.library import MAX_K, TILE_K
from ecorl.engines.fpga.cycles.kernels import depth

RTL = kernel_root() / "rtl"
ROW_PAIRS, COLUMNS = 4, 4
ROWS = 2 * ROW_PAIRS
GROUPS = ROWS // COLUMNS
FIFO_DEPTH = 512
SUM_DELAY = TILE_K + 2
"""Cycles from lane 0 of a step to its sum, as packed_pe.sv says."""
CYCLE = np.dtype(
    [("act", "<i4", TILE_K), ("weight", "i1", TILE_K), ("valid", "u1"), ("clear", "u1")]
)


@pytest.fixture(scope="module")
def benches(tmp_path_factory):
    """Both benches, built once; None without the tools (`_gate` then ends the test)."""
    if any(shutil.which(tool) is None for tool in ("verilator", "g++", "make")):
        return None
    folder = tmp_path_factory.mktemp("rtl")
    sizes = [f"BENCH_ROW_PAIRS={ROW_PAIRS}", f"BENCH_COLUMNS={COLUMNS}"]
    command = ["make", "-s", "-C", str(RTL), "verilate", f"BUILD_DIR={folder}", *sizes]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return folder


@pytest.fixture(autouse=True)
def _gate(require_tool):
    for tool in ("verilator", "gxx", "make"):
        require_tool(tool)


def run_bench(program: Path, data: bytes, folder: Path, seed: int) -> bytes:
    """What the bench writes; `seed` gives the registers' first values."""
    given, answer = folder / "in.bin", folder / "out.bin"
    given.write_bytes(data)
    command = [str(program), str(given), str(answer), str(seed + 1)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return answer.read_bytes()


# ---- one element -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """Steps of one row pair and one column: values of k [steps, TILE_K], and tiles' beginnings."""

    low: np.ndarray
    high: np.ndarray
    weight: np.ndarray
    clear: np.ndarray

    def sums(self) -> np.ndarray:
        """Both accumulators after each step, [steps, 2] int64."""
        weight = self.weight.astype(np.int64)
        products = np.stack([(self.low * weight).sum(1), (self.high * weight).sum(1)], axis=1)
        totals = np.cumsum(products, axis=0)
        tile = np.flatnonzero(self.clear)[np.cumsum(self.clear) - 1]
        return totals - totals[tile] + products[tile]


def make_steps(values, tiles, rng) -> Steps:
    """Tiles of the given numbers of steps; `values` draws an int8 array of a shape."""
    n = sum(tiles)
    clear = np.zeros(n, dtype=np.int64)
    clear[np.cumsum([0, *tiles[:-1]])] = 1
    return Steps(*(values((n, TILE_K), rng) for _ in range(3)), clear)


def play(benches, folder, steps: Steps, at, seed):
    """Drive the steps in cycles `at`, anything elsewhere; accumulators after every cycle [n, 2]."""
    rng = np.random.default_rng(seed)
    at = np.asarray(at)
    cycles = np.zeros(at[-1] + SUM_DELAY + 4, dtype=CYCLE)
    cycles["act"] = rng.integers(-(2**26), 2**26, cycles["act"].shape)
    cycles["weight"] = rng.integers(-128, 128, cycles["weight"].shape)
    cycles["clear"] = rng.integers(0, 2, len(cycles))
    for t in range(TILE_K):
        high, low = steps.high[:, t].astype(np.int32), steps.low[:, t].astype(np.int32)
        cycles["act"][at + t, t] = high * 2**18 + low
        cycles["weight"][at + t, t] = steps.weight[:, t]
    cycles["valid"][at + SUM_DELAY] = 1
    cycles["clear"][at + SUM_DELAY] = steps.clear
    answer = run_bench(benches / "packed_pe" / "tb", cycles.tobytes(), folder, seed)
    found = np.frombuffer(answer, dtype="<i4").reshape(-1, 2)
    assert len(found) == len(cycles)
    return found


def assert_exact(found, steps: Steps, at):
    """Each step's sums appear SUM_DELAY cycles after it and stay until the next step's."""
    seen = np.asarray(at) + SUM_DELAY
    expected = np.repeat(steps.sums(), np.diff([*seen, len(found)]), axis=0)
    np.testing.assert_array_equal(found[seen[0] :].astype(np.int64), expected)


def any_value(shape, rng):
    return rng.integers(-128, 128, shape).astype(np.int8)


def all_min(shape, rng):
    return np.full(shape, -128, dtype=np.int8)


def extremes(shape, rng):
    return rng.choice(np.array([-128, 127], dtype=np.int8), shape)


def near_zero(shape, rng):
    """Low results around the borrow: sums of -1, 0 and 1 come often."""
    return rng.choice(np.array([-1, 0, 1], dtype=np.int8), shape)


@pytest.mark.parametrize("values", [any_value, all_min, extremes, near_zero])
@pytest.mark.parametrize("tiles", [[1], [1, 1, 2, 5, 64], [300, 7]], ids=str)
def test_element_is_exact(benches, tmp_path, values, tiles):
    rng = np.random.default_rng(len(tiles))
    steps = make_steps(values, tiles, rng)
    at = np.arange(sum(tiles))
    assert_exact(play(benches, tmp_path, steps, at, seed=1), steps, at)


def test_element_at_every_pair_of_extremes(benches, tmp_path):
    """low, high and weight each at -128, -1, 0, 1, 127, in all 125 combinations."""
    ends = np.array([-128, -1, 0, 1, 127], dtype=np.int8)
    grid = np.stack(np.meshgrid(ends, ends, ends), axis=-1).reshape(-1, 3)
    low, high, weight = (np.repeat(grid[:, i : i + 1], TILE_K, axis=1) for i in range(3))
    steps = Steps(low, high, weight, np.ones(len(grid), dtype=np.int64))
    at = np.arange(len(grid))
    assert_exact(play(benches, tmp_path, steps, at, seed=2), steps, at)


@pytest.mark.parametrize("seed", range(6))
def test_element_with_pauses(benches, tmp_path, seed):
    """Steps at random distances and tiles of random length, anything in between."""
    rng = np.random.default_rng(seed)
    tiles = [int(n) for n in rng.integers(1, 40, 12)]
    steps = make_steps(any_value if seed % 2 else extremes, tiles, rng)
    at = np.cumsum(rng.choice([1, 1, 1, 2, 9], len(steps.clear)))
    assert_exact(play(benches, tmp_path, steps, at, seed), steps, at)


@pytest.mark.parametrize("values", [all_min, extremes])
def test_element_over_the_longest_k(benches, tmp_path, values):
    n = MAX_K // TILE_K
    steps = make_steps(values, [n, 3], np.random.default_rng(3))
    at = np.arange(n + 3)
    found = play(benches, tmp_path, steps, at, seed=3)
    assert_exact(found, steps, at)
    if values is all_min:
        assert found[n - 1 + SUM_DELAY].tolist() == [MAX_K * 2**14] * 2


# ---- the array -------------------------------------------------------------------------------

RUN, WEIGHT, FILL = 1, 2, 4
ALWAYS = (RUN | WEIGHT | FILL,)


@dataclass(frozen=True)
class Played:
    """What came out of the array: c [rows, columns], and the bench's counts."""

    c: np.ndarray
    cycles: int
    steps: int
    words_before: int


def play_array(benches, folder, a, w, pattern=ALWAYS, seed=0) -> Played:
    """Multiply a [m, k] and w [n, k] whose sizes are whole blocks, tiles and steps."""
    blocks, tiles, steps = len(a) // ROWS, len(w) // COLUMNS, a.shape[1] // TILE_K
    in_order = a.reshape(blocks, GROUPS, COLUMNS, steps, TILE_K).transpose(0, 1, 3, 2, 4)
    weights = w.reshape(tiles, COLUMNS, steps, TILE_K).transpose(0, 2, 1, 3)
    data = np.array([blocks, tiles, steps, len(pattern)], dtype="<i4").tobytes()
    data += bytes(pattern) + in_order.tobytes() + weights.tobytes() * blocks
    answer = run_bench(benches / "pe_array" / "tb", data, folder, seed)
    numbers = np.frombuffer(answer, dtype="<i4")
    sums = numbers[:-3].reshape(blocks, tiles, ROWS, COLUMNS).transpose(0, 2, 1, 3)
    return Played(sums.reshape(len(a), len(w)), *(int(n) for n in numbers[-3:]))


def product(a, w):
    return a.astype(np.int64) @ w.astype(np.int64).T


@pytest.mark.parametrize(
    ("blocks", "tiles", "steps"), [(1, 1, 1), (3, 2, 1), (2, 3, 5), (4, 1, 33)]
)
@pytest.mark.parametrize("values", [any_value, all_min, extremes])
def test_array_is_exact(benches, tmp_path, values, blocks, tiles, steps):
    rng = np.random.default_rng(blocks)
    a = values((blocks * ROWS, steps * TILE_K), rng)
    w = values((tiles * COLUMNS, steps * TILE_K), rng)
    played = play_array(benches, tmp_path, a, w)
    np.testing.assert_array_equal(played.c, product(a, w))
    assert played.steps == blocks * tiles * steps


def test_array_takes_a_step_a_cycle(benches, tmp_path):
    """One block at full speed: nothing but the pipeline's depth comes on top of the steps."""
    rng = np.random.default_rng(4)
    a, w = any_value((ROWS, 80), rng), any_value((9 * COLUMNS, 80), rng)
    played = play_array(benches, tmp_path, a, w)
    np.testing.assert_array_equal(played.c, product(a, w))
    # The last step's tile is there a cycle before the end of the latency, in which it is taken.
    assert played.cycles == 9 * 20 + depth("array") - 1


def test_the_latencies_that_the_cycle_model_reads():
    operands = 2  # a read of the banks, and packing
    assert depth("mac") == SUM_DELAY + 1
    assert depth("array") == operands + depth("mac")


@pytest.mark.parametrize("seed", range(5))
def test_array_waits_and_loses_nothing(benches, tmp_path, seed):
    """The array, the weights and the activations each pause at random."""
    rng = np.random.default_rng(seed)
    blocks, tiles, steps = (int(n) for n in rng.integers(1, 6, 3))
    a = any_value((blocks * ROWS, steps * TILE_K), rng)
    w = any_value((tiles * COLUMNS, steps * TILE_K), rng)
    shares = rng.uniform(0.2, 0.9, 3)
    pattern = [sum(bool(rng.random() < s) << i for i, s in enumerate(shares)) for _ in range(997)]
    played = play_array(benches, tmp_path, a, w, pattern, seed)
    np.testing.assert_array_equal(played.c, product(a, w))


def test_weight_fifo_holds_its_depth_and_refuses_more(benches, tmp_path):
    rng = np.random.default_rng(5)
    a, w = any_value((ROWS, 280), rng), any_value((10 * COLUMNS, 280), rng)
    pattern = [WEIGHT | FILL] * 900 + [RUN | WEIGHT | FILL] * 5000
    played = play_array(benches, tmp_path, a, w, pattern)
    assert played.words_before == FIFO_DEPTH < 10 * 70
    np.testing.assert_array_equal(played.c, product(a, w))


def test_array_over_the_longest_k(benches, tmp_path):
    a = np.full((2 * ROWS, MAX_K), -128, dtype=np.int8)
    w = np.full((COLUMNS, MAX_K), -128, dtype=np.int8)
    a[1::2, 1::2] = 127
    played = play_array(benches, tmp_path, a, w)
    np.testing.assert_array_equal(played.c, product(a, w))
    assert int(played.c.max()) == MAX_K * 2**14


def test_no_warning_of_verilator():
    finished = subprocess.run(
        ["make", "-s", "-C", str(RTL), "lint"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
