"""An adapter that trains nothing: its runs are records of a few quick steps of known power.

What a test asks of it stands in environment variables: TOY_DIE, TOY_STOP and TOY_REFUSE name a
placement whose runs are killed, stop by themselves or are refused, TOY_STEP_S is the time of a
step, and no step ends while the file TOY_HOLD is there.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from ecorl.errors import DataError
from ecorl.ledger import LEDGER_FILE, DeviceRecord
from ecorl.records import (
    Action,
    EnergyMethod,
    EventKind,
    PowerSample,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)
from ecorl.runtime.runs.record import create_run

POWER_W = 100.0
TOKENS = 50
LEFT = []
"""What a run leaves in its process."""
PRELOADED = []
"""Process that was told to import what runs need."""


def make_plugin(folder):
    """Write what registers this adapter by entry point, to stand on a module path."""
    info = folder / "toy_adapter-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-adapter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ecorl.adapters]\ntoybench = tests.toy_adapter\n")
    return folder


def preload():
    PRELOADED.append(os.getpid())


def check(config, run_dir, console):
    _refuse(config)
    if (run_dir / LEDGER_FILE).exists():
        raise DataError(f"{run_dir} holds a run already")


def benchmark_task(config, folder, console):
    return config.task


def _refuse(config):
    if os.environ.get("TOY_REFUSE") == config.placement.policy.type:
        raise DataError("the toy refuses this")


def run(config, run_dir, console):
    _refuse(config)
    if LEFT or signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL:
        raise AssertionError("another run was here")
    if PRELOADED and os.environ.get("TOY_PRELOADED") == "no":
        raise AssertionError("it was preloaded")
    LEFT.append(run_dir)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    print(f"toy run of {config.placement.policy.type}")
    ledger = create_run(config, run_dir, {})
    try:
        return _train(config, ledger)
    finally:
        ledger.close()


def train_supervised(config, run_dir, console):
    ledger = create_run(config, run_dir, {})
    _train(config, ledger, stages=(Stage.ACTOR_TRAIN,))
    ledger.close()


def _train(config, ledger, stages=(Stage.GENERATION, Stage.ACTOR_TRAIN)):
    ledger.begin_now()
    ledger.device(DeviceRecord("cpu0", "host_cpu", Provenance.MEASURED, "toy", 3.0))
    begun_s = time.monotonic()
    step_s = float(os.environ.get("TOY_STEP_S", "0.01"))

    def drawn_j(t_s):
        return POWER_W * (t_s - begun_s)

    def read():
        t_s = time.monotonic()
        ledger.samples([
            PowerSample("cpu0", t_s, POWER_W, drawn_j(t_s), None, Provenance.MEASURED, "toy")
        ])  # fmt: skip

    try:
        read()
        for step in range(1, config.trainer.steps + 1):
            start_s = time.monotonic()
            time.sleep(step_s)
            while Path(os.environ.get("TOY_HOLD", "/nowhere")).exists():
                time.sleep(0.01)
            end_s = time.monotonic()
            middle_s = (start_s + end_s) / 2
            for stage, span in zip(stages, ((start_s, middle_s), (middle_s, end_s)), strict=False):
                ledger.result(_result(step, stage, span, drawn_j(span[1]) - drawn_j(span[0])))
            read()
            if os.environ.get("TOY_DIE") == config.placement.policy.type and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if os.environ.get("TOY_STOP") == config.placement.policy.type and step == 2:
                ledger.event(EventKind.STOP, "the budget is used up")
                return False
        ledger.event(EventKind.TRAINING_END, "")
        read()
        ledger.evaluation("reward", "after", [float(config.seed)])
        ledger.event(EventKind.FINISH, "")
    except KeyboardInterrupt:
        ledger.event(EventKind.STOP, "stopped by a signal")
        return False
    return True


def _result(step, stage, span, energy_j):
    energy = StageEnergy(
        ("cpu0",), *span, energy_j, None, energy_j, None, 5, 1.0, EnergyMethod.COUNTER,
        Provenance.MEASURED,
    )  # fmt: skip
    time_s = span[1] - span[0]
    return StageResult(
        step, stage, Action.GPU, ("cpu0",), "host_cpu", *span, time_s, Provenance.MEASURED, time_s,
        0.0, 10, 2 * TOKENS, TOKENS, energy,
    )  # fmt: skip
