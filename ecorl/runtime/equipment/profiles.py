"""Finds the device profile that a configuration names, and makes one of a title alone."""

from __future__ import annotations

import re

from ecorl.devices import DeviceProfile, chosen_profile
from ecorl.records import DeviceKind


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
