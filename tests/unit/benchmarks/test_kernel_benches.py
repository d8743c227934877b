"""What the benchmark of the kernels makes of their benches, and the designs on paper."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from ecorl.devices import load_profile
from ecorl.errors import BuildError, MissingToolError
from tests.kernels.kernel_designs import designs

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def finishing(benches, monkeypatch, code, text):
    done = SimpleNamespace(returncode=code, stdout=text, stderr="")
    monkeypatch.setattr(benches, "subprocess", SimpleNamespace(run=lambda *_, **__: done))


def test_a_bench_that_stands_still_is_a_deadlock(script, monkeypatch):
    benches = script("kernel_checks")
    report = "region vector_ops: no process can go on\n  load_rows waits for room in records 16/16"
    finishing(benches, monkeypatch, 1, report)
    assert all(run.is_deadlocked and not run.passed for run in benches.run_benches("fast"))
    finishing(benches, monkeypatch, 0, "PASS")
    runs = benches.run_benches("fast")
    assert [run.kernel for run in runs] == list(benches.KERNELS)
    assert not any(run.is_deadlocked or run.is_too_close for run in runs)


def test_a_dependence_that_is_too_close_is_counted(script, monkeypatch):
    kernels, benches = script("kernels"), script("kernel_checks")
    monkeypatch.setattr(kernels, "ap_headers", lambda: ROOT)
    finishing(benches, monkeypatch, 134, "LOOP: block, element 0, distance 1; stated: 4; shape")
    deadlocks, too_close = kernels._benches()
    assert (deadlocks.value, deadlocks.holds) == (0, True)
    assert (too_close.value, too_close.holds) == (len(benches.KERNELS), False)
    finishing(benches, monkeypatch, 0, "PASS")
    assert [figure.value for figure in kernels._benches()] == [0, 0]


def test_without_the_headers_of_ap_int_nobody_looks_at_dependences(script, monkeypatch):
    kernels, benches = script("kernels"), script("kernel_checks")

    def headers():
        raise MissingToolError("no headers")

    monkeypatch.setattr(kernels, "ap_headers", headers)
    finishing(benches, monkeypatch, 0, "PASS")
    deadlocks, too_close = kernels._benches()
    assert deadlocks.value == 0
    assert too_close.value is None


def test_a_bench_with_wrong_results_is_no_deadlock_and_no_figure(script, monkeypatch):
    benches = script("kernel_checks")
    finishing(benches, monkeypatch, 1, "FAIL gemm_int8: 3 wrong results")
    with pytest.raises(BuildError, match="3 wrong results"):
        benches.run_benches("strict")


def test_recurrences_are_missing_where_clang_19_is(script, monkeypatch):
    kernels = script("kernels")

    def absent():
        raise MissingToolError("clang++-19 is not on this machine")

    monkeypatch.setattr(kernels, "time_loops", absent)
    figure = kernels._least_ii()
    assert (figure.id, figure.value) == ("kernel.least_ii_misses", None)
    assert "clang++-19" in str(figure)
    loops = [
        SimpleNamespace(
            delay_ns=ns, source=SimpleNamespace(ii=1), period_ns=2.98, is_missed=ns > 2.98
        )
        for ns in (1.0, 3.5)
    ]
    monkeypatch.setattr(kernels, "time_loops", lambda: loops)
    assert kernels._least_ii().value == 1


def test_designs_on_paper_are_bounded_by_their_products(script):
    model, profile = script("kernels").LLAMA_2_7B, load_profile("u55c")
    now, hidden, doubled = designs(model, profile, 512)
    macs = 512 * 32 * (4 * 4096**2 + 3 * 4096 * 11008)  # the last layer computes a little less
    assert hidden.time_s > 0.95 * macs / 4096 / 245e6
    assert doubled.time_s > 0.95 * macs / 8192 / 245e6
    assert now.time_s > hidden.time_s > doubled.time_s
    assert doubled.n_dsp == hidden.n_dsp + 2048 == now.n_dsp + 2048
    # A second array halves the time at twice the power.
    assert doubled.tokens_per_j == pytest.approx(hidden.tokens_per_j, rel=0.03)
