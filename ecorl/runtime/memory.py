"""The most memory that a training process held: of the host, and of its GPUs.

| metric of the record | figure |
|---|---|
| ``peak_memory_host_bytes`` | most resident memory of the process since it began |
| ``peak_memory_device_bytes`` | most memory of PyTorch's tensors on all visible GPUs |
| ``peak_memory_step_host_bytes`` | most resident memory since the step began, where asked for |

Resident memory of the host holds Python and its libraries besides the training's own data, and what
an allocator keeps for later. A high-water mark never falls: a small step behind a large one shows
the large one's. Linux lets a process set its mark back (`restart_host_peak`), so that a mark can be
that of a single step.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from ecorl.runtime.protocol import RecordWriter

HOST_METRIC, DEVICE_METRIC = "peak_memory_host_bytes", "peak_memory_device_bytes"
"""Names of the metrics in a run's record."""

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_SET_BACK_THE_MARK = "5"
"""What ``clear_refs`` takes for it; see proc_pid_clear_refs(5)."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The most memory that this process held at once.

    Attributes:
        host_bytes: resident memory, bytes, since the process began.
        device_bytes: memory of PyTorch's tensors on the visible GPUs, bytes, since the process
            began or set PyTorch's own mark back: each GPU's peak, added up. None where PyTorch
            uses no GPU.
    """

    host_bytes: int
    device_bytes: int | None


class _HostPeak:
    """Remembers the marks that were set back, so that the process's own peak is not lost."""

    earlier_bytes = 0


def peak_memory() -> PeakMemory:
    """The most memory that this process held at once, since it began."""
    return PeakMemory(max(_HostPeak.earlier_bytes, host_peak_bytes()), _device_peak_bytes())


def restart_host_peak() -> bool:
    """Set the host's high-water mark of this process back to the memory that it holds now.

    The mark is the kernel's: ``getrusage`` and ``/usr/bin/time`` show the new one as well.

    Returns:
        Whether the system lets a process do so; Linux does, macOS does not.
    """
    before_bytes = host_peak_bytes()
    try:
        _CLEAR.write_text(_SET_BACK_THE_MARK)
    except OSError:
        return False
    _HostPeak.earlier_bytes = max(_HostPeak.earlier_bytes, before_bytes)
    return True


def host_peak_bytes() -> int:
    """Most resident memory of this process since the mark was set back, or since it began, bytes.

    On Linux by ``VmHWM``: ``getrusage`` would show the memory of the program that started this
    one, where that was larger.
    """
    try:
        lines = _STATUS.read_text("utf-8", "replace").splitlines()
        (told,) = (line.split() for line in lines if line.startswith("VmHWM:"))
        return int(told[1]) * 1024
    except (OSError, ValueError, IndexError):
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest if sys.platform == "darwin" else highest * 1024


def _device_peak_bytes() -> int | None:
    """Peak of PyTorch's tensors on all visible GPUs; None where it uses none."""
    # Not imported here: a training without PyTorch needs none, and a GPU that nobody uses is not
    # to be woken.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    gpus = range(torch.cuda.device_count())
    return sum(int(torch.cuda.max_memory_allocated(gpu)) for gpu in gpus)


def record_peak_memory(record: RecordWriter, iteration: int) -> None:
    """Record the peaks so far as metrics of a step; what is not known is left out.

    Args:
        record: of the run.
        iteration: 1-based number of the step that has ended.
    """
    now = peak_memory()
    record.metric(iteration, HOST_METRIC, now.host_bytes)
    if now.device_bytes is not None:
        record.metric(iteration, DEVICE_METRIC, now.device_bytes)
