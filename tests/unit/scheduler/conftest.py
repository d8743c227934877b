from __future__ import annotations

import pytest

from ecorl.records import Algorithm, ModelShape, SchedulerState, Stage, StageWork

LLAMA_8B = ModelShape(32, 4096, 14336, 32, 8, 128, 128_256, 8_030_000_000, 7_504_924_672)


@pytest.fixture
def make_state():
    def make(
        stage=Stage.REWARD, queue=0, available=True, rows=64, length=512, model=LLAMA_8B, gpus=1
    ):
        work = StageWork(stage, rows, rows * length, rows * length // 2, length, model)
        shares = tuple([0.5] * gpus)
        return SchedulerState(3, Algorithm.GRPO, stage, shares, shares, queue, available, work)

    return make
