"""The text sections of an xclbin: kernels in XML, and facts of the build in JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from xml.etree import ElementTree

from ecorl.engines.fpga.kernels.interfaces import Argument, KernelInterface

FIRST_UNIT = 0x800000
"""Address of the first compute unit's registers, as in the shells of Alveo cards."""

UNIT_BYTES = 0x10000
"""Address range of one compute unit, the default of Vitis."""


def unit_address(unit: int) -> int:
    """Address of the registers of the `unit`-th compute unit."""
    return FIRST_UNIT + unit * UNIT_BYTES


def kernel_xml(kernels: Sequence[KernelInterface], platform: str) -> bytes:
    """The XML of kernels and their arguments, which XRT reads.

    Args:
        kernels: one compute unit each.
        platform: name of the development platform.
    """
    project = ElementTree.Element("project", name="ecorl")
    vendor, board = ([*platform.split("_", 2), "", ""])[:2]
    card = ElementTree.SubElement(
        project, "platform", vendor=vendor, boardid=board, name=platform, featureRomTime="0"
    )
    device = ElementTree.SubElement(card, "device", name="fpga0", fpgaDevice="csim")
    core = ElementTree.SubElement(
        device, "core", name="OCL_REGION_0", target="csim", type="clc_region"
    )
    for unit, kernel in enumerate(kernels):
        own = ElementTree.SubElement(
            core, "kernel", name=kernel.top, language="c", hwControlProtocol="ap_ctrl_chain",
            workGroupSize="1", interrupt="true",
        )  # fmt: skip
        for bundle in kernel.bundles:
            ElementTree.SubElement(
                own, "port", name=f"M_AXI_{bundle.upper()}", mode="master",
                range="0xFFFFFFFFFFFFFFFF", portType="addressable", base="0x0",
            )  # fmt: skip
        ElementTree.SubElement(
            own, "port", name="S_AXI_CONTROL", mode="slave", range=hex(UNIT_BYTES),
            dataWidth="32", portType="addressable", base="0x0",
        )  # fmt: skip
        for argument in kernel.arguments:
            ElementTree.SubElement(own, "arg", _argument_xml(argument))
        instance = ElementTree.SubElement(own, "instance", name=kernel.instance)
        ElementTree.SubElement(
            instance, "addrRemap", base=hex(unit_address(unit)), range=hex(UNIT_BYTES),
            port="S_AXI_CONTROL",
        )  # fmt: skip
    ElementTree.indent(project)
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(project) + b"\n"


def _argument_xml(argument: Argument) -> dict[str, str]:
    port = "S_AXI_CONTROL" if argument.bundle is None else f"M_AXI_{argument.bundle.upper()}"
    # XRT knows C's own types and pointers; ours are structures of 64 bytes and the like.
    kind = "void*" if argument.is_buffer else argument.type.removeprefix("std::")
    return {
        "name": argument.name,
        "addressQualifier": str(int(argument.is_buffer)),
        "id": str(argument.index),
        "port": port,
        "size": hex(argument.n_bytes),
        "offset": hex(argument.offset),
        "hostOffset": "0x0",
        "hostSize": hex(argument.n_bytes),
        "type": kind,
    }


def build_json(kernels: Sequence[KernelInterface], platform: str) -> bytes:
    """The JSON on the origin of the file, which XRT's tools print.

    Args:
        kernels: one compute unit each.
        platform: name of the development platform.
    """
    built = {
        "xclbin": {
            "generated_by": {"name": "ecorl"},
            "generator": "csim",
            "provenance": "emulated",
            "platform": platform,
            "user_regions": [
                {"kernels": [{"name": k.top, "instances": [k.instance]} for k in kernels]}
            ],
        }
    }
    return json.dumps({"build_metadata": built}, indent=1).encode()
