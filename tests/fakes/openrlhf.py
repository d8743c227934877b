"""What OpenRLHF's adapter meets in OpenRLHF: flags, micro-batches, groups; and a runtime of dicts.

Rows are answered by functions of their tokens, so that one can tell whose answer a value is.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from ecorl.records import Action, Placement, Stage
from ecorl.runtime.control.governor import ungoverned
from ecorl.runtime.handles import Iteration, Landed, PlacedStage, RunTotals, StageRun
from ecorl.runtime.overhead import HookClock
from ecorl.runtime.training import TrainingSide


def flags(**named):
    """OpenRLHF's nested flags from dotted names, with ``__`` for the dots."""
    root = SimpleNamespace()
    for name, value in named.items():
        *sections, last = name.split("__")
        node = root
        for section in sections:
            if not hasattr(node, section):
                setattr(node, section, SimpleNamespace())
            node = getattr(node, section)
        setattr(node, last, value)
    return root


def micro_batch(rows, index, n_padding=0):
    """Pad some rows on the right: each a list of tokens, and for all but the first an action."""
    width = max(len(tokens) for tokens, _ in rows) + n_padding
    sequences = torch.zeros((len(rows), width), dtype=torch.int64)
    mask, actions = torch.zeros_like(sequences), torch.zeros((len(rows), width - 1)).bool()
    for i, (tokens, taken) in enumerate(rows):
        sequences[i, : len(tokens)] = torch.tensor(tokens)
        mask[i, : len(tokens)] = 1
        actions[i, : len(taken)] = torch.tensor(taken, dtype=torch.bool)
    return SimpleNamespace(
        sequences=sequences, attention_mask=mask, action_mask=actions, index=list(index)
    )


def own_answer(stage, part):
    """OpenRLHF's answer to a micro-batch: a sum of tokens, or a value of each action's token."""
    if stage is Stage.REFERENCE:
        return (part.sequences[:, 1:].float() / -100) * part.action_mask
    return (part.sequences * part.attention_mask).sum(1).float()


def engine_answers(stage, batch):
    """The same of a batch without padding; tokens between actions have values of their own."""
    if stage is Stage.REFERENCE:
        return [
            (row[len(row) - n :] / np.float32(-100)).astype(np.float32)
            for row, n in zip(batch.token_ids, batch.n_completion, strict=True)
        ]
    return [np.float32(row.sum()) for row in batch.token_ids]


class FakeGroup:
    """A group of actors whose forward passes are computed here."""

    def __init__(self, stage, micro_batches, change=lambda tensor: tensor):
        self.stage, self.parts, self.change = stage, micro_batches, change
        self.sent, self.ran = [], []

    def send(self):
        self.sent.append(self.stage)
        return [f"ref of {self.stage}"]

    def gather(self):
        return [self.change(own_answer(self.stage, part)) for part in self.parts]

    def run_batches(self, kwargs, numbers):
        self.ran.append(list(numbers))
        everything = self.gather()
        return {n: everything[n] for n in numbers}


class FakeRecord:
    def __init__(self):
        self.metrics, self.evaluations, self.checkpoints, self.faults = {}, {}, [], []

    def metric(self, iteration, name, value):
        self.metrics[iteration, name] = value

    def evaluation(self, name, phase, values):
        self.evaluations[name, phase] = list(values)

    def checkpoint(self, iteration, path):
        self.checkpoints.append((iteration, path))

    def edi(self, json):
        pass

    def fault(self, fault):
        self.faults.append(fault)

    def flush(self, timeout_s=30.0):
        return True


class FakeRuntime:
    """A runtime that answers with `engine_answers`, and notes what it was asked for.

    Args:
        action: where reward and reference run.
        bad: rows that do not arrive.
        broken: names of methods that raise.

    Attributes:
        calls: names of the calls, each with its role if it has one.
    """

    def __init__(self, action=Action.GPU, bad=(), broken=()):
        self.training = TrainingSide("none", node="here")
        self.clock, self.record = HookClock(), FakeRecord()
        self.is_head = False
        self._action, self._bad, self._broken = action, tuple(bad), set(broken)
        self.calls, self.runs, self.accounted, self.numbers = [], [], [], []
        self.expected = []
        self.sums = RunTotals()

    def _note(self, name, role=""):
        self.calls.append((name, str(role)))
        if name in self._broken:
            raise RuntimeError(f"{name} is broken")

    def roles(self, name):
        return [role for called, role in self.calls if called == name]

    def tick(self, now_s, *, steps_left=None, is_stopping=False, stage=None):
        self._note("tick")
        return ungoverned(now_s)

    def begin_iteration(self, number, batch=None):
        self._note("begin_iteration")
        self.numbers.append(number)
        return Iteration(number, number - 1 if batch is None else batch, len(self.calls))

    def expect_stages(self, iteration, works):
        for work in works:
            self._note("expect_stages", work.role)
            self.expected.append(work)

    def on_stage_start(self, iteration, work, *, may_offload=True, starts_now=True):
        self._note("on_stage_start", work.role)
        leaves = may_offload and work.stage in (Stage.REWARD, Stage.REFERENCE)
        action = self._action if leaves else Action.GPU
        placement = Placement(iteration.number, work.stage, action, action, "fake", "")
        stage = PlacedStage(len(self.calls), iteration, work, placement)
        self.runs.append(StageRun(stage, 0.0 if starts_now else None))
        return self.runs[-1]

    def restart(self, run):
        self._note("restart", run.work.role)

    def pause(self, run):
        self._note("pause", run.work.role)

    def submit(self, run, batch, *, lands_here):
        self._note("submit", run.work.role)
        run.batch = batch()
        return True

    def land(self, run):
        self._note("land", run.work.role)
        values = dict(enumerate(engine_answers(run.work.stage, run.batch)))
        return Landed({i: v for i, v in values.items() if i not in self._bad}, self._bad)

    def fill(self, run, landed, exact):
        self._note("fill", run.work.role)
        return landed.filled(exact(landed.bad_rows) if landed.bad_rows else ())

    def forget(self, run):
        self._note("forget", run.work.role)

    def account(self, stage, spans, node):
        self._note("account", stage.work.role)
        self.accounted.append((stage, list(spans), node))

    def end_when_ready(self, run, refs, work=None):
        self._note("end_when_ready", run.work.role)

    def settle(self):
        self._note("settle")

    def totals(self):
        self._note("totals")
        return self.sums

    def edi_json(self):
        self._note("edi_json")
        return "{}"

    def close(self):
        self._note("close")
