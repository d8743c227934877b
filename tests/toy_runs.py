"""Runs without a trainer: toy engines, a record in a folder, and any of the runtimes."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numpy as np

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.config import validate_config
from ecorl.engines.protocol import ScoreBatch
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.records import Stage, StageWork
from ecorl.runtime.local import build_runtime
from ecorl.runtime.processes.ranked import RankedRuntime
from ecorl.runtime.protocol import join
from ecorl.runtime.training import FrozenModel, TrainingSide, this_node
from tests.toy_engine import MODEL, SCALE, answers

ROOT = Path(__file__).parents[1]
STAGES = (Stage.REWARD, Stage.REFERENCE)
REWARD_ALONE = {"policy": {"type": "static", "reward": "concurrent"}}
"""A table ``[placement]`` under which no other role has an engine."""

MISTAKE = np.float32(1000)
"""What the exact path of these runs adds, so that one can tell its answers apart."""


def make_toy_plugin(folder):
    """Write what registers the toy engine by entry point, for `use_toy_plugin`."""
    info = folder / "toy_engine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ecorl.engines]\ntoy = tests.toy_engine:Engine\n")
    return folder


def use_toy_plugin(folder, monkeypatch):
    """Register the toy engine in this process and in those that it starts."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{folder}:{':'.join(filter(None, sys.path))}")


def make_checkpoint(folder, scale=100):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SCALE).write_text(str(scale))
    return folder


def make_batch(n_rows=5, seed=0, n_completion=3, first=None):
    """Rows of random tokens below 60; `first` replaces the first token of the first row."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, 60, n_completion + 1 + i % 3).astype(np.int64) for i in range(n_rows)]
    if first is not None:
        rows[0][0] = first
    ids = tuple(f"s{seed}.{i}" for i in range(n_rows))
    return ScoreBatch(ids, tuple(rows), tuple(1 + i % n_completion for i in range(n_rows)))


def work_of(batch, stage):
    longest = max(map(len, batch.token_ids), default=0)
    return StageWork(stage, len(batch), batch.n_tokens, sum(batch.n_completion), longest, MODEL)


class OneRank:
    """A training of one process that makes all its exchanges with itself."""

    rank, size = 0, 1

    def all_gather(self, value):
        return [value]

    gather = all_gather

    def broadcast(self, value):
        return value

    def scatter(self, values):
        return values[0]


class ToyRun:
    """One attempt of a run in a folder, over one of the back-ends.

    Attributes:
        asked: rows for which the exact path was asked, one tuple a time.
        delivered: values by iteration, stage and sample id.
        expected: rows of each iteration and role.
    """

    def __init__(
        self, folder, runtime_table=None, ranked=False, from_step=None, side=None, **config
    ):
        self.folder, self.iterations = folder, {}
        self.asked, self.delivered, self.expected = [], {}, {}
        engine = dict(config.pop("engine", {}))
        # In a thread: a process a run would take most of the tests' time.
        offload = {"type": "plugin", "name": "toy", "isolated": False}
        offload["options"] = engine.pop("options", {})
        data = {
            "run_dir": str(folder),
            "engine": {"offload": offload, **engine},
            "placement": {
                "policy": {"type": "static", "reward": "concurrent", "reference": "concurrent"},
                "deadline_s": 8.0,
                **config.pop("placement", {}),
            },
            "telemetry": {"gpu": {"type": "modelled", "interval_s": 0.02}, "stale_after_s": 600.0},
            **({"runtime": runtime_table} if runtime_table else {}),
            **config,
        }
        self.config = validate_config(data)
        path = folder / LEDGER_FILE
        if from_step is None:
            self.ledger = Ledger.create(
                path, run_id="toy", config_toml="", meta={}, node=this_node()
            )
        else:
            self.ledger = Ledger.open_for_resume(path, from_step=from_step)
        frozen = {stage: FrozenModel(make_checkpoint(folder / "model")) for stage in STAGES}
        models = dict.fromkeys(Stage, MODEL)
        self.training = TrainingSide(models=models, frozen=frozen, **(side or {}))
        inner = build_runtime(self.config, self.ledger, self.training)
        self.inner = inner
        self.runtime = RankedRuntime(OneRank(), self.training, inner) if ranked else inner

    def begin(self, number):
        self.iterations[number] = self.runtime.begin_iteration(number)
        return self.iterations[number]

    def start(self, number, batch, stage=Stage.REWARD, **options):
        """Start a stage and send its rows, where it was placed on an engine."""
        if number not in self.iterations:
            self.begin(number)
        self.expected[number, str(stage)] = len(batch)
        run = self.runtime.on_stage_start(
            self.iterations[number], work_of(batch, stage), starts_now=False, **options
        )
        if not run.placement.on_gpu:
            self.runtime.submit(run, lambda: batch)
        return run

    def end(self, run, batch):
        """The values of a stage: joined at the barrier, or all from the exact path."""
        stage = run.work.stage
        exact = self.exact(batch, stage)
        if run.sent:
            values = join(self.runtime, run, exact)
        else:
            self.runtime.restart(run)
            values = exact(range(len(batch)))
            self.runtime.on_stage_end(run)
        for sample_id, value in zip(batch.sample_ids, values, strict=True):
            key = (run.stage.iteration.number, stage, sample_id)
            assert key not in self.delivered
            self.delivered[key] = value
        return values

    def step(self, number, batch, stage=Stage.REWARD):
        values = self.end(self.start(number, batch, stage), batch)
        self.runtime.settle()
        return values

    def exact(self, batch, stage):
        def exact(rows):
            self.asked.append(tuple(rows))
            return [v + MISTAKE for v in answers(batch.rows(rows), stage)]

        return exact

    def close(self):
        self.runtime.close()
        self.runtime.record.close()
        self.ledger.close()

    @contextlib.contextmanager
    def reader(self):
        with LedgerReader(self.folder) as reader:
            yield reader

    def executions(self):
        with self.reader() as reader:
            return [row.result for row in reader.executions() if not row.superseded]

    def faults(self):
        with self.reader() as reader:
            return reader.faults()

    def counts(self):
        with self.reader() as reader:
            return count_samples(reader, self.expected)


def same(values, batch, stage=Stage.REWARD, *, exact_rows=(), scale=100):
    """Whether values are the right ones bit for bit, those of some rows from the exact path."""
    right = answers(batch, stage, scale)
    right = [v + MISTAKE if i in exact_rows else v for i, v in enumerate(right)]
    return len(values) == len(right) and all(map(np.array_equal, values, right))
