"""A service around an engine that tests hold in their hands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from ecorl.devices import DeviceFigure
from ecorl.engines.lanes.threaded import ThreadedEngine
from ecorl.engines.protocol import EngineReport, LogprobResult, ScoreResult
from ecorl.errors import EngineError
from ecorl.records import ModelShape, Provenance, Stage
from ecorl.serve.access import bind, listen
from ecorl.serve.app import ScoringService
from ecorl.serve.server import Runner
from ecorl.serve.settings import ServedModel, ServeSettings

VOCAB, POSITIONS, EOS = 1000, 64, 999
RAISE, REFUSE, NO_NUMBER = 901, 902, 903
"""Tokens: the engine raises, raises an error of its own kind, answers NaN."""


class StubEngine:
    """reward = mean of token / 7; log-prob of a token = -token / temperature / 7; magic tokens.

    Calls wait while `gate` is clear. `batches` holds what came.
    """

    name, device, row_invariant = "stub", "stub_card", True
    report = EngineReport(0.5, 8.0, Provenance.MODELLED, 0.25)

    def __init__(self, stage=Stage.REWARD):
        self.stage, self.model = stage, ModelShape(1, 2, 3, 1, 1, 2, VOCAB, 7, 5)
        self.gate, self.batches, self.closed = threading.Event(), [], False
        self.gate.set()

    def score(self, batch):
        self._begin(batch)
        values = [reward_of(row) for row in batch.token_ids]
        return ScoreResult(batch.sample_ids, np.asarray(values, np.float32), self.report)

    def logprobs(self, batch):
        self._begin(batch)
        values = tuple(
            logprobs_of(row, n, batch.temperature)
            for row, n in zip(batch.token_ids, batch.n_completion, strict=True)
        )
        return LogprobResult(batch.sample_ids, values, self.report)

    def close(self):
        self.closed = True

    def _begin(self, batch):
        self.batches.append(batch)
        assert self.gate.wait(300)
        tokens = np.concatenate(batch.token_ids)
        if RAISE in tokens:
            raise IndexError("a fault\nof two lines")
        if REFUSE in tokens:
            raise EngineError("the stub says no")


def reward_of(row):
    return np.float32(np.nan) if NO_NUMBER in row else np.float32(np.mean(row) / 7)


def logprobs_of(row, n, temperature=1.0):
    values = (-np.asarray(row[len(row) - n :]) / temperature / 7).astype(np.float32)
    return np.full_like(values, np.nan) if NO_NUMBER in row else values


def served(stage=Stage.REWARD, tokenizer=None, begin=()):
    figures = {"active_w": DeviceFigure(16.0, "W", Provenance.PUBLISHED, "a test")}
    return ServedModel(
        "stub-model", stage, VOCAB, POSITIONS, Provenance.EMULATED, figures, tokenizer, begin=begin
    )


def service_of(engine, token=None, tokenizer=None, begin=(), **settings):
    model = served(engine.stage, tokenizer, begin)
    return ScoringService(ThreadedEngine(engine), model, ServeSettings(**settings), token)


def save_tokenizer(folder):
    """Each number is a token with that id; `<eos>` is special; `beyond` is not in the model."""
    vocab = {str(n): n for n in range(VOCAB - 1)} | {"<eos>": EOS, "beyond": VOCAB}
    made = Tokenizer(models.WordLevel(vocab, unk_token="0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<eos>"])
    # What a training may have left in the file, and must not change a row.
    made.post_processor = processors.TemplateProcessing("1 $A", special_tokens=[("1", 1)])
    made.enable_truncation(2)
    made.enable_padding(length=9)
    made.save(str(folder / "tokenizer.json"))


def body_of(*rows, **more):
    return json.dumps({"rows": [{"token_ids": list(row)} for row in rows], **more}).encode()


@contextlib.asynccontextmanager
async def running(engine, **settings):
    """The service on a free port, in this event loop: its runner, its task and the port."""
    with bind("127.0.0.1", 0, None) as bound:
        listen(bound, "127.0.0.1", 0)
        runner = Runner(service_of(engine, **settings), bound)
        started = asyncio.Event()
        task = asyncio.create_task(runner.serve(started.set))
        await started.wait()
        try:
            yield runner, task, bound.getsockname()[1]
        finally:
            engine.gate.set()
            if not task.done():
                runner.stop()
                await task


def head_of(length, path="/v1/rewards", type="application/json"):
    lines = f"POST {path} HTTP/1.1", "Host: here", f"Content-Type: {type}"
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


async def exchange(port, raw):
    """Send bytes on a connection of its own and read the first answer: status and JSON."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        return await answer_from(reader)
    finally:
        writer.close()


async def answer_from(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split()[1])
    length = int(head.split("content-length:")[1].split()[0])
    return status, json.loads(await reader.readexactly(length))


async def ask(port, *rows):
    body = body_of(*rows)
    return await exchange(port, head_of(len(body)) + body)


async def until(condition, limit_s=240.0):
    """Wait for something that happens in this loop or in an engine's thread."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.002)


def in_loop(test):
    """Run a coroutine function as the test."""

    def runs():
        asyncio.run(test())

    runs.__name__ = test.__name__
    return runs


def rewards(answer):
    status, data = answer
    assert status == 200, data
    return [row["reward"] for row in data["rows"]]


async def closed(reader):
    """The server ends a connection without a word."""
    try:
        return await asyncio.wait_for(reader.read(), 240) == b""
    except ConnectionResetError:
        return True
