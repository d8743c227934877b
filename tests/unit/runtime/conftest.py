"""A toy engine in this process, one that answers as told, and a runtime over a real ledger."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ecorl.config import Config
from ecorl.engines.lanes.threaded import ThreadedEngine
from ecorl.engines.protocol import EngineReport, LogprobResult, ScoreBatch, ScoreResult
from ecorl.engines.registry import FaultyEngine
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.records import ModelShape, Provenance, Stage, StageWork
from ecorl.runtime.local import LocalRuntime
from ecorl.runtime.protocol import join
from ecorl.runtime.training import FrozenModel, TrainingSide, this_node

TINY = ModelShape(1, 8, 16, 1, 1, 8, 64, 1_500, 1_000)
REPORT = EngineReport(0.5, 4.0, Provenance.MODELLED, 0.01)


def answer(batch, stage, report=REPORT):
    """A healthy toy: reward = sum of the tokens / 100, log-prob of token t = -(t + 1) / 100."""
    if stage is Stage.REFERENCE:
        rows = zip(batch.token_ids, batch.n_completion, strict=True)
        values = tuple((-(row[len(row) - n :] + 1) / 100).astype(np.float32) for row, n in rows)
        return LogprobResult(batch.sample_ids, values, report)
    values = np.array([row.sum() / 100 for row in batch.token_ids], dtype=np.float32)
    return ScoreResult(batch.sample_ids, values, report)


class ToyEngine:
    """A real engine without a model; `delay_s` a call."""

    name, model, row_invariant, card_bytes, host = "toy", TINY, True, 1_000, "csim"

    def __init__(self, stage=Stage.REWARD, device="u55c", delay_s=0.0, report=REPORT):
        self.stage, self.device, self.delay_s, self.report = stage, device, delay_s, report
        self.closed = 0

    def score(self, batch):
        time.sleep(self.delay_s)
        return answer(batch, self.stage, self.report)

    logprobs = score

    def close(self):
        self.closed += 1


class ToldEngine:
    """An asynchronous engine whose next future is made by `reply(batch)`; None never answers."""

    name, model, row_invariant, available = "told", TINY, True, True
    card_bytes = host = card_banks = None

    def __init__(self, reply, stage=Stage.REWARD, device="u55c"):
        self.reply, self.stage, self.device = reply, stage, device
        self.futures, self.n_restarts, self.n_closed = [], 0, 0

    def submit(self, batch):
        future = Future()
        self.futures.append(future)
        told = self.reply(batch)
        if isinstance(told, BaseException):
            future.set_exception(told)
        elif told == "cancel":
            future.cancel()
            future.set_running_or_notify_cancel()
        elif told is not None:
            future.set_result(told)
        return future

    def cancel_and_restart(self):
        self.n_restarts += 1

    def take_ends(self):
        return ()

    def close(self):
        self.n_closed += 1


def make_batch(n_rows=5, seed=0, n_completion=3):
    rng = np.random.default_rng(seed)
    rows = tuple(
        rng.integers(1, 60, n_completion + 1 + i % 3).astype(np.int64) for i in range(n_rows)
    )
    ids = tuple(f"s{seed}.{i}" for i in range(n_rows))
    return ScoreBatch(ids, rows, tuple(1 + i % n_completion for i in range(n_rows)))


def work_of(batch, stage=Stage.REWARD, model=TINY):
    longest = max(map(len, batch.token_ids), default=0)
    n_out = sum(batch.n_completion)
    return StageWork(stage, len(batch), batch.n_tokens, n_out, longest, model)


CONFIG = {
    "placement": {
        "policy": {"type": "static", "reward": "concurrent", "reference": "concurrent"},
        "deadline_s": 600.0,
        "max_faults": 3,
    },
    "telemetry": {"gpu": {"type": "null", "interval_s": 0.02}},
}


def here(device_id):
    """The id of a device of this machine, as a record spells it."""
    return f"{this_node()}/{device_id}"


def make_config(**placement):
    data = {**CONFIG, "placement": {**CONFIG["placement"], **placement}}
    return Config.model_validate(data)


class Bench:
    """A runtime, its ledger, and what goes with a step of it."""

    def __init__(self, folder):
        self.folder = folder
        self.ledger = Ledger.create(
            folder / LEDGER_FILE, run_id="t", config_toml="", meta={}, node=this_node()
        )
        self.runtime = self.iteration = None
        self.asked = []

    def build(self, config=None, stages=(Stage.REWARD,), edi=None, *, dtype="float32", **training):
        frozen = dict.fromkeys(stages, FrozenModel(self.folder / "model", dtype))
        side = TrainingSide(models=dict.fromkeys(Stage, TINY), frozen=frozen, **training)
        self.runtime = LocalRuntime(config or make_config(), self.ledger, side, edi=edi)
        self.iteration = None
        return self.runtime

    def step(self, iteration, batch, stage=Stage.REWARD, model=TINY):
        """One iteration of one stage; returns its values."""
        runtime = self.runtime
        self.iteration = runtime.begin_iteration(iteration)
        run = self.start(work_of(batch, stage, model))
        assert runtime.submit(run, lambda: batch)
        return join(runtime, run, self.exact(batch, stage))

    def start(self, work, **options):
        """Start a stage of the iteration that was begun last."""
        if self.iteration is None:
            self.iteration = self.runtime.begin_iteration(0)
        return self.runtime.on_stage_start(self.iteration, work, **options)

    def exact(self, batch, stage=Stage.REWARD):
        """The exact path: right answers plus 1000, so that one can tell them apart."""

        def exact(rows):
            self.asked.append(tuple(rows))
            return [v + np.float32(1000) for v in answer(batch.rows(rows), stage).values]

        return exact

    @contextlib.contextmanager
    def reader(self):
        self.ledger.flush()
        with LedgerReader(self.folder) as reader:
            yield reader

    def executions(self):
        with self.reader() as reader:
            return [row.result for row in reader.executions()]

    def faults(self):
        with self.reader() as reader:
            return reader.faults()

    def close(self):
        if self.runtime is not None:
            self.runtime.close()
        self.ledger.close()


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def use_engines(monkeypatch):
    """Let the runtime load engines of this process: `use_engines({stage: engine or faults})`."""

    def use(make):
        def build_engine(config, checkpoint, stage, device, dtype="float32"):
            return make(stage, device)

        monkeypatch.setattr("ecorl.runtime.local.build_engine", build_engine)

    return use


@pytest.fixture
def hang(monkeypatch):
    """What ends an injected ``hang`` as soon as it is set."""
    ends = threading.Event()
    monkeypatch.setattr("ecorl.engines.registry.time", SimpleNamespace(sleep=ends.wait))
    return ends


def threaded(faults=(), **toy):
    """A factory of a threaded toy with injected faults."""

    def make(stage, device):
        inner = FaultyEngine(ToyEngine(stage, device, **toy), faults)
        return ThreadedEngine(inner)

    return make


@pytest.fixture
def toys():
    """The pieces above, for tests: pytest's conftest modules cannot be imported by name."""

    class Toys:
        pass

    for name in ("answer", "here", "make_batch", "make_config", "threaded", "work_of"):
        setattr(Toys, name, staticmethod(globals()[name]))
    Toys.Told, Toys.Toy, Toys.report, Toys.tiny, Toys.replace = (
        ToldEngine, ToyEngine, REPORT, TINY, staticmethod(replace),
    )  # fmt: skip
    return Toys
