"""A card through pyxrt of either generation, on a stand-in that says what it was told to."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from ecorl.drivers.xrt.card import OpenCard, RunState, load_pyxrt, translated
from ecorl.drivers.xrt.power import XrtDriver
from ecorl.engines.fpga.bitstream.xclbin import write_container
from ecorl.engines.fpga.kernels.banks import card_memory
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces
from ecorl.errors import (
    BitstreamError,
    DeviceLost,
    DriverError,
    DriverTimeout,
    LibraryNotFound,
    NoPermission,
)
from tests.fakes.pyxrt_faults import Fault, Script
from tests.fakes.pyxrt_python import GENERATIONS, LONGEST_WAIT_MS, NAME, Machine, module

TOPS = {k.kernel: k.top for k in kernel_interfaces()}
INDEX = {(k.kernel, a.name): a.index for k in kernel_interfaces() for a in k.arguments}


@pytest.fixture(scope="module")
def container(tmp_path_factory):
    path = tmp_path_factory.mktemp("card") / "x.csim.xclbin"
    write_container(path, kernel_interfaces(), b"no library", card_memory())
    return path


@pytest.fixture(params=GENERATIONS)
def machine(request):
    """A machine whose kernels note their arguments."""
    calls = []
    tops = {top: lambda *a, top=top: calls.append((top, a)) for top in TOPS.values()}
    made = Machine(SimpleNamespace(**tops), Script(), n_cards=2)
    made.calls, made.generation = calls, request.param
    made.module = module(made, request.param)
    yield made
    made.close()


@pytest.fixture
def card(machine, container):
    return OpenCard(machine.module, 0, container, TOPS.values())


def port(kernel, argument):
    return TOPS[kernel], INDEX[kernel, argument]


def codes(card, n_bytes=64):
    """A buffer that gemm_int8 reads and vector_ops writes."""
    return card.allocate(n_bytes, port("gemm_int8", "a"), port("vector_ops", "codes"))


# ---- opening -----------------------------------------------------------------------------------


def test_both_generations_open(card, machine):
    assert card.has_contexts == (machine.generation != "2022.1")
    assert card.address() == "0000:3b:00.1"


def test_what_does_not_open_is_a_driver_error(machine, container, tmp_path):
    with pytest.raises(DriverError, match=r"device\(7\)"):
        OpenCard(machine.module, 7, container, TOPS.values())
    with pytest.raises(DriverError, match=r"other_krnl.* x\.csim\.xclbin"):
        OpenCard(machine.module, 0, container, ["other_krnl"])
    machine.script.add(Fault("no_open"))
    with pytest.raises(DeviceLost):
        OpenCard(machine.module, 0, container, TOPS.values())


def test_a_card_of_another_platform_is_not_loaded(machine, container):
    asked = []

    def check(name):
        asked.append(name)
        raise BitstreamError("for another card")

    with pytest.raises(BitstreamError, match="for another card"):
        OpenCard(machine.module, 1, container, TOPS.values(), check)
    machine.name = ""
    with pytest.raises(BitstreamError):
        OpenCard(machine.module, 1, container, TOPS.values(), check)
    named, nameless = asked
    assert named == NAME
    assert nameless
    OpenCard(machine.module, 1, container, TOPS.values(), lambda _name: None)


def test_the_binding_may_be_absent(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyxrt", None)
    with pytest.raises(LibraryNotFound, match="XRT"):
        load_pyxrt()


# ---- buffers -----------------------------------------------------------------------------------


def test_the_host_and_the_card_have_memories_of_their_own(card):
    buffer = codes(card)
    buffer.host[:] = 7
    assert not (buffer.download() == 7).any()
    buffer.host[:] = 8
    buffer.upload()
    buffer.host[:] = 9
    got = buffer.download()
    assert (got == 8).all()
    buffer.host[:] = 1
    assert (got == 8).all()


def test_a_part_is_the_same_memory(card):
    buffer = codes(card, 256)
    part = buffer.part(64, 32)
    part.host[:] = 5
    part.upload()
    assert np.array_equal(np.flatnonzero(buffer.download() == 5), np.arange(64, 96))
    for offset, n_bytes in ((-1, 4), (0, 0), (250, 7), (256, 1)):
        with pytest.raises(DriverError, match=" 256"):
            buffer.part(offset, n_bytes)


def test_a_short_read_is_an_error(card, machine):
    buffer = codes(card)
    machine.script.add(Fault("short_read"))
    with pytest.raises(DriverError, match="60 of 64"):
        buffer.download()


@pytest.mark.parametrize(
    ("kind", "error"),
    [("upload_fails", DriverError), ("download_fails", DriverError), ("no_device", DeviceLost)],
)
def test_a_failed_transfer_says_which(card, machine, kind, error):
    buffer = codes(card)
    machine.script.add(Fault(kind))
    with pytest.raises(error, match="64 bytes: sync") as caught:
        buffer.upload() if kind.startswith("up") else buffer.download()
    assert type(caught.value) is error


def test_memory_that_is_not_there(card, machine):
    machine.script.add(Fault("no_memory"))
    with pytest.raises(DriverError, match="64 bytes: std::bad_alloc"):
        codes(card)


def test_arguments_that_share_a_buffer_share_a_bank(card):
    with pytest.raises(DriverError, match=r"banks: gemm_int8_krnl\(0\), gemm_int8"):
        card.allocate(64, port("gemm_int8", "a"), port("gemm_int8", "c"))
    with pytest.raises(DriverError, match="group_id"):
        card.allocate(64, port("gemm_int8", "m"))


# ---- runs --------------------------------------------------------------------------------------


def test_a_run_is_started_again_and_again(card, machine):
    run, buffer = card.run_of(TOPS["gemm_int8"]), codes(card)
    for value in (-(1 << 31), (1 << 31) - 1, np.int64(5), True):
        run.set(INDEX["gemm_int8", "a"], buffer)
        run.set(INDEX["gemm_int8", "m"], value)
        run.start()
        run.wait(time.monotonic() + 240)
        assert run.state() is RunState.COMPLETED
        name, arguments = machine.calls[-1]
        assert (name, arguments[4].value) == (TOPS["gemm_int8"], int(value))
    assert machine.longest_wait_ms <= LONGEST_WAIT_MS


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1, 1.0, np.float32(2), "3", None])
def test_a_scalar_that_pyxrt_would_drop_is_refused(card, value):
    run = card.run_of(TOPS["gemm_int8"])
    with pytest.raises(DriverError, match=r"argument 4 = .*32-bit"):
        run.set(4, value)


def test_a_buffer_of_another_bank_is_refused(card):
    with pytest.raises(DriverError, match="argument 3 "):
        card.run_of(TOPS["gemm_int8"]).set(INDEX["gemm_int8", "c"], codes(card))


@pytest.mark.parametrize("state", ["error", "abort", "noresponse"])
def test_a_run_that_ends_otherwise_says_how(card, machine, state):
    machine.script.add(Fault(state))
    run = card.run_of(TOPS["gemm_int8"])
    run.set(0, codes(card))
    run.start()
    with pytest.raises(DriverError, match=rf"gemm_int8_krnl .*{state.upper()}$") as caught:
        run.wait(time.monotonic() + 240)
    assert not isinstance(caught.value, DriverTimeout)
    assert run.state() is RunState.FAILED


def test_a_state_that_only_a_newer_xrt_knows(card, machine):
    machine.script.add(Fault("skcrashed"))
    run = card.run_of(TOPS["gemm_int8"])
    run.set(0, codes(card))
    run.start()
    with pytest.raises(DriverError) as caught:
        run.wait(time.monotonic() + 1.0)
    assert isinstance(caught.value, DriverTimeout) != card.has_contexts


def test_a_run_without_an_end_is_a_time_out(card, machine):
    machine.script.add(Fault("hang"))
    run = card.run_of(TOPS["gemm_int8"])
    run.start()
    assert run.state() is RunState.RUNNING
    with pytest.raises(DriverTimeout, match="gemm_int8_krnl "):
        run.wait(time.monotonic() + 0.5)
    assert 0 < machine.longest_wait_ms <= LONGEST_WAIT_MS


def test_a_start_that_is_refused(card, machine):
    machine.script.add(Fault("refuse"))
    with pytest.raises(DriverError, match="gemm_int8_krnl: start: "):
        card.run_of(TOPS["gemm_int8"]).start()


def test_all_handles_go_with_the_card(machine, container):
    opened = OpenCard(machine.module, 0, container, TOPS.values())
    buffer = codes(opened)
    part = buffer.part(0, 32)
    assert len(machine.live[0]) == 2
    del buffer, part
    opened.close()
    assert len(machine.live[0]) == 0


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (RuntimeError("No such device"), DeviceLost, "x: No such device"),
        (OSError(19, "No such device"), DeviceLost, "No such device"),
        (RuntimeError("Operation not permitted"), NoPermission, "not permitted"),
        (RuntimeError("Permission denied"), NoPermission, "denied"),
        (RuntimeError("ioctl timed out"), DriverTimeout, "timed out"),
        (MemoryError("std::bad_alloc"), DriverError, "x: std::bad_alloc"),
        (MemoryError(), DriverError, "x: MemoryError"),
        (OverflowError("too large"), DriverError, "too large"),
        (TypeError("incompatible function arguments"), DriverError, "incompatible"),
        (AttributeError("bo"), DriverError, "this pyxrt lacks it"),
    ],
)
def test_exceptions_of_xrt_become_ours(raised, kind, text):
    with pytest.raises(DriverError, match=text) as caught, translated("x"):
        raise raised
    assert type(caught.value) is kind
    assert caught.value.__cause__ is raised


def test_other_exceptions_pass():
    with pytest.raises(KeyError), translated("x"):
        raise KeyError("a mistake of ours")


# ---- power -------------------------------------------------------------------------------------


@pytest.mark.parametrize("watts", ['"NaN"', "NaN", '"inf"', '"-3"', '"much"', "[]", "true"])
def test_power_that_is_no_number_is_an_error(machine, watts):
    machine.electrical = f'{{"power_consumption_watts": {watts}}}'
    driver = XrtDriver(machine.module)
    driver.open()
    first, second = driver.cards()
    assert (first.index, second.index, first.name) == (0, 1, NAME)
    with pytest.raises(DriverError):
        driver.power_w(first)


@pytest.mark.parametrize("text", ["garbage", "[1]", "{", ""])
def test_a_report_that_is_no_json_object_is_an_error(machine, text):
    machine.electrical = text
    driver = XrtDriver(machine.module)
    driver.open()
    with pytest.raises(DriverError, match="electrical report"):
        driver.power_w(driver.cards()[0])


def test_power_that_a_card_does_not_tell_is_missing(machine):
    driver = XrtDriver(machine.module)
    driver.open()
    card = driver.cards()[0]
    assert driver.power_w(card) == 21.4
    machine.electrical = '{"power_consumption_watts": "N/A"}'
    assert driver.power_w(card) is None
