"""Who runs the kernels: by the model, the machine and the file that is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ecorl.drivers.xrt.reset import reset_card
from ecorl.engines.fpga.bitstream.manifest import (
    BitstreamTarget,
    check_bitstream,
    manifest_path,
    write_manifest,
)
from ecorl.engines.fpga.bitstream.xclbin import read_container, write_container
from ecorl.engines.fpga.card import opening
from ecorl.engines.fpga.card.backend import KernelBackend
from ecorl.engines.fpga.card.decoder import CardDecoder
from ecorl.engines.fpga.card.opening import (
    csim_container,
    emulated,
    objection_to,
    on_cards,
    wants_xrt,
)
from ecorl.engines.fpga.csim.build import csim_library
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.kernels.banks import PLATFORM, card_memory
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces, shape_limits
from ecorl.engines.models.gating import Gating
from ecorl.errors import (
    BitstreamError,
    CheckpointError,
    ConfigError,
    DriverError,
    EngineError,
    MissingToolError,
    UserError,
)
from ecorl.records import Stage
from tests.conftest import demand
from tests.fakes import cards
from tests.fakes.manifests import manifest_of
from tests.fakes.pyxrt_python import NAME, Machine, module

NAMED = "llama_reward"


@pytest.fixture
def config(card_root):
    return cards.tensors(card_root, NAMED).config


def gated(config):
    return replace(config, gating=Gating(2, 1.0, 16, 1, (7,), (False, False)))


# ---- by the model and the machine --------------------------------------------------------------


def test_auto_takes_xrt_where_it_is_installed_and_the_model_can_run(config, monkeypatch):
    for installed in (True, False):
        monkeypatch.setattr(opening, "can_emulate", lambda installed=installed: installed)
        assert wants_xrt("auto", config) is installed
        assert wants_xrt("xrt", config) is True
        assert wants_xrt("csim", config) is False


def test_a_model_that_the_tops_cannot_run(card_root, config, monkeypatch, caplog):
    monkeypatch.setattr(opening, "can_emulate", lambda: True)
    caplog.set_level("INFO")
    wide = cards.tensors(card_root, "llama144").config
    for other, why in ((gated(config), "gate"), (wide, "head_dim = 144")):
        assert why in objection_to(other)
        assert wants_xrt("auto", other) is False
        assert wants_xrt("csim", other) is False
        assert why in caplog.text
        with pytest.raises(CheckpointError, match=why) as caught:
            wants_xrt("xrt", other)
        assert isinstance(caught.value, UserError)
        assert "\n" not in str(caught.value)
    assert objection_to(config) is None


def test_an_engine_of_a_model_that_cannot_run_there(card_root, monkeypatch):
    monkeypatch.setattr(opening, "can_emulate", lambda: True)
    folder = cards.decoder_models.saved_decoder(card_root, "llama144")
    with pytest.raises(CheckpointError, match="head_dim = "):
        FpgaEngine(folder, Stage.REWARD, backend=KernelBackend("xrt"))
    engine = FpgaEngine(folder, Stage.REWARD, backend=KernelBackend("auto"))
    assert (engine.host, engine.on_card, engine.cards()) == ("csim", False, ())
    rows = cards.int8_models.batch_of(cards.rows_of(9))
    assert np.isfinite(engine.score(rows).values).all()
    engine.close()


def test_the_decoder_takes_no_gate(card_root, make_cards):
    tensors = cards.tensors(card_root, NAMED)
    tensors = replace(tensors, config=gated(tensors.config))
    with pytest.raises(CheckpointError, match="gate"):
        CardDecoder(tensors, cards.int8_models.library("fast"), make_cards().setups)


# ---- files -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_emulation(monkeypatch):
    monkeypatch.delenv("XCL_EMULATION_MODE", raising=False)


@pytest.fixture
def made(tmp_path):
    """A C-simulation container and its manifest."""
    demand("gxx")
    path = tmp_path / "ecorl.csim.xclbin"
    write_container(path, kernel_interfaces(), csim_library("fast").read_bytes(), card_memory())
    manifest = manifest_of(path, tool="g++")
    write_manifest(manifest, manifest_path(path))
    return path, manifest


def engine_of(card_root, path):
    return FpgaEngine(
        cards.checkpoint(card_root, NAMED), Stage.REWARD, backend=KernelBackend("xrt", path)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"sha256": "0" * 64},
        {"target": BitstreamTarget.HW},
        {"limits": replace(shape_limits(), head_dim=16)},
        {"kernels_digest": "sha256:0000"},
        {"built": False},
        {"file": "other.csim.xclbin"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_file_that_does_not_fit_is_refused(card_root, made, changes):
    """In the words of `check_bitstream`, whose own tests record them."""
    path, manifest = made
    write_manifest(replace(manifest, **changes), manifest_path(path))
    with pytest.raises(BitstreamError) as caught:
        engine_of(card_root, path)
    with pytest.raises(BitstreamError) as found:
        check_bitstream(path, platform=None, model=None, emulated=True)
    assert str(caught.value) == str(found.value)


def test_a_file_without_a_manifest_is_refused(card_root, made):
    manifest_path(made[0]).unlink()
    with pytest.raises(BitstreamError, match="manifest"):
        engine_of(card_root, made[0])


def test_a_container_of_the_simulation_is_not_for_a_card(card_root, made, tmp_path):
    """Under another name its manifest and header still say what it is."""
    path, manifest = made
    other = tmp_path / "ecorl.xclbin"
    other.write_bytes(path.read_bytes())
    write_manifest(replace(manifest, file=other.name), manifest_path(other))
    with pytest.raises(BitstreamError):
        engine_of(card_root, other)


def test_a_container_that_fits_runs_on_the_noop_driver(card_root, made):
    demand("xrt")
    rows = cards.int8_models.batch_of(cards.rows_of(9, 70))
    plain = FpgaEngine(cards.checkpoint(card_root, NAMED), Stage.REWARD)
    engine = engine_of(card_root, made[0])
    assert (engine.host, engine.on_card) == ("xrt (noop)", False)
    assert [status.index for status in engine.cards()] == [0]
    assert cards.same_bits(engine.score(rows).values, plain.score(rows).values)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.score(rows)


# ---- cards -------------------------------------------------------------------------------------


@pytest.fixture
def machine(card_root):
    found = Machine(cards.int8_models.library("fast").handle, n_cards=2)
    yield found
    found.close()


def real(made, machine, cards_asked, may_reset=True):
    """Cards as if the container were for them; the file is checked elsewhere."""
    path, manifest = made
    return on_cards(
        path, manifest, KernelBackend("xrt", path, cards_asked, may_reset), module(machine)
    )


def test_a_card_of_another_platform_is_left_alone(card_root, machine, made):
    args = (cards.tensors(card_root, NAMED), cards.int8_models.library("fast"))
    machine.name = "xilinx_u250_gen3x16_xdma_shell_4_1"
    setups = real(made, machine, (1,)).setups
    with pytest.raises(BitstreamError, match=rf"{PLATFORM}.*{machine.name}"):
        CardDecoder(*args, setups)
    machine.name = NAME
    opened = real(made, machine, (1, 0))
    assert not opened.is_emulated
    decoder = CardDecoder(*args, opened.setups)
    assert [status.index for status in decoder.status()] == [1, 0]
    decoder.close()


def test_a_file_that_was_changed_since_it_was_checked_is_not_loaded(
    card_root, machine, made, snapshot
):
    args = (cards.tensors(card_root, NAMED), cards.int8_models.library("fast"))
    setups = real(made, machine, (0,)).setups
    with made[0].open("ab") as file:
        file.write(b"x")
    with pytest.raises(BitstreamError) as caught:
        CardDecoder(*args, setups)
    snapshot(str(caught.value), file=made[0])


def test_a_card_that_is_not_there_is_told_in_one_line(machine, made):
    with pytest.raises(ConfigError) as caught:
        real(made, machine, (0, 5))
    assert (caught.value.key, caught.value.value) == ("engine.offload.cards", 5)


def test_an_emulation_mode_is_refused_with_a_card_s_bitstream(machine, made, monkeypatch, snapshot):
    monkeypatch.setenv("XCL_EMULATION_MODE", "hw_emu")
    with pytest.raises(ConfigError) as caught:
        real(made, machine, (0,))
    snapshot(str(caught.value))


def test_a_card_is_reset_only_by_an_engine_with_a_process_of_its_own(machine, made, snapshot):
    (shared,) = real(made, machine, (0,), may_reset=False).setups
    with pytest.raises(DriverError) as caught:
        shared.reset("0000:3b:00.1")
    snapshot(str(caught.value))
    assert real(made, machine, (0,)).setups[0].reset is reset_card


def test_a_bitstream_for_cards_needs_amd_s_pyxrt(made, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyxrt", None)
    with pytest.raises(MissingToolError, match="XRT"):
        on_cards(*made, KernelBackend("xrt", made[0]))


def test_who_runs_the_kernels_is_refused_in_one_line(snapshot):
    lines = []
    for arguments in (
        ("asic",), ("xrt", None, (0, 0)), ("xrt", None, ()), ("csim", Path("x.xclbin")),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            KernelBackend(*arguments)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_auto_falls_back_where_the_emulation_cannot_be_had(card_root, monkeypatch, caplog):
    def absent(*_):
        raise MissingToolError("no headers of Python")

    monkeypatch.setattr(opening, "can_emulate", lambda: True)
    monkeypatch.setattr(opening, "emulated_pyxrt", absent)
    folder = cards.checkpoint(card_root, NAMED)
    engine = FpgaEngine(folder, Stage.REWARD, backend=KernelBackend("auto"))
    assert engine.host == "csim"
    assert "no headers of Python" in caplog.text
    with pytest.raises(MissingToolError):
        FpgaEngine(folder, Stage.REWARD, backend=KernelBackend("xrt"))


def test_a_bitstream_goes_with_no_build_of_the_simulation(card_root, made):
    folder = cards.checkpoint(card_root, NAMED)
    with pytest.raises(ConfigError) as caught:
        FpgaEngine(folder, Stage.REWARD, build="strict", backend=KernelBackend("xrt", made[0]))
    assert caught.value.key == "engine.offload.build"


def test_the_container_of_the_cache_is_written_anew_each_time(monkeypatch, tmp_path):
    demand("gxx")
    monkeypatch.setattr(opening, "cache_folder", lambda: tmp_path)  # others use the real one
    path = csim_container("fast")
    identity = read_container(path).identity
    path.write_bytes(b"damaged")
    assert csim_container("fast") == path
    assert read_container(path).identity == identity


def test_an_emulated_card_has_patience_and_no_reset(tmp_path):
    for tool in ("gxx", "xrt"):
        demand(tool)
    opened = emulated(csim_container("fast"), [0, 3])
    assert opened.is_emulated
    assert [setup.index for setup in opened.setups] == [0, 3]
    for setup in opened.setups:
        assert setup.limits.start_s == opening.EMULATED_START_S
        setup.reset("")
