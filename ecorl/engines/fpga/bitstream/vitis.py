"""AMD's Vitis: finds its tools and platforms, writes its config files, runs its commands.

Written for release 2024.1 and later from AMD's guides (UG1399, UG1702); it was never tried with a
real Vitis. Each kernel is compiled by ``v++ -c --mode hls`` with a config file, the kernels are
linked by ``v++ -l``. Each step has a log file for its output, and takes hours at worst: all its
processes end when the build ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from ecorl.child_process import end_group
from ecorl.engines.fpga.bitstream import tool_main
from ecorl.engines.fpga.csim.build import read_flags
from ecorl.engines.fpga.kernels.interfaces import KernelInterface, read_qor
from ecorl.errors import BuildError, MissingToolError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE_S = tool_main.PATIENCE_S + 5.0  # it ends its session by itself within the first part


class ToolStopped(Exception):
    """A signal asked this process to end while a tool ran.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        super().__init__(f"stopped by {number.name}")


def run_tool(command: Sequence[str], out: IO[str], folder: Path) -> int:
    """Run a tool with its child processes in a new session, and wait for its end.

    The whole session is ended when this process gets SIGINT, SIGTERM or SIGHUP, unless the signal
    is ignored (as under ``nohup``), and when this process is killed.

    Args:
        command: program and arguments.
        out: file for its output.
        folder: its working directory.

    Returns:
        The exit code as a shell returns it; 127 when it cannot be run, with a line in `out`.

    Raises:
        ToolStopped: SIGTERM or SIGHUP came; the tool has ended.
        KeyboardInterrupt: SIGINT came; the tool has ended.
        OSError: Python cannot be run.
    """
    watched = [sys.executable, "-I", tool_main.__file__, str(os.getpid()), *command]
    with _signals_deferred() as deferred:
        process = subprocess.Popen(
            watched, cwd=folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            deferred.arm()
            code = process.wait()
            deferred.is_armed = False
        except BaseException:
            end_group(process, _PATIENCE_S)
            raise
        if code < 0:  # the watching process was killed and did not end the session
            end_group(process, _PATIENCE_S)
    return code if code >= 0 else 128 - code


class _DeferredSignal:
    """Stores the first signal, and raises it once, where that is safe.

    Attributes:
        is_armed: whether a signal may raise. Before, a process may have been started whose id is
            not known yet; afterwards its end is under way.
        received: the first signal, or None.
    """

    def __init__(self) -> None:
        self.is_armed = False
        self.received: signal.Signals | None = None

    def arm(self) -> None:
        """Let signals raise from now on; raise at once if one was received before."""
        self.is_armed = True
        self.check()

    def check(self) -> None:
        """Raise the signal that was received, if any."""
        if self.received is not None:
            self.is_armed = False
            if self.received is signal.SIGINT:
                raise KeyboardInterrupt
            raise ToolStopped(self.received)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self.received = self.received or signal.Signals(number)
        if self.is_armed:
            self.check()


@contextlib.contextmanager
def _signals_deferred() -> Iterator[_DeferredSignal]:
    """Handle the signals within the block, then raise one that was received and not raised yet."""
    deferred = _DeferredSignal()
    if threading.current_thread() is not threading.main_thread():
        yield deferred  # Python handles signals in the main thread only
        return
    handlers = {which: signal.getsignal(which) for which in _SIGNALS}
    # None: the handler is not Python's and could not be restored; ignored signals stay ignored.
    handlers = {which: old for which, old in handlers.items() if old not in (signal.SIG_IGN, None)}
    try:
        for which in handlers:
            signal.signal(which, deferred.handle)
        yield deferred
    finally:
        for which, old in handlers.items():
            signal.signal(which, old)
    deferred.check()


OLDEST = (2024, 1)
"""First release with the commands as they are used here."""

SW_EMU_GONE = (2024, 2)
"""Release from which AMD deprecates software emulation."""

_PLATFORM_FOLDERS = "/opt/xilinx/platforms"


@dataclass(frozen=True, slots=True)
class Vitis:
    """The tools of one installation.

    Attributes:
        programs: path by name.
        release: year and number.
    """

    programs: dict[str, str]
    release: tuple[int, int]

    @property
    def name(self) -> str:
        """For the manifest: ``v++ 2024.1``."""
        return f"v++ {self.release[0]}.{self.release[1]}"


def find_vitis(programs: Sequence[str]) -> Vitis:
    """Find the tools on PATH.

    Args:
        programs: names that the build will call; ``v++`` tells the release.

    Raises:
        MissingToolError: one is not on PATH, or ``v++`` is too old or does not say its release.
    """
    found = {name: shutil.which(name) for name in programs}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        raise MissingToolError(
            f"{', '.join(missing)} of Vitis {verb} not on PATH: source settings64.sh of Vitis "
            f"{OLDEST[0]}.{OLDEST[1]} or later; TARGET=csim needs none of it"
        )
    there = {name: path for name, path in found.items() if path is not None}
    return Vitis(there, _release(there["v++"]))


def find_platform(name: str) -> str:
    """Find the .xpfm file of a development platform, which ``v++ --platform`` needs.

    Searched as a path, below ``$PLATFORM_REPO_PATHS``, ``/opt/xilinx/platforms`` and
    ``$XILINX_VITIS/base_platforms``.

    Raises:
        MissingToolError: it is in none of them.
    """
    own = Path(name).expanduser()
    if own.suffix == ".xpfm" and own.is_file():
        return str(own.resolve())
    folders = [*os.environ.get("PLATFORM_REPO_PATHS", "").split(os.pathsep), _PLATFORM_FOLDERS]
    if "XILINX_VITIS" in os.environ:
        folders.append(str(Path(os.environ["XILINX_VITIS"]) / "base_platforms"))
    for folder in filter(None, folders):
        for path in (Path(folder) / name / f"{name}.xpfm", Path(folder) / f"{name}.xpfm"):
            if path.is_file():
                return str(path.resolve())
    raise MissingToolError(
        f"platform {name} is not on this machine: install AMD's development platform, name its "
        f".xpfm file with PLATFORM=, or its folder in $PLATFORM_REPO_PATHS; looked in "
        f"{_PLATFORM_FOLDERS}"
    )


def platform_name(platform: str) -> str:
    """Name of a platform that is given by name or by its .xpfm file."""
    path = Path(platform)
    return path.stem if path.suffix == ".xpfm" else platform


# ---- config files -------------------------------------------------------------------------------


def hls_config(kernel: KernelInterface, root: Path, xo: Path) -> str:
    """The config file of a kernel for ``v++ -c --mode hls`` and ``vitis-run --mode hls``.

    C and C/RTL simulation compile the sources as the strict build does, with the folder sim/ for
    the test bench; synthesis uses neither.

    Args:
        kernel: with ``part`` and ``clock_mhz`` in its qor.json.
        root: folder of the kernels.
        xo: the compiled kernel.

    Raises:
        BuildError: qor.json lacks a field.
    """
    folder = root / kernel.kernel
    part, clock_mhz = part_and_clock(folder)
    sources = [folder / name for name in read_qor(folder).get("sources", [f"{kernel.kernel}.cpp"])]
    patterns = (f"sim/{kernel.kernel}_*.cpp", "sim/dataflow*.cpp")  # as common.mk has it
    simulation = [path for pattern in patterns for path in sorted(root.glob(pattern))]
    bench = [folder / f"{kernel.kernel}_tb.cpp", *simulation]
    include = f"-std=c++17 -I{root / 'include'}"
    defined = " ".join(w for w in _strict_flags(root) if w.startswith("-D"))
    simulated = f"{include} -I{root / 'sim'} {defined}"
    lines = [
        f"part={part}",
        "",
        "[hls]",
        "flow_target=vitis",
        f"clock={clock_mhz:g}MHz",
        *(f"syn.file={path}" for path in sources),
        f"syn.top={kernel.top}",
        f"syn.cflags={include}",
        f"syn.csimflags={simulated}",
        *(f"tb.file={path}" for path in bench if path.is_file()),
        f"tb.cflags={simulated}",
        "package.output.format=xo",
        f"package.output.file={xo}",
        "package.output.syn=1",
    ]
    return "\n".join(lines) + "\n"


def part_and_clock(folder: Path) -> tuple[str, float]:
    """Device and clock, MHz, in a kernel's qor.json.

    Raises:
        BuildError: it lacks one of them.
    """
    qor = read_qor(folder)
    part, clock_mhz = qor.get("part"), qor.get("clock_mhz")
    if not isinstance(part, str) or not isinstance(clock_mhz, int | float) or clock_mhz <= 0:
        raise BuildError(f"{folder / 'qor.json'}: part and clock_mhz are needed")
    return part, float(clock_mhz)


def _strict_flags(root: Path) -> tuple[str, ...]:
    return read_flags(root / "common.mk").get("CSIM_FLAGS_strict", ())


# ---- running ------------------------------------------------------------------------------------


def run_step(command: Sequence[str], log: Path, folder: Path) -> None:
    """Run one tool with its output in a log file.

    The tool and its child processes are ended when this process is ended or killed.

    Args:
        command: program and arguments.
        log: file for its output, written anew.
        folder: where it runs.

    Raises:
        BuildError: it fails or is stopped; in one line, with the first error and path of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    name = Path(command[0]).name
    with log.open("w", encoding="utf-8") as out:
        out.write(f"$ {' '.join(command)}\n")
        out.flush()
        try:
            code = run_tool(command, out, folder)
        except ToolStopped as stopped:
            raise BuildError(f"{name} was {stopped}; log: {log}") from stopped
    if code != 0:
        raise BuildError(f"{name} failed: {_first_error(log, code)}; log: {log}")


def _first_error(log: Path, code: int) -> str:
    """The first line with ERROR, else the exit code and the last line."""
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines()[1:]]
    lines = [line for line in lines if line]
    named = [line for line in lines if re.match(r"(CRITICAL )?ERROR\b|.*\berror:", line)]
    return named[0] if named else f"exit code {code}" + (f", {lines[-1]}" if lines else "")


def _release(program: str) -> tuple[int, int]:
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=300,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingToolError(f"{program} --version cannot be run: {error}") from error
    found = re.search(r"\bv?(20\d\d)\.(\d+)", done.stdout + done.stderr)
    if done.returncode != 0 or found is None:
        raise MissingToolError(f"{program} --version does not say a release")
    release = int(found[1]), int(found[2])
    if release < OLDEST:
        raise MissingToolError(
            f"v++ {release[0]}.{release[1]} is too old: Vitis {OLDEST[0]}.{OLDEST[1]} or later"
        )
    return release
