"""TRL's GRPO trainer, with a reward model and a reference, keeps what every adapter has to."""

from __future__ import annotations

from functools import cached_property

import pytest
import torch

from ecorl.errors import UserError
from ecorl.records import NO_ABILITIES, Stage
from roll_adapters.trl_hooks import attach
from tests.fakes.recordings import blinking
from tests.frameworks.conformance import FAULTS, N_STEPS, AdapterConformance, TrainedRun
from tests.integration.checks import BOTH, config
from tests.integration.test_trl_resume import Cut, CutAt
from tests.integration.tiny_trainer import tiny_trainer

N_ROWS, SAVED, CUT = 8, 2, 3
TIMES = ("time", "runtime", "per_second")
ADDED = ("energy/", "power/", "device/", "carbon/")


class TrlUnderTest:
    """GRPO in this process; the exact engine is torch, in a thread of it."""

    rows = dict.fromkeys(
        map(str, (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)), N_ROWS
    )
    same_tokens = (Stage.GENERATION, Stage.REFERENCE, Stage.ACTOR_TRAIN)
    offloaded = (str(Stage.REWARD), str(Stage.REFERENCE))
    inside_rollout = ()
    abilities = NO_ABILITIES
    slack_s = 0.0
    resume_repeats = True

    def __init__(self, tiny, folder):
        self.tiny, self.folder = tiny, folder
        self.refusal = ""

    def trainer(self, name, **changes):
        sizes = {"per_device_train_batch_size": N_ROWS, "max_steps": N_STEPS}
        return tiny_trainer(self.tiny, self.folder / name, **sizes | changes)

    def attached(self, name, trainer, resume=None, engine=None, carbon=None, **placement):
        engine, more = engine or {}, {"carbon": carbon} if carbon else {}
        settings = config(self.folder / name, engine=engine, more=more, **placement)
        attachment = attach(trainer, settings, resume_from_checkpoint=resume)
        asked = []
        tick = attachment.runtime.tick
        attachment.runtime.tick = lambda now_s, **facts: asked.append(now_s) or tick(now_s, **facts)
        trainer.train(resume_from_checkpoint=resume)
        return self.left_by(trainer, self.folder / name / "run", len(asked))

    def left_by(self, trainer, folder=None, ticks=None):
        log = [row for row in trainer.state.log_history if "loss" in row]
        numbers = {}
        for row in log:
            for name, value in row.items():
                if not name.startswith(ADDED) and not any(part in name for part in TIMES):
                    numbers.setdefault(name, {})[row["step"]] = float(value)
        # The line of the whole training has the total even where all steps ended before the first
        # reading of a slow machine.
        lines = trainer.state.log_history
        drawn = {row["step"]: row["energy/total_j"] for row in lines if "energy/total_j" in row}
        weights = {name: w.clone() for name, w in trainer.model.state_dict().items()}
        return TrainedRun(numbers, weights, folder, drawn, ticks)

    @cached_property
    def plain(self):
        trainer = self.trainer("plain")
        trainer.train()
        return self.left_by(trainer)

    @cached_property
    def gpu_path(self):
        return self.attached("gpu_path", self.trainer("gpu_path"))

    @cached_property
    def exact(self):
        engine = {"offload": {"type": "torch", "isolated": False}}
        return self.attached("exact", self.trainer("exact"), engine=engine, policy=BOTH)

    @cached_property
    def faulty(self):
        engine = {"offload": {"type": "torch", "isolated": False}, "faults": FAULTS}
        return self.attached(
            "faulty", self.trainer("faulty"), engine=engine, policy=BOTH, deadline_s=5.0
        )

    @cached_property
    def paused(self):
        carbon = blinking(self.folder)
        return self.attached("paused", self.trainer("paused"), carbon=carbon)

    @cached_property
    def resumed(self):
        saves = {"save_strategy": "steps", "save_steps": SAVED}
        cut = self.trainer("resumed", **saves)
        cut.add_callback(CutAt(CUT))
        with pytest.raises(Cut):
            self.attached("resumed", cut)
        with pytest.raises(UserError) as refused:
            self.attached("resumed", self.trainer("resumed", **saves))
        self.refusal = str(refused.value)
        return self.attached("resumed", self.trainer("resumed", **saves), resume=True)


@pytest.fixture(scope="module")
def adapter(tiny, tmp_path_factory):
    torch.set_num_threads(1)
    return TrlUnderTest(tiny, tmp_path_factory.mktemp("conformance"))


class TestTrl(AdapterConformance):
    pass
