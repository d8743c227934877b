"""Device profiles: figures of a device, each with its unit, provenance and source.

A profile is a TOML file. Those that travel with the package lie in ``profiles/``; a user's own
file has the same form::

    name = "my_card"
    title = "My card"
    kind = "fpga"                 # gpu, fpga or cpu

    [figures.idle_w]
    value = 21.4
    unit = "W"
    provenance = "published"      # published, modelled or measured
    source = "where the figure comes from"

A figure that nobody knows is left out; nothing stands in for it. One that is assumed or fitted may
carry an interval, ``low`` and ``high`` around its value: `cheapest` and `dearest` are the profile
with all such figures at the ends at which work costs least and most.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ecorl.devices.host import DeviceFigure, complete_host_figures
from ecorl.errors import ConfigError
from ecorl.records import DeviceKind, Provenance

UNITS: Mapping[str, str] = {
    "idle_w": "W",
    "active_w": "W",
    "decode_w": "W",
    "tdp_w": "W",
    "peak_fp32_flops": "FLOP/s",
    "peak_bf16_flops": "FLOP/s",
    "peak_fp8_flops": "FLOP/s",
    "peak_int8_ops": "OP/s",
    "memory_bytes": "B",
    "onchip_bytes": "B",
    "memory_bytes_per_s": "B/s",
    "memory_channels": "1",
    "memory_channel_bytes": "B",
    "link_bytes_per_s": "B/s",
    "link_latency_s": "s",
    "peer_bytes_per_s": "B/s",
    "peer_latency_s": "s",
    "launch_s": "s",
    "mfu_prefill": "1",
    "mfu_train": "1",
    "mbu_decode": "1",
    "mfu_decode": "1",
    "pass_s": "s",
    "layer_s": "s",
    "row_s": "s",
    "busy_w": "W",
    "j_per_byte": "J/B",
    "j_per_op": "J/OP",
    "clock_hz": "Hz",
    "clock_max_hz": "Hz",
    "scoring_clock_hz": "Hz",
    "training_clock_hz": "Hz",
    "n_dsp": "1",
    "n_dsp_usable": "1",
    "n_dsp_used": "1",
    "macs_per_dsp": "1",
    "n_cores": "1",
}
"""Every figure that a profile may hold, with the unit in which it is given.

``decode_w`` is the power while decoding (``active_w`` stands in when absent), ``clock_max_hz`` the
highest clock a design can close on a card, or at which a GPU's processors run, ``scoring_clock_hz``
and ``training_clock_hz`` what its limit on power leaves of it to these stages, ``peer_bytes_per_s``
the bandwidth in one direction between the GPUs of a node, ``peer_latency_s`` the time of an all-
reduce of few bytes among them, ``onchip_bytes`` the memory on a card's chip (block and Ultra RAM
together), ``memory_channels`` the pseudo-channels of a card's HBM and ``memory_channel_bytes`` the
size of each, ``n_dsp_usable`` the DSPs that the card's shell leaves to a design, ``launch_s`` the
fixed host time of one layer's forward. ``mbu_decode``, ``mfu_decode``, ``pass_s``, ``layer_s``,
``row_s``, ``busy_w``, ``j_per_byte`` and ``j_per_op`` price decoding (`ecorl.devices.gpu_pass`),
all of them or none.
The efficiencies (``mfu_*``, ``mbu_decode``) are a GPU's or CPU's: a card's follow from its kernels.
"""

_SHARES = ("mfu_prefill", "mfu_train", "mbu_decode", "mfu_decode")
_AT_MOST = (
    ("clock_hz", "clock_max_hz"),
    ("scoring_clock_hz", "clock_max_hz"),
    ("training_clock_hz", "clock_max_hz"),
    ("n_dsp_used", "n_dsp"),
    ("n_dsp_usable", "n_dsp"),
    ("idle_w", "active_w"),
    ("idle_w", "tdp_w"),
    ("active_w", "tdp_w"),
    ("decode_w", "tdp_w"),
    ("idle_w", "busy_w"),
    ("busy_w", "tdp_w"),
)
"""Figures of one device that cannot be above another of its figures."""
_PROVENANCES = (Provenance.PUBLISHED, Provenance.MODELLED, Provenance.MEASURED)


class MissingFigure(ConfigError):
    """The error for a figure that a profile does not hold."""


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """The figures of one device.

    Attributes:
        name: short name; the column of the EDI matrix, e.g. ``u55c``.
        title: name for reports.
        kind: what kind of machine it is.
        figures: figures by key; see `UNITS` for the keys and their units.
        path: where the profile was read from.
    """

    name: str
    title: str
    kind: DeviceKind
    figures: Mapping[str, DeviceFigure] = field(default_factory=dict)
    path: str | None = None

    def value(self, key: str) -> float:
        """The value of a figure, in the unit of `UNITS`.

        Raises:
            MissingFigure: when the profile does not hold it (a `ConfigError`).
        """
        return self.figure(key).value

    def figure(self, key: str) -> DeviceFigure:
        """The figure with its provenance and source.

        Raises:
            MissingFigure: when the profile does not hold it (a `ConfigError`).
        """
        found = self.figures.get(key)
        if found is None:
            allowed = f"a figure [figures.{key}] in device profile {self.name}"
            raise MissingFigure(f"{self.name}.{key}", None, allowed, self.path)
        return found

    def get(self, key: str) -> float | None:
        """The value of a figure, or None when the profile does not hold it."""
        found = self.figures.get(key)
        return None if found is None else found.value


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that travel with the package, sorted."""
    folder = resources.files("ecorl.devices") / "profiles"
    return tuple(
        sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))
    )


_DEARER_WHEN_HIGH = frozenset({"s", "W", "J/B", "J/OP"})
"""Units of figures that make work slower or hungrier the higher they are; the others are rates and
shares of rates."""


def cheapest(profile: DeviceProfile) -> DeviceProfile:
    """The profile with each figure at the end of its interval at which work costs least.

    All at once: no work is taken to cost less.

    Args:
        profile: any; one without intervals comes back as it is.
    """
    return _at_ends(profile, dear=False)


def dearest(profile: DeviceProfile) -> DeviceProfile:
    """The profile with each figure at the end of its interval at which work costs most.

    Args:
        profile: any; one without intervals comes back as it is.
    """
    return _at_ends(profile, dear=True)


def _at_ends(profile: DeviceProfile, *, dear: bool) -> DeviceProfile:
    figures = {}
    for key, figure in profile.figures.items():
        end = figure.high if (figure.unit in _DEARER_WHEN_HIGH) == dear else figure.low
        figures[key] = figure if end is None else replace(figure, value=end, low=None, high=None)
    return replace(profile, figures=figures)


KIND_WORDS: Mapping[DeviceKind, str] = {
    DeviceKind.GPU: "a GPU",
    DeviceKind.FPGA: "a card",
    DeviceKind.CPU: "a host's processor",
}
"""What to call a device of each kind in a message."""


def names_of_kind(*kinds: DeviceKind) -> list[str]:
    """Names of the profiles of these kinds that travel with the package, sorted.

    Args:
        kinds: of devices.
    """
    return [name for name in profile_names() if load_profile(name).kind in kinds]


def chosen_profile(
    key: str, name: str, *kinds: DeviceKind, words: Sequence[str] = (), why: str = ""
) -> DeviceProfile:
    """Load a profile that a user chose, of a kind that is wanted there.

    Args:
        key: what the user set, for the message.
        name: a profile's name or the path of a file.
        kinds: the kinds of device that the key can stand for.
        words: what else the key may hold, for the message.
        why: the reason why only these kinds will do here, for the message.

    Raises:
        ConfigError: when there is none of this name, or it is of another kind, which the message
            then names: seconds of one device times the watts of another would be a figure of
            neither.
    """
    kind = " or ".join(f'"{one}"' for one in kinds)
    listed = [*words, *names_of_kind(*kinds)]
    allowed = f"one of {listed} or the path of a TOML file with kind = {kind}"
    if name not in profile_names() and not Path(name).expanduser().is_file():
        raise ConfigError(key, name, allowed)
    profile = load_profile(name)
    if profile.kind not in kinds:
        reason = f"{name} is the profile of {KIND_WORDS[profile.kind]} ({profile.title})"
        reason += f", and {why}" if why else ""
        raise ConfigError(key, name, f"{allowed}: {reason}")
    return profile


def load_profile(name: str) -> DeviceProfile:
    """Read a profile by name, or from a user's file.

    Args:
        name: one of `profile_names`, or the path of a TOML file. ``host_cpu`` is completed with
            what this machine says of itself.

    Raises:
        ConfigError: when there is no such profile, or the file holds a mistake.
    """
    if name in profile_names():
        text = (resources.files("ecorl.devices") / "profiles" / f"{name}.toml").read_text("utf-8")
        return _parse(text, f"profile {name}")
    path = Path(name).expanduser()
    if not path.is_file():
        allowed = f"one of {list(profile_names())} or the path of a TOML file"
        raise ConfigError("devices.profile", name, allowed)
    try:
        return _parse(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("devices.profile", name, f"a readable UTF-8 file ({error})") from error


def _parse(text: str, where: str) -> DeviceProfile:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("(syntax)", where, f"valid TOML ({error})", where) from error
    unknown = set(data) - {"name", "title", "kind", "figures", "per_core"}
    if unknown:
        key = min(unknown)
        allowed = "name, title, kind, [figures.*] or [per_core.*]"
        raise ConfigError(key, data[key], allowed, where)
    for key in ("name", "kind"):
        if not isinstance(data.get(key), str) or not data[key]:
            raise ConfigError(key, data.get(key), "a non-empty string", where)
    kinds = [str(kind) for kind in DeviceKind]
    if data["kind"] not in kinds:
        raise ConfigError("kind", data["kind"], f"one of {kinds}", where)
    figures = _parse_table(data, "figures", where)
    if "per_core" in data:
        figures = complete_host_figures(figures, _parse_table(data, "per_core", where))
    _check_order(figures, where)
    title = str(data.get("title", data["name"]))
    return DeviceProfile(data["name"], title, DeviceKind(data["kind"]), figures, where)


def _check_order(figures: Mapping[str, DeviceFigure], where: str) -> None:
    """Check that no figure is above a limit in the same file."""
    for key, limit in _AT_MOST:
        if key in figures and limit in figures and figures[key].value > figures[limit].value:
            unit = f" {UNITS[limit]}" if UNITS[limit] != "1" else ""
            allowed = f"at most {limit} = {figures[limit].value:g}{unit}"
            raise ConfigError(f"figures.{key}.value", figures[key].value, allowed, where)


def _parse_table(data: Mapping[str, Any], table: str, where: str) -> dict[str, DeviceFigure]:
    entries = data.get(table, {})
    if not isinstance(entries, dict):
        raise ConfigError(table, entries, f"tables [{table}.<key>]", where)
    return {key: _parse_figure(f"{table}.{key}", key, raw, where) for key, raw in entries.items()}


def _parse_figure(dotted: str, key: str, raw: Any, where: str) -> DeviceFigure:
    if key not in UNITS:
        raise ConfigError(dotted, raw, f"one of {sorted(UNITS)}", where)
    needed, interval = {"value", "unit", "provenance", "source"}, {"low", "high"}
    if not isinstance(raw, dict) or set(raw) not in (needed, needed | interval):
        allowed = "a table with value, unit, provenance and source, and low and high or neither"
        raise ConfigError(dotted, raw, allowed, where)
    value, unit, source = raw["value"], raw["unit"], raw["source"]
    for name in ("value", "low", "high"):
        if name in raw:
            _check_number(f"{dotted}.{name}", raw[name], key in _SHARES, where)
    ends = tuple(float(raw[name]) for name in ("low", "high") if name in raw)
    if ends and not ends[0] <= value <= ends[1]:
        allowed = f"between low = {ends[0]:g} and high = {ends[1]:g} of the same figure"
        raise ConfigError(f"{dotted}.value", value, allowed, where)
    if unit != UNITS[key]:
        raise ConfigError(f"{dotted}.unit", unit, repr(UNITS[key]), where)
    if raw["provenance"] not in _PROVENANCES:
        allowed = f"one of {[str(p) for p in _PROVENANCES]}"
        raise ConfigError(f"{dotted}.provenance", raw["provenance"], allowed, where)
    if not isinstance(source, str) or not source.strip():
        raise ConfigError(
            f"{dotted}.source", source, "a sentence saying where it comes from", where
        )
    provenance = Provenance(raw["provenance"])
    return DeviceFigure(float(value), unit, provenance, source.strip(), *ends)


def _check_number(dotted: str, value: Any, is_share: bool, where: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise ConfigError(dotted, value, "a finite number above 0", where)
    if is_share and value > 1:
        raise ConfigError(dotted, value, "a share above 0 and at most 1", where)


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
