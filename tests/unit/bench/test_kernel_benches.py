"""What the benchmark of the kernels makes of their benches, and the designs on paper."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from ecorl.devices import load_profile
from ecorl.errors import BuildError, MissingToolError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def finishing(benches, monkeypatch, code, text):
    done = SimpleNamespace(returncode=code, stdout=text, stderr="")
    monkeypatch.setattr(benches, "subprocess", SimpleNamespace(run=lambda *_, **__: done))


def test_a_bench_that_stands_still_is_a_deadlock(script, monkeypatch):
    benches = script("kernel_benches")
    report = "region vector_ops: no process can go on\n  load_rows waits for room in records 16/16"
    finishing(benches, monkeypatch, 1, report)
    assert all(run.is_deadlocked and not run.passed for run in benches.run_benches())
    finishing(benches, monkeypatch, 0, "PASS")
    runs = benches.run_benches()
    assert [run.kernel for run in runs] == list(benches.KERNELS)
    assert not any(run.is_deadlocked for run in runs)


def test_a_bench_with_wrong_results_is_no_deadlock_and_no_figure(script, monkeypatch):
    benches = script("kernel_benches")
    finishing(benches, monkeypatch, 1, "FAIL gemm_int8: 3 wrong results")
    with pytest.raises(BuildError, match="3 wrong results"):
        benches.run_benches()


def test_recurrences_are_missing_where_clang_19_is(script, monkeypatch):
    kernels = script("kernels")

    def absent():
        raise MissingToolError("clang++-19 is not on this machine")

    monkeypatch.setattr(kernels, "time_loops", absent)
    figure = kernels._least_ii()
    assert (figure.id, figure.value) == ("kernel.least_ii_misses", None)
    assert "clang++-19 is not on this machine" in str(figure)
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
    now, hidden, doubled = script("kernel_designs").designs(model, profile, 512)
    macs = 512 * 32 * (4 * 4096**2 + 3 * 4096 * 11008)  # the last layer computes a little less
    assert hidden.time_s > 0.95 * macs / 4096 / 245e6
    assert doubled.time_s > 0.95 * macs / 8192 / 245e6
    assert now.time_s > hidden.time_s > doubled.time_s
    assert doubled.n_dsp == hidden.n_dsp + 2048 == now.n_dsp + 2048
    # A second array halves the time at twice the power.
    assert doubled.tokens_per_j == pytest.approx(hidden.tokens_per_j, rel=0.03)
