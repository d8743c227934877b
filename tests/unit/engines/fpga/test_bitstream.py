"""Manifests, and the check by which a host takes a bitstream or refuses it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.engines.decoder_config import read_config_file
from ecorl.engines.fpga.banks import PLATFORM, card_memory
from ecorl.engines.fpga.bitstream import (
    Manifest,
    Target,
    check_bitstream,
    file_digest,
    manifest_path,
    read_manifest,
    same_platform,
    write_manifest,
)
from ecorl.engines.fpga.build import kernel_root, kernels_digest
from ecorl.engines.fpga.interfaces import kernel_interfaces
from ecorl.engines.fpga.limits import ShapeLimits, shape_limits
from ecorl.engines.fpga.xclbin import write_container
from ecorl.errors import BitstreamError, BuildError, UserError
from tests.fakes.vitis import _xclbin

CARD = "xilinx_u55c_gen3x16_xdma_base_3"
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 2,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


def manifest_of(path: Path, target: Target = Target.CSIM, **changes: object) -> Manifest:
    made = Manifest(
        file=path.name,
        target=target,
        platform=PLATFORM,
        part="xcu55c-fsvh2892-2L-e",
        tool="v++ 2024.1",
        kernels_digest=kernels_digest(),
        limits=shape_limits(),
        sha256=file_digest(path),
        target_clock_mhz=245.0,
        clock_mhz=None,
        timing_met=None,
        utilisation=None,
        synthesis=None,
        built=True,
        provenance="emulated",
    )
    return replace(made, **changes)


@pytest.fixture
def csim(tmp_path):
    """A csim container with its manifest."""
    path = tmp_path / "ecorl.csim.xclbin"
    write_container(path, kernel_interfaces(), b"library", card_memory())
    write_manifest(manifest_of(path), manifest_path(path))
    return path


@pytest.fixture
def card_file(tmp_path):
    """A file as Vitis leaves it for a card, with its manifest."""
    path = tmp_path / "ecorl.hw.xclbin"
    path.write_bytes(_xclbin(1, 245))
    write_manifest(manifest_of(path, Target.HW, provenance=None), manifest_path(path))
    return path


@pytest.fixture
def model(tmp_path):
    """A model's config with some fields changed."""

    def make(**changes: object):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**LLAMA, **changes}))
        return read_config_file(path)

    return make


def edit(path: Path, **changes: object) -> None:
    """Change fields of a bitstream's manifest."""
    data = json.loads(manifest_path(path).read_text())
    manifest_path(path).write_text(json.dumps({**data, **changes}))


def refused(path: Path, **arguments: object) -> str:
    """The one line with which a file is refused."""
    wanted = {"platform": None, "model": None, "emulated": True, **arguments}
    with pytest.raises(BitstreamError) as caught:
        check_bitstream(path, **wanted)
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- what is taken ------------------------------------------------------------------------------


def test_a_container_that_fits_is_taken_in_emulation(csim, model):
    found = check_bitstream(csim, platform=PLATFORM, model=model(), emulated=True)
    assert found == read_manifest(manifest_path(csim))
    assert found.target is Target.CSIM


def test_a_cards_file_is_taken_by_a_card(card_file, model):
    found = check_bitstream(card_file, platform=CARD, model=model(), emulated=False)
    assert found.target is Target.HW


@pytest.mark.parametrize(
    ("card", "same"),
    [
        (PLATFORM, True),
        (CARD, True),
        ("xilinx_u55c_gen3x16_xdma_3", True),
        ("xilinx_u55c_gen3x16_xdma_base_2", False),
        ("xilinx_u55n_gen3x16_xdma_base_3", False),
        ("", False),
    ],
)
def test_a_cards_own_name_is_compared_with_the_platform(card, same):
    assert same_platform(PLATFORM, card) is same


# ---- what is refused ----------------------------------------------------------------------------


def test_a_file_without_a_manifest_is_refused(csim):
    manifest_path(csim).unlink()
    assert "ecorl.csim.json is missing" in refused(csim)


def test_a_changed_file_is_refused(csim):
    data = bytearray(csim.read_bytes())
    data[-9] ^= 1
    csim.write_bytes(data)
    assert "is not the file that its manifest is of: SHA-256" in refused(csim)


def test_an_absent_file_is_refused(csim):
    csim.unlink()
    assert "cannot be read: No such file" in refused(csim)


def test_a_file_under_anothers_manifest_is_refused(csim):
    edit(csim, file="other.csim.xclbin")
    assert "is the manifest of other.csim.xclbin" in refused(csim)


def test_what_was_never_built_is_refused(csim):
    edit(csim, built=False)
    assert "built = false" in refused(csim)


def test_another_platform_is_refused(csim):
    line = refused(csim, platform="xilinx_u280_gen3x16_xdma_base_1")
    assert f"is for {PLATFORM}, and the card is a xilinx_u280_gen3x16_xdma_base_1" in line


def test_other_kernel_sources_are_refused(csim):
    edit(csim, kernels_digest="sha256:" + "0" * 64)
    assert "built from other kernel sources" in refused(csim)


def test_an_emulations_file_is_refused_by_a_card(csim):
    assert "is for emulation (target = csim)" in refused(csim, emulated=False)


@pytest.mark.parametrize(("target", "mode"), [(Target.HW_EMU, 4), (Target.SW_EMU, 5)])
def test_vitis_emulations_are_refused_by_a_card(tmp_path, target, mode):
    path = tmp_path / f"ecorl.{target}.xclbin"
    path.write_bytes(_xclbin(mode, 245))
    write_manifest(manifest_of(path, target), manifest_path(path))
    assert check_bitstream(path, platform=None, model=None, emulated=True).target is target
    assert f"target = {target}" in refused(path, emulated=False)


def test_a_cards_file_is_refused_in_emulation(card_file):
    assert "is for a card" in refused(card_file)


def test_a_manifest_cannot_make_an_emulation_a_cards_file(csim):
    """Neither header nor name change when somebody edits the manifest."""
    edit(csim, target="hw")
    assert "name and header do not (mode SW_EMU)" in refused(csim, emulated=False)
    renamed = csim.with_name("ecorl.hw.xclbin")
    renamed.write_bytes(csim.read_bytes())
    write_manifest(manifest_of(renamed, Target.HW), manifest_path(renamed))
    assert "name and header do not (mode SW_EMU)" in refused(renamed, emulated=False)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"hidden_size": 16384}, "hidden_size = 16,384: the kernels take at most 8,192"),
        ({"intermediate_size": 11000}, "at most 32,768 and a multiple of 16"),
        ({"num_attention_heads": 512, "num_key_value_heads": 8, "head_dim": 16},
         "num_attention_heads = 512: the kernels take at most 256"),
        ({"head_dim": 256}, "head_dim = 256: the kernels take at most 128 and a multiple of 16"),
        ({"head_dim": 72}, "head_dim = 72: the kernels take at most 128 and a multiple of 16"),
        ({"vocab_size": 262145}, "vocab_size = 262,145: the kernels take at most 262,144"),
    ],
)  # fmt: skip
def test_a_model_beyond_the_limits_is_refused(csim, model, changes, line):
    assert line in refused(csim, model=model(**changes))


def test_a_reward_model_may_have_any_vocabulary(csim, model):
    config = model(architectures=["LlamaForSequenceClassification"], vocab_size=300_000)
    check_bitstream(csim, platform=None, model=config, emulated=True)


def test_the_manifests_limits_count_and_not_the_installed_ones(csim, model):
    edit(csim, limits={**asdict(shape_limits()), "hidden": 2048})
    assert "at most 2,048" in refused(csim, model=model())


# ---- manifests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"format": 2}, "format = 2: allowed is 1"),
        ({"target": "fpga"}, "target = 'fpga': allowed is one of csim, sw_emu, hw_emu, hw"),
        ({"target": ["hw"]}, "target = ['hw']"),
        ({"built": "yes"}, "built = 'yes': allowed is true or false"),
        ({"timing_met": 1}, "timing_met = 1: allowed is true or false"),
        ({"sha256": None}, "sha256 = None: allowed is a text"),
        ({"target_clock_mhz": 0}, "target_clock_mhz = 0: allowed is a number above 0"),
        ({"clock_mhz": "fast"}, "clock_mhz = 'fast'"),
        ({"limits": {"hidden": 1}}, "allowed is whole numbers above 0"),
        ({"utilisation": [1]}, "utilisation = [1]"),
        ({"synthesis": {"gemm_int8": "ok"}}, "synthesis = "),
        ({"provenance": "measured"}, "provenance = 'measured': allowed is emulated, synthesised"),
        ({"colour": "red"}, "colour is missing or not known"),
    ],
)
def test_a_malformed_manifest_is_refused(csim, changes, line):
    edit(csim, **changes)
    assert line in refused(csim)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "NaN", '{"format": 1}', "[" * 100_000])
def test_what_is_no_manifest_is_refused(csim, text):
    manifest_path(csim).write_text(text)
    assert "is no manifest" in refused(csim)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_value_in_any_field_is_taken_or_refused_in_one_line(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.csim.xclbin"
    path.write_bytes(b"x")
    write_manifest(manifest_of(path), manifest_path(path))
    fields = json.loads(manifest_path(path).read_text())
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(JSON)
    manifest_path(path).write_text(json.dumps(fields))
    try:
        read_manifest(manifest_path(path))
    except BitstreamError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert "\n" not in refusal


SITES = st.dictionaries(
    st.sampled_from(["lut", "dsp"]),
    st.fixed_dictionaries({"used": st.none() | st.floats(0, 1e7)}),
)


@settings(max_examples=60, deadline=None)
@given(
    target=st.sampled_from(Target),
    clock_mhz=st.none() | st.floats(1, 1000),
    timing_met=st.none() | st.booleans(),
    utilisation=st.none() | SITES,
    synthesis=st.none()
    | st.dictionaries(st.text(max_size=5), st.lists(st.text(), max_size=3).map(tuple)),
    provenance=st.sampled_from([None, "emulated", "synthesised"]),
)
def test_any_manifest_comes_back(tmp_path_factory, **changes):
    path = tmp_path_factory.getbasetemp() / "back.csim.xclbin"
    path.write_bytes(b"x")
    made = manifest_of(path, **changes)
    write_manifest(made, manifest_path(path))
    assert read_manifest(manifest_path(path)) == made


# ---- limits -------------------------------------------------------------------------------------


def test_limits_are_those_of_the_headers():
    assert shape_limits() == ShapeLimits(
        hidden=8192,
        intermediate=32768,
        intermediate_unit=16,
        heads=256,
        head_dim=128,
        head_unit=16,
        vocabulary=262144,
        positions=65536,
        rows=1 << 20,
    )


def test_limits_follow_the_headers(tmp_path):
    for name in ("include/ecorl_rows.hpp", "include/ecorl_words.hpp", "include/kv_pages.hpp",
                 "gemm_int8/gemm_int8.hpp", "vector_ops/vector_ops.hpp",
                 "score_aggregator/score_aggregator.hpp"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (kernel_root() / name).read_text()
        text = re.sub(r"MAX_COLUMNS = 8192", "MAX_COLUMNS = 2 * (1024 + 1024)", text)
        (tmp_path / name).write_text(text)
    assert shape_limits(tmp_path).hidden == 4096
    header = tmp_path / "vector_ops" / "vector_ops.hpp"
    header.write_text(header.read_text().replace("2 * (1024 + 1024)", "size_of(word_t)"))
    with pytest.raises(BuildError, match=r"size_of\(word_t\): allowed are sums and products"):
        shape_limits(tmp_path)
    header.write_text(header.read_text().replace(" MAX_COLUMNS = ", " MOST_COLUMNS = "))
    with pytest.raises(BuildError, match="no constexpr MAX_COLUMNS"):
        shape_limits(tmp_path)
    header.unlink()
    with pytest.raises(BuildError, match="cannot be read"):
        shape_limits(tmp_path)
