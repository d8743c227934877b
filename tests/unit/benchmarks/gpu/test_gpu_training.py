"""The training parts rehearsed whole: TRL on the CPU, energy of a fake GPU whose truth is known."""

from __future__ import annotations

import json
import math
import time
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu.run.setting import Setting
from tests.conftest import demand

POWER_W = 300.0
NEAR = 0.005
STEADY = ("devices 1", "base_mw 300000", "peak_mw 300000")
"""Stages take milliseconds: a power that is constant is the truth that can be told of them."""


@pytest.fixture(autouse=True)
def one_thread():
    demand("trl")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def steady_gpu(one_gpu):
    one_gpu.set(*STEADY)
    return one_gpu


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def rehearsed(folder, seconds=200.0):
    return Setting(folder, time.monotonic() + seconds, is_rehearsal=True)


def by_name(figures):
    assert len({f.id for f in figures}) == len(figures)
    return {f.id.partition(".")[2]: f for f in figures}


def assert_true(spans_s, energies_j):
    assert len(spans_s) == len(energies_j) > 0
    for (begin_s, end_s), energy_j in zip(spans_s, energies_j, strict=True):
        assert energy_j == pytest.approx(POWER_W * (end_s - begin_s), rel=NEAR)


# ---------------------------------------------------------------- training


@pytest.mark.slow
def test_a_training_has_equal_bits_and_the_joules_of_the_gpu(steady_gpu, out):
    from benchmarks.gpu import training

    config, figures = training.measure(rehearsed(out))
    json.dumps(config, allow_nan=False)
    found = by_name(figures)
    value = {name: f.value for name, f in found.items()}
    assert None not in value.values()
    assert value["idle_w"] == pytest.approx(POWER_W, rel=NEAR)

    assert value["equal_bits"] == 1
    equal = config["equal_bits"]
    assert equal["plain"] == equal["attached"]
    assert len(equal["plain"]) == training.EQUAL_STEPS
    assert {"loss", "reward", "grad_norm"} <= set(equal["plain"][0])
    assert len({row["reward"] for row in equal["plain"]}) == training.EQUAL_STEPS
    assert equal["without_fixed_order"] is None

    stages = config["stages"]
    assert_true(stages["spans_s"], [stages["energy_j"]])
    runs = [[begin, end] for _, _, begin, end, _, _ in stages["executions"]]
    assert_true(runs, [joules for *_, joules, _ in stages["executions"]])
    assert {how for *_, how in stages["executions"]} == {"counter"}
    parts = [value[f"{name}.energy_j"] for name in (*training.STAGES, "beside")]
    assert math.fsum(parts) == pytest.approx(value["step_energy_j"], rel=1e-9)
    shares = [value[f"{name}.energy_share"] for name in (*training.STAGES, "beside")]
    assert math.fsum(shares) == pytest.approx(1.0)
    per_token = [1.0 / value[f"{name}.tokens_per_j"] for name in training.STAGES]
    per_token.append(value["beside.energy_j"] / (4 * 8))  # tokens that a step generates
    assert math.fsum(per_token) == pytest.approx(1.0 / value["tokens_per_j"])

    attaching = config["attaching"]
    assert attaching["same_rewards"]
    for arm in ("plain", "attached"):
        assert_true(attaching[arm]["spans_s"], attaching[arm]["energy_j"])
    assert found["step_ratio"].spread["n"] == training.REHEARSED_PAIRS * training.BLOCK_STEPS

    assert [path.name for path in out.iterdir()] == [training.PAGE]
    assert "<svg" in (out / training.PAGE).read_text("utf-8")


def test_a_gpu_that_is_lost_leaves_gaps_and_no_zeros(one_gpu, tmp_path):
    from benchmarks.gpu import training

    calls = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues",
             "nvmlDeviceGetPowerUsage")  # fmt: skip
    setting, folder = rehearsed(tmp_path), tmp_path / "work"
    one_gpu.set(*STEADY)
    runs = training.GrpoTraining(setting, folder, training.FULL, torch.bfloat16)
    one_gpu.set(*STEADY, *(f"error {call} 15" for call in calls))
    _, figures = training.equal_bits(runs)
    assert figures[0].value == 1
    _, figures = training.stage_energies(runs)
    assert {f.value for f in figures} == {None}
    assert all(f.note for f in figures)


def test_without_time_what_is_left_out_says_so(tmp_path):
    from benchmarks.gpu import training

    runs = SimpleNamespace(has_room=lambda n_blocks: False, setting=rehearsed(tmp_path))
    for _, figures in (training.stage_energies(runs), no_pairs(training, runs)):
        assert {f.value for f in figures} == {None}
        assert {f.note for f in figures} == {training.NO_TIME}


def no_pairs(training, runs):
    class NoTracer:
        trace = SimpleNamespace(points={})

        def __init__(self, *args):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.gpu.attached.Tracer", NoTracer)
        return training.attaching_cost(runs, "GPU-0")


def test_a_section_that_fails_loses_its_own_figures_alone(tmp_path):
    from benchmarks.gpu import training
    from ecorl.errors import DriverError

    def fails(runs):
        raise DriverError("GPU is lost\nand more")

    runs = SimpleNamespace(setting=rehearsed(tmp_path))
    facts, (figure,) = training._guarded(fails, training.without_equal, runs)
    assert facts == {}
    assert (figure.value, figure.note) == (None, "DriverError: GPU is lost")


class GivenRuns:
    """Runs whose outcome is given, in the order in which they are asked for."""

    def __init__(self, folder, *outcomes, has_room=True):
        self.setting = rehearsed(folder, 200.0 if has_room else 0.0)
        self.closing_s, self._outcomes = 0.0, list(outcomes)

    def run(self, n_steps, config, name, *, weights=False):
        from benchmarks.gpu.loads.grpo import Run

        found = self._outcomes.pop(0)
        if isinstance(found, Exception):
            raise found
        return Run([{"loss": found}], [0.0, 1.0], [torch.tensor([found])], 0.0, 1.0)


@pytest.mark.parametrize(
    ("outcomes", "has_room", "value", "told"),
    [
        ((1.0, 1.0), True, 1.0, "equal"),
        ((1.0, 1.0 + 2**-52, 1.0), True, 0.0, "differ"),
        ((1.0, 2.0, 3.0), True, None, "so do two plain runs"),
        ((1.0, 2.0), False, None, "no time left"),
        ((RuntimeError("x does not have a deterministic implementation"), 1.0, 1.0), True, 1.0, ""),
    ],
)
def test_bits_that_differ_are_told_from_a_training_without_fixed_order(
    tmp_path, outcomes, has_room, value, told
):
    from benchmarks.gpu import training

    config, (figure,) = training.equal_bits(GivenRuns(tmp_path, *outcomes, has_room=has_room))
    assert figure.value == value
    assert told in figure.note
    assert (config["equal_bits"]["without_fixed_order"] is None) == isinstance(outcomes[0], float)
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_error_of_the_training_itself_is_not_taken_for_one_of_its_order(tmp_path):
    from benchmarks.gpu import training

    with pytest.raises(RuntimeError, match="illegal address"):
        training.equal_bits(GivenRuns(tmp_path, RuntimeError("illegal address")))


def test_what_is_decoded_encodes_to_the_same_tokens():
    from benchmarks.gpu.loads.grpo import SPECIAL, make_tokenizer
    from ecorl.devices.llama import model_shape

    vocab_size = model_shape("1b").vocab_size
    tokenizer = make_tokenizer(vocab_size)
    assert len(tokenizer) == vocab_size
    ids = [len(SPECIAL), 0xFFFD, 0xFFFE, 0xFFFF, 0x10000, vocab_size - 1, 77, 78]
    (text,) = tokenizer.batch_decode([ids], skip_special_tokens=True)
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.batch_decode([[0, *ids, 2]], skip_special_tokens=True) == [text]


# ---------------------------------------------------------------- gears


def test_a_training_in_both_gears(steady_gpu, out):
    from torch._dynamo.utils import counters

    from benchmarks.gpu import training_gears as gears

    counters.clear()
    config, figures = gears.measure(rehearsed(out))
    json.dumps(config, allow_nan=False)
    value = {name: f.value for name, f in by_name(figures).items()}
    assert None not in value.values()
    assert config["stopped"] == {}
    assert {name: {label for b in blocks for label in b["gears"]}
            for name, blocks in config["arms"].items()} == {
        "BF16": {"BF16"}, "FP8": {"FP8 simulated"},
    }  # fmt: skip
    for blocks in config["arms"].values():
        assert len(blocks) == gears.REHEARSED_PAIRS
        for block in blocks:
            assert_true(block["spans_s"], block["energy_j"])
            assert_true([(0.0, s) for s in block["train_s"]], block["train_j"])
            assert block["losses"] == blocks[0]["losses"]
            assert block["faults"] == []
    assert len(config["loss_differences"]) == gears.grpo.WARM_UP + gears.grpo.BLOCK_STEPS
    assert any(config["loss_differences"])
    assert value["train_energy_ratio"] == pytest.approx(value["train_time_ratio"], rel=2 * NEAR)
    assert value["step_energy_ratio"] == pytest.approx(value["step_time_ratio"], rel=2 * NEAR)
    # All layers of all blocks share a graph for each gear, and it has no breaks.
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    assert list(out.iterdir()) == []


def test_without_units_for_fp8_the_other_arm_stands(tmp_path):
    from benchmarks.gpu import training_gears as gears
    from ecorl.control import Gear

    steps = [gears.GearStep(10.0, 0.5, 100, 20.0, 1.0), gears.GearStep(12.0, 0.5, 100, None, 1.0)]
    blocks = {Gear.BF16: [gears.GearBlock(steps, [], {}, 9.0)], Gear.FP8: []}
    found = by_name(gears.gear_figures(blocks, {Gear.FP8: gears.NO_UNITS}))
    assert found["bf16.train_j_per_token"].value == pytest.approx(0.11)
    assert found["bf16.step_j"].value is None
    for name in ("fp8.step_s", *gears.RATIOS):
        assert found[name].value is None
        assert gears.NO_UNITS in found[name].note
    assert gears.expected_s([]) == gears.FIRST_S
    assert gears.expected_s(blocks[Gear.BF16]) < 9.0
