from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.devices import (
    DeviceFigure,
    DeviceProfile,
    card_peak_ops,
    load_profile,
    peak_ops_per_s,
    profile_names,
    stage_cost,
)
from ecorl.devices.card import ARRAY_MACS, ARRAY_ROWS
from ecorl.devices.gpu_pass import decoding_pass, gpu_limits, pass_cost, pass_parameters
from ecorl.devices.llama import model_shape
from ecorl.devices.profile import UNITS
from ecorl.devices.work import forward_ops, generation_phases, link_bytes
from ecorl.engines.fpga.csim.library import TILE_K, TILE_M, TILE_N
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.cycles.model import CycleModel
from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.records import ModelShape, Provenance, Stage, StageWork

LLAMA_8B = ModelShape(32, 4096, 14336, 32, 8, 128, 128_256, 8_030_000_000, 7_504_924_672)
TINY = ModelShape(2, 64, 128, 4, 2, 16, 256, 120_000, 100_000)
WORK = StageWork(Stage.REWARD, 256, 256 * 512, 256 * 384, 512, LLAMA_8B)
U55C, H100 = load_profile("u55c"), load_profile("h100_sxm")

PASS = {
    "mbu_decode": 0.9, "mfu_decode": 0.6, "pass_s": 1e-3, "layer_s": 2e-5, "row_s": 6e-5,
    "busy_w": 350.0, "j_per_byte": 5e-11, "j_per_op": 1e-12,
}  # fmt: skip


def unfitted():
    """The H100 as it would be if nobody had published how it decodes."""
    kept = {k: f for k, f in H100.figures.items() if k not in PASS}
    assumed = {"decode_w": ("W", 300.0), "mbu_decode": ("1", 0.6)}
    made = {k: DeviceFigure(v, unit, Provenance.MODELLED, "assumed")
            for k, (unit, v) in assumed.items()}  # fmt: skip
    return replace(H100, figures=kept | made)


def card_with(**changes):
    figures = {k: replace(f, value=float(changes.get(k, f.value))) for k, f in U55C.figures.items()}
    return replace(U55C, figures=figures)


def test_the_cards_peak_is_that_of_whole_arrays():
    # 3,136 DSPs hold one array of 2,048; the others do nothing.
    assert peak_ops_per_s(U55C) == 2 * 4096 * 245e6
    assert peak_ops_per_s(card_with(n_dsp_used=4095)) == peak_ops_per_s(U55C)
    assert peak_ops_per_s(card_with(n_dsp_used=4096)) == 2 * peak_ops_per_s(U55C)
    small = card_with(n_dsp_used=2047)
    with pytest.raises(ConfigError, match="one array"):
        peak_ops_per_s(small)
    cost = stage_cost(WORK, small)
    assert not cost.known
    assert "one array" in cost.note


def test_the_array_is_the_kernels():
    assert ARRAY_MACS == TILE_M * TILE_N * TILE_K
    assert ARRAY_ROWS == TILE_M


def single_pass(n_params, peak_ops_per_s, efficiency, power_w):
    """Tokens per second and per joule of a bare forward pass: ``2 N`` operations a token."""
    tokens_per_s = peak_ops_per_s * efficiency / (2.0 * n_params)
    return tokens_per_s, tokens_per_s / power_w


@pytest.mark.parametrize(
    ("billions", "card_tok_s", "card_tok_j", "bf16_tok_j", "fp8_tok_j"),
    [
        (0.1, 54_144, 833, 3532, 7068),
        (1, 5414, 83, 353, 707),
        (7, 773, 11.9, 50.5, 101),
        (13, 417, 6.4, 27, 54),
    ],
)
def test_single_pass_table(billions, card_tok_s, card_tok_j, bf16_tok_j, fp8_tok_j):
    n = billions * 1e9
    tok_s, tok_j = single_pass(n, card_peak_ops(9024, 300e6), 1.0, 65.0)
    assert tok_s == pytest.approx(card_tok_s, rel=2e-3)
    assert tok_j == pytest.approx(card_tok_j, rel=6e-3)
    _, bf16 = single_pass(n, H100.value("peak_bf16_flops"), 0.5, 700.0)
    _, fp8 = single_pass(n, H100.value("peak_fp8_flops"), 0.5, 700.0)
    assert bf16 == pytest.approx(bf16_tok_j, rel=1e-2)
    assert fp8 == pytest.approx(fp8_tok_j, rel=1e-2)
    assert bf16 / tok_j == pytest.approx(4.2, rel=2e-2)
    assert fp8 / tok_j == pytest.approx(8.5, rel=2e-2)


def test_ceiling_of_the_printed_array_for_7_b():
    tok_s, tok_j = single_pass(7e9, card_peak_ops(3136, 245e6), 1.0, 73.0)
    assert tok_s == pytest.approx(220, rel=5e-3)
    assert tok_j == pytest.approx(3.0, rel=1e-2)


def test_a_gpu_loses_to_the_ideal_card_only_below_11_8_percent_of_peak():
    _, card = single_pass(7e9, card_peak_ops(9024, 300e6), 1.0, 65.0)
    _, better = single_pass(7e9, H100.value("peak_bf16_flops"), 0.12, 700.0)
    _, worse = single_pass(7e9, H100.value("peak_bf16_flops"), 0.117, 700.0)
    assert worse < card < better


def test_forward_ops_by_hand():
    # 2 N + 4 l h L a token: 2 x 100,000 + 4 x 10 x 64 x 2 = 205,120
    assert forward_ops(TINY, 3, 10.0) == 3 * 205_120


def test_reward_on_one_h100_by_hand():
    cost = stage_cost(WORK, H100)
    ops = 256 * 512 * (2 * 7_504_924_672 + 4 * 512 * 4096 * 32)
    assert cost.ops == ops
    assert cost.compute_s == pytest.approx(ops / (989e12 * 0.5))
    assert cost.launch_s == pytest.approx(32 * 5e-5)
    assert cost.link_s == 0.0
    assert cost.bound == "compute"
    assert cost.time_s == pytest.approx(cost.compute_s + cost.launch_s)
    assert cost.energy_j == pytest.approx(700 * cost.compute_s + 70 * cost.launch_s)
    assert cost.provenance is Provenance.MODELLED


def test_training_is_three_forwards_and_the_card_cannot():
    train = stage_cost(replace(WORK, stage=Stage.ACTOR_TRAIN), H100, 4)
    forward = stage_cost(WORK, H100, 4)
    assert train.ops == pytest.approx(3 * forward.ops)
    card = stage_cost(replace(WORK, stage=Stage.ACTOR_TRAIN), U55C, 4)
    assert not card.known
    assert "forward passes" in card.note


def test_decoding_streams_the_weights_once_a_step_for_the_batch():
    work = StageWork(Stage.GENERATION, 8, 8 * 200, 8 * 100, 220, LLAMA_8B)
    prefill, decode = generation_phases(work, LLAMA_8B, 2)
    assert prefill.n_passes == 1
    assert decode.n_passes == 120  # the longest row: 220 less a prompt of 100
    kv = 2 * 32 * 8 * 128 * 2
    assert decode.memory_bytes == pytest.approx(120 * 7_504_924_672 * 2 + kv * 800 * 150)
    # Decoding few rows draws far less than the board's limit.
    for profile, most_w in ((H100, 500), (unfitted(), 400)):
        cost = stage_cost(work, profile)
        assert cost.bound == "memory"
        assert cost.power_w < most_w


def with_pass(profile, **changes):
    made = {k: DeviceFigure(v, UNITS[k], Provenance.MODELLED, "test") for k, v in PASS.items()}
    kept = {k: f for k, f in (profile.figures | made).items() if changes.get(k, f) is not None}
    return replace(profile, figures=kept)


@pytest.mark.parametrize("n_devices", [1, 8])
def test_with_the_parameters_of_a_pass_each_step_of_decoding_is_one(n_devices):
    fitted = with_pass(H100)
    rows, prompt, output = 64, 100, 300
    work = StageWork(Stage.GENERATION, rows, rows * 400, rows * output, prompt + output, LLAMA_8B)
    cost = stage_cost(work, fitted, n_devices)
    step = pass_cost(
        decoding_pass(LLAMA_8B, rows / n_devices, prompt + output / 2),
        gpu_limits(fitted), pass_parameters(fitted),
    )  # fmt: skip
    prefill = stage_cost(
        replace(work, n_tokens=rows * prompt, n_output_tokens=0), fitted, n_devices
    )
    assert cost.time_s == pytest.approx(prefill.time_s + output * step.time_s)
    assert cost.energy_j == pytest.approx(prefill.energy_j + n_devices * output * step.energy_j)
    terms = cost.compute_s + cost.memory_s + cost.launch_s
    assert terms == pytest.approx(cost.time_s + prefill.memory_s)  # prefill hides its memory


def test_rows_that_have_ended_take_no_part_in_a_step():
    fitted = with_pass(H100)
    even = StageWork(Stage.GENERATION, 64, 64 * 400, 64 * 300, 400, LLAMA_8B)
    uneven = replace(even, max_length=1000)
    assert stage_cost(even, fitted).time_s < stage_cost(uneven, fitted).time_s
    assert stage_cost(uneven, fitted).energy_j < 3 * stage_cost(even, fitted).energy_j


def test_a_model_on_several_gpus_pays_for_their_sums():
    model = model_shape("70b")
    work = StageWork(Stage.GENERATION, 64, 64 * 400, 64 * 300, 400, model)
    fitted = with_pass(H100)
    free = {"peer_latency_s": replace(H100.figure("peer_latency_s"), value=1e-12)}
    without = replace(fitted, figures=fitted.figures | free)
    pause_s = stage_cost(work, fitted, 2).time_s - stage_cost(work, without, 2).time_s
    assert pause_s == pytest.approx(300 * 2 * 80 * 8e-6, rel=1e-3)


def test_parameters_without_what_they_need_are_told():
    lacking = with_pass(H100, peer_latency_s=None)
    work = StageWork(Stage.GENERATION, 8, 8 * 200, 8 * 100, 220, LLAMA_8B)
    cost = stage_cost(work, lacking)
    assert not cost.known
    assert "peer_latency_s" in cost.note
    assert stage_cost(replace(work, stage=Stage.REWARD), lacking).known
    part = with_pass(H100, row_s=None)  # not all of them: priced as without
    bare = replace(part, figures=part.figures | {"mbu_decode": unfitted().figure("mbu_decode")})
    assert stage_cost(work, bare).time_s == stage_cost(work, unfitted()).time_s


def test_decoding_falls_back_to_the_load_power():
    work = StageWork(Stage.GENERATION, 8, 8 * 200, 8 * 100, 200, LLAMA_8B)
    known = unfitted()
    dull = replace(known, figures={k: v for k, v in known.figures.items() if k != "decode_w"})
    assert stage_cost(work, dull).energy_j > stage_cost(work, known).energy_j


def test_link_carries_ids_in_and_results_out():
    assert link_bytes(WORK) == 4 * (256 * 512 + 256)
    assert link_bytes(replace(WORK, stage=Stage.REFERENCE)) == 4 * (256 * 512 + 256 * 384)


def test_the_card_streams_its_weights_once_for_64_rows_and_the_last_layer_for_what_is_wanted():
    layer = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    cost = stage_cost(replace(WORK, n_sequences=2, n_tokens=1024), U55C)
    assert cost.memory_bytes == 16 * 31 * layer + layer + 4096
    assert cost.memory_s == pytest.approx(cost.memory_bytes / 460e9)


def test_a_card_draws_its_load_power_all_the_time():
    cost = stage_cost(replace(WORK, model=TINY, n_sequences=1, n_tokens=8), U55C)
    assert cost.bound == "launch"
    assert cost.launch_s == pytest.approx(2 * 3.9e-4)
    assert cost.energy_j == pytest.approx(73.0 * cost.time_s)


@given(
    stage=st.sampled_from([Stage.REWARD, Stage.REFERENCE]),
    rows=st.integers(1, 12),
    prompt=st.integers(1, 300),
    output=st.integers(0, 300),
    layers=st.integers(1, 3),
    heads=st.integers(1, 4),
    inner=st.integers(1, 300),
    n_arrays=st.integers(1, 2),
)
def test_the_cards_bound_is_never_above_the_cycle_model(
    stage, rows, prompt, output, layers, heads, inner, n_arrays
):
    hidden, vocab = 16 * heads, 1000
    active = layers * hidden * (4 * hidden + 3 * inner + 2) + hidden * (vocab + 1)
    model = ModelShape(layers, hidden, inner, heads, heads, 16, vocab, active, active)
    length = prompt + output
    work = StageWork(stage, rows, rows * length, rows * output, length, model)
    card = card_with(n_dsp_used=2048 * n_arrays)
    wanted, head_rows = (1, 1) if stage is Stage.REWARD else (output, vocab)
    booked = CycleModel(model, card).batch(
        BatchShape((length,) * rows, (wanted,) * rows, head_rows)
    )
    cost = stage_cost(work, card)
    assert cost.time_s <= booked.time_s * (1 + 1e-9)
    assert cost.energy_j <= booked.energy_j * (1 + 1e-9)
    assert cost.ops <= 2 * booked.macs
    assert cost.memory_bytes <= booked.memory_bytes


def test_one_more_row_costs_one_rows_energy_not_that_of_a_fuller_batch_on_every_gpu():
    rows = {n: replace(WORK, n_sequences=n, n_tokens=n * 512) for n in (8, 9, 16)}
    eight, nine, sixteen = (stage_cost(rows[n], H100, 8) for n in (8, 9, 16))
    assert nine.ops == pytest.approx(9 / 8 * eight.ops)
    # One GPU works twice as long, seven as long as before and then wait.
    assert nine.time_s == pytest.approx(sixteen.time_s)
    assert nine.compute_s == pytest.approx(2 * eight.compute_s)
    above = 630 * 9 * eight.compute_s
    assert nine.energy_j == pytest.approx(above + 8 * 70 * nine.time_s)
    assert nine.energy_j < 0.8 * sixteen.energy_j


@pytest.mark.parametrize("n_devices", [1, 3, 8, 40])
def test_copies_share_the_work_and_do_no_more_of_it(n_devices):
    work = replace(WORK, n_sequences=37, n_tokens=37 * 512, n_output_tokens=37 * 384)
    for stage in (Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN, Stage.GENERATION):
        one = stage_cost(replace(work, stage=stage), H100, 2)
        many = stage_cost(replace(work, stage=stage), H100, 2 * n_devices)
        assert many.ops == pytest.approx(one.ops)


def test_the_references_head_works_on_completion_tokens_alone():
    work = replace(WORK, stage=Stage.REFERENCE)
    everywhere = stage_cost(replace(work, n_output_tokens=work.n_tokens), H100)
    n_prompt = work.n_tokens - work.n_output_tokens
    head = 2 * 128_256 * 4096
    assert stage_cost(work, H100).ops == pytest.approx(everywhere.ops - n_prompt * head)
    # The shape of a reward model holds no such head.
    assert stage_cost(WORK, H100).ops == pytest.approx(everywhere.ops)


def test_offloading_a_large_model_does_not_pay():
    card, gpu = stage_cost(WORK, U55C), stage_cost(WORK, H100)
    assert card.time_s > 100 * gpu.time_s
    assert card.energy_j > 5 * gpu.energy_j


def test_unknown_is_none_and_says_why():
    no_model = stage_cost(replace(WORK, model=None), H100)
    assert (no_model.time_s, no_model.energy_j, no_model.known) == (None, None, False)
    assert "shape" in no_model.note
    v80 = stage_cost(WORK, load_profile("v80"))
    assert not v80.known
    assert "n_dsp_used" in v80.note
    big = replace(LLAMA_8B, n_params=70_000_000_000)
    too_large = stage_cost(replace(WORK, model=big), U55C, 4)
    assert not too_large.known
    assert "5 x u55c" in too_large.note
    assert stage_cost(replace(WORK, model=big), U55C, 5).known


def test_an_empty_batch_costs_nothing():
    cost = stage_cost(StageWork(Stage.REWARD, 0, 0, 0, 0, TINY), U55C)
    assert (cost.time_s, cost.energy_j) == (0.0, 0.0)
    assert cost.idle_power_w == 21.4


def test_the_host_computes_in_fp32():
    host = load_profile("host_cpu")
    assert peak_ops_per_s(host) == host.value("peak_fp32_flops")
    assert stage_cost(replace(WORK, model=TINY), host).known


def test_paper_calibration_is_as_printed_flagged_and_published():
    seven = replace(LLAMA_8B, n_params_active=7_000_000_000)
    work = replace(WORK, n_tokens=142_000, model=seven)
    card = stage_cost(work, U55C, calibration="paper")
    assert card.time_s == pytest.approx(1.0)
    assert card.energy_j == pytest.approx(142_000 / 13.7)
    assert card.power_w == 73.0
    assert card.exceeds_physical_peak
    assert card.provenance is Provenance.PUBLISHED
    assert "contradict" in card.note
    gpu = stage_cost(work, H100, calibration="paper")
    assert gpu.energy_j / card.energy_j == pytest.approx(13.7 / 4.8)
    assert gpu.time_s / card.time_s == pytest.approx(5.9 / 7.1)
    half = stage_cost(
        replace(work, model=replace(seven, n_params_active=3_500_000_000)), U55C, 1, "paper"
    )
    assert half.time_s == pytest.approx(0.5)


def test_the_paper_prints_nothing_else():
    for stage, device in [
        (Stage.CRITIC, "u55c"),
        (Stage.REWARD, "l4"),
        (Stage.GENERATION, "h100_sxm"),
    ]:
        cost = stage_cost(replace(WORK, stage=stage), load_profile(device), calibration="paper")
        assert not cost.known
        assert "paper" in cost.note


def test_bad_arguments():
    with pytest.raises(ConfigError):
        stage_cost(WORK, H100, 0)
    with pytest.raises(ConfigError) as caught:
        stage_cost(WORK, H100, 1, "guess")
    assert (caught.value.value, caught.value.allowed) == ("guess", "roofline or paper")


def test_a_profile_that_contradicts_its_own_bound_is_refused():
    figures = dict(U55C.figures)
    figures["n_dsp_used"] = replace(figures["n_dsp_used"], value=90_240.0)
    broken = DeviceProfile("broken", "broken", "fpga", figures)
    with pytest.raises(PhysicalBoundError):
        stage_cost(WORK, broken)


@given(
    name=st.sampled_from(profile_names()),
    stage=st.sampled_from(list(Stage)),
    rows=st.integers(0, 2000),
    prompt=st.integers(1, 500),
    output=st.integers(0, 500),
    n_devices=st.integers(1, 40),
    model=st.sampled_from([TINY, LLAMA_8B]),
)
def test_costs_are_positive_bounded_and_no_phase_beats_physics(
    name, stage, rows, prompt, output, n_devices, model
):
    length = prompt + output
    work = StageWork(stage, rows, rows * length, rows * output, length, model)
    cost = stage_cost(work, PROFILES[name], n_devices)
    if not cost.known:
        assert cost.note
        assert cost.energy_j is None
        return
    assert cost.time_s >= max(cost.link_s, cost.launch_s)
    assert cost.energy_j >= cost.idle_power_w * cost.time_s * (1 - 1e-9)
    top = n_devices * PROFILES[name].value("active_w")
    assert cost.energy_j <= top * cost.time_s * (1 + 1e-9)
    more = replace(
        work,
        n_sequences=rows + 1,
        n_tokens=(rows + 1) * length,
        n_output_tokens=(rows + 1) * output,
    )
    assert stage_cost(more, PROFILES[name], n_devices).time_s >= cost.time_s * (1 - 1e-9)


PROFILES = {name: load_profile(name) for name in profile_names()}
