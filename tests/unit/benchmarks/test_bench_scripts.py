"""The figures that the benchmark scripts make of known measurements."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.studies.demo_run import DemoRun
from ecorl.engines.fpga.estimate import standing_of_kernels
from ecorl.errors import EngineError
from ecorl.report.model import PairedGain, RankFlips

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def script(monkeypatch, require_tool):
    monkeypatch.syspath_prepend(str(ROOT))

    def load(name):
        require_tool("trl")
        return importlib.import_module(f"benchmarks.{name}")

    return load


def by_id(figures):
    assert len({f.id for f in figures}) == len(figures)
    return {f.id: f for f in figures}


def gain(name, before, value, error):
    return PairedGain(name, "before", "after", before, before + value, value, error, 256, None)


def demo_run(seed, before=0.2, value=0.3, error=0.03, **kwargs):
    gains = {n: gain(n, before, value, error) for n in ("reward", "correct")}
    flips = RankFlips("held_out", 2048, 20, 0.01, (0.006, 0.015), 0, None, None, None)
    fields = {"run_s": 60.0 + seed, "train_s": 20.0, "wait_s": 1.0, "n_faults": 0}
    return DemoRun(seed=seed, gains=gains, flips=flips, **(fields | kwargs))


def demo_figures(script, monkeypatch, runs, box_s=None):
    demo = script("demo")
    left = iter(runs)
    monkeypatch.setattr(demo, "run_demo", lambda seed, folder: next(left))
    monkeypatch.setattr(demo, "SEEDS", tuple(run.seed for run in runs))
    options = SimpleNamespace(quick=False, install=False, long=False, box_s=box_s)
    return by_id(demo.measure(options)[1])


def test_demo_takes_the_worst_seed(script, monkeypatch):
    runs = [demo_run(1), demo_run(2, before=0.29, value=0.1, error=0.05), demo_run(3)]
    figures = demo_figures(script, monkeypatch, runs)
    assert figures["demo.run_s"].value == 61.0
    assert figures["demo.correct_gain_se"].value == pytest.approx(2.0)
    assert figures["demo.correct_gain_se"].holds is False
    assert figures["demo.reward_gain"].value == pytest.approx(0.1)
    assert figures["demo.correct_before"].value == pytest.approx(0.29)
    assert figures["demo.correct_before"].holds is True
    assert figures["demo.barrier_wait_share"].value == pytest.approx(0.05)
    assert figures["demo.rank_flip_share"].holds is True


def test_demo_warm_start_beyond_a_limit_falls_short(script, monkeypatch):
    runs = [demo_run(1), demo_run(2, before=0.02), demo_run(3)]
    figure = demo_figures(script, monkeypatch, runs)["demo.correct_before"]
    assert (figure.value, figure.holds) == (0.02, False)


def test_demo_takes_no_seed_that_its_time_has_no_room_for(script, monkeypatch):
    runs = [demo_run(1), demo_run(2, value=0.1), demo_run(3)]
    figure = demo_figures(script, monkeypatch, runs, box_s=30.0)["demo.reward_gain"]
    assert figure.value == pytest.approx(0.3)
    assert list(figure.spread) == ["1"]


def test_demo_without_a_figure_says_so(script, monkeypatch):
    runs = [demo_run(1), demo_run(2, error=None, wait_s=None)]
    figures = demo_figures(script, monkeypatch, runs)
    for id in ("demo.reward_gain_se", "demo.barrier_wait_share", "demo.install_s"):
        assert figures[id].value is None
        assert figures[id].note
    assert figures["demo.reward_gain"].value is not None


def block(overhead, step_s, hook_s=None, rewards=(1.0,), sampler_cpu_s=None):
    return overhead.Block(tuple(step_s), sum(step_s), hook_s, sampler_cpu_s, rewards)


def test_overhead_ratios_and_shares(script):
    overhead = script("overhead")
    plain = [block(overhead, (1.0, 3.0)) for _ in range(6)]
    plain[3] = block(overhead, (1.0, 5.0))
    attached = [block(overhead, (1.1, 3.3), 0.022, (1.0,), 0.044) for _ in range(6)]
    figures = by_id(overhead.figures_of(plain, attached, []))
    assert figures["overhead.step_ratio"].value == pytest.approx(1.1)
    assert figures["overhead.step_ratio_fastest"].value == pytest.approx(1.1)
    assert figures["overhead.plain_step_s"].value == pytest.approx(2.0)
    low = figures["overhead.step_ratio_low"]
    assert low.value <= 1.1
    assert figures["overhead.hook_share"].value == pytest.approx(0.005)
    assert figures["overhead.hook_share"].holds is True
    assert figures["overhead.sampler_cpu_share"].value == pytest.approx(0.01)
    assert figures["overhead.hook_share_offloaded"].value is None


def test_overhead_of_different_work_is_void(script):
    overhead = script("overhead")
    same = block(overhead, (1.0,))
    overhead._check_same_work([same, same])
    for other in ((1.0 + 1e-12,), (), (1.0, 1.0)):
        with pytest.raises(EngineError, match="different rewards"):
            overhead._check_same_work([same, block(overhead, (1.0,), rewards=other)])


def test_the_timed_window_leaves_out_the_first_and_the_last_step(script, monkeypatch):
    overhead = script("overhead")
    clock = SimpleNamespace(hook_s=0.0)
    cpu = iter((10.0, 10.5))
    monkeypatch.setattr(overhead, "_sampler_cpu_s", lambda: next(cpu))
    now = iter([0.0, 100.0, 101.0, 103.0, 106.0])
    monkeypatch.setattr(overhead.time, "perf_counter", lambda: next(now))
    stamps = overhead._Stamps(SimpleNamespace(runtime=SimpleNamespace(clock=clock)))
    bench = overhead._Bench(Path("unused"), 3)
    for _ in range(5):
        stamps.on_step_begin(None, SimpleNamespace(max_steps=5), None)
        clock.hook_s += 0.25
    found = bench._read(stamps)
    assert found.step_s == (1.0, 2.0, 3.0)
    assert found.hook_s == pytest.approx(0.75)
    assert found.sampler_cpu_s == pytest.approx(0.5)
    stamps.wall_s.pop()
    with pytest.raises(EngineError, match=r"3 steps .* 4"):
        bench._read(stamps)


def test_engine_ratio_is_void_when_an_arm_computes_something_else(script):
    engine = script("engine")
    times = {engine.OURS: [1.0] * 4, engine.ALL: [2.0] * 4, engine.ORT: [3.0] * 4,
             engine.TORCH: [6.0] * 4, engine.ORT_FP32: [4.0] * 4}  # fmt: skip
    good = {"correlation": 0.999, "error": 0.03}
    near = {engine.OURS: good, engine.ORT: good, engine.ORT_FP32: good}
    figures = by_id(engine._speed_figures(times, engine.FULL, near))
    assert figures["engine.fast_vs_ort"].value == pytest.approx(3.0)
    assert figures["engine.fast_vs_ort_all_positions"].value == pytest.approx(1.5)
    assert figures["engine.fast_vs_ort_fp32"].value == pytest.approx(4.0)
    assert figures["engine.fast_vs_torch_fp32"].value == pytest.approx(6.0)
    assert figures["engine.fast_tokens_per_s"].value == pytest.approx(32 * 256)
    near[engine.ORT] = {"correlation": 0.9, "error": 0.5}
    void = by_id(engine._speed_figures(times, engine.FULL, near))
    assert void["engine.fast_vs_ort"].value is None
    assert void["engine.ort_int8_error"].value == 0.5


def test_all_runs_each_in_its_own_process(script, monkeypatch):
    script("demo")
    everything = importlib.import_module("benchmarks.__main__")
    started = []

    limits = []

    def run(command, *, cwd, limit_s):
        started.append(command[1:])
        limits.append(limit_s)
        return 3 if command[2] == "benchmarks.overhead" else 0

    monkeypatch.setattr(everything, "run_to_end", run)
    assert everything.main(["--quick", "--check"]) == 3
    assert [c[1] for c in started] == [f"benchmarks.{n}" for n in everything.NAMES]
    boxes = [float(c[c.index("--box") + 1]) for c in started]
    assert all(c[2:4] == ["--quick", "--check"] and min(boxes) > 0 for c in started)
    # With what is built before, half of the time that all of them together have on a machine half
    # as fast: 600 s for ecorl's own parts, 550 s for adapters and controllers.
    apart = (
        "adapter", "carbon", "carbon_control", "paper_carbon", "placement_live", "policy",
        "tokens_per_joule", "trainer",
    )  # fmt: skip
    others = sum(everything.BOX_S[name] for name in apart)
    assert sum(boxes) - others <= everything.TIMEOUT_S / 4
    assert everything.BOX_S["carbon"] <= 25
    assert everything.BOX_S["carbon_control"] + everything.BOX_S["paper_carbon"] <= 90
    assert everything.BOX_S["adapter"] <= 550
    assert everything.BOX_S["trainer"] <= 75
    assert everything.BOX_S["tokens_per_joule"] <= 90
    assert everything.BOX_S["placement_live"] + everything.BOX_S["policy"] <= 120
    started.clear()
    assert all(limit <= everything.TIMEOUT_S for limit in limits)
    limits.clear()
    assert everything.main(["--long", "demo", "engine"]) == 0
    assert started[0] == ["-m", "benchmarks.demo", "--long"]
    assert limits == [None, everything.TIMEOUT_S]
    started.clear()
    assert everything.main(["demo"]) == 0
    assert started == [
        ["-m", "benchmarks.demo", "--install", "--box", str(everything.BOX_S["demo"])]
    ]
    started.clear()
    assert everything.main(["--long"]) == 3
    assert [c[1] for c in started][-1] == "benchmarks.policy_training"
    assert not any("--box" in c for c in started)
    with pytest.raises(SystemExit):
        everything.main(["speed"])


def test_kernel_figures_are_modelled_and_sum_the_declared_dsps(script, monkeypatch):
    kernels = script("kernels")
    declared = {"gemm_int8": 2048, "mha_int8": 1024, "vector_ops": None}
    monkeypatch.setattr(kernels, "declared_dsps", lambda: declared)
    monkeypatch.setattr(kernels, "declared_brams", lambda: {"gemm_int8": 1000, "mha_int8": None})
    monkeypatch.setattr(kernels, "_sources", list)
    config, found = kernels.measure(SimpleNamespace(quick=False))
    figures = by_id(found)
    assert config["standing"] == standing_of_kernels()
    assert {str(f.provenance) for f in found} == {"modelled"}
    assert figures["kernel.gemm_array_efficiency_ii1"].holds is True
    one, two = (figures[f"kernel.gemm_array_efficiency_ii{ii}"].value for ii in (1, 2))
    assert one / 2 <= two < 0.5
    assert figures["kernel.gemm_array_efficiency_one_channel"].value < one
    # Never above the array's peak: 4,096 products a cycle at 245 MHz.
    assert figures["kernel.tops_u55c"].value == pytest.approx(one * 2 * 4096 * 245e6 / 1e12)
    assert figures["kernel.modelled_tokens_per_s_7b"].value < 4096 * 245e6 / 6.4e9
    assert 3.2 < figures["kernel.forward_7b_512_s"].value < 4.2  # the products alone take 3.2
    at_73, at_100 = (f"kernel.modelled_tokens_per_j_7b{w}" for w in ("", "_100w"))
    assert figures[at_100].value == pytest.approx(0.73 * figures[at_73].value)
    assert figures["kernel.small_model_gain"].holds is True
    share, usable = figures["kernel.dsp_share_u55c"], figures["kernel.dsp_share_usable"]
    assert share.value == pytest.approx(3072 / 9024)
    assert usable.value == pytest.approx(3072 / 8304)
    assert "vector_ops" in share.note
    assert figures["kernel.bram_share_u55c"].value == pytest.approx(1000 / 4032)
    for resource in ("dsps", "brams"):
        monkeypatch.setattr(kernels, f"declared_{resource}", lambda: {"gemm_int8": None})
    figures = by_id(kernels.measure(SimpleNamespace())[1])
    assert figures["kernel.dsp_share_u55c"].value is None
    assert figures["kernel.bram_share_u55c"].value is None
