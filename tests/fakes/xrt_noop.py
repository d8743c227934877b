"""XRT's noop device: how the tests find it, and one run of every kernel on it.

XRT looks its drivers up under ``$XILINX_XRT/lib``; Debian has them elsewhere, so a folder of links
stands in. As a program, this file loads an xclbin through XRT's C interface, gives each buffer
argument a buffer in the bank that XRT names, runs every kernel and prints what happened as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

COMPLETED = 4  # ERT_CMD_STATE_COMPLETED


def noop_driver() -> Path | None:
    """The noop driver's library, or None where XRT is not installed."""
    folders = [Path(os.environ.get("XILINX_XRT", "/opt/xilinx/xrt")) / "lib"]
    folders += sorted(Path("/usr/lib").glob("*-linux-gnu"))
    found = [folder / "libxrt_noop.so.2" for folder in folders]
    return next((path for path in found if path.is_file()), None)


def noop_environment(folder: Path) -> dict[str, str]:
    """Environment in which XRT finds one noop device; makes a folder of links."""
    driver = noop_driver()
    assert driver is not None
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    for name in ("libxrt_noop.so", "libxrt_noop.so.2"):
        link = folder / "lib" / name
        if not link.exists():
            link.symlink_to(driver)
    return {**os.environ, "XILINX_XRT": str(folder), "XCL_EMULATION_MODE": "noop"}


def run_kernels(xclbin: Path, kernels: dict[str, list[bool]], folder: Path) -> dict[str, object]:
    """Run this file on an xclbin: by kernel, its group ids (None: a scalar) and its end state.

    Args:
        xclbin: the file.
        kernels: by name, for each argument whether it is a buffer.
        folder: for the links to the driver.
    """
    done = subprocess.run(
        [sys.executable, __file__, str(xclbin), json.dumps(kernels)],
        env=noop_environment(folder),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def _library() -> ctypes.CDLL:
    driver = noop_driver()
    assert driver is not None
    xrt = ctypes.CDLL(str(driver.resolve().parent / "libxrt_coreutil.so.2"))
    handle = ctypes.c_void_p
    for name, result, arguments in (
        ("xrtDeviceOpen", handle, [ctypes.c_uint]),
        ("xrtDeviceLoadXclbinFile", ctypes.c_int, [handle, ctypes.c_char_p]),
        ("xrtDeviceGetXclbinUUID", ctypes.c_int, [handle, handle]),
        ("xrtPLKernelOpen", handle, [handle, handle, ctypes.c_char_p]),
        ("xrtKernelArgGroupId", ctypes.c_int, [handle, ctypes.c_int]),
        ("xrtRunOpen", handle, [handle]),
        ("xrtRunStart", ctypes.c_int, [handle]),
        ("xrtRunWait", ctypes.c_int, [handle]),
        ("xrtRunClose", ctypes.c_int, [handle]),
        ("xrtKernelClose", ctypes.c_int, [handle]),
        ("xrtBOFree", ctypes.c_int, [handle]),
        ("xrtDeviceClose", ctypes.c_int, [handle]),
        ("xrtBOAlloc", handle, [handle, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint32]),
    ):
        function = getattr(xrt, name)
        function.restype, function.argtypes = result, arguments
    return xrt


def _run(xclbin: str, kernels: dict[str, list[bool]]) -> dict[str, object]:
    xrt = _library()
    device = xrt.xrtDeviceOpen(0)
    assert device, "no device"
    assert xrt.xrtDeviceLoadXclbinFile(device, xclbin.encode()) == 0, "not loaded"
    identity = (ctypes.c_ubyte * 16)()
    assert xrt.xrtDeviceGetXclbinUUID(device, identity) == 0
    found: dict[str, object] = {"uuid": bytes(identity).hex()}
    for name, arguments in kernels.items():
        kernel = xrt.xrtPLKernelOpen(device, identity, name.encode())
        assert kernel, f"kernel {name} not opened"
        run = xrt.xrtRunOpen(kernel)
        groups: list[int | None] = []
        buffers = []
        for index, is_buffer in enumerate(arguments):
            group = xrt.xrtKernelArgGroupId(kernel, index) if is_buffer else None
            if group is None:
                value = ctypes.c_int32(1)
            else:
                assert group >= 0, f"{name}: argument {index} has no group"
                value = ctypes.c_void_p(xrt.xrtBOAlloc(device, 1 << 16, 0, group))
                assert value.value, f"{name}: no buffer in group {group}"
                buffers.append(value)
            groups.append(group)
            set_argument = xrt.xrtRunSetArg
            assert set_argument(ctypes.c_void_p(run), ctypes.c_int(index), value) == 0
        assert xrt.xrtRunStart(run) == 0
        found[name] = {"groups": groups, "state": xrt.xrtRunWait(run)}
        # XRT crashes at the end of a program that leaves handles open.
        assert xrt.xrtRunClose(run) == xrt.xrtKernelClose(kernel) == 0
        assert not any(xrt.xrtBOFree(buffer) for buffer in buffers)
    assert xrt.xrtDeviceClose(device) == 0
    return found


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], json.loads(sys.argv[2]))), flush=True)
