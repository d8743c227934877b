"""The scoring service under load: started as a process and called over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ecorl.engines.protocol import Int64, ScoreBatch, ScoreResult
from ecorl.errors import RunError

PATH = "/v1/rewards"
_END_S = 60.0
_ANSWER_S = 300.0


@contextlib.contextmanager
def service(checkpoint: Path, log: Path, *options: str) -> Iterator[str]:
    """``ecorl fpga serve`` on a free port; yields its address and ends it by SIGTERM.

    Args:
        checkpoint: what it serves.
        log: file for what it says on standard error.
        options: further options of the command.

    Raises:
        RunError: when it does not start, or does not end cleanly.
    """
    command = [sys.executable, "-m", "ecorl.cli", "fpga", "serve", "--model", str(checkpoint)]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            [*command, "--port", "0", *options], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            found = re.search(r"http://[^/\s]+", process.stdout.readline())
            if found is None:
                process.wait(_END_S)
                raise RunError(f"the service did not start: {_last_line(log)}")
            yield found[0]
            process.terminate()
            process.communicate(timeout=_END_S)
        finally:
            process.kill()  # nothing when it has ended
    if process.returncode:
        raise RunError(f"the service ended with code {process.returncode}: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no output"


@dataclass(frozen=True, slots=True)
class Request:
    """A request of one row.

    Attributes:
        id: of the row, another in each request.
        token_ids: ``[length] int64``.
    """

    id: str
    token_ids: Int64

    def body(self) -> bytes:
        """The request's body, JSON."""
        row = {"id": self.id, "token_ids": self.token_ids.tolist()}
        return json.dumps({"rows": [row]}).encode("ascii")


def make_requests(n: int, lengths: tuple[int, int], vocab_size: int, seed: int) -> list[Request]:
    """Make requests of random rows whose lengths are spread evenly, both ends included.

    Args:
        n: requests.
        lengths: shortest and longest row, tokens.
        vocab_size: ids are drawn below it.
        seed: of lengths and ids.
    """
    rng = np.random.default_rng(seed)
    return [
        Request(f"row-{k}", rng.integers(1, vocab_size, rng.integers(lengths[0], lengths[1] + 1)))
        for k in range(n)
    ]


@dataclass(frozen=True, slots=True)
class Answered:
    """The response to a request.

    Attributes:
        status: HTTP status, or None when no answer came.
        body: of the answer.
        time_s: from sending to the whole answer, s.
    """

    status: int | None
    body: bytes
    time_s: float


class LoadConnection:
    """A persistent HTTP/1.1 connection with little overhead.

    It shares the processor with the service: a general client took more time than small models do.
    It knows answers with a Content-Length alone, which is what the service sends.
    """

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("http://").rpartition(":")
        self._port = int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a request and return status and body of the response.

        Args:
            path: of the endpoint.
            body: JSON to post; None for a GET request.

        Raises:
            OSError: when the connection breaks.
            EOFError: when it ends before the whole answer.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {self._host}"]
        lines += [] if body is None else ["Content-Type: application/json"]
        head = "\r\n".join((*lines, f"Content-Length: {len(body or b'')}", "", ""))
        writer.write(head.encode("ascii") + (body or b""))
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in rest if line)
        return int(first.split()[1]), await reader.readexactly(int(headers["content-length"]))

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Clients:
    """Clients of one service in one event loop; connections are kept between passes.

    Args:
        url: of the service.
        bodies: what is sent in each pass.
        n: clients, each with one request at a time.
        path: of the endpoint.
        keep: whether a client keeps its connection; else each request has one of its own.

    Attributes:
        answers: of all passes, by the place of the request.
    """

    def __init__(
        self, url: str, bodies: Sequence[bytes], n: int, path: str = PATH, *, keep: bool = True
    ) -> None:
        self.answers: list[list[Answered]] = []
        self._path, self._keep = path, keep
        self._bodies, self._loop = bodies, asyncio.Runner()
        self._connections = [LoadConnection(url) for _ in range(n)]

    def send_all(self) -> None:
        """Send every request once."""
        self.answers.append(self._loop.run(self._pass()))

    def metrics(self) -> str:
        """Read the service's metrics."""
        return self._loop.run(self._connections[0].ask("/metrics"))[1].decode()

    def close(self) -> None:
        """Close the connections."""
        self._loop.run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        for connection in self._connections:
            connection.close()

    async def _pass(self) -> list[Answered]:
        left = iter(range(len(self._bodies)))
        answers: dict[int, Answered] = {}

        async def client(connection: LoadConnection) -> None:
            for k in left:
                answers[k] = await _ask(connection, self._path, self._bodies[k])
                if not self._keep:
                    connection.close()

        await asyncio.gather(*map(client, self._connections))
        return [answers[k] for k in range(len(self._bodies))]


async def _ask(connection: LoadConnection, path: str, body: bytes) -> Answered:
    start_s = time.perf_counter()
    status, answer = None, b""
    try:
        async with asyncio.timeout(_ANSWER_S):
            status, answer = await connection.ask(path, body)
    except (OSError, EOFError, asyncio.LimitOverrunError):  # a time-out is an OSError too
        connection.close()
    return Answered(status, answer, time.perf_counter() - start_s)


class Rewarder(Protocol):
    """Anything that answers rewards, as an engine does."""

    def score(self, batch: ScoreBatch) -> ScoreResult:
        """Rewards of a batch."""
        ...


@dataclass(frozen=True, slots=True)
class CheckedAnswers:
    """Counts of answers that were compared with the truth.

    Attributes:
        n: requests.
        n_lost: without an answer of status 200.
        n_mixed: answered with another id or other bits than the row has alone.
        energy_j: modelled energy of the device over all answers, J; None where one has none.
    """

    n: int
    n_lost: int
    n_mixed: int
    energy_j: float | None

    def __add__(self, other: CheckedAnswers) -> CheckedAnswers:
        both = (self.energy_j, other.energy_j)
        energy_j = None if None in both else sum(e for e in both if e is not None)
        return CheckedAnswers(
            self.n + other.n, self.n_lost + other.n_lost, self.n_mixed + other.n_mixed, energy_j
        )


def alone(engine: Rewarder, requests: Sequence[Request]) -> list[bytes]:
    """Compute the reward of each row alone by an engine that is called directly.

    Args:
        engine: what answers.
        requests: one row each.

    Returns:
        The bits of each reward.
    """
    return [
        engine.score(ScoreBatch((r.id,), (r.token_ids,), (0,))).values.tobytes() for r in requests
    ]


def judge(
    requests: Sequence[Request], answers: Sequence[Answered], truth: Sequence[bytes]
) -> CheckedAnswers:
    """Compare the answers of one pass with the truth.

    Args:
        requests: what was sent.
        answers: what came back, in the order of the requests.
        truth: bits of each reward, from `alone`.
    """
    n_lost = n_mixed = 0
    energies: list[float | None] = []
    for request, answer, bits in zip(requests, answers, truth, strict=True):
        if answer.status != 200:
            n_lost += 1
            continue
        data: dict[str, Any] = json.loads(answer.body)
        rows = [(row["id"], _bits(row["reward"])) for row in data["rows"]]
        n_mixed += rows != [(request.id, bits)]
        energies.append(data["device"]["energy_j"])
    known = [e for e in energies if e is not None]
    whole = len(known) == len(requests)
    return CheckedAnswers(len(requests), n_lost, n_mixed, sum(known) if whole else None)


def _bits(reward: float | None) -> bytes | None:
    return None if reward is None else np.asarray([reward], np.float32).tobytes()


def mean_batch_rows(before: str, after: str) -> float | None:
    """Compute the mean rows of a micro-batch between two readings of the metrics; None without any.

    Args:
        before: text of the metrics before a pass.
        after: and after it.
    """
    rows, batches = (
        _sample(after, f"ecorl_serve_batch_rows_{what}")
        - _sample(before, f"ecorl_serve_batch_rows_{what}")
        for what in ("sum", "count")
    )
    return rows / batches if batches else None


def _sample(metrics: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", metrics, re.MULTILINE)
    if found is None:
        raise RunError(f"the service's metrics have no {name}")
    return float(found[1])
