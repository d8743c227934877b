"""How much code six things pass through: calls, functions, files, records and depth.

    python -m tests.call_profile

    decision       from readings in memory to a placement, by the learned policy
    batch          an offloaded batch: placed, sent, answered, joined, accounted, in the ledger
    power sample   read, sent to the run's process, kept, rolled up, taken by the report
    report         from the record of the recorded run `demo` to its figures, not yet the page
    plan           the answer of ``ecorl plan`` with its defaults, in a new process
    tick           the control path between two steps, under the default controller

Counted are functions of ecorl and its adapters, in all threads: not what is imported on the way,
not comprehensions, and nothing of a library. A record is a dataclass or named tuple of them of
which one is constructed. Depth is the most of such functions on one stack.

A batch is counted until the ledger is flushed. How often threads wake up until then depends on the
machine, so that its calls differ somewhat from run to run; the rest differs little.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(f"{ROOT / name}{os.sep}" for name in ("ecorl", "roll_adapters"))
TRACE = ROOT / "ecorl" / "config" / "presets" / "demo_carbon.csv"
_NO_FUNCTIONS = ("<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


@dataclass
class Profile:
    """What was passed through.

    Attributes:
        calls: of each function.
        records: classes of the records that were constructed, each with how many.
        depth: most functions on one stack.
    """

    calls: Counter[CodeType] = field(default_factory=Counter)
    records: Counter[type] = field(default_factory=Counter)
    depth: int = 0

    @property
    def n_calls(self) -> int:
        return self.calls.total()

    @property
    def files(self) -> set[str]:
        return {code.co_filename for code in self.calls}

    def beyond(self, other: Profile) -> Profile:
        """What was passed through here and not there."""
        calls = Counter({c: n for c, n in self.calls.items() if c not in other.calls})
        records = Counter({r: n for r, n in self.records.items() if r not in other.records})
        return Profile(calls, records, self.depth)

    def __or__(self, other: Profile) -> Profile:
        depth = max(self.depth, other.depth)
        return Profile(self.calls + other.calls, self.records + other.records, depth)


class Profiler:
    """The hook, in this thread and those that are started from now on; counts within `counting`."""

    def __init__(self) -> None:
        self._profile: Profile | None = None
        self._local = threading.local()
        self._lock = threading.Lock()
        threading.setprofile(self._hook)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Profile]:
        """Count what this thread and the others pass through."""
        found = Profile()
        self._local.depth = 0
        self._profile = found
        sys.setprofile(self._hook)
        try:
            yield found
        finally:
            sys.setprofile(None)
            self._profile = None

    def _hook(self, frame: FrameType, event: str, arg: Any) -> None:
        profile, code = self._profile, frame.f_code
        if profile is None or event not in ("call", "return"):
            return
        if code.co_filename == "<string>":
            if event == "call":
                self._note_record(profile, frame)
            return
        if not code.co_filename.startswith(PACKAGES) or code.co_name in _NO_FUNCTIONS:
            return
        depth = getattr(self._local, "depth", 0) + (1 if event == "call" else -1)
        self._local.depth = max(depth, 0)
        if event == "call":
            with self._lock:
                profile.calls[code] += not _is_resumed(frame)
                profile.depth = max(profile.depth, depth)

    def _note_record(self, profile: Profile, frame: FrameType) -> None:
        """Note the class of a record; its constructor was generated as text."""
        made = frame.f_locals.get("self" if frame.f_code.co_name == "__init__" else "_cls")
        kind = made if isinstance(made, type) else type(made)
        if kind.__module__.startswith(("ecorl.", "roll_adapters.")):
            with self._lock:
                profile.records[kind] += 1


def _is_resumed(frame: FrameType) -> bool:
    """Whether a generator goes on, rather than begins."""
    # It begins on the line of its `def`, and goes on where it yielded.
    code = frame.f_code
    return bool(code.co_flags & inspect.CO_GENERATOR) and frame.f_lineno != code.co_firstlineno


# ---------------------------------------------------------------- what is measured


def decision(profiler: Profiler, folder: Path) -> Profile:
    """The usual one of many in different states."""
    from benchmarks.studies.placement.decisions import RunDecisions, deciding

    run = RunDecisions(deciding())
    found = []
    for i in range(400):
        run.prepare(i)
        with profiler.counting() as one:
            placement = run.decide(i)
        run.follow(placement)
        found.append(one)
    return usual(found)


@contextlib.contextmanager
def toy_run(folder: Path, name: str, telemetry: str, **config: Any) -> Iterator[Any]:
    """A run that has started, over the toy engine."""
    from tests.toy_runs import ToyRun, make_toy_plugin

    plugin = folder / "plugin"
    if not plugin.is_dir():
        sys.path.insert(0, str(make_toy_plugin(plugin)))
    gpu = {"type": telemetry} if telemetry == "null" else {"type": telemetry, "interval_s": 0.02}
    run = ToyRun(folder / name, telemetry={"gpu": gpu}, **config)
    try:
        run.runtime.start()
        yield run
    finally:
        run.close()


def batch(profiler: Profiler, folder: Path) -> Profile:
    """One batch of rewards, without readings of power, whose number depends on the machine."""
    from tests.toy_runs import make_batch

    with toy_run(folder, "run", "null") as run:
        for number in range(1, 4):
            run.step(number, make_batch(seed=number))
        with profiler.counting() as found:
            run.step(4, make_batch(seed=4))
            run.ledger.flush()
    return found


def power_sample(profiler: Profiler, folder: Path) -> Profile:
    """What a run and its report pass through with readings, and not without any."""
    from tests.toy_runs import make_batch

    found: dict[str, Profile] = {}
    for telemetry in ("null", "modelled"):
        with toy_run(folder, telemetry, telemetry) as run, profiler.counting() as lived:
            run.step(1, make_batch())
            time.sleep(2.5)
            run.ledger.flush()
        found[telemetry] = lived | reported(profiler, folder / telemetry)
    return sampled(profiler) | found["modelled"].beyond(found["null"])


def sampled(profiler: Profiler) -> Profile:
    """One reading in the sampling process, whose functions are called in this one."""
    from ecorl.config import ModelledSourceConfig
    from ecorl.records import DeviceKind
    from ecorl.telemetry.sampling import sampler_main
    from ecorl.telemetry.sources.specs import MeteredDevice, PowerModel, SourceSpec

    model = PowerModel(20.0, 65.0, (os.getpid(),), n_threads=1)
    device = MeteredDevice("gpu0", DeviceKind.GPU, model=model)
    spec = SourceSpec((ModelledSourceConfig(interval_s=0.05),), device)
    stop = threading.Event()

    class Once(sampler_main.Outlet):
        def write(self, line: str) -> bool:
            stop.set()
            return super().write(line)

    read_fd, write_fd = os.pipe()
    with profiler.counting() as found:
        source, _ = sampler_main.open_source(spec)
        sampler_main.poll(source, Once(write_fd), stop, sampler_main.Edge())
    os.close(read_fd)
    os.close(write_fd)
    return found


def reported(profiler: Profiler, run_dir: Path) -> Profile:
    from rich.console import Console

    from ecorl.report import write_report

    with profiler.counting() as found:
        write_report(run_dir, console=Console(file=io.StringIO(), width=100))
    return found


def report(profiler: Profiler, folder: Path) -> Profile:
    from ecorl.ledger import LedgerReader
    from ecorl.report import build_report, read_config
    from tests.recorded.outputs import rebuild_set

    rebuild_set("demo", folder)
    found = Profile()
    for _ in range(2):  # the second one is warm
        with LedgerReader(folder) as reader:
            known = read_config(reader.run(), folder)
            with profiler.counting() as found:
                build_report(reader, known)
    return found


def plan(profiler: Profiler, folder: Path) -> Profile:
    from ecorl.cli.plan.app import PlanOptions
    from ecorl.cli.plan.asking import read
    from ecorl.operate.plan.answer import plan_answer

    job, terms = read(PlanOptions())
    scenarios = job.scenarios(1)
    with profiler.counting() as found:
        for scenario in scenarios.values():
            plan_answer(job, scenario, terms, None)
    return found


def tick(profiler: Profiler, folder: Path) -> Profile:
    """The usual tick of many, in calls; some begin a step, a change or an hour."""
    control = {"controller": "stochastic", "slack": 2.0}
    feed = {
        "type": "replay", "path": str(TRACE), "starts_at": "2026-01-25T00:00:00Z", "speed": 36_000.0
    }  # fmt: skip
    carbon = {"recheck_s": 0.1, "stale_after_s": 0.5, "feeds": [feed], "control": control}
    found = []
    with toy_run(folder, "run", "null", carbon=carbon) as run:
        for left in range(100, 0, -1):
            with profiler.counting() as one:
                run.runtime.tick(time.monotonic(), steps_left=left)
            found.append(one)
            time.sleep(0.02)
    return usual(found)


def usual(found: list[Profile]) -> Profile:
    """The middle one by calls."""
    return sorted(found, key=lambda one: one.n_calls)[len(found) // 2]


MEASURED: dict[str, Callable[[Profiler, Path], Profile]] = {
    "decision": decision,
    "batch": batch,
    "power sample": power_sample,
    "report": report,
    "plan": plan,
    "tick": tick,
}


def main() -> None:
    """Measure all, and print a table."""
    logging.disable()
    profiler = Profiler()
    print(f"{'':14}{'calls':>9}{'functions':>11}{'files':>7}{'records':>9}{'depth':>7}")
    for name, measure in MEASURED.items():
        with tempfile.TemporaryDirectory() as folder:
            found = measure(profiler, Path(folder))
        print(
            f"{name:14}{found.n_calls:9,}{len(found.calls):11,}{len(found.files):7}"
            f"{len(found.records):9}{found.depth:7}",
            flush=True,
        )


if __name__ == "__main__":
    main()
