"""What does the scoring service gain by gathering the rows of many clients, and does it lose any?

`ecorl fpga serve` runs as a process of its own with a random-weight reward model on the fast
C-simulation, one engine thread; every request holds one row. In turns: 64 concurrent clients, and
one client that sends the same requests one at a time. One at a time each row waits the whole batch
delay for nobody, so a second service without a delay is asked one at a time as well
(`serve.throughput_ratio_64_undelayed`). Clients, HTTP and engine share this host's cores; the times
are this host's and say nothing of a card.

Every answer of every pass is held against the reward of its row computed alone by an engine that is
called directly: lost and mixed-up answers must be 0. What a card would take is modelled.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np

from benchmarks.harness import Figure, FigureTable, run_benchmark
from benchmarks.studies.peers import ModelSize, make_reward_checkpoint
from benchmarks.studies.serving import (
    CheckedAnswers,
    Clients,
    alone,
    judge,
    make_requests,
    mean_batch_rows,
    service,
)
from ecorl.bench.rounds import round_ratios, timed_rounds
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.records import Stage

FIGURES = FigureTable("serve")
MANY, ONE, UNDELAYED = "clients_64", "one_at_a_time", "one_at_a_time_undelayed"
CLIENTS = 64


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a pass.

    Attributes:
        lengths: shortest and longest row, tokens.
        batch_delay_ms: of the service with a delay; the command's default.
    """

    size: ModelSize
    n_requests: int = 512
    lengths: tuple[int, int] = (32, 192)
    n_rounds: int = 8
    batch_delay_ms: float = 3.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """Measurements of all passes.

    Attributes:
        times: wall-clock of each pass, s, by arm.
        latencies_ms: of the requests of 64 clients.
        judged: all passes of each arm, the untimed ones too.
        batch_rows: rows of a micro-batch on average with 64 clients.
    """

    times: dict[str, list[float]]
    latencies_ms: list[float]
    judged: dict[str, CheckedAnswers]
    batch_rows: float | None


FULL = Load(ModelSize(256, 4, 688, 4, 4, 8000))
SMALL = Load(ModelSize(64, 2, 176, 4, 4, 500), 96, (8, 48), 2)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    load = SMALL if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-serve-") as folder:
        seen, n_tokens = run_load(load, Path(folder), options.box_s)
    config: dict[str, object] = {
        **asdict(load),
        "n_rounds": len(seen.times[MANY]),
        "clients": CLIENTS,
        "engine_threads": 1,
        "tokens_a_pass": n_tokens,
        "rows_a_micro_batch_64": seen.batch_rows,
    }
    return config, figures_of(seen, n_tokens)


def run_load(load: Load, folder: Path, box_s: float | None = None) -> tuple[Seen, int]:
    """Send requests to two services in turns; returns the measurements and the tokens of a pass.

    Args:
        load: the requests.
        folder: for the checkpoint and the logs.
        box_s: time for the passes, s; None for no limit.
    """
    checkpoint = folder / "model"
    make_reward_checkpoint(checkpoint, load.size, max_positions=load.lengths[1], seed=load.seed)
    requests = make_requests(load.n_requests, load.lengths, load.size.vocab_size, load.seed)
    bodies = [request.body() for request in requests]
    engine = FpgaEngine(checkpoint, Stage.REWARD)
    truth = alone(engine, requests)
    engine.close()
    options = ("--threads", "1", "--batch-delay-ms")
    with contextlib.ExitStack() as stack:
        clients: dict[str, Clients] = {}

        def join(arm: str, url: str, n: int) -> None:
            clients[arm] = Clients(url, bodies, n)
            stack.callback(clients[arm].close)

        for arm, delay_ms, n in ((MANY, load.batch_delay_ms, CLIENTS), (UNDELAYED, 0.0, 1)):
            started = service(checkpoint, folder / f"{arm}.log", *options, str(delay_ms))
            url = stack.enter_context(started)
            join(arm, url, n)
            if arm == MANY:
                join(ONE, url, 1)
        readings: list[str] = []

        def many() -> None:
            readings.append(clients[MANY].metrics())
            clients[MANY].send_all()
            readings.append(clients[MANY].metrics())

        calls = {MANY: many, **{arm: clients[arm].send_all for arm in (ONE, UNDELAYED)}}
        times = timed_rounds(calls, load.n_rounds, box_s)
        judged = {
            arm: reduce(add, (judge(requests, answers, truth) for answers in one.answers))
            for arm, one in clients.items()
        }
        timed = [a.time_s * 1e3 for answers in clients[MANY].answers[1:] for a in answers]
        batch_rows = mean_batch_rows(*readings[-2:])
    n_tokens = sum(len(request.token_ids) for request in requests)
    return Seen(times, timed, judged, batch_rows), n_tokens


def figures_of(seen: Seen, n_tokens: int) -> list[Figure]:
    """Make the figures of the measurements."""
    whole = reduce(add, seen.judged.values())
    many_s, one, many = seen.times[MANY], seen.judged[ONE], seen.judged[MANY]

    def ratio(key: str, arm: str, **words: object) -> Figure:
        why = "requests were lost: the passes did not do the same work"
        ratios = [] if whole.n_lost else round_ratios(seen.times[arm], many_s)
        return FIGURES.median(key, ratios, why=why, words=words)

    undelayed = ratio("serve.throughput_ratio_64_undelayed", UNDELAYED)
    known = "missing" if undelayed.value is None else f"{undelayed.value:.2f}"
    figures = [ratio("serve.throughput_ratio_64", ONE, undelayed=known), undelayed]
    for id, arm in (("64", MANY), ("one", ONE), ("one_undelayed", UNDELAYED)):
        speeds = [n_tokens / time_s for time_s in seen.times[arm]]
        figures.append(FIGURES.median("serve.tokens_per_s_{arm}", speeds, arm=id))
    for q in (50, 99):
        value, n = float(np.percentile(seen.latencies_ms, q)), len(seen.latencies_ms)
        figures.append(FIGURES.figure("serve.latency_p{q}_ms_64", value, {"n": n}, q=q))
    is_known = one.energy_j and many.energy_j and one.n == many.n
    energy_ratio = (one.energy_j or 0.0) / (many.energy_j or 1.0) if is_known else None
    n_one = {"n": one.n} if is_known else None
    return [
        *figures,
        FIGURES.figure("serve.lost_requests", whole.n_lost, {"n": whole.n}),
        FIGURES.figure("serve.mixed_answers", whole.n_mixed, {"n": whole.n}),
        FIGURES.figure("serve.card_energy_ratio_64", energy_ratio, n_one),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark("serve", measure))
