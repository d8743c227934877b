"""A card in pure Python under pyxrt's names, in both generations of its API, with faults on demand.

Like a card: the host's mirror and the card's memory are apart, a start computes beside the host (in
a worker thread, by the C-simulation's top functions), a buffer of another bank is refused, floats
are dropped by ``set_arg``. Unlike one, it does what a `Script` of faults says.
"""

from __future__ import annotations

import ctypes
import enum
import json
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ecorl.engines.fpga.bitstream.xclbin import Container, read_container
from tests.fakes.pyxrt_faults import Script
from tests.fakes.xclbin_sections import connections, units

GENERATIONS = ("2022.1", "2023.2")
NAME = "xilinx_u55c_gen3x16_xdma_base_3"
LONGEST_WAIT_MS = 1
_INT32 = 1 << 31


class ert_cmd_state(enum.Enum):
    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_QUEUED = 2
    ERT_CMD_STATE_RUNNING = 3
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_SUBMITTED = 7
    ERT_CMD_STATE_TIMEOUT = 8
    ERT_CMD_STATE_NORESPONSE = 9
    ERT_CMD_STATE_SKCRASHED = 11


class xclBOSyncDirection(enum.Enum):
    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class xrt_info_device(enum.Enum):
    bdf = 0
    name = 1
    electrical = 2


STATE = ert_cmd_state
_TO_CARD = xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE


class Machine:
    """The state behind a module: cards, their memory, faults.

    Args:
        library: `ctypes.CDLL` of the C-simulation.
        script: faults.
        n_cards: cards.
        name: that they give themselves.
    """

    def __init__(
        self, library: Any, script: Script | None = None, n_cards: int = 1, name: str = NAME
    ) -> None:
        self.library, self.script = library, script or Script()
        self.n_cards, self.name = n_cards, name
        self.electrical = json.dumps({"power_consumption_watts": "21.4"})
        self.live: list[weakref.WeakSet[Any]] = [weakref.WeakSet() for _ in range(n_cards)]
        self.live_at_reset: list[int] = []
        self.longest_wait_ms = 0
        self._workers = [ThreadPoolExecutor(1, f"fake-card{i}") for i in range(n_cards)]

    def work(self, card: int, job: Callable[[], None]) -> None:
        self._workers[card].submit(job)

    def reset(self, card: int) -> None:
        """Reset a card as `xbutil reset` does; used as `CardSetup.reset`."""
        self.live_at_reset.append(len(self.live[card]))
        if self.script.fault("reset", card) is not None:
            from ecorl.errors import DriverError

            raise DriverError("the card did not come back")

    def close(self) -> None:
        for worker in self._workers:
            worker.shutdown()


def module(machine: Machine, generation: str = GENERATIONS[0]) -> Any:
    """A module with pyxrt's names for one generation of its API."""
    assert generation in GENERATIONS
    is_new = generation != GENERATIONS[0]
    base: dict[str, Any] = {"machine": machine}
    found = SimpleNamespace(
        device=type("device", (_NewDevice if is_new else _OldDevice,), base),
        xclbin=_Xclbin,
        bo=type("bo", (_Buffer,), base),
        run=_Run,
        ert_cmd_state=ert_cmd_state,
        xclBOSyncDirection=xclBOSyncDirection,
        xrt_info_device=xrt_info_device,
    )
    if is_new:
        found.hw_context = _Context
        found.kernel = _NewKernel
        found.enumerate_devices = lambda: machine.n_cards
    else:
        found.kernel = _OldKernel
        if hasattr(ert_cmd_state, "ERT_CMD_STATE_SKCRASHED"):
            found.ert_cmd_state = SimpleNamespace(
                **{s.name: s for s in ert_cmd_state if "SK" not in s.name}
            )
    return found


class _Xclbin:
    def __init__(self, path: str) -> None:
        assert isinstance(path, str)
        self.container = read_container(Path(path))


class _Device:
    machine: Machine

    def __init__(self, index: int) -> None:
        if not 0 <= index < self.machine.n_cards:
            raise RuntimeError(f"Could not open device with index '{index}'")
        if self.machine.script.fault("open", index) is not None:
            raise RuntimeError("failed to open device: No such device")
        self.index = index
        self.container: Container | None = None

    def get_info(self, key: xrt_info_device) -> str:
        told = {
            xrt_info_device.bdf: f"0000:{0x3B + self.index:02x}:00.1",
            xrt_info_device.name: self.machine.name,
            xrt_info_device.electrical: self.machine.electrical,
        }
        return told[key]


class _OldDevice(_Device):
    def load_xclbin(self, what: str | _Xclbin) -> Any:
        self.container = (what if isinstance(what, _Xclbin) else _Xclbin(what)).container
        return self.container.identity


class _NewDevice(_Device):
    def register_xclbin(self, what: _Xclbin) -> Any:
        assert isinstance(what, _Xclbin)
        self.container = what.container
        return self.container.identity


class _Context:
    def __init__(self, device: _NewDevice, uuid: Any) -> None:
        assert isinstance(device, _NewDevice)
        if device.container is None or uuid != device.container.identity:
            raise RuntimeError("no such xclbin is registered")
        self.device = device


class _Kernel:
    def __init__(self, device: _Device, name: str) -> None:
        container = device.container
        assert container is not None
        names = [unit.partition(":")[0] for unit in units(container)]
        if name not in names:
            raise RuntimeError(f"No compute units matching '{name}'")
        self.device, self.name, self._unit = device, name, names.index(name)
        self._groups = {
            c.argument: c.memory for c in connections(container) if c.unit == self._unit
        }
        machine = device.machine
        self.top = getattr(machine.library, name)

    def group_id(self, index: int) -> int:
        if index not in self._groups:
            raise RuntimeError(f"argument {index} is not connected to memory")
        return self._groups[index]


class _OldKernel(_Kernel):
    exclusive, shared = "exclusive", "shared"

    def __init__(self, device: Any, uuid: Any, name: str, mode: str = "shared") -> None:
        assert isinstance(device, _OldDevice)
        assert mode in (self.exclusive, self.shared)
        assert device.container is not None
        assert uuid == device.container.identity
        super().__init__(device, name)


class _NewKernel(_Kernel):
    def __init__(self, context: Any, name: str) -> None:
        assert isinstance(context, _Context)
        super().__init__(context.device, name)


def _memory(n_bytes: int, fill: int) -> Any:
    """Bytes from a page's beginning, as the kernels' words need it."""
    raw = np.full(n_bytes + 4096, fill, np.uint8)
    first = -raw.ctypes.data % 4096
    return raw[first : first + n_bytes]


class _Buffer:
    """``bo(device, size, flags, group)``, or ``bo(parent, size, offset)``."""

    machine: Machine
    normal = "normal"

    def __init__(self, of: Any, n_bytes: int, *rest: Any) -> None:
        assert n_bytes > 0
        if isinstance(of, _Buffer):
            (offset,) = rest
            if offset + n_bytes > len(of.card):
                raise RuntimeError("sub buffer size and offset")
            self.group, self.index = of.group, of.index
            self.host, self.card = (
                memory[offset : offset + n_bytes] for memory in (of.host, of.card)
            )
        else:
            flags, self.group = rest
            assert flags == self.normal
            self.index = of.index
            if self.machine.script.fault("allocate", of.index, n_bytes=n_bytes) is not None:
                raise MemoryError("std::bad_alloc")
            self.host, self.card = _memory(n_bytes, 0x5A), _memory(n_bytes, 0xA5)
            # The device is let go of with its last buffer, as in XRT.
            self._device = of
        self.machine.live[self.index].add(self)

    def size(self) -> int:
        return len(self.host)

    def map(self) -> memoryview:
        return memoryview(self.host)

    def write(self, data: Any, seek: int = 0) -> None:
        raw = np.frombuffer(data, np.uint8)
        self.host[seek : seek + len(raw)] = raw

    def read(self, n_bytes: int, skip: int = 0) -> Any:
        data = self.host[skip : skip + n_bytes].copy()
        fault = self.machine.script.fault("read", self.index, n_bytes=n_bytes)
        return data[: n_bytes - 4] if fault is not None else data

    def sync(self, direction: Any, n_bytes: int | None = None, offset: int = 0) -> None:
        n_bytes = self.size() if n_bytes is None else n_bytes
        if offset + n_bytes > self.size():
            raise RuntimeError("sync beyond the buffer")
        is_up = direction is _TO_CARD
        event = "upload" if is_up else "download"
        fault = self.machine.script.fault(event, self.index, n_bytes=n_bytes)
        if fault == "no_device":
            raise RuntimeError("sync failed: No such device")
        if fault in ("upload_fails", "download_fails"):
            raise RuntimeError("sync failed: Input/output error")
        if fault in ("upload_lost", "download_lost"):
            return
        part = slice(offset, offset + n_bytes)
        source, target = (self.host, self.card) if is_up else (self.card, self.host)
        target[part] = source[part]
        if fault == "flip":
            target[offset + n_bytes // 2] ^= 0x10


class _Run:
    def __init__(self, kernel: _Kernel) -> None:
        self._kernel, self._machine = kernel, kernel.device.machine
        self._arguments: dict[int, Any] = {}
        self._state = STATE.ERT_CMD_STATE_NEW

    def set_arg(self, index: int, value: Any) -> None:
        if self._state in (STATE.ERT_CMD_STATE_RUNNING, STATE.ERT_CMD_STATE_QUEUED):
            raise RuntimeError("the run's arguments are in use")
        if isinstance(value, float):
            return  # as pyxrt does
        if isinstance(value, _Buffer):
            if value.group != self._kernel.group_id(index):
                raise RuntimeError(f"argument {index}: bank {value.group} is not connected")
            self._arguments[index] = value.card
            return
        if type(value) is not int or not -_INT32 <= value < _INT32:
            raise TypeError("set_arg(): incompatible function arguments")
        self._arguments[index] = value

    def start(self) -> None:
        kernel, card = self._kernel, self._kernel.device.index
        fault = self._machine.script.fault("start", card, kernel=kernel.name)
        if fault == "refuse":
            raise RuntimeError("failed to launch execution buffer: Invalid argument")
        if fault == "lost_device":
            raise RuntimeError("failed to launch execution buffer: No such device")
        self._state = STATE.ERT_CMD_STATE_RUNNING
        arguments = dict(self._arguments)
        if fault != "hang":
            self._machine.work(card, lambda: self._compute(fault, arguments))

    def wait(self, timeout_ms: int = 0) -> ert_cmd_state:
        # 0 waits until the end, and no wait of pyxrt lets other threads run meanwhile.
        assert 0 < timeout_ms <= LONGEST_WAIT_MS, timeout_ms
        self._machine.longest_wait_ms = max(self._machine.longest_wait_ms, timeout_ms)
        ended = self._state not in (STATE.ERT_CMD_STATE_RUNNING, STATE.ERT_CMD_STATE_NEW)
        return self._state if ended else STATE.ERT_CMD_STATE_TIMEOUT

    def state(self) -> ert_cmd_state:
        return self._state

    def _compute(self, fault: str | None, arguments: dict[int, Any]) -> None:
        if fault in ("error", "abort", "noresponse", "skcrashed"):
            self._state = STATE[f"ERT_CMD_STATE_{fault.upper()}"]
            return
        if fault != "stale":
            n = max(arguments) + 1
            self._kernel.top(*(_c(arguments.get(i)) for i in range(n)))
        self._state = STATE.ERT_CMD_STATE_COMPLETED


def _c(value: Any) -> Any:
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, int):
        return ctypes.c_int32(value)
    return ctypes.c_void_p(value.ctypes.data)
