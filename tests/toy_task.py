"""A small training for elastic trainers, drills that make its members misbehave, a reference."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import nn

from ecorl.trainer.elastic.member import Member
from ecorl.trainer.elastic.records import MemberOptions, StepOrder
from ecorl.trainer.elastic.task import EpochOrder

N_ROWS, BATCH_ROWS = 50, 7
"""A batch divides neither by 2 nor by 3, and epochs end within steps."""


class Net(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.inner = nn.Linear(6, 12)
        self.norm = nn.LayerNorm(12)
        self.drop = nn.Dropout(dropout)
        self.outer = nn.Linear(12, 1)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("n_calls", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(6), persistent=False)

    def forward(self, x):
        if self.training:
            self.n_calls += 1
            self.seen.mul_(0.9).add_(x.detach().mean(0))
        return self.outer(self.drop(torch.tanh(self.norm(self.inner(x)))))[:, 0]


@dataclass(frozen=True)
class ToyTask:
    """Fits a sum; weight decay would move a parameter that is never used, were it given zeros."""

    dropout: float = 0.0
    step_s: float = 0.0
    batch_rows: int = BATCH_ROWS
    faulty_from: int | None = None

    def make_model(self):
        return Net(self.dropout)

    def make_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)

    def rows(self, step):
        return EpochOrder(N_ROWS, self.batch_rows, seed=3).rows(step)

    def loss(self, model, indices):
        data = torch.randn(N_ROWS, 6, generator=torch.Generator().manual_seed(5))[list(indices)]
        if self.step_s:
            time.sleep(self.step_s)
        return (model(data) - data.sum(1)).square()

    def before_update(self, model, optimizer, step):
        if self.faulty_from is not None and step >= self.faulty_from:
            raise ValueError("the user's own mistake")
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / (1 + step / 50)


DIES, STOPS, NAPS = "dies", "stops", "naps"


@dataclass
class Drill:
    """Lets members misbehave.

    `plans` has for (point, member) what happens and at which call of that point, from 0.
    """

    plans: dict
    nap_s: float = 2.0
    calls: dict = field(default_factory=dict)

    def __call__(self, point, member, step):
        n_before = self.calls.get((point, member), 0)
        self.calls[point, member] = n_before + 1
        what, nth = self.plans.get((point, member), (None, 0))
        if n_before != nth or what is None:
            return
        if what == NAPS:
            time.sleep(self.nap_s)
        elif what == STOPS:
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os._exit(1)


def together(*calls):
    """Run calls at the same time; returns what each returned or raised."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    return [future.exception() or future.result() for future in futures]


def order(task, step, part=None, members=("member-1",), n_committed=None):
    """What a member is asked for; of all rows, or of a range of their positions."""
    rows = task.rows(step)
    part = range(len(rows)) if part is None else part
    own = tuple(rows[i] for i in part)
    done = step if n_committed is None else n_committed
    return StepOrder(step, done, own, part.start, len(rows), tuple(members))


def undisturbed(task, n_steps, **options):
    """Losses and final weights of one member that nothing happens to."""
    member = Member("member-1", task, MemberOptions(**options), "127.0.0.1")
    member.load(task.rows(0))
    losses = [member.compute(order(task, step)).loss for step in range(n_steps)]
    member.settle(n_steps)
    return losses, {name: one.clone() for name, one in member.model.state_dict().items()}
