"""Sections of an xclbin that XRT reads and ecorl only writes."""

from __future__ import annotations

from ecorl.engines.fpga.bitstream import xclbin
from ecorl.engines.fpga.bitstream.xclbin import Container, Kind, MemoryConnection, MemoryEntry


def units(container: Container) -> tuple[str, ...]:
    """Compute units as ``kernel:instance``, in the file's order."""
    rows = container._rows(Kind.IP_LAYOUT, xclbin._UNIT_COUNT, xclbin._UNIT)
    return tuple(xclbin._text(name) for _, _, _, name in rows)


def memories(container: Container, kind: Kind = Kind.GROUP_TOPOLOGY) -> tuple[MemoryEntry, ...]:
    """Memory entries; an entry's place in the list is what XRT calls a group id."""
    rows = container._rows(kind, xclbin._MEMORY_COUNT, xclbin._MEMORY)
    return tuple(
        MemoryEntry(xclbin._text(tag), base, size << 10, bool(used))
        for _, used, size, base, tag in rows
    )


def connections(
    container: Container, kind: Kind = Kind.GROUP_CONNECTIVITY
) -> tuple[MemoryConnection, ...]:
    """The memory entry that each argument is wired to."""
    rows = container._rows(kind, xclbin._CONNECTION_COUNT, xclbin._CONNECTION)
    return tuple(MemoryConnection(*row) for row in rows)
