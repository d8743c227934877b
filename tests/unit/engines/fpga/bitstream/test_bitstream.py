"""Manifests, and the check by which a host takes a bitstream or refuses it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.engines.fpga.bitstream.manifest import (
    BitstreamTarget,
    check_bitstream,
    manifest_path,
    read_manifest,
    same_platform,
    write_manifest,
)
from ecorl.engines.fpga.bitstream.xclbin import write_container
from ecorl.engines.fpga.csim.build import kernels_digest
from ecorl.engines.fpga.kernels.banks import PLATFORM, card_memory
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces, shape_limits
from ecorl.engines.models.decoder_config import read_config_file
from ecorl.errors import BitstreamError, UserError
from tests.examples import examples
from tests.fakes.manifests import manifest_of
from tests.fakes.vitis import _xclbin

CARD = "xilinx_u55c_gen3x16_xdma_base_3"
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 2,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


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
    made = manifest_of(path, BitstreamTarget.HW, provenance=None, clock_mhz=245.0, timing_met=True)
    write_manifest(made, manifest_path(path))
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
    assert found.target is BitstreamTarget.CSIM


def test_a_cards_file_is_taken_by_a_card(card_file, model):
    found = check_bitstream(card_file, platform=CARD, model=model(), emulated=False)
    assert found.target is BitstreamTarget.HW


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


def test_a_file_without_a_manifest_is_refused(csim, snapshot):
    manifest_path(csim).unlink()
    snapshot(refused(csim))


def test_a_changed_file_is_refused(csim, snapshot):
    data = bytearray(csim.read_bytes())
    data[-9] ^= 1
    csim.write_bytes(data)
    stated = read_manifest(manifest_path(csim)).sha256
    found = hashlib.sha256(data).hexdigest()
    snapshot(refused(csim), found=found[:12], stated=stated[:12])


def test_an_absent_file_is_refused(csim, snapshot):
    csim.unlink()
    line = refused(csim)
    snapshot(line)
    manifest_path(csim).unlink()  # then too it is the file that is missing first
    assert refused(csim) == line


def test_another_platform_is_refused(csim):
    line = refused(csim, platform="xilinx_u280_gen3x16_xdma_base_1")
    assert PLATFORM in line
    assert "xilinx_u280_gen3x16_xdma_base_1" in line


def test_an_emulations_file_and_a_cards_are_not_taken_for_each_other(csim, card_file, snapshot):
    lines = [refused(csim, emulated=False), refused(card_file)]
    edit(csim, target="hw")  # neither header nor name change with it
    lines.append(refused(csim, emulated=False))
    renamed = csim.with_name("renamed.hw.xclbin")
    renamed.write_bytes(csim.read_bytes())
    write_manifest(manifest_of(renamed, BitstreamTarget.HW), manifest_path(renamed))
    snapshot("\n".join([*lines, refused(renamed, emulated=False)]))


@pytest.mark.parametrize(
    ("target", "mode"), [(BitstreamTarget.HW_EMU, 4), (BitstreamTarget.SW_EMU, 5)]
)
@pytest.mark.parametrize("emulated", [True, False])
def test_vitis_emulations_are_for_amds_tools_alone(tmp_path, target, mode, emulated):
    path = tmp_path / f"ecorl.{target}.xclbin"
    path.write_bytes(_xclbin(mode, 245))
    write_manifest(manifest_of(path, target, clock_mhz=245.0), manifest_path(path))
    assert f"(target = {target})" in refused(path, emulated=emulated)


def test_a_model_beyond_the_limits_is_refused(csim, model, snapshot):
    beyond = (
        {"hidden_size": 16384},
        {"intermediate_size": 11000},
        {"num_attention_heads": 512, "num_key_value_heads": 8, "head_dim": 16},
        {"head_dim": 256},
        {"head_dim": 72},
        {"vocab_size": 262145},
    )
    snapshot("\n".join(refused(csim, model=model(**changes)) for changes in beyond))


def test_a_reward_model_may_have_any_vocabulary(csim, model):
    config = model(architectures=["LlamaForSequenceClassification"], vocab_size=300_000)
    check_bitstream(csim, platform=None, model=config, emulated=True)


def test_a_manifest_that_does_not_fit_its_file_is_refused(csim, snapshot):
    limits = asdict(shape_limits())
    others = (
        {"file": "other.csim.xclbin"},
        {"built": False},
        {"kernels_digest": "sha256:" + "0" * 64},
        {"limits": {**limits, "hidden": 2048}},
        {"limits": {**limits, "hidden": 1 << 20}},
        {"platform": "xilinx_u250_gen3x16_xdma_3_1_202020_1"},
        {"clock_mhz": 245},
        {"provenance": None},
        {"provenance": "synthesised"},
    )
    lines, before = [], manifest_path(csim).read_text()
    for changes in others:
        edit(csim, **changes)
        lines.append(refused(csim, platform=changes.get("platform")))
        manifest_path(csim).write_text(before)
    snapshot("\n".join(lines), installed=kernels_digest()[:19])


@pytest.mark.parametrize("clock_mhz", [None, 300])
def test_a_clock_that_a_cards_file_does_not_have_is_refused(card_file, clock_mhz):
    edit(card_file, clock_mhz=clock_mhz)
    line = refused(card_file, emulated=False)
    assert "clock_mhz = " in line
    assert line.endswith(" 245.0")


def test_synthesised_is_what_every_kernels_report_stands_behind(card_file, snapshot):
    reports = {kernel.kernel: [] for kernel in kernel_interfaces()}
    edit(card_file, provenance="synthesised", synthesis=reports)
    check_bitstream(card_file, platform=None, model=None, emulated=False)
    del reports["mha_int8"]
    lines = set()
    for synthesis in (reports, {}, None):
        edit(card_file, synthesis=synthesis)
        lines.add(refused(card_file, emulated=False))
    edit(card_file, provenance="emulated")
    snapshot("\n".join([*lines, refused(card_file, emulated=False)]))


def test_a_design_that_misses_its_timing_is_refused(card_file, caplog, snapshot):
    edit(card_file, timing_met=False)
    snapshot(refused(card_file, emulated=False))
    edit(card_file, timing_met=None)
    check_bitstream(card_file, platform=None, model=None, emulated=False)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    snapshot(record.message, "of a file without a report")


def test_a_timing_that_is_met_or_emulated_is_taken_without_a_word(csim, card_file, caplog):
    check_bitstream(card_file, platform=None, model=None, emulated=False)
    check_bitstream(csim, platform=None, model=None, emulated=True)
    assert not caplog.records


def test_a_folder_is_refused(tmp_path, monkeypatch, snapshot):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.xclbin").mkdir()
    names = ("", ".", "/", "..", "folder", "folder.xclbin")
    snapshot("\n".join(refused(Path(name)) for name in names))


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\udcff", "there/x.xclbin", "..."])
def test_a_path_of_nothing_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    refused(Path(name))


# ---- manifests ----------------------------------------------------------------------------------


def test_a_malformed_manifest_is_refused(csim, snapshot):
    malformed = (
        {"format": 2},
        {"target": "fpga"},
        {"target": ["hw"]},
        {"built": "yes"},
        {"timing_met": 1},
        {"sha256": None},
        {"target_clock_mhz": 0},
        {"target_clock_mhz": 10**40},
        {"clock_mhz": 1e-9},
        {"clock_mhz": "fast"},
        {"limits": {"hidden": 1}},
        {"utilisation": [1]},
        {"utilisation": {"lut": {"used": -5}}},
        {"utilisation": {"lut": {"used": 1e300}}},
        {"utilisation": {"lut": {"x": 1}}},
        {"synthesis": {"gemm_int8": "ok"}},
        {"provenance": "measured"},
        {"colour": "red"},
    )
    lines, before = [], manifest_path(csim).read_text()
    for changes in malformed:
        edit(csim, **changes)
        lines.append(refused(csim))
        manifest_path(csim).write_text(before)
    snapshot("\n".join(lines))


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "NaN", '{"format": 1}', "[" * 100_000])
def test_what_is_no_manifest_is_refused(csim, text):
    manifest_path(csim).write_text(text)
    assert "no manifest" in refused(csim)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@settings(max_examples=examples(200), deadline=None)
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


@settings(max_examples=examples(60), deadline=None)
@given(
    target=st.sampled_from(BitstreamTarget),
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
