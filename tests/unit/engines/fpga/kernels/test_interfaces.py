"""Arguments of the kernels as their sources say them, and the banks that they are wired to."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from ecorl.devices import load_profile
from ecorl.engines.fpga.card.plan_builder import PRODUCT_BYTES
from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.cycles.hbm_layout import Resident, place
from ecorl.engines.fpga.estimate import workload
from ecorl.engines.fpga.kernels.banks import (
    BANKS,
    CODES,
    LISTS,
    PRODUCTS,
    REGIONS,
    RESIDUAL,
    WEIGHTS_HIGH,
    WEIGHTS_LOW,
    WIRING,
    Bank,
    BankMap,
    card_memory,
    connectivity_config,
)
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces, read_interface, read_qor
from ecorl.engines.models.decoder_config import read_config_file
from ecorl.errors import BuildError, ConfigError
from ecorl.records import Stage

SOURCE = """
// extern "C" void thing_krnl(int wrong) {
extern "C" void thing_krnl(const ns::word_t* a,  /* read, */ std::int64_t n,
                           ns::word_t *out, const std::int32_t k) {
#pragma HLS INTERFACE m_axi port = a bundle = gmem_a offset = \\
    slave
#pragma HLS INTERFACE m_axi port=out max_write_burst_length=256 offset=slave
#pragma HLS INTERFACE s_axilite port = a
#pragma HLS INTERFACE s_axilite port = n
#pragma HLS INTERFACE s_axilite port = k
#pragma HLS INTERFACE s_axilite port = return
    if (n) { out[0] = a[k]; }
}
"""
# A kernel may name a buffer's register as well as its port; the port is what counts.
SOURCE = SOURCE.replace("#pragma HLS INTERFACE s_axilite port = a\n", "")


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "thing"
    folder.mkdir()

    def write(text: str):
        (folder / "thing.cpp").write_text(text)
        return folder

    return write


def test_a_signature_and_its_pragmas_become_arguments(source):
    found = read_interface(source(SOURCE), "thing_krnl")
    assert (found.kernel, found.top, found.instance) == ("thing", "thing_krnl", "thing_krnl_1")
    told = [(a.name, a.type, a.bundle, a.is_written, a.n_bytes, a.offset) for a in found.arguments]
    assert told == [
        ("a", "ns::word_t*", "gmem_a", False, 8, 0x10),
        ("n", "std::int64_t", None, False, 8, 0x1C),
        ("out", "ns::word_t*", "gmem", True, 8, 0x28),
        ("k", "std::int32_t", None, False, 4, 0x34),
    ]
    assert found.bundles == ("gmem_a", "gmem")


def test_a_source_that_does_not_say_enough_is_refused(source, snapshot):
    lines = []
    for old, new in (
        ("void thing_krnl", "void other_krnl"),
        ("port = n\n", "port = other\n"),
        ("m_axi port = a", "m_axi port = b"),
        ("std::int64_t n", "ns::odd n"),
        ("std::int64_t n", "ns::word_t& n"),
    ):
        assert old in SOURCE
        with pytest.raises(BuildError) as caught:
            read_interface(source(SOURCE.replace(old, new)), "thing_krnl")
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_kernels_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(BuildError, match=str(tmp_path)):
        kernel_interfaces(tmp_path)
    (tmp_path / "qor.json").write_text("{")
    with pytest.raises(BuildError, match=r"qor\.json"):
        read_qor(tmp_path)


def test_every_buffer_of_every_kernel_has_a_bank_and_no_other():
    kernels = kernel_interfaces()
    assert {k.kernel: {a.name for a in k.buffers} for k in kernels} == {
        kernel: set(banks) for kernel, banks in WIRING.items()
    }
    assert set(REGIONS) == set(WIRING)


def test_banks_cover_the_card_once():
    memory = card_memory()
    channels = [c for bank in BANKS for c in bank.channels]
    assert sorted(channels) == list(range(memory.n_channels))
    assert {id(b) for own in WIRING.values() for b in own.values()} == {id(b) for b in BANKS}


def test_arguments_of_one_port_name_one_bank():
    memory = card_memory()
    for kernel in kernel_interfaces():
        for bundle in kernel.bundles:
            own = {memory.bank(kernel, a.name) for a in kernel.buffers if a.bundle == bundle}
            assert len(own) == 1, f"{kernel.kernel}: {bundle} is wired to {own}"


def test_the_kernels_have_no_more_ports_than_the_memory():
    """A U55C's HBM has 32 ports; each bundle of a kernel takes one."""
    assert sum(len(k.bundles) for k in kernel_interfaces()) <= card_memory().n_channels


def test_buffers_that_kernels_hand_on_share_a_bank():
    shared = (
        (("gemm_int8", "c"), ("vector_ops", "acc"), ("score_aggregator", "acc")),
        (("vector_ops", "codes"), ("gemm_int8", "a"), ("mha_int8", "queries"),
         ("kv_cache_router", "keys"), ("kv_cache_router", "values")),
        (("kv_cache_router", "pages"), ("kv_cache_router", "sources"), ("mha_int8", "pages")),
        (("kv_cache_router", "table"), ("mha_int8", "table")),
        (("vector_ops", "x"), ("vector_ops", "y"), ("score_aggregator", "rewards")),
        (("mha_int8", "context"), ("vector_ops", "acc")),
        (("vector_ops", "rows_out"), ("vector_ops", "rows"), ("score_aggregator", "rows")),
    )  # fmt: skip
    for group in shared:
        assert len({WIRING[kernel][argument] for kernel, argument in group}) == 1, group


@pytest.mark.parametrize(
    ("hidden", "intermediate", "heads", "kv_heads", "layers", "vocabulary"),
    [(5120, 13824, 40, 40, 40, 32000), (4096, 14336, 32, 8, 32, 128256)],
)
def test_models_of_8_and_13_billion_parameters_fit_the_banks(
    tmp_path, hidden, intermediate, heads, kv_heads, layers, vocabulary
):
    """With the buffers of a batch of 16 rows of 1,024 tokens, as placement.py counts them."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({
            "architectures": ["LlamaForSequenceClassification"], "model_type": "llama",
            "hidden_size": hidden, "intermediate_size": intermediate,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "num_hidden_layers": layers, "vocab_size": vocabulary,
            "max_position_embeddings": 4096,
        })
    )  # fmt: skip
    work = workload("model", read_config_file(path), Stage.REWARD, 16 * 1024, 16)
    placed = place([Resident(work.name, work.config, work.batch)], load_profile("u55c"))
    found = {region.group.removeprefix("model: "): region.n_bytes for region in placed.regions}
    size = card_memory().channel_bytes
    # The stripes of a matrix differ by a tile at most; halves of words are equal.
    room = {bank: len(bank.channels) * size for bank in BANKS}
    # Constants are counted with the tables, and here lie with the lists.
    assert found["weights"] // 2 + found["tables"] <= room[WEIGHTS_LOW]
    assert found["weights"] // 2 <= room[WEIGHTS_HIGH]
    assert PRODUCT_BYTES + found["work: attention's results"] <= room[PRODUCTS]
    assert found["work: codes"] <= room[CODES]
    assert found["work: residual stream"] <= room[RESIDUAL]
    # Records in two slots, scales of heads, attention's exponents; constants of channels take some
    # tens of MiB, tasks and page tables less than one.
    lists = 16 * 1024 * (2 * 64 + 16 * (heads + 2 * kv_heads) + 8 * heads) + (64 << 20)
    assert found["work: pages of a layer"] + lists <= room[LISTS]


def test_what_gemm_moves_at_once_lies_apart():
    own = [set(bank.channels) for bank in WIRING["gemm_int8"].values()]
    assert sum(map(len, own)) == len(set().union(*own))


def test_a_die_takes_what_its_kernels_declare():
    """A third of the card's DSPs and block RAMs to a die: assumed, the shell's share aside."""
    total = load_profile("u55c").value("n_dsp")
    dsp, bram = Counter(), Counter()
    for kernel, region in REGIONS.items():
        qor = read_qor(kernel_root() / kernel)
        dsp[region] += qor["dsp"]["count"]
        bram[region] += qor["bram_18k"]["count"]
    assert max(dsp.values()) <= total / 3
    assert max(bram.values()) <= 4032 / 3


def test_the_connectivity_file_names_every_unit_and_buffer():
    kernels, memory = kernel_interfaces(), card_memory()
    lines = connectivity_config(kernels, memory).splitlines()
    assert lines[0] == "[connectivity]"
    assert "nk=gemm_int8_krnl:1:gemm_int8_krnl_1" in lines
    assert "sp=gemm_int8_krnl_1.w_low:HBM[0:12]" in lines
    assert "sp=gemm_int8_krnl_1.a:HBM[29]" in lines
    assert "slr=gemm_int8_krnl_1:SLR0" in lines
    assert sum(line.startswith("sp=") for line in lines) == sum(len(k.buffers) for k in kernels)


def test_an_argument_without_a_bank_or_beyond_the_card_is_refused(source, snapshot):
    kernel = read_interface(source(SOURCE), "thing_krnl")
    lines = []
    for banks in ({}, {"thing": {"a": Bank("all", 1, 2)}}):
        with pytest.raises(BuildError) as caught:
            BankMap(2, 1024, banks).bank(kernel, "a")
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_a_card_without_such_channels_is_refused():
    with pytest.raises(ConfigError, match="32 memory"):
        card_memory(load_profile("h200"))
