"""Runs the parts of ``make gpu`` one after the other, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.run.parts import NO_CUDA_CODE, Order, Part
from benchmarks.gpu.sensing.limiters import ask
from benchmarks.harness.figures import QUICK
from benchmarks.harness.processes import run_to_end, sigterm_as_exit
from ecorl.bench.machine import commit, describe_machine, repository
from ecorl.drivers.instruments import INSTRUMENTS, NvmlDevice
from ecorl.drivers.nvml import NvmlDriver, visible_devices
from ecorl.errors import DriverError, FunctionNotFound, NoPermission, NotSupported

OVERRUN = 1.2
"""Time after which a part is ended, over what it was given."""

SMALL_BYTES = 40e9
"""Memory, bytes, below which models or batches of some parts may not fit."""

_GRACE_S = 3.0
"""Time between SIGTERM and SIGKILL, s: a part that is ended writes nothing more."""

_ANSWER_S = 10.0
"""Longest wait for the answer of a GPU that may be lost, s: such a call can hang."""

_TAIL = 40
"""Lines of a failed part's stderr that are shown."""

_LOST = "the GPU does not answer any more"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part ended.

    Attributes:
        text: for the summary.
        is_failure: whether it was begun and has not measured.
    """

    text: str
    is_failure: bool = False


class Unfit(Exception):
    """This machine or this command line does not do; the text is one line for the user."""


class GpuPass:
    """One pass over the parts.

    Args:
        order: what is asked for.
        program: arguments with which Python starts a part.
        scratch: folder for temporary files; ``wheels`` in it holds the packages that were missing.
        deadline_s: end of the pass, monotonic s.
        lacking: modules and distributions that each part lacks, by its name.
    """

    def __init__(
        self,
        order: Order,
        program: Sequence[str],
        scratch: Path,
        deadline_s: float,
        lacking: Mapping[str, Sequence[str]],
    ) -> None:
        self._order, self._program, self._lacking = order, program, lacking
        self._scratch, self._deadline_s = scratch, deadline_s
        self._commit = order.commit or commit()
        self._outcomes: dict[str, Outcome] = {}
        self._is_lost = False
        self._has_measured = False

    def run(self) -> int:
        """Measure what fits; returns the exit code."""
        made: list[Path] = []
        try:
            with sigterm_as_exit():
                self._look_at_gpu()
                made = self._make_folder()
                try:
                    for part in self._order.parts:
                        self._outcomes[part.name] = self._outcome(part)
                finally:
                    if self._outcomes:
                        self._summarise()
        except Unfit as error:
            print(f"make gpu: {error}", file=sys.stderr)
            return 2
        finally:
            for folder in made:  # where nothing was measured nothing is left
                with contextlib.suppress(OSError):
                    folder.rmdir()
        return int(any(outcome.is_failure for outcome in self._outcomes.values()))

    def _look_at_gpu(self) -> None:
        """Find the first GPU that CUDA may use, and where results of it go.

        Raises:
            Unfit: when there is none.
        """
        with contextlib.closing(NvmlDriver()) as driver:
            try:
                driver.open()
                seen = driver.select(visible_devices(os.environ), as_cuda=True)
                self._driver = driver.version()
            except DriverError as error:
                why = f"{type(error).__name__}: {error}"
                raise Unfit(f"NVML does not tell of a GPU ({why})") from error
            visible = [device for device in seen if device.answers]
            if not visible:
                why = "; ".join(f"gpu{d.index} does not answer ({d.fault})" for d in seen)
                raise Unfit(f"{why or 'CUDA_VISIBLE_DEVICES leaves no GPU'}: nothing to measure")
            self._gpu = visible[0]
            named = visible_devices(os.environ) or (self._gpu.uuid,)
            self._visible = named[0] if named[0].startswith("MIG-") else self._gpu.uuid
            with contextlib.suppress(DriverError):
                memory_bytes = float(ask("nvmlDeviceGetMemoryInfo", self._gpu.handle).total)
                if memory_bytes < SMALL_BYTES:
                    print(f"{self._gpu.name} has {memory_bytes / 1e9:.0f} GB: what needs "
                          f"{SMALL_BYTES / 1e9:.0f} may be missing")  # fmt: skip
        if shutil.which("cc") is None and shutil.which("gcc") is None:
            print("there is no C compiler: what PyTorch compiles will be missing")
        self._machine = describe_machine()
        self._own_folder = repository() / "benchmarks" / "results" / self._machine.slug
        self._folder = self._order.out or self._own_folder

    def _make_folder(self) -> list[Path]:
        """Make the folder of the results; returns what was made, innermost first.

        Raises:
            Unfit: when it cannot be written.
        """
        folder = self._folder
        made = [one for one in (folder, *folder.parents) if not one.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(0, "it is read-only")
        except OSError as error:
            raise Unfit(f"OUT = {str(folder)!r}: allowed is a folder that can be written "
                        f"({error.strerror})") from error  # fmt: skip
        return made

    def _outcome(self, part: Part) -> Outcome:
        """Measure a part, or say why not."""
        if self._lacking[part.name]:
            missing = ", ".join(self._lacking[part.name])
            return Outcome(f"left out: {missing} neither here nor among the wheels")
        whole = self._whole(part)
        if whole is not None:
            return Outcome(f"left out: {whole} holds more of the same")
        other = self._difference(part)
        if other is None and str(self._commit).endswith("-dirty"):
            other = "the checkout differs from its commit"
        if other is None:
            return Outcome("kept: of this commit, driver and GPU")
        if self._is_lost:
            return Outcome(f"left out: {_LOST}")
        left_s = self._deadline_s - time.monotonic()
        if part.seconds > left_s:
            return Outcome(f"left out: it takes {part.seconds:.0f} s, and {max(0.0, left_s):.0f} s "
                           f"are left of {self._order.minutes:g} min")  # fmt: skip
        if other:
            print(f"{part.benchmark}.json is measured anew: {other}")
        print(f"== {part.name}: {part.question}", flush=True)
        return self._measured(part, min(OVERRUN * part.seconds, left_s))

    def _measured(self, part: Part, limit_s: float) -> Outcome:
        """Run the process of a part.

        Raises:
            Unfit: when PyTorch reaches no GPU, and none before either.
        """
        self._outcomes[part.name] = Outcome("stopped", is_failure=True)
        begin_s = time.monotonic()
        said = self._scratch / f"{part.name}.stderr"
        try:
            with said.open("wb") as stderr:
                code = run_to_end(
                    self._command(part, begin_s), cwd=repository(), limit_s=limit_s,
                    grace_s=_GRACE_S, env=self._environment(), stderr=stderr,
                )  # fmt: skip
        finally:  # what a part that was ended in the middle of writing has left
            for half in self._folder.glob(f".{part.benchmark}.*.part"):
                with contextlib.suppress(OSError):
                    half.unlink()
        taken_s = time.monotonic() - begin_s
        lines = said.read_text("utf-8", errors="replace").splitlines()
        why = f"it did not end in {limit_s:.0f} s" if code is None else last_error(lines)
        if code == 0:
            wrong = self._difference(part)
            if wrong is None:
                self._has_measured = True
                return Outcome(f"done in {taken_s:.1f} s")
            why = f"its file does not do: {wrong or 'there is none'}"
        if code == NO_CUDA_CODE and not self._has_measured:
            self._outcomes.clear()
            raise Unfit(why)
        print("\n".join(lines[-_TAIL:]), file=sys.stderr, flush=True)
        self._is_lost = not answers(self._gpu)
        return Outcome(f"failed: {why}" + (f"; {_LOST}" if self._is_lost else ""), is_failure=True)

    def _command(self, part: Part, begin_s: float) -> list[str]:
        command = [sys.executable, *self._program, part.name, "--out", str(self._folder),
                   "--seconds", f"{part.seconds:g}", "--begin", f"{begin_s:.3f}"]  # fmt: skip
        command += ["--commit", self._commit] if self._commit else []
        return command + (["--rehearse"] if self._order.is_rehearsal else [])

    def _environment(self) -> dict[str, str]:
        """This process's with one GPU, no network and the packages that were missing.

        They stand behind what else is named there, and hide nothing that is installed: only
        modules that were not found were unpacked. Processes that a part starts find them too.
        """
        wheels = self._scratch / "wheels"
        named = [os.environ.get("PYTHONPATH", ""), str(wheels) if wheels.is_dir() else ""]
        path = os.pathsep.join(filter(None, named))
        return {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            # What is compiled in one part serves the next, wherever the home folder is read-only.
            "TRITON_CACHE_DIR": str(self._scratch / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(self._scratch / "inductor"),
            "HF_HOME": str(self._scratch / "hub"),
            # On several GPUs TRL would want a launcher. A part of a divided GPU keeps its own name.
            "CUDA_VISIBLE_DEVICES": self._visible,
            **({"PYTHONPATH": path} if path else {}),
        }

    def _difference(self, part: Part) -> str | None:
        """Why a part's file does not do: empty where there is none; None where it does."""
        path = self._folder / f"{part.benchmark}.json"
        if not path.exists():
            return ""
        result = read_result(path, part.benchmark)
        if result is None:
            return "it is not whole"
        config, device = result["config"], result["device"]
        if config.get("rehearsal") is not self._order.is_rehearsal:
            return "it is of another kind of pass"
        for what, before, now in (
            ("commit", result["commit"], self._commit),
            ("driver", config.get("driver"), self._driver),
            ("GPU", device.get("gpu"), self._machine.gpu),
        ):
            if before != now:
                return f"it is of {what} {before}"
        return None

    def _whole(self, part: Part) -> Path | None:
        """The file with the whole of a part's benchmark on this GPU, or None.

        ``python -m benchmarks.<benchmark>`` measures more than the part under the same ids.
        """
        if self._order.is_rehearsal:
            return None
        for folder in (self._own_folder, self._folder):
            path = folder / f"{part.benchmark}.json"
            result = read_result(path, part.benchmark)
            if result is None or result["device"].get("gpu") != self._machine.gpu:
                continue
            is_quick = any(str(figure["id"]).endswith(QUICK) for figure in result["figures"])
            if result["config"].get("quick") is False and not is_quick:
                return path
        return None

    def _summarise(self) -> None:
        print("", flush=True)
        for part in self._order.parts:
            outcome = self._outcomes.get(part.name, Outcome("not begun"))
            print(f"{part.name:<16}{outcome.text}")
        print(f"results: {self._folder}", flush=True)


def read_result(path: Path, benchmark: str) -> dict[str, Any] | None:
    """Read a benchmark's result; None where it is not there or not whole.

    Args:
        path: of the JSON.
        benchmark: whose result it should be.
    """
    try:
        result = json.loads(path.read_text("utf-8"))
        is_whole = (
            result["benchmark"] == benchmark
            and isinstance(result["config"], dict)
            and isinstance(result["device"], dict)
            and all("id" in figure for figure in result["figures"])
            and bool(result["figures"])
            and "commit" in result
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(result) if is_whole else None


def last_error(lines: Sequence[str]) -> str:
    """The line in which a program says why it failed.

    Args:
        lines: of its stderr. Behind the last traceback it is the first that is not indented: what
            PyTorch adds to an error of CUDA stands below it.
    """
    begins = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
    behind = lines[begins[-1] + 1 :] if begins else []
    told = [line for line in behind if line.strip() and not line[0].isspace()]
    said = told or [line for line in reversed(lines) if line.strip()]
    return said[0].strip() if said else "it said nothing"


def answers(gpu: NvmlDevice) -> bool:
    """Whether NVML still answers for a GPU.

    Args:
        gpu: that was there before.
    """
    found: list[bool] = []

    def ask_it() -> None:
        with contextlib.closing(NvmlDriver()) as driver, contextlib.suppress(DriverError):
            # What it refuses it answers.
            with contextlib.suppress(NotSupported, FunctionNotFound, NoPermission):
                driver.open()
                device = driver.find(gpu.uuid)
                driver.board_state(device)
                driver.power(device, INSTRUMENTS)
            found.append(True)

    thread = threading.Thread(target=ask_it, daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    return found == [True]
