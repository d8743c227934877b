"""The cycle model against the kernel's counters, against physics and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_models import batch_of, card_file, decoder, library, rows_of

from ecorl.devices import check_throughput, load_profile
from ecorl.engines.fpga.cycles import BatchShape, CycleModel, attention_products
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.gemm import gemm_counts
from ecorl.records import ModelShape, Provenance, Stage


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


SHAPE_7B = ModelShape(32, 4096, 11008, 32, 32, 128, 32000, 6_738_415_616, 6_607_343_616)


def small_shape(layers, hidden, heads, head_dim):
    per_layer = hidden * (4 * heads * head_dim + 6 * hidden)
    n = layers * per_layer
    return ModelShape(layers, hidden, 2 * hidden, heads, heads, head_dim, 500, n, n)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=20),
    layers=st.integers(1, 4),
    heads=st.integers(1, 8),
    head_dim=st.sampled_from([16, 64, 128]),
    head_rows=st.sampled_from([1, 500]),
    device=st.sampled_from(["u55c", "twice"]),
    data=st.data(),
)
def test_never_above_the_physical_bound(
    tmp_path_factory, lengths, layers, heads, head_dim, head_rows, device, data
):
    if device == "twice":
        device = card_file(tmp_path_factory.getbasetemp(), n_dsp_used=2 * 3136)
    profile = load_profile(device)
    model = small_shape(layers, heads * head_dim, heads, head_dim)
    limits = [1 if head_rows == 1 else n - 1 for n in lengths]
    wanted = tuple(data.draw(st.integers(min(1, n), n)) for n in limits)
    card = CycleModel(model, profile).batch(BatchShape(tuple(lengths), wanted, head_rows))
    peak = profile.value("n_dsp_used") * profile.value("macs_per_dsp") * profile.value("clock_hz")
    assert card.macs <= peak * card.array_s * (1 + 1e-9)
    assert card.kernel_s >= max(card.array_s, card.memory_s, card.vector_s) * (1 - 1e-9)
    assert card.time_s == pytest.approx(card.kernel_s + card.launch_s + card.link_s)
    assert card.energy_j == pytest.approx(profile.value("active_w") * card.time_s)
    if sum(wanted):
        check_throughput(profile, 2.0 * card.macs, card.memory_bytes, card.time_s,
                         Provenance.MODELLED)  # fmt: skip


def test_the_papers_rate_is_out_of_reach():
    """Table 2 claims 142 tokens/ms for 7 B; the array as written bounds it at about 150 per s."""
    batch = BatchShape((256,) * 32, (1,) * 32, 1)
    card = CycleModel(SHAPE_7B, load_profile("u55c")).batch(batch)
    tokens_per_s = 32 * 256 / card.time_s
    assert 100 < tokens_per_s < 4096 * 245e6 / 6.4e9


def test_cycles_and_macs_are_those_that_the_kernel_counts(models):
    """One row of 64 tokens is one block everywhere: the model must equal the kernel's counters."""
    folder, _ = models("llama_reward")
    engine, csim = FpgaEngine(folder, Stage.REWARD), library("fast")
    batch = batch_of(rows_of(64))
    csim.reset_counters()
    decoder(folder).score(batch.token_ids)
    counts, card = csim.counters(), engine.modelled(batch)
    assert card.macs == counts.macs
    assert card.memory_bytes == counts.bytes_a + counts.bytes_w + counts.bytes_c
    assert card.array_s * 245e6 == pytest.approx(counts.mac_cycles + counts.fill_cycles)


def test_two_arrays_halve_the_array_time(tmp_path):
    one, two = (
        CycleModel(SHAPE_7B, load_profile(card_file(tmp_path, n_dsp_used=n))) for n in (2048, 4096)
    )
    batch = BatchShape((128,) * 8, (1,) * 8, 1)
    assert (one.n_arrays, two.n_arrays) == (1, 2)
    assert one.batch(batch).array_s / two.batch(batch).array_s == pytest.approx(2, rel=0.01)


def test_link_and_launch_terms():
    profile = load_profile("u55c")
    model = CycleModel(small_shape(3, 64, 4, 16), profile)
    score = model.batch(BatchShape((10, 20), (1, 1), 1))
    assert score.link_s == pytest.approx((4 * 30 + 4 * 2) / 1.2e10 + 2 * 3e-5)
    assert score.launch_s == pytest.approx(4 * profile.value("launch_s"))
    logprobs = model.batch(BatchShape((10, 20), (5, 7), 500))
    assert logprobs.link_s == pytest.approx((4 * 30 + 4 * 12) / 1.2e10 + 2 * 3e-5)
    assert logprobs.macs > score.macs
    nothing = model.batch(BatchShape((), (), 1))
    assert nothing.time_s == nothing.energy_j == 0.0


def test_one_product_by_hand():
    """[64, 128] x [32, 128]^T: 2 tiles of 32 steps, after 4 x 32 words of activations."""
    counts = gemm_counts(64, 32, 128)
    assert counts.mac_cycles == 2 * 32
    assert counts.fill_cycles == 4 * 32


@pytest.mark.parametrize("layers", [1, 3])
def test_equal_rows_are_counted_as_often_as_they_come(layers):
    """Rows longer than a block are never joined: a batch's attention is the sum of its rows'."""
    shape = small_shape(layers, 64, 4, 16)
    model = CycleModel(shape, load_profile("u55c"))
    rows = [(65, 1), (200, 30), (65, 1), (200, 31), (65, 1)]

    def batch(rows):
        return BatchShape(tuple(n for n, _ in rows), tuple(w for _, w in rows), 500)

    together = model.kernel_s(attention_products(shape, batch(rows)))
    apart = sum(model.kernel_s(attention_products(shape, batch([row]))) for row in rows)
    assert together == pytest.approx(apart)
    assert model.batch(batch(rows)).macs == model.batch(batch(rows[::-1])).macs
