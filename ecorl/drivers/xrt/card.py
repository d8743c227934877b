"""A card on which kernels run, through XRT's Python binding of any year.

Up to 2023.1 a bitstream is loaded by ``device.load_xclbin``; from 2023.2 on (2.16) it is registered
and a hardware context opened on it. This module hides the difference, and three traps of pyxrt:

- A scalar that is no 32-bit integer is dropped without a word: `KernelRun.set` takes nothing else.
- ``run.wait`` holds the interpreter's lock until the kernel ends. `KernelRun.wait` looks at the
  state and sleeps in between.
- A short read comes back as a short array: `CardBuffer.download` compares lengths.

`translated` turns XRT's exceptions into classes below `ecorl.errors.DriverError`.
"""

from __future__ import annotations

import contextlib
import enum
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.errors import (
    CardFull,
    DeviceLost,
    DriverError,
    DriverTimeout,
    LibraryNotFound,
    NoPermission,
)

_RAISED = (
    RuntimeError,
    OSError,
    ValueError,
    IndexError,
    SystemError,
    TypeError,
    MemoryError,
    OverflowError,
)
"""What pybind11 makes of the exceptions of XRT's C++; std::bad_alloc is a MemoryError."""


_LOST = ("no such device", "device not found", "invalid device", "could not open device")
"""Words of XRT for a card that is not there, any more or at all."""


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what XRT raises within the block into a `DriverError` that begins with `what`.

    XRT raises standard exceptions only; their text is all there is to tell them apart.
    """
    try:
        yield
    except AttributeError as error:
        raise DriverError(f"{what}: this pyxrt lacks it ({error})") from error
    except _RAISED as error:
        text = str(error).lower()
        kind: type[DriverError] = DriverError
        if "permission" in text or "not permitted" in text:
            kind = NoPermission
        elif any(words in text for words in _LOST):
            kind = DeviceLost
        elif "timed out" in text or "timeout" in text:
            kind = DriverTimeout
        raise kind(f"{what}: {str(error) or type(error).__name__}") from error


Bytes = npt.NDArray[np.uint8]

FAILED_STATES = ("ERROR", "ABORT", "TIMEOUT", "NORESPONSE", "SKERROR", "SKCRASHED")
"""States of a command that has ended without completing; an XRT need not know all of them."""

_FIRST_NAP_S, _LONGEST_NAP_S = 20e-6, 500e-6
_NAPS_BETWEEN_WAITS = 16
_INT32 = 1 << 31


class RunState(enum.Enum):
    """Where a kernel's run stands."""

    RUNNING = enum.auto()
    COMPLETED = enum.auto()
    FAILED = enum.auto()


def load_pyxrt() -> ModuleType:
    """AMD's ``pyxrt``.

    Raises:
        LibraryNotFound: when it cannot be imported; it comes with AMD's XRT, not from PyPI.
    """
    try:
        import pyxrt
    except ImportError as error:
        raise LibraryNotFound(
            f"pyxrt cannot be imported ({error}); it comes with AMD's XRT"
        ) from error
    module: ModuleType = pyxrt
    return module


def card_name(module: ModuleType, index: int) -> str:
    """The name that a card gives itself, empty when it does not tell.

    Raises:
        DriverError: when XRT does not open it.
    """
    with translated(f"device({index})"):
        device = module.device(index)
    return told_of(module, device, "name")


def told_of(module: Any, device: Any, key: str) -> str:
    """What a device tells of itself; empty where it does not.

    Args:
        module: ``pyxrt``, or a stand-in.
        device: of that module.
        key: a member of ``xrt_info_device``, such as ``bdf``.
    """
    try:
        with translated(f"get_info({key})"):
            return str(device.get_info(getattr(module.xrt_info_device, key)))
    except DriverError:
        return ""


class CardBuffer:
    """Memory of the card with a mirror on the host, or a part of one.

    Made by `OpenCard.allocate`, once; transfers reuse the host's pinned pages.

    Attributes:
        n_bytes: its size.
        host: ``[n_bytes] uint8``, the mirror; `upload` and `download` move it.
        group: XRT's number of its memory bank.
        bo: XRT's buffer object.
    """

    def __init__(self, module: Any, bo: Any, host: Bytes, group: int) -> None:
        self._module, self.bo, self.host, self.group = module, bo, host, group
        self.n_bytes = len(host)

    def part(self, offset: int, n_bytes: int) -> CardBuffer:
        """The bytes from `offset` on as a buffer of their own, in the same memory.

        Raises:
            DriverError: when it reaches beyond the buffer, or XRT refuses.
        """
        if offset < 0 or n_bytes < 1 or offset + n_bytes > self.n_bytes:
            raise DriverError(f"bytes {offset} to {offset + n_bytes} of a buffer of {self.n_bytes}")
        with translated("bo(part)"):
            bo = self._module.bo(self.bo, n_bytes, offset)
        return CardBuffer(self._module, bo, self.host[offset : offset + n_bytes], self.group)

    def upload(self) -> None:
        """Copy the mirror to the card.

        Raises:
            DriverError: when the transfer fails.
        """
        direction = self._module.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
        with translated(f"upload of {self.n_bytes} bytes"):
            self.bo.sync(direction, self.n_bytes, 0)

    def download(self) -> Bytes:
        """Copy from the card, ``[n_bytes] uint8``, an array of its own.

        Raises:
            DriverError: when the transfer fails, or brings fewer bytes than asked for.
        """
        direction = self._module.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
        with translated(f"download of {self.n_bytes} bytes"):
            self.bo.sync(direction, self.n_bytes, 0)
            got = np.frombuffer(self.bo.read(self.n_bytes, 0), np.uint8)
        if len(got) != self.n_bytes:
            raise DriverError(f"download brought {len(got)} of {self.n_bytes} bytes")
        return got


class KernelRun:
    """One kernel with its arguments, started again and again."""

    def __init__(self, module: Any, kernel: Any, name: str) -> None:
        self.name, self._kernel = name, kernel
        self._groups: dict[int, int] = {}
        states = module.ert_cmd_state
        self._completed = states.ERT_CMD_STATE_COMPLETED
        names = (f"ERT_CMD_STATE_{name}" for name in FAILED_STATES)
        self._failed = tuple(getattr(states, name) for name in names if hasattr(states, name))
        with translated(f"run({name})"):
            self._run = module.run(kernel)

    def set(self, index: int, value: CardBuffer | int) -> None:
        """Set an argument.

        Raises:
            DriverError: for what is no int32, for a buffer in a bank that is not connected, or when
                XRT refuses (an unknown argument).
        """
        if isinstance(value, CardBuffer):
            self._check_bank(index, value)
            given = value.bo
        elif hasattr(value, "__index__") and -_INT32 <= value < _INT32:
            given = operator.index(value)
        else:
            raise DriverError(f"{self.name}: argument {index} = {value!r} is no 32-bit integer")
        with translated(f"{self.name}: argument {index}"):
            self._run.set_arg(index, given)

    def start(self) -> None:
        """Start the kernel; returns at once.

        Raises:
            DriverError: when XRT refuses.
        """
        with translated(f"{self.name}: start"):
            self._run.start()

    def state(self) -> RunState:
        """Where the run stands now.

        Raises:
            DriverError: when XRT does not tell.
        """
        with translated(f"{self.name}: state"):
            return self._judged(self._run.state())

    def wait(self, deadline_s: float) -> None:
        """Until the kernel has completed.

        Args:
            deadline_s: `time.monotonic` at which patience ends.

        Raises:
            DriverTimeout: when the kernel has not ended by then. It may still be running.
            DriverError: when it has ended otherwise.
        """
        nap_s, n_naps = _FIRST_NAP_S, 0
        while (state := self.state()) is RunState.RUNNING:
            if time.monotonic() > deadline_s:
                raise DriverTimeout(f"{self.name} did not end in time")
            time.sleep(nap_s)
            nap_s, n_naps = min(1.5 * nap_s, _LONGEST_NAP_S), n_naps + 1
            if n_naps % _NAPS_BETWEEN_WAITS == 0:
                self._nudge()
        if state is RunState.FAILED:
            raise DriverError(f"{self.name} ended as {self._name_of_state()}")

    def _check_bank(self, index: int, buffer: CardBuffer) -> None:
        """XRT would warn, and give the kernel a copy in the right bank that nobody else sees."""
        group = self._groups.get(index)
        if group is None:
            with translated(f"{self.name}: group_id of argument {index}"):
                group = self._groups[index] = self._kernel.group_id(index)
        if group != buffer.group:
            raise DriverError(
                f"{self.name}: argument {index} is not connected to the buffer's memory bank"
            )

    def _nudge(self) -> None:
        """A wait of 1 ms: some XRT fetch the state of a command only in there."""
        with translated(f"{self.name}: wait"):
            self._run.wait(1)

    def _judged(self, state: Any) -> RunState:
        if state == self._completed:
            return RunState.COMPLETED
        return RunState.FAILED if state in self._failed else RunState.RUNNING

    def _name_of_state(self) -> str:
        with translated(f"{self.name}: state"):
            return str(self._run.state()).rpartition("ERT_CMD_STATE_")[2]


class OpenCard:
    """An opened card with a loaded bitstream.

    Args:
        module: ``pyxrt``, or a module with its names.
        index: XRT's number of the card.
        bitstream: path of the xclbin.
        kernels: names of the kernels to open.
        check: called with the card's name before the bitstream is loaded; raises what it finds.

    Raises:
        DriverError: when the card does not open, refuses the bitstream, or it lacks a kernel.
    """

    def __init__(
        self,
        module: ModuleType,
        index: int,
        bitstream: Path,
        kernels: Sequence[str],
        check: Callable[[str], None] | None = None,
    ) -> None:
        self._module: Any = module
        self.index = index
        with translated(f"device({index})"):
            self._device = self._module.device(index)
        if check is not None:
            name = told_of(module, self._device, "name")
            check(name or "one that does not tell its name")
        with translated(f"{bitstream.name} on card {index}"):
            open_kernel = self._load(bitstream)
        self._kernels: dict[str, Any] = {}
        for name in kernels:
            with translated(f"kernel {name} of {bitstream.name}"):
                self._kernels[name] = open_kernel(name)

    @property
    def has_contexts(self) -> bool:
        """Whether this XRT opens hardware contexts (2.16 and later)."""
        return hasattr(self._module, "hw_context") and hasattr(self._device, "register_xclbin")

    def allocate(self, n_bytes: int, *ports: tuple[str, int]) -> CardBuffer:
        """Memory that the given kernel arguments can reach.

        Args:
            n_bytes: its size, at least 1.
            ports: kernels and numbers of their arguments, at least one.

        Raises:
            CardFull: when XRT gives no buffer of this size.
            DriverError: when the arguments are not connected to the same memory, or the card is
                lost.
        """
        with translated("group_id"):
            groups = {self._kernels[kernel].group_id(index) for kernel, index in ports}
        if len(groups) != 1:
            names = ", ".join(f"{kernel}({index})" for kernel, index in ports)
            raise DriverError(f"arguments that share a buffer lie in other memory banks: {names}")
        (group,) = groups
        try:
            with translated(f"bo of {n_bytes} bytes"):
                bo = self._module.bo(self._device, n_bytes, self._module.bo.normal, group)
                host = np.frombuffer(bo.map(), np.uint8)
        except (DeviceLost, DriverTimeout):
            raise
        except DriverError as error:
            raise CardFull(str(error)) from error
        return CardBuffer(self._module, bo, host, group)

    def run_of(self, kernel: str) -> KernelRun:
        """A run of a kernel.

        Raises:
            DriverError: when XRT makes none.
        """
        return KernelRun(self._module, self._kernels[kernel], kernel)

    def address(self) -> str:
        """PCIe address, empty when the card does not tell."""
        return told_of(self._module, self._device, "bdf")

    def close(self) -> None:
        """Let go of the kernels and the device; buffers and runs must have gone before."""
        self._kernels.clear()
        self._context = self._device = None

    def _load(self, bitstream: Path) -> Callable[[str], Any]:
        if self.has_contexts:
            uuid = self._device.register_xclbin(self._module.xclbin(str(bitstream)))
            self._context = context = self._module.hw_context(self._device, uuid)
            return lambda name: self._module.kernel(context, name)
        uuid = self._device.load_xclbin(str(bitstream))
        self._context = None
        shared = self._module.kernel.shared
        # Shared: the engines of two stages, in two processes, take turns on one card.
        return lambda name: self._module.kernel(self._device, uuid, name, shared)
