"""Finds the device profile that a configuration or NVML names."""

from __future__ import annotations

import re
from pathlib import Path

from ecorl.devices import DeviceProfile, load_profile, profile_names
from ecorl.errors import ConfigError
from ecorl.records import DeviceKind

_PROFILE_BY_WORDS = {
    frozenset({"H200"}): "h200",
    frozenset({"H100", "80GB", "HBM3"}): "h100_sxm",
    frozenset({"A100", "SXM4", "80GB"}): "a100_sxm",
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


def named_profile(key: str, name: str, kind: DeviceKind) -> DeviceProfile:
    """Load a profile that the configuration names, of the kind that is wanted there.

    Args:
        key: the configuration's key, for the message.
        name: a profile's name or the path of a file.
        kind: the kind of device that the key stands for.

    Raises:
        ConfigError: when there is none of this name, or it is of another kind: seconds of one
            device times the watts of another would be a figure of neither.
    """
    of_kind = ["auto"] if key == "devices.gpu" else []
    of_kind += [known for known in profile_names() if load_profile(known).kind == kind]
    allowed = f'one of {of_kind} or the path of a TOML file with kind = "{kind}"'
    if name not in profile_names() and not Path(name).expanduser().is_file():
        raise ConfigError(key, name, allowed)
    profile = load_profile(name)
    if profile.kind != kind:
        raise ConfigError(key, name, allowed)
    return profile
