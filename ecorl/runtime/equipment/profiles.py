"""Finds the device profile that a configuration or NVML names."""

from __future__ import annotations

import re

from ecorl.devices import DeviceProfile, chosen_profile, load_profile
from ecorl.records import DeviceKind

_PROFILE_BY_WORDS = {
    frozenset({"H200"}): "h200",
    frozenset({"H100", "80GB", "HBM3"}): "h100_sxm",
    frozenset({"A100", "SXM4", "80GB"}): "a100_sxm",
    frozenset({"B200"}): "b200_sxm",
    frozenset({"L4"}): "l4",
}
"""All words of NVML's product names but the maker's. Part of them is not enough: the PCIe, NVL and
40 GB boards of the same chip have other limits of power and other memory."""


def titled_profile(title: str) -> DeviceProfile | None:
    """Find the profile of a GPU by its product name, or None where none is known.

    Args:
        title: NVML's name of the product.
    """
    name = _PROFILE_BY_WORDS.get(frozenset(title.replace("-", " ").split()) - {"NVIDIA"})
    return load_profile(name) if name is not None else None


def nameless_profile(title: str) -> DeviceProfile:
    """Make a profile of which nothing is known but the title: every figure is missing.

    Args:
        title: NVML's name of the product; empty where nobody tells.
    """
    words = re.findall("[a-z0-9]+", title.lower().replace("nvidia", " "))
    # The prefix keeps it apart from the profiles that travel with the package.
    return DeviceProfile("_".join(["nvidia", *(words or ["gpu"])]), title or "GPU", DeviceKind.GPU)


def named_profile(key: str, name: str, kind: DeviceKind, why: str = "") -> DeviceProfile:
    """Load a profile that the configuration names, of the kind that is wanted there.

    Args:
        key: the configuration's key, for the message.
        name: a profile's name or the path of a file.
        kind: the kind of device that the key stands for.
        why: the reason why only this kind will do, for the message.

    Raises:
        ConfigError: when there is none of this name, or it is of another kind.
    """
    words = ("auto",) if key == "devices.gpu" else ()
    return chosen_profile(key, name, kind, words=words, why=why)
