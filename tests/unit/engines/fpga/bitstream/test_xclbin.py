"""XRT's container: what is written is read again, damage is told, and XRT itself takes it."""

from __future__ import annotations

import json
import struct
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.engines.fpga.bitstream.xclbin import Kind, Mode, read_container, write_container
from ecorl.engines.fpga.kernels.banks import PLATFORM, Bank, BankMap, card_memory
from ecorl.engines.fpga.kernels.interfaces import Argument, KernelInterface, kernel_interfaces
from ecorl.errors import BitstreamError, BuildError
from tests.examples import examples
from tests.fakes.xclbin_sections import connections, memories, units
from tests.fakes.xrt_noop import COMPLETED, run_kernels

LIBRARY = b"\x7fELF" + bytes(range(251))


@pytest.fixture
def container(tmp_path):
    path = tmp_path / "kernels.csim.xclbin"
    write_container(path, kernel_interfaces(), LIBRARY, card_memory())
    return path


def test_what_is_written_is_read(container):
    found = read_container(container)
    assert found.section(Kind.BITSTREAM) == LIBRARY
    assert found.mode is Mode.SW_EMU
    assert found.platform == PLATFORM
    assert [Kind(s.kind).name for s in found.sections] == [
        "BITSTREAM",
        "MEM_TOPOLOGY",
        "IP_LAYOUT",
        "CONNECTIVITY",
        "GROUP_TOPOLOGY",
        "GROUP_CONNECTIVITY",
        "EMBEDDED_METADATA",
        "BUILD_METADATA",
    ]
    assert units(found)[0] == "gemm_int8_krnl:gemm_int8_krnl_1"
    assert json.loads(found.section(Kind.BUILD_METADATA))["build_metadata"]["xclbin"]


def test_the_header_is_where_xrt_looks_for_it(container):
    """Offsets of the public xclbin.h, by hand: the reader shares the writer's structures."""
    data = container.read_bytes()
    assert data[:8] == b"xclbin2\0"
    assert struct.unpack_from("<i", data, 8) == (-1,)
    assert data[12:40] == b"\xff" * 28
    assert struct.unpack_from("<Q", data, 304) == (len(data),)
    assert struct.unpack_from("<H", data, 332) == (Mode.SW_EMU,)
    assert data[352 : 352 + len(PLATFORM) + 1] == PLATFORM.encode() + b"\0"
    (n_sections,) = struct.unpack_from("<I", data, 448)
    for i in range(n_sections):
        kind, name, offset, size = struct.unpack_from("<I16s4xQQ", data, 456 + 40 * i)
        assert offset % 8 == 0
        assert offset + size <= len(data)
        assert name.rstrip(b"\0").decode() == Kind(kind).name[:15]
    assert len(data) % 8 == 0


def test_memory_is_the_cards_channels_and_then_the_banks(container):
    found, memory = read_container(container), card_memory()
    channels = memories(found, Kind.MEM_TOPOLOGY)
    assert [c.tag for c in channels] == [f"HBM[{i}]" for i in range(32)]
    assert all(c.n_bytes == 512 << 20 and c.is_used for c in channels)
    assert [c.base_address for c in channels] == [i << 29 for i in range(32)]
    groups = memories(found)
    assert groups[:32] == channels
    assert [g.tag for g in groups[32:]] == ["MBG[0:12]", "MBG[13:24]", "MBG[25:28]"]
    kernels = kernel_interfaces()
    for one in connections(found):
        argument = kernels[one.unit].arguments[one.argument]
        assert groups[one.memory].tag == memory.bank(kernels[one.unit], argument.name).tag
    wired = sum(len(memory.bank(k, a.name).channels) for k in kernels for a in k.buffers)
    assert len(connections(found, Kind.CONNECTIVITY)) == wired


def test_the_xml_says_every_argument(container):
    root = ElementTree.fromstring(read_container(container).section(Kind.EMBEDDED_METADATA))
    for kernel in kernel_interfaces():
        own = root.find(f"platform/device/core/kernel[@name='{kernel.top}']")
        assert own.find("instance").get("name") == kernel.instance
        told = [
            (a.get("name"), int(a.get("id")), a.get("addressQualifier"), int(a.get("offset"), 16))
            for a in own.findall("arg")
        ]
        assert told == [
            (a.name, a.index, "1" if a.is_buffer else "0", a.offset) for a in kernel.arguments
        ]
        ports = {p.get("name") for p in own.findall("port")}
        assert {a.get("port") for a in own.findall("arg")} <= ports


def test_the_same_content_gives_the_same_bytes_and_other_content_another_uuid(tmp_path, container):
    again = tmp_path / "again.csim.xclbin"
    write_container(again, kernel_interfaces(), LIBRARY, card_memory())
    assert again.read_bytes() == container.read_bytes()
    write_container(again, kernel_interfaces(), LIBRARY + b"x", card_memory())
    assert read_container(again).identity != read_container(container).identity


def test_names_and_suffix_are_checked(tmp_path):
    with pytest.raises(BuildError, match=r"\*\.csim\.xclbin"):
        write_container(tmp_path / "a.xclbin", (), b"", card_memory())
    with pytest.raises(BuildError, match="63 bytes"):
        write_container(tmp_path / "a.csim.xclbin", (), b"", card_memory(), platform="p" * 64)
    assert list(tmp_path.iterdir()) == []


def test_every_shorter_file_is_refused_in_one_line(container, snapshot):
    data, lines = container.read_bytes(), []
    for n_bytes in (0, 7, 8, 300, 455, 456, 700, len(data) // 2, len(data) - 1):
        container.write_bytes(data[:n_bytes])
        with pytest.raises(BitstreamError) as caught:
            read_container(container)
        lines.append(str(caught.value))
    sizes = {"size": len(data), "half": len(data) // 2, "all but one": len(data) - 1}
    snapshot("\n".join(lines), **{name: f"{n:,}" for name, n in sizes.items()})


def test_foreign_and_absent_files_are_refused(tmp_path, snapshot):
    with pytest.raises(BitstreamError) as caught:
        read_container(tmp_path / "none.xclbin")
    snapshot(str(caught.value), "absent")
    path = tmp_path / "image.xclbin"
    path.write_bytes(b"\x89PNG" + bytes(1000))
    with pytest.raises(BitstreamError) as caught:
        read_container(path)
    snapshot(str(caught.value), "foreign")


@settings(max_examples=examples(300), deadline=None)
@given(at=st.integers(0, 800), value=st.integers(0, 255))
def test_a_damaged_header_is_read_or_refused_and_nothing_else(tmp_path_factory, at, value):
    folder = tmp_path_factory.getbasetemp()
    path = folder / "damaged.csim.xclbin"
    write_container(path, kernel_interfaces()[:1], LIBRARY, card_memory())
    data = bytearray(path.read_bytes())
    data[at] = value
    path.write_bytes(data)
    try:
        found = read_container(path)
        memories(found), connections(found), units(found)
    except BitstreamError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert "\n" not in refusal


# ---- any kernels, any memory --------------------------------------------------------------------

NAMES = st.text("abcdefghij_", min_size=1, max_size=12)


@st.composite
def designs(draw):
    n_channels = draw(st.integers(1, 40))
    channel_bytes = draw(st.integers(1, 1 << 20)) << 10
    kernels, wiring = [], {}
    for name in draw(st.lists(NAMES, max_size=4, unique=True)):
        arguments, own, offset = [], {}, 0x10
        for index, argument in enumerate(draw(st.lists(NAMES, max_size=6, unique=True))):
            is_buffer = draw(st.booleans())
            bundle = draw(NAMES) if is_buffer else None
            kind = "word_t*" if is_buffer else "std::int32_t"
            size = 8 if is_buffer else 4
            arguments.append(Argument(index, argument, kind, bundle, False, size, offset))
            offset += size + 4
            if is_buffer:
                first = draw(st.integers(0, n_channels - 1))
                own[argument] = Bank("any", first, draw(st.integers(first, n_channels - 1)))
        kernels.append(KernelInterface(name, f"{name}_krnl", tuple(arguments)))
        wiring[name] = own
    return kernels, BankMap(n_channels, channel_bytes, wiring)


@settings(max_examples=examples(80), deadline=None)
@given(design=designs(), library=st.binary(max_size=200), platform=NAMES)
def test_any_design_comes_back(tmp_path_factory, design, library, platform):
    kernels, memory = design
    path = tmp_path_factory.getbasetemp() / "any.csim.xclbin"
    made = write_container(path, kernels, library, memory, platform=platform)
    found = read_container(path)
    assert found == made
    assert found.section(Kind.BITSTREAM) == library
    assert [unit.split(":")[0] for unit in units(found)] == [k.top for k in kernels]
    groups, size = memories(found), memory.channel_bytes
    wanted = {
        (unit, a.index): memory.bank(k, a.name) for unit, k in enumerate(kernels) for a in k.buffers
    }
    for one in connections(found):
        bank, entry = wanted.pop((one.unit, one.argument)), groups[one.memory]
        assert entry.is_used
        assert (entry.base_address, entry.n_bytes) == (bank.first * size, len(bank.channels) * size)
    assert wanted == {}


# ---- XRT itself ---------------------------------------------------------------------------------


def test_xrt_loads_it_and_runs_every_kernel_to_completed(container, tmp_path, require_tool):
    require_tool("xrt")
    kernels, found = kernel_interfaces(), read_container(container)
    told = run_kernels(
        container, {k.top: [a.is_buffer for a in k.arguments] for k in kernels}, tmp_path / "xrt"
    )
    assert told["uuid"] == found.identity.hex
    tags = [entry.tag for entry in memories(found)]
    memory = card_memory()
    for kernel in kernels:
        assert told[kernel.top]["state"] == COMPLETED
        assert [
            group if group is None else tags[group] for group in told[kernel.top]["groups"]
        ] == [memory.bank(kernel, a.name).tag if a.is_buffer else None for a in kernel.arguments]


def test_structures_have_the_sizes_of_the_public_header():
    from ecorl.engines.fpga.bitstream import xclbin

    assert xclbin._PREFIX.size + xclbin._HEADER.size == 456
    assert xclbin._SECTION.size == 40
    assert (xclbin._MEMORY.size, xclbin._CONNECTION.size, xclbin._UNIT.size) == (40, 12, 80)
