"""The card's cost that decisions rest on is the one that a run then books."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ecorl.config import DeviceConfig
from ecorl.devices import load_profile, stage_cost
from ecorl.devices.host import DeviceFigure, HostCpu, complete_host_figures
from ecorl.devices.profile import UNITS
from ecorl.engines.fpga.cycles.kernel_calls import GROUP_TOKENS, BatchShape, attention_calls
from ecorl.engines.fpga.cycles.model import CycleModel, mean_rows
from ecorl.engines.fpga.int8_decoder import segments_of
from ecorl.engines.fpga.kernels.sequence import LAYER_STARTS
from ecorl.errors import ConfigError
from ecorl.records import (
    Action,
    Algorithm,
    ModelShape,
    Provenance,
    SchedulerState,
    Stage,
    StageWork,
)
from ecorl.scheduler import CostModel, Guards, RoleDevices, Static, place
from tests.examples import examples
from tests.fakes.card_calls import calls_s

HOST, H100, U55C, V80 = (load_profile(n) for n in ("host_cpu", "h100_sxm", "u55c", "v80"))
SEVEN = ModelShape(32, 4096, 11008, 32, 32, 128, 32000, 6_738_415_616, 6_607_343_616)
TINY = ModelShape(2, 64, 128, 4, 2, 16, 512, 139_456, 106_688)
SMALL = ModelShape(24, 896, 4864, 14, 2, 64, 151_936, 494_032_768, 494_032_768)
FLAT = ModelShape(1, 64, 128, 4, 4, 16, 128_000, 16_425_000, 8_233_000)
SHAPES = {"7b": SEVEN, "tiny": TINY, "0.5b": SMALL, "flat": FLAT}


def work_of(stage, model, prompts, outputs):
    lengths = [p + o for p, o in zip(prompts, outputs, strict=True)]
    return StageWork(stage, len(lengths), sum(lengths), sum(outputs), max(lengths), model)


def rows_of(stage, model, prompts, outputs):
    lengths = tuple(p + o for p, o in zip(prompts, outputs, strict=True))
    if stage is Stage.REWARD:
        return BatchShape(lengths, (1,) * len(lengths), 1)
    return BatchShape(lengths, tuple(outputs), model.vocab_size)


def booked(stage, model, prompts, outputs):
    """What the FPGA engine reports for these rows."""
    return CycleModel(model, U55C).batch(rows_of(stage, model, prompts, outputs))


def decided(work, card=U55C, gpu=H100, **devices):
    return CostModel(gpu, card, DeviceConfig(**devices)).fpga_cost(work)


@pytest.mark.parametrize("stage", [Stage.REWARD, Stage.REFERENCE])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize(("prompt", "output"), [(8, 1), (20, 12), (30, 34), (200, 56), (900, 200)])
def test_equal_rows_are_decided_by_what_is_booked(stage, name, rows, prompt, output):
    model = SHAPES[name]
    prompts, outputs = [prompt] * rows, [output] * rows
    card = booked(stage, model, prompts, outputs)
    cost = decided(work_of(stage, model, prompts, outputs))
    assert cost.time_s == pytest.approx(card.time_s, rel=1e-9)
    assert cost.energy_j == pytest.approx(card.energy_j, rel=1e-9)
    assert (cost.ops, cost.memory_bytes) == (2 * card.macs, card.memory_bytes)
    assert (cost.link_s, cost.launch_s) == (card.link_s, card.launch_s)
    assert cost.provenance is Provenance.MODELLED
    bound = stage_cost(work_of(stage, model, prompts, outputs), U55C)
    assert bound.time_s <= cost.time_s * (1 + 1e-9)
    assert bound.energy_j <= cost.energy_j * (1 + 1e-9)


def begins_inside_a_page(batch):
    """Whether the router must start twice in a layer, for rows that share no prompt."""
    return any((n - w) % 64 for n, w in zip(batch.lengths, batch.wanted, strict=True) if w)


# Lengths around the ends of pages are frequent: whether the router starts twice rests on them.
tokens = st.one_of(st.integers(1, 600), st.sampled_from([1, 2, 63, 64, 65, 127, 128, 129, 192]))


@settings(max_examples=examples(100), deadline=None)
@given(
    stage=st.sampled_from([Stage.REWARD, Stage.REFERENCE]),
    name=st.sampled_from(list(SHAPES)),
    rows=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=24),
)
@example(Stage.REWARD, "7b", [(1, 1), (1, 127)])  # booked with starts that were not decided by
@example(Stage.REWARD, "7b", [(1, 64), (1, 128)])  # decided by starts that are not booked
@example(Stage.REFERENCE, "tiny", [(63, 10), (65, 10)])
@example(Stage.REFERENCE, "tiny", [(64, 10), (128, 10)])
@example(Stage.REWARD, "0.5b", [(1, 1), (1, 127)] * 17)  # two groups, and as many starts more
@example(Stage.REWARD, "0.5b", [(1, 64), (1, 128)] * 22)  # three groups
def test_uneven_rows_differ_by_attention_and_a_start_of_the_router(stage, name, rows):
    """The stated bound, and that nothing else differs: the rest depends on sums over rows alone."""
    prompts, outputs = zip(*rows, strict=True)
    model = SHAPES[name]
    card, work = booked(stage, model, prompts, outputs), work_of(stage, model, prompts, outputs)
    cost = decided(work)
    assert cost.link_s == card.link_s
    cycles, batch, even = (
        CycleModel(model, U55C),
        rows_of(stage, model, prompts, outputs),
        mean_rows(work),
    )
    n_groups = -(-work.n_tokens // GROUP_TOKENS)
    starts_s = U55C.value("launch_s") * model.n_layers * n_groups / LAYER_STARTS
    more = begins_inside_a_page(batch) - begins_inside_a_page(even)
    assert card.launch_s - cost.launch_s == pytest.approx(more * starts_s, rel=1e-9, abs=1e-15)
    took, expected = (calls_s(cycles, attention_calls(model, shape)) for shape in (batch, even))
    differs_s = took - expected + more * starts_s
    assert card.time_s - cost.time_s == pytest.approx(differs_s, abs=1e-9 * card.time_s)
    assert abs(card.time_s - cost.time_s) <= max(took, expected) + starts_s
    assert cost.energy_j == pytest.approx(73.0 * cost.time_s)


@pytest.mark.parametrize(
    ("stage", "name", "rows", "ratio"),
    [
        (Stage.REWARD, "7b", [(109, 1)] * 10 + [(1999, 1)] * 2, 1.0667),
        (Stage.REWARD, "0.5b", [(109, 1)] * 8 + [(1999, 1)] * 2, 1.1579),
        (Stage.REFERENCE, "tiny", [(109, 1)] * 10 + [(100, 1900)] * 2, 1.4304),
        (Stage.REWARD, "7b", [(127, 1)] * 63 + [(191, 1)], 0.9880),
        (Stage.REWARD, "0.5b", [(126, 1)] * 63 + [(255, 1)], 0.9750),
        (Stage.REFERENCE, "tiny", [(1, 1841), (1881, 6)], 0.9390),
        (Stage.REWARD, "7b", [(4, 1)] * 14 + [(24, 1)] * 2, 1.0002),
        (Stage.REFERENCE, "tiny", [(1, 4)] * 43 + [(1, 24)] * 21, 1.0022),
    ],
)
def test_how_far_from_the_decision_uneven_rows_are_booked(stage, name, rows, ratio):
    """The figures in the module's text, at the worst batches seen."""
    prompts, outputs = zip(*rows, strict=True)
    card = booked(stage, SHAPES[name], prompts, outputs)
    cost = decided(work_of(stage, SHAPES[name], prompts, outputs))
    assert card.time_s / cost.time_s == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize(("stage", "ratio"), [(Stage.REWARD, 0.347), (Stage.REFERENCE, 0.353)])
def test_a_shared_prompt_is_booked_once_and_decided_by_for_each_row(stage, ratio):
    """The figure in the module's text, for the shape that the engine makes of such rows."""
    rows = [np.r_[np.zeros(200, np.int64), np.full(56, i)] for i in range(8)]
    segments = segments_of(rows, [56] * 8)
    last = [segments.tokens(i, np.asarray([255])) for i in range(8)]
    shape = segments.shape([56] * 8, SEVEN.vocab_size)
    card = CycleModel(SEVEN, U55C).batch(
        segments.shape_at(last, 8) if stage is Stage.REWARD else shape
    )
    cost = decided(work_of(stage, SEVEN, [200] * 8, [56] * 8))
    assert card.time_s / cost.time_s == pytest.approx(ratio, abs=1e-3)


@pytest.mark.parametrize("name", SHAPES)
def test_short_uneven_rows_are_booked_at_what_was_decided(name):
    draw = random.Random(3)
    for stage in (Stage.REWARD, Stage.REFERENCE):
        prompts = [draw.randint(4, 9) for _ in range(64)]
        outputs = [draw.randint(1, 16) for _ in range(64)]
        card = booked(stage, SHAPES[name], prompts, outputs)
        cost = decided(work_of(stage, SHAPES[name], prompts, outputs))
        assert cost.time_s == pytest.approx(card.time_s, rel=0.002)


def state_of(work):
    return SchedulerState(1, Algorithm.GRPO, work.stage, (0.5,), (0.5,), 0, True, work)


def host_of(power=1.0):
    """A host of 4 cores that draws `power` times what is assumed of one."""
    cpu = HostCpu("x", 4, 2.5e9, "test", frozenset({"avx2", "fma"}), 64 * 10**9)
    per_core = {
        key: DeviceFigure(value, UNITS[key], Provenance.MODELLED, "assumed")
        for key, value in (
            ("idle_w", 1.5 * power), ("active_w", 6.0 * power), ("memory_bytes_per_s", 8e9)
        )
    }  # fmt: skip
    kept = {k: HOST.figures[k] for k in ("launch_s", "mfu_prefill", "mfu_train", "mbu_decode")}
    return replace(HOST, figures=complete_host_figures(kept, per_core, cpu))


@pytest.mark.parametrize("stage", [Stage.REWARD, Stage.REFERENCE])
@pytest.mark.parametrize("width", [256, 512, 1024])
@pytest.mark.parametrize("rows", [8, 64])
@pytest.mark.parametrize("length", [32, 256])
def test_what_the_energy_guard_approves_is_booked_within_its_margin(stage, width, rows, length):
    """Trainers on a CPU that is a twentieth better, then worse, than the card as it is booked."""
    n = 8 * 10 * width * width + (32_000 * width if stage is Stage.REFERENCE else width)
    model = ModelShape(8, width, 2 * width, width // 64, width // 64, 64, 32_000, n, n)
    half = [length // 2] * rows
    work = work_of(stage, model, half, half)
    card = booked(stage, model, half, half)
    waiting_j = host_of().value("idle_w") * card.time_s
    gpu_j = CostModel(host_of(), U55C).gpu_cost(work).energy_j
    policy = Static({Stage.REWARD: Action.FPGA, Stage.REFERENCE: Action.FPGA})
    for ratio, action in ((0.95, Action.GPU), (1.05, Action.FPGA)):
        # The power at which the GPU path takes `ratio` times the offload, waiting included.
        host = host_of(ratio * card.energy_j / (gpu_j - ratio * waiting_j))
        guards = Guards(energy_margin=0.0, costs=CostModel(host, U55C))
        assert place(state_of(work), policy, guards).action is action


@pytest.mark.parametrize("calibration", ["roofline", "paper"])
def test_more_cards_shorten_the_queue_and_not_a_batch(calibration):
    work = work_of(Stage.REWARD, SEVEN, [256] * 32, [256] * 32)
    one, four = (
        CostModel(H100, U55C, DeviceConfig(n_accelerators=n, calibration=calibration))
        for n in (1, 4)
    )
    assert one.fpga_cost(work) == four.fpga_cost(work)
    assert four.fpga_cost(work).n_devices == 1
    batch_s = one.fpga_cost(work).time_s
    for queue in (0, 1, 6):
        state = replace(state_of(work), fpga_queue=queue)
        waits = [costs.estimate(state).of(Action.FPGA).wait_s for costs in (one, four)]
        assert waits == pytest.approx([(1 + queue) * batch_s, (1 + queue / 4) * batch_s])


def test_a_role_is_priced_on_the_devices_that_serve_it():
    l4 = load_profile("l4")
    by_role = {Stage.REFERENCE: RoleDevices(l4, 2), "reward:code": RoleDevices(l4)}
    costs = CostModel(H100, U55C, DeviceConfig(n_gpus=8), by_role=by_role)

    def priced(stage, role_name=""):
        work = work_of(stage, SEVEN, [256] * 32, [256] * 32)
        cost = costs.gpu_cost(replace(work, role_name=role_name))
        return cost.device, cost.n_devices

    assert priced(Stage.REWARD) == ("h100_sxm", 8)
    assert priced(Stage.REWARD, "code") == ("l4", 1)
    assert priced(Stage.REWARD, "math") == ("h100_sxm", 8)
    assert priced(Stage.REFERENCE) == priced(Stage.REFERENCE, "any") == ("l4", 2)


def test_the_energy_guard_goes_by_the_devices_of_the_role():
    """A reference on a device that draws a thousandth leaves the card nothing to save."""
    work = work_of(Stage.REFERENCE, SEVEN, [256] * 32, [256] * 32)
    frugal = replace(
        H100, figures=H100.figures | {
            name: replace(H100.figures[name], value=1e-3 * H100.figures[name].value)
            for name in ("tdp_w", "idle_w", "active_w") if name in H100.figures
        },
    )  # fmt: skip
    policy = Static({Stage.REFERENCE: Action.FPGA})
    kept = {}
    usual = CostModel(H100, U55C).estimate(state_of(work))
    margin = 2.0 * usual.of(Action.FPGA).energy_j / usual.of(Action.GPU).energy_j
    for name, by_role in (("own", {Stage.REFERENCE: RoleDevices(frugal)}), ("training", None)):
        guards = Guards(energy_margin=margin, costs=CostModel(H100, U55C, by_role=by_role))
        kept[name] = place(state_of(work), policy, guards).action
    assert kept == {"own": Action.GPU, "training": Action.FPGA}


def test_a_role_without_devices_is_refused():
    with pytest.raises(ConfigError, match="n_gpus = 0: allowed is 1 or more"):
        RoleDevices(H100, 0)


def test_the_papers_calibration_stays_as_printed():
    work = work_of(Stage.REWARD, SEVEN, [256] * 32, [256] * 32)
    cost = decided(work, calibration="paper")
    assert cost == stage_cost(work, U55C, 1, "paper")
    assert cost.provenance is Provenance.PUBLISHED


def test_what_the_card_cannot_tell_stays_unknown():
    work = work_of(Stage.REWARD, SEVEN, [256] * 32, [256] * 32)
    assert "v80 holds no" in decided(work, V80).note
    assert "shape" in decided(replace(work, model=None)).note
    figures = {**U55C.figures, "n_dsp_used": replace(U55C.figure("n_dsp_used"), value=100.0)}
    small = decided(work, replace(U55C, figures=figures))
    assert not small.known
    assert "one array" in small.note
    big = replace(SEVEN, n_params=70_000_000_000)
    assert "5 x u55c" in decided(replace(work, model=big)).note


def test_an_empty_batch_and_one_without_completions():
    assert decided(StageWork(Stage.REWARD, 0, 0, 0, 0, TINY)).time_s == 0.0
    assert decided(StageWork(Stage.REWARD, 4, 0, 0, 0, TINY)).energy_j == 0.0
    none = decided(StageWork(Stage.REFERENCE, 4, 40, 0, 10, TINY))
    card = booked(Stage.REFERENCE, TINY, [10] * 4, [0] * 4)
    assert none.time_s == pytest.approx(card.time_s)
    assert none.time_s > 0


def test_mean_rows_keep_the_sums():
    work = StageWork(Stage.REFERENCE, 7, 100, 33, 40, TINY)
    batch = mean_rows(work)
    assert (sum(batch.lengths), sum(batch.wanted), len(batch.lengths)) == (100, 33, 7)
    assert max(batch.lengths) - min(batch.lengths) == 1
    assert batch.head_rows == 512
    assert all(w <= n for n, w in zip(batch.lengths, batch.wanted, strict=True))
    reward = mean_rows(replace(work, stage=Stage.REWARD))
    assert (reward.wanted, reward.head_rows) == ((1,) * 7, 1)
