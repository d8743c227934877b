"""A user's training script, as torchrun starts it: make a trainer, attach, train, save what came.

    torchrun --nproc_per_node 2 train_script.py settings.json

The settings are a list of trainings, done one after another. Each holds the task's paths, the
trainer's options, the config to attach (or null) and the folder for what each process ends with:
its log, its weights and the ids of the rows that it had.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from ecorl.config import validate_config
from ecorl.errors import RunError
from ecorl.ledger import LedgerReader
from ecorl.records import Stage
from roll_adapters.trl_hooks import attach
from tests.integration.checks import outcome
from tests.integration.tiny_trainer import TinyTask, tiny_trainer


def main(path: str) -> None:
    """Run one process of some trainings."""
    for settings in json.loads(Path(path).read_text("utf-8")):
        train(settings, int(os.environ.get("RANK", "0")))


def train(settings, rank: int) -> None:
    """Run one process of a training."""
    tiny = TinyTask(**{name: Path(value) for name, value in settings["tiny"].items()})
    folder = Path(settings["folder"])
    trainer = tiny_trainer(tiny, folder, settings["algorithm"], **settings["trainer"])
    resume = settings.get("resume")
    if settings.get("refused"):
        with pytest.raises(RunError) as caught:
            attach(trainer, validate_config(settings["config"]))
        (folder / f"refused-{rank}.txt").write_text(str(caught.value), "utf-8")
        return
    attached = None
    if settings["config"] is not None:
        config = validate_config(settings["config"])
        attached = attach(trainer, config, resume_from_checkpoint=resume)
    kill = settings.get("kill")
    if kill is not None and resume is None:
        trainer.add_callback(killer(kill["step"], attached, dies=kill["rank"] == rank))
    change = settings.get("change")
    if change is not None and change["rank"] == rank:
        trainer.add_callback(changer(trainer.reward_funcs[0], change["step"]))
    broken = settings.get("broken")
    if broken is not None and broken["rank"] == rank:
        break_gear(trainer, broken["step"])
    trainer.train(resume_from_checkpoint=resume)
    n_files = []
    for _ in range(settings.get("again", 0)):
        trainer.train()
        n_files.append(len(list(Path("/proc/self/fd").iterdir())))
    torch.save(outcome(trainer) | {"n_files": n_files}, folder / f"outcome-{rank}.pt")


def break_gear(trainer, step: int):
    """Have the forward pass of this process in its lowest format give nan in one step."""
    from ecorl.control import Gear
    from ecorl.trainer.gears.geared_model import GearedModel

    engage = GearedModel.engage

    def broken(self, gear):
        engage(self, gear)
        if gear in (Gear.FP8, Gear.FP16) and trainer.state.global_step == step:
            inner = self._model.__dict__["forward"]

            def forward(*args, **kwargs):
                output = inner(*args, **kwargs)
                output.log_probs = output.log_probs * float("nan")
                return output

            self._model.__dict__["forward"] = forward

    GearedModel.engage = broken


def killer(step: int, attached, *, dies: bool):
    """Make a callback that ends one process at once when a step begins.

    The others have recorded the step before by then: what is on its way to the record dies too.
    """
    from transformers import TrainerCallback

    class Kill(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == step:
                wait_for_record(attached.runtime, step)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)

    return Kill()


def wait_for_record(runtime, step: int) -> None:
    """Wait until the training of a step stands in the record, behind all else of it."""
    is_there = [False]
    while not is_there[0]:
        runtime.settle()  # of all processes together
        if runtime.is_head:
            runtime.record.flush()
            with LedgerReader(runtime.record.path) as reader:
                rows = [row.result for row in reader.executions()]
            is_there = [any(r.iteration == step and r.stage is Stage.ACTOR_TRAIN for r in rows)]
        torch.distributed.broadcast_object_list(is_there)
        time.sleep(0.02)


def changer(model, step: int):
    """Make a callback that changes a frozen model when a step begins."""
    from transformers import TrainerCallback

    class Change(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == step:
                with torch.no_grad():
                    model.score.weight.mul_(0.5)

    return Change()


if __name__ == "__main__":
    main(sys.argv[1])
