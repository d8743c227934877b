"""The xclbin, XRT's file format of bitstreams: a writer for the C-simulation, and a reader.

An xclbin has a header and sections: the kernels, the registers of their arguments, the memory that
each argument is wired to, and the card's configuration. The
format is public (``xclbin.h`` of XRT). `write_container` makes such a file around the library of
the C-simulation in place of a configuration, so that host code runs against real XRT with no card.
Nothing in it was synthesised; its name ends in ``.csim.xclbin``, and a host loads it in emulation
only.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from ecorl.engines.fpga.bitstream.xclbin_metadata import build_json, kernel_xml, unit_address
from ecorl.engines.fpga.kernels.banks import PLATFORM, Bank, BankMap
from ecorl.engines.fpga.kernels.interfaces import KernelInterface
from ecorl.errors import BitstreamError, BuildError
from ecorl.files import write_whole

CSIM_SUFFIX = ".csim.xclbin"
MAGIC = b"xclbin2\0"

_PREFIX = struct.Struct("<8si28s256sQ")
_HEADER = struct.Struct("<QQQHBBHH16s64s16s16sI4x")
_SECTION = struct.Struct("<I16s4xQQ")
_MEMORY_COUNT = struct.Struct("<i4x")
_MEMORY = struct.Struct("<BB6xQQ16s")
_CONNECTION_COUNT = struct.Struct("<i")
_CONNECTION = struct.Struct("<iii")
_UNIT_COUNT = struct.Struct("<i4x")
_UNIT = struct.Struct("<IIQ64s")
_CLOCK_COUNT = struct.Struct("<h")
_CLOCK = struct.Struct("<HB5x128s")
_ALIGNMENT = 8
_MOST_SECTIONS = 0x10000

_MEM_HBM = 6
_IP_KERNEL = 1
_DATA_CLOCK = 1
_CONTROL_CHAIN = 1 << 8
"""ap_ctrl_chain, which Vitis HLS gives a kernel with ``s_axilite port = return`` by default."""


class Mode(IntEnum):
    """The platform that a file was linked for, in its header."""

    FLAT = 0
    PARTIAL = 1
    TANDEM_STAGE2 = 2
    TANDEM_STAGE2_PARTIAL = 3
    HW_EMU = 4
    SW_EMU = 5
    HW_EMU_PARTIAL = 6


class Kind(IntEnum):
    """Kinds of sections that this module writes or reads."""

    BITSTREAM = 0
    EMBEDDED_METADATA = 2
    MEM_TOPOLOGY = 6
    CONNECTIVITY = 7
    IP_LAYOUT = 8
    CLOCK_FREQ_TOPOLOGY = 11
    BUILD_METADATA = 14
    GROUP_TOPOLOGY = 26
    GROUP_CONNECTIVITY = 27


@dataclass(frozen=True, slots=True)
class XclbinSection:
    """One section of a file; `kind` may be one that `Kind` does not list."""

    kind: int
    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """A channel, or a range of them that is used as one."""

    tag: str
    base_address: int
    n_bytes: int
    is_used: bool


@dataclass(frozen=True, slots=True)
class MemoryConnection:
    """An argument of the `unit`-th compute unit and the memory entry that it is wired to."""

    argument: int
    unit: int
    memory: int


@dataclass(frozen=True, slots=True)
class Container:
    """Content of an xclbin.

    Attributes:
        path: the file.
        identity: its uuid.
        mode: what it was linked for; None for an unknown number.
        platform: name in its header.
        sections: in the file's order.
    """

    path: Path
    identity: uuid.UUID
    mode: Mode | None
    platform: str
    sections: tuple[XclbinSection, ...]

    def section(self, kind: Kind) -> bytes:
        """Content of the first section of a kind.

        Raises:
            BitstreamError: there is none.
        """
        for section in self.sections:
            if section.kind == kind:
                return section.data
        raise BitstreamError(f"{self.path}: no section {kind.name}")

    @property
    def clock_mhz(self) -> float | None:
        """Clock that the kernels get, MHz; None where the file does not say."""
        if not any(section.kind == Kind.CLOCK_FREQ_TOPOLOGY for section in self.sections):
            return None
        rows = self._rows(Kind.CLOCK_FREQ_TOPOLOGY, _CLOCK_COUNT, _CLOCK)
        return next((float(mhz) for mhz, kind, _ in rows if kind == _DATA_CLOCK and mhz), None)

    def _rows(self, kind: Kind, count: struct.Struct, row: struct.Struct) -> list[tuple[Any, ...]]:
        data = self.section(kind)
        n = count.unpack_from(data)[0] if len(data) >= count.size else -1
        if n < 0 or len(data) < count.size + n * row.size:
            raise BitstreamError(f"{self.path}: the section {kind.name} is cut off")
        return list(row.iter_unpack(data[count.size : count.size + n * row.size]))


# ---- writing -----------------------------------------------------------------------------------


def write_container(
    path: Path,
    kernels: Sequence[KernelInterface],
    library: bytes,
    memory: BankMap,
    *,
    platform: str = PLATFORM,
) -> Container:
    """Write a C-simulation container that XRT loads; the file is complete or absent.

    Args:
        path: ends with ``.csim.xclbin``, in a folder that exists.
        kernels: one compute unit each.
        library: the C-simulation library.
        memory: channels and banks.
        platform: name in the header.

    Returns:
        The content of the file.

    Raises:
        BuildError: an argument has no bank, or a name is too long.
        OSError: the file cannot be written.
    """
    if not path.name.endswith(CSIM_SUFFIX):
        raise BuildError(f"{path}: a C-simulation container is named *{CSIM_SUFFIX}")
    data = container_bytes(kernels, library, memory, platform=platform)
    write_whole(path, data)
    return parse_container(path, data)


def container_bytes(
    kernels: Sequence[KernelInterface], library: bytes, memory: BankMap, *, platform: str = PLATFORM
) -> bytes:
    """Content of a C-simulation container.

    The same input gives the same bytes: there is no time stamp, and the uuid is a hash.

    Args:
        kernels: one compute unit each.
        library: the C-simulation library, as the section BITSTREAM.
        memory: channels, and the banks of the kernels' arguments.
        platform: name in the header, at most 63 bytes.

    Raises:
        BuildError: an argument has no bank, or a name is too long.
    """
    connections, entries = _wired(kernels, memory)
    channels = entries[: memory.n_channels]
    parts = {
        Kind.BITSTREAM: library,
        Kind.MEM_TOPOLOGY: _memory_section(channels),
        Kind.IP_LAYOUT: _unit_section(kernels),
        Kind.CONNECTIVITY: _connection_section(_spread(connections, entries, memory)),
        Kind.GROUP_TOPOLOGY: _memory_section(entries),
        Kind.GROUP_CONNECTIVITY: _connection_section(connections),
        Kind.EMBEDDED_METADATA: kernel_xml(kernels, platform),
        Kind.BUILD_METADATA: build_json(kernels, platform),
    }
    sections = tuple(XclbinSection(kind, kind.name[:15], data) for kind, data in parts.items())
    digest = hashlib.sha256(_fixed(platform, 64))
    for section in sections:
        digest.update(f"{section.kind} {len(section.data)}\n".encode() + section.data)
    identity = uuid.UUID(bytes=digest.digest()[:16], version=5)
    return _laid_out(identity, platform, sections)


def _laid_out(identity: uuid.UUID, platform: str, sections: Sequence[XclbinSection]) -> bytes:
    """The file's bytes: header, table of sections, sections at multiples of 8."""
    at = _PREFIX.size + _HEADER.size + len(sections) * _SECTION.size
    table, body = bytearray(), bytearray()
    for section in sections:
        gap = -(at + len(body)) % _ALIGNMENT
        body += bytes(gap)
        table += _SECTION.pack(
            section.kind, _fixed(section.name, 16), at + len(body), len(section.data)
        )
        body += section.data
    body += bytes(-len(body) % _ALIGNMENT)
    raw = identity.bytes
    prefix = _PREFIX.pack(MAGIC, -1, b"\xff" * 28, bytes(256), int.from_bytes(raw[:8], "little"))
    header = _HEADER.pack(
        at + len(body), 0, 0, 0, 2, 1, Mode.SW_EMU, 0, bytes(16),
        _fixed(platform, 64), raw, bytes(16), len(sections),
    )  # fmt: skip
    return bytes(prefix + header + table + body)


def _wired(
    kernels: Sequence[KernelInterface], memory: BankMap
) -> tuple[list[MemoryConnection], list[MemoryEntry]]:
    """Connections with each range as one entry, and all entries: channels, then ranges."""
    size = memory.channel_bytes
    banks = {(k.kernel, a.name): memory.bank(k, a.name) for k in kernels for a in k.buffers}
    used = {channel for bank in banks.values() for channel in bank.channels}
    entries = [
        MemoryEntry(f"HBM[{c}]", c * size, size, c in used) for c in range(memory.n_channels)
    ]
    places = {entry.tag: i for i, entry in enumerate(entries)}
    for bank in sorted(set(banks.values()), key=lambda b: (b.first, b.last)):
        if bank.tag not in places:
            places[bank.tag] = len(entries)
            entries.append(_range(bank, size))
    connections = [
        MemoryConnection(argument.index, unit, places[banks[kernel.kernel, argument.name].tag])
        for unit, kernel in enumerate(kernels)
        for argument in kernel.buffers
    ]
    return connections, entries


def _range(bank: Bank, size: int) -> MemoryEntry:
    return MemoryEntry(bank.tag, bank.first * size, len(bank.channels) * size, True)


def _spread(
    connections: Sequence[MemoryConnection], entries: Sequence[MemoryEntry], memory: BankMap
) -> list[MemoryConnection]:
    """The same connections with each range as its channels."""
    size = memory.channel_bytes
    found = []
    for one in connections:
        entry = entries[one.memory]
        first = entry.base_address // size
        found += [
            MemoryConnection(one.argument, one.unit, channel)
            for channel in range(first, first + entry.n_bytes // size)
        ]
    return found


def _memory_section(entries: Sequence[MemoryEntry]) -> bytes:
    rows = (
        _MEMORY.pack(_MEM_HBM, e.is_used, e.n_bytes >> 10, e.base_address, _fixed(e.tag, 16))
        for e in entries
    )
    return _MEMORY_COUNT.pack(len(entries)) + b"".join(rows)


def _connection_section(connections: Sequence[MemoryConnection]) -> bytes:
    rows = (_CONNECTION.pack(c.argument, c.unit, c.memory) for c in connections)
    return _CONNECTION_COUNT.pack(len(connections)) + b"".join(rows)


def _unit_section(kernels: Sequence[KernelInterface]) -> bytes:
    rows = (
        _UNIT.pack(_IP_KERNEL, _CONTROL_CHAIN, unit_address(i), _fixed(f"{k.top}:{k.instance}", 64))
        for i, k in enumerate(kernels)
    )
    return _UNIT_COUNT.pack(len(kernels)) + b"".join(rows)


def _fixed(text: str, n_bytes: int) -> bytes:
    """Text in a field that ends with a zero."""
    raw = text.encode()
    if len(raw) >= n_bytes:
        raise BuildError(
            f"{text!r} is longer than the {n_bytes - 1} bytes that an xclbin has for it"
        )
    return raw.ljust(n_bytes, b"\0")


# ---- reading -----------------------------------------------------------------------------------


def read_container(path: Path) -> Container:
    """Read an xclbin, of ours or of Vitis.

    Raises:
        BitstreamError: in one line, when it cannot be read, is no xclbin or is cut off.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BitstreamError(f"{path} cannot be read: {error.strerror}") from error
    return parse_container(path, data)


def parse_container(path: Path, data: bytes) -> Container:
    """Read the content of an xclbin.

    Args:
        path: where it lies or will lie, for errors.
        data: all of the file.

    Raises:
        BitstreamError: in one line, when it is no xclbin or is cut off.
    """
    if not data.startswith(MAGIC):
        raise BitstreamError(f"{path} is no xclbin: it does not begin with {MAGIC[:-1].decode()}")
    at = _PREFIX.size + _HEADER.size
    if len(data) < at:
        raise BitstreamError(f"{path} is cut off: {len(data):,} bytes are less than its header")
    fields = _HEADER.unpack_from(data, _PREFIX.size)
    length, mode, platform, identity, n_sections = (
        fields[0], fields[6], fields[9], fields[10], fields[12]
    )  # fmt: skip
    if length > len(data):
        raise BitstreamError(f"{path} is cut off: {len(data):,} bytes of {length:,}")
    if n_sections > _MOST_SECTIONS or at + n_sections * _SECTION.size > len(data):
        raise BitstreamError(f"{path} is damaged: it names {n_sections:,} sections")
    sections = tuple(_section(path, data, at + i * _SECTION.size) for i in range(n_sections))
    known = Mode(mode) if mode in set(Mode) else None
    return Container(path, uuid.UUID(bytes=identity), known, _text(platform), sections)


def _section(path: Path, data: bytes, at: int) -> XclbinSection:
    kind, name, offset, size = _SECTION.unpack_from(data, at)
    if offset + size > len(data):
        raise BitstreamError(f"{path} is damaged: section {kind} lies beyond its end")
    return XclbinSection(kind, _text(name), data[offset : offset + size])


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
