"""NVIDIA GPUs through NVML: typed, read-only, and the only place that imports ``pynvml``.

`ecorl.drivers.instruments` has the records that it hands out and the instruments that it reads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from ecorl.drivers.instruments import (
    SCOPE_MODULE,
    BoardState,
    Instrument,
    NvmlDevice,
    PowerLimits,
    PowerReading,
    error_from_code,
    translated,
)
from ecorl.errors import DriverError, FunctionNotFound, LibraryNotFound, NoPermission, NotSupported
from ecorl.units import hertz_from_megahertz, joules_from_millijoules, watts_from_milliwatts

MAX_POWER_W = 10_000.0
"""No reading above this is believed, W: the largest modules draw some 3 kW, and a value that is
not a power (NVML's "not available" is 4.3 MW) lies far beyond."""

LIMIT_FACTOR = 2.0
"""Nor is one above this many times the highest power limit that the GPU can be set to. Board power
passes the limit for moments, by a third or so; twice the limit admits every real reading."""

MAX_ENERGY_MJ = 2**53
"""Largest believable energy counter, mJ: beyond it a double no longer holds every count (285 years
at 1 kW)."""

_VALUE_NOT_AVAILABLE = 0xFFFFFFFF

_SM_CLOCK, _GPU_SENSOR = 1, 0
"""NVML's numbers of clock domains and of the temperature sensor."""


def visible_devices(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The devices that ``CUDA_VISIBLE_DEVICES`` names, or None when it is not set.

    As in CUDA the list ends at the first entry that is empty or negative. CUDA's own numbering
    follows NVML's only under ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` or with equal GPUs.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry or entry.startswith("-"):
            break
        names.append(entry)
    return tuple(names)


class NvmlDriver:
    """NVML, initialised between `open` and `close`. Every method may raise a `DriverError`."""

    def __init__(self) -> None:
        self._nvml: ModuleType | None = None

    def open(self) -> None:
        """Load and initialise NVML.

        Raises:
            LibraryNotFound: neither ``pynvml`` nor ``libnvidia-ml.so.1`` is there.
            DriverNotLoaded: the library is there, the kernel module is not.
            DriverError: any other refusal.
        """
        try:
            import pynvml
        except ImportError as error:
            raise LibraryNotFound("the Python package nvidia-ml-py is not installed") from error
        with translated(pynvml, "nvmlInit"):
            pynvml.nvmlInit()
        self._nvml = pynvml

    def close(self) -> None:
        """Release NVML; safe to call twice, never raises for a dead driver."""
        if self._nvml is None:
            return
        nvml, self._nvml = self._nvml, None
        with contextlib.suppress(DriverError), translated(nvml, "nvmlShutdown"):
            nvml.nvmlShutdown()

    @property
    def is_open(self) -> bool:
        """Whether NVML is initialised."""
        return self._nvml is not None

    def version(self) -> str:
        """Version of the kernel driver, e.g. ``580.159.04``."""
        return str(self._call("nvmlSystemGetDriverVersion"))

    def count(self) -> int:
        """Number of physical GPUs."""
        return int(self._call("nvmlDeviceGetCount"))

    def device(self, index: int) -> NvmlDevice:
        """The physical GPU at an NVML index."""
        device = self._described(self._identified(index))
        self._check_answers(device)
        return device

    def devices(self) -> tuple[NvmlDevice, ...]:
        """All physical GPUs that answer."""
        return tuple(device for device in self.select(None) if device.answers)

    def select(
        self, names: Sequence[str] | None, *, as_cuda: bool = False
    ) -> tuple[NvmlDevice, ...]:
        """Physical GPUs behind the names that `find` knows, each GPU once.

        Several MIG instances of one GPU stand for that one GPU, because NVML reports the parent's
        power for each. None selects every GPU.

        GPUs that do not answer are among them (`NvmlDevice.fault`), and hide no other. Nothing but
        the UUID is asked of a GPU that is not selected, and that only where a name is no index.

        Args:
            names: of the GPUs.
            as_cuda: whether they are those of ``CUDA_VISIBLE_DEVICES``: CUDA takes what stands
                before the first name that it does not know.

        Raises:
            DriverError: a name fits no GPU, or NVML does not tell how many there are.
        """
        indices = range(self.count())
        chosen: dict[int, NvmlDevice] = {}
        everything: tuple[NvmlDevice, ...] | None = None
        for name in dict.fromkeys(map(str, indices if names is None else names)):
            if name.isdecimal() and int(name) in indices:
                device = self._identified(int(name))
            else:
                if everything is None:
                    everything = tuple(self._identified(index) for index in indices)
                try:
                    device = self._resolve(name, everything, chosen)
                except DriverError:
                    if as_cuda and chosen and not _may_be_cudas(name):
                        break
                    raise
            chosen.setdefault(device.index, device)
        return tuple(self._described(chosen[index]) for index in sorted(chosen))

    def find(self, name: str) -> NvmlDevice:
        """The physical GPU behind one name.

        Args:
            name: NVML's index; a UUID or its beginning, with or without ``GPU-``; the UUID of a
                MIG instance, which stands for its parent; or a PCI address such as
                ``0000:3b:00.0``.

        Returns:
            The GPU. A UUID or address that no GPU has stands for one that does not answer, where
            there is one: its own cannot be asked.

        Raises:
            DriverError: no GPU has that name, or the beginning of a UUID fits several.
        """
        return self.select((name,))[0]

    def reacquire(self, device: NvmlDevice) -> NvmlDevice:
        """A fresh handle for a GPU that was lost, by its UUID.

        Raises:
            DriverError: it still does not answer.
        """
        # NVML's own search by UUID may end at any other GPU that is lost.
        found = self.find(device.uuid)
        self._check_answers(found)
        return replace(found, index=device.index)

    def energy_j(self, device: NvmlDevice) -> float:
        """Cumulative energy since the driver was loaded, J (Volta and later).

        Raises:
            NotSupported: there is no counter, or its value is no count (see `MAX_ENERGY_MJ`).
        """
        energy_mj = self._ask("nvmlDeviceGetTotalEnergyConsumption", device)
        if not 0 <= energy_mj <= MAX_ENERGY_MJ:
            raise NotSupported(f"NVML answered {energy_mj} mJ, which is no count")
        return joules_from_millijoules(energy_mj)

    def power(self, device: NvmlDevice, order: Sequence[Instrument]) -> PowerReading:
        """Board power by the first instrument of `order` that answers.

        A reading of exactly 0 W counts as no answer: a board that answers draws power, and
        polling too fast is known to yield zeros. So does one that the board cannot draw (see
        `LIMIT_FACTOR` and `MAX_POWER_W`; a module's power is held against the latter alone).

        Args:
            device: the GPU.
            order: instruments in the order in which they are asked.

        Returns:
            With the average in the same scope, where the board tells it.

        Raises:
            DriverError: the error of the last instrument when none answers.
        """
        # One call for all: the average costs nothing beside the instantaneous figure.
        fields = [i for i in dict.fromkeys([*order, *(i.average for i in order)]) if i.field]
        answers = self._field_powers(device, fields) if fields else {}
        last: DriverError = NotSupported("no power instrument was asked")
        for instrument in order:
            if instrument.field is None:
                try:
                    answer: float | DriverError = _plausible(
                        self._ask("nvmlDeviceGetPowerUsage", device), _highest_w(device, instrument)
                    )
                except DriverError as error:
                    answer = error
            else:
                answer = answers[instrument]
            if not isinstance(answer, DriverError):
                average = answers.get(instrument.average)
                average_w = None if isinstance(average, DriverError) else average
                return PowerReading(answer, instrument, average_w)
            last = answer
        raise last

    def utilisation(self, device: NvmlDevice) -> float:
        """Share of the last sample period in which a kernel ran, 0 to 1."""
        return float(self._ask("nvmlDeviceGetUtilizationRates", device).gpu) / 100.0

    def processes(self, device: NvmlDevice) -> list[tuple[int, int | None]]:
        """Id of each process that computes on a GPU, and its memory there, bytes, or None."""
        found = self._ask("nvmlDeviceGetComputeRunningProcesses", device)
        return [(int(one.pid), one.usedGpuMemory) for one in found]

    def power_limits(self, device: NvmlDevice) -> PowerLimits:
        """Enforced and allowed power limits, W; read only."""
        low, high = self._limit("nvmlDeviceGetPowerManagementLimitConstraints", device, 2)
        (enforced,) = self._limit("nvmlDeviceGetEnforcedPowerLimit", device, 1)
        return PowerLimits(enforced, low, high)

    def board_state(self, device: NvmlDevice) -> BoardState:
        """Clocks, temperature, and what holds the clock down; read only."""
        sm_mhz, temperature_c, reasons = (
            self._told(call, device, *which)
            for call, *which in (
                ("nvmlDeviceGetClockInfo", _SM_CLOCK),
                ("nvmlDeviceGetTemperature", _GPU_SENSOR),
                ("nvmlDeviceGetCurrentClocksThrottleReasons",),
            )
        )
        return BoardState(
            sm_clock_hz=None if sm_mhz is None else hertz_from_megahertz(sm_mhz),
            temperature_c=temperature_c,
            clock_event_reasons=None if reasons is None else int(reasons),
        )

    def _told(self, call: str, device: NvmlDevice, *which: int) -> float | None:
        """A figure that not every board tells."""
        try:
            return float(self._ask(call, device, *which))
        except (NotSupported, FunctionNotFound, NoPermission):
            return None

    def _limit(self, call: str, device: NvmlDevice, n: int) -> list[float | None]:
        try:
            value = self._ask(call, device)
        except (NotSupported, FunctionNotFound, NoPermission):
            return [None] * n
        values = list(value) if n > 1 else [value]
        return [watts_from_milliwatts(v) for v in values]

    def _field_powers(
        self, device: NvmlDevice, wanted: Sequence[Instrument]
    ) -> dict[Instrument, float | DriverError]:
        """One call for all fields; the status of each field stands beside its value."""
        try:
            values = self._ask(
                "nvmlDeviceGetFieldValues", device, [(i.field, i.scope) for i in wanted]
            )
        except DriverError as error:
            return dict.fromkeys(wanted, error)
        answers: dict[Instrument, float | DriverError] = {}
        for instrument, value in zip(wanted, values, strict=True):
            if value.nvmlReturn != 0:
                answers[instrument] = error_from_code(value.nvmlReturn, str(instrument))
                continue
            try:
                answers[instrument] = _plausible(
                    field_number(value), _highest_w(device, instrument)
                )
            except NotSupported as error:
                answers[instrument] = error
        return answers

    def _identified(self, index: int) -> NvmlDevice:
        """The GPU at an index with its UUID alone, or with the reason why it does not answer."""
        try:
            handle = self._call("nvmlDeviceGetHandleByIndex", index)
            uuid = str(self._call("nvmlDeviceGetUUID", handle))
        except DriverError as error:
            fault = type(error)(str(error))  # without the frames that the error holds
            return NvmlDevice(index, str(index), "", (), None, fault=fault)
        return NvmlDevice(index, uuid, "", (), handle)

    def _described(self, device: NvmlDevice) -> NvmlDevice:
        """A GPU with all that is known of it, as far as it tells."""
        if not device.answers:
            return device
        name = ""
        with contextlib.suppress(DriverError):
            name = str(self._ask("nvmlDeviceGetName", device))
        high_w = None  # only a bound for readings: without it the general one has to do
        with contextlib.suppress(DriverError):
            _, high_w = self._limit("nvmlDeviceGetPowerManagementLimitConstraints", device, 2)
        mig_uuids = self._mig_uuids(device)
        return replace(device, name=name, mig_uuids=mig_uuids, max_limit_w=high_w or None)

    def _mig_uuids(self, device: NvmlDevice) -> tuple[str, ...]:
        try:
            if not self._ask("nvmlDeviceGetMigMode", device)[0]:
                return ()
            n_slots = self._ask("nvmlDeviceGetMaxMigDeviceCount", device)
        except DriverError:
            return ()
        uuids = []
        for slot in range(n_slots):
            # Free slots answer NOT_FOUND: the maximum is not the number in use.
            with contextlib.suppress(DriverError):
                instance = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", device, slot)
                uuids.append(str(self._call("nvmlDeviceGetUUID", instance)))
        return tuple(uuids)

    def _resolve(
        self, name: str, everything: Sequence[NvmlDevice], chosen: Collection[int]
    ) -> NvmlDevice:
        """The GPU behind a name that is no index; `chosen` are those of earlier names."""
        answering = [device for device in everything if device.answers]
        matches = self._matches(name, answering)
        if name and len(matches) == 1:
            return matches[0]
        silent = [device for device in everything if not device.answers]
        if not matches and (":" in name or name.startswith(("GPU-", "MIG-"))):
            free = [device for device in silent if device.index not in chosen]
            # Several instances may be of one GPU.
            for device in free or (silent if name.startswith("MIG-") else []):
                return replace(device, uuid=name)
        what = "several GPUs fit" if name and matches else "no GPU is called"
        there = f"there are {[d.uuid for d in answering]}"
        there += "".join(f"; gpu{d.index} does not answer ({d.fault})" for d in silent)
        raise DriverError(f"{what} {name!r}; {there}")

    def _matches(self, name: str, answering: Sequence[NvmlDevice]) -> list[NvmlDevice]:
        """GPUs that a name fits which is no index: an address, a UUID or the beginning of one."""
        if name.isdecimal():
            return []  # an index that there is not
        if ":" in name:
            return self._same_gpu("nvmlDeviceGetHandleByPciBusId", name, answering)
        bare = _bare(name)
        if name.startswith("MIG-"):
            matches = self._same_gpu("nvmlDeviceGetHandleByUUID", name, answering)
        else:
            matches = [d for d in answering if _bare(d.uuid).startswith(bare)]
        return matches or [d for d in answering if bare in map(_bare, self._mig_uuids(d))]

    def _same_gpu(self, call: str, name: str, everything: Sequence[NvmlDevice]) -> list[NvmlDevice]:
        """The physical GPU whose handle, or whose MIG instance's handle, `call` gives; or none."""
        try:
            handle = self._call(call, name)
            if name.startswith("MIG-"):
                handle = self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
            uuid = str(self._call("nvmlDeviceGetUUID", handle))
        except DriverError:
            return []
        return [d for d in everything if d.uuid == uuid]

    def _check_answers(self, device: NvmlDevice) -> None:
        if device.fault is not None:
            # An error that is raised again and again collects frames.
            raise type(device.fault)(str(device.fault))

    def _ask(self, function: str, device: NvmlDevice, *args: Any) -> Any:
        self._check_answers(device)
        return self._call(function, device.handle, *args)

    def _call(self, function: str, *args: Any) -> Any:
        if self._nvml is None:
            raise DriverError("NVML is not open")
        with translated(self._nvml, function):
            return getattr(self._nvml, function)(*args)


def _may_be_cudas(name: str) -> bool:
    """Whether CUDA may know a name that NVML does not: an instance's, or an index by its digits."""
    return name.startswith("MIG-") or (name[0].isdecimal() and not name.isdecimal())


def _bare(uuid: str) -> str:
    """A UUID or the beginning of one, without what says of what it is."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def field_number(value: Any) -> float:
    """The number in an NVML field value, by its type tag.

    Args:
        value: as ``nvmlDeviceGetFieldValues`` returns it; its status is not looked at.

    Raises:
        NotSupported: the type is not known.
    """
    names = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    name = names.get(value.valueType)
    if name is None:
        raise NotSupported(f"NVML value type {value.valueType} is not known")
    return float(getattr(value.value, name))


def _highest_w(device: NvmlDevice, instrument: Instrument) -> float:
    """The highest reading of an instrument that is believed, W."""
    if device.max_limit_w is None or instrument.scope == SCOPE_MODULE:
        # A module holds processors and memory besides the GPU whose limit is known.
        return MAX_POWER_W
    return min(LIMIT_FACTOR * device.max_limit_w, MAX_POWER_W)


def _plausible(power_mw: float, highest_w: float) -> float:
    if power_mw == _VALUE_NOT_AVAILABLE or not math.isfinite(power_mw) or power_mw <= 0:
        raise NotSupported(f"NVML answered {power_mw:.0f} mW, which is no reading")
    power_w = watts_from_milliwatts(power_mw)
    if power_w > highest_w:
        raise NotSupported(
            f"NVML answered {power_w:.0f} W; the board draws {highest_w:.0f} at most"
        )
    return power_w
