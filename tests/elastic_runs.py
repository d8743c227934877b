"""Elastic trainings of the toy task, and what has to hold after each of them."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from ecorl.trainer import ElasticTrainer
from ecorl.trainer.elastic.groups import GroupOptions
from ecorl.trainer.elastic.records import ElasticOptions, MemberOptions
from tests.toy_task import undisturbed

MICRO_ROWS = 3


@contextmanager
def training(folder, task, *, width=1, control=None, drill=None, timeout_s=120.0, **options):
    """A trainer that is closed in the end."""
    groups = GroupOptions(timeout_s=timeout_s)
    member = MemberOptions(micro_batch_rows=MICRO_ROWS, drill=drill, groups=groups)
    options = ElasticOptions(**{"max_width": 3, "member": member, **options})
    with ElasticTrainer(task, folder, width=width, control=control, options=options) as made:
        yield made


def check_whole(trainer, result, task, n_steps, first=0):
    """Each step was committed once, with its own rows, and all is as if nothing had happened."""
    assert result.is_complete
    assert [one.step for one in result.steps] == list(range(first, n_steps))
    trained = Counter(row for one in result.steps for row in one.rows)
    assert trained == Counter(row for step in range(first, n_steps) for row in task.rows(step))
    same = replace(task, step_s=0.0)  # it need not take long
    losses, weights = undisturbed(same, n_steps, micro_batch_rows=MICRO_ROWS)
    # Sums in another order: their last bits differ, and some hundred steps make more of it.
    assert result.losses == pytest.approx(losses[first:], rel=1e-3, abs=1e-5)
    assert result.losses[:20] == pytest.approx(losses[first : first + 20], rel=1e-5)
    for name, one in trainer.weights().items():
        if name != "n_calls":  # it counts forward passes, of which more members make more
            torch.testing.assert_close(one, weights[name], rtol=1e-3, atol=1e-4)
    assert len(set(trainer.digests())) == 1
