"""`ecorl fpga serve` as its clients meet it: a process on loopback, with the kernels."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.studies.peers import ModelSize, make_reward_checkpoint
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.protocol import ScoreBatch
from ecorl.records import Stage
from tests.conftest import demand
from tests.examples import examples

VOCAB, POSITIONS, CLIENTS = 97, 128, 64


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with a reward model and a causal language model."""
    for tool in ("torch", "gxx"):
        demand(tool)
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    root = tmp_path_factory.mktemp("serve")
    make_reward_checkpoint(root / "reward", ModelSize(64, 2, 112, 4, 2, VOCAB), POSITIONS, seed=3)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=112, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=POSITIONS,
        initializer_range=0.15, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        LlamaForCausalLM(config).save_pretrained(root / "lm")
    return root


@contextlib.contextmanager
def serving(model, *options, **environment):
    """The service in a process: the process and its address."""
    command = [sys.executable, "-m", "ecorl.cli", "fpga", "serve", "--model", str(model)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--threads", "1", *map(str, options)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    try:
        first = process.stdout.readline()
        assert first.startswith("serving "), first + process.stderr.read()
        yield process, re.search(r"http://\S+:\d+", first)[0]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def end(process, *signals):
    """Signal the process; its exit code and what it wrote after its start."""
    for number in signals or (signal.SIGTERM,):
        process.send_signal(number)
    out, err = process.communicate(timeout=240)
    return process.returncode, out.splitlines()[-1:], err


def client(url, **options):
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(base_url=url, limits=limits, timeout=240, trust_env=False, **options)


def requests_of(n, stage, seed, rows=(1, 4), lengths=(4, 40)):
    """Requests of a few rows that share a prompt."""
    rng = np.random.default_rng(seed)
    made = []
    for k in range(n):
        prompt = rng.integers(1, VOCAB, rng.integers(2, 10)).tolist()
        body = {"rows": []}
        for i in range(rng.integers(*rows)):
            rest = rng.integers(1, VOCAB, rng.integers(*lengths)).tolist()
            body["rows"].append(
                {"id": f"{k}-{i}", "token_ids": prompt + rest, "n_completion": len(rest)}
            )
        if stage is Stage.REFERENCE:
            body["temperature"] = float(rng.choice([0.7, 1.0, 1.3]))
        made.append(body)
    return made


class Alone:
    """What the engine says to each row alone, called directly."""

    def __init__(self, folder, stage):
        self._engine, self._stage = FpgaEngine(folder, stage), stage
        self.path = "/v1/rewards" if stage is Stage.REWARD else "/v1/logprobs"

    def bits(self, body):
        return [self._row(row, body.get("temperature", 1.0)) for row in body["rows"]]

    def _row(self, row, temperature):
        ids = (np.asarray(row["token_ids"], np.int64),)
        batch = ScoreBatch(("alone",), ids, (row["n_completion"],), temperature)
        if self._stage is Stage.REWARD:
            return row["id"], self._engine.score(batch).values.tobytes()
        return row["id"], self._engine.logprobs(batch).values[0].tobytes()


def bits(answer):
    """Ids and results of an answer, as the client reads them."""
    key = "reward" if answer["stage"] == "reward" else "logprobs"
    return [(r["id"], np.asarray(r[key], np.float32).tobytes()) for r in answer["rows"]]


@pytest.mark.parametrize(("name", "stage"), [("reward", Stage.REWARD), ("lm", Stage.REFERENCE)])
def test_64_clients_get_what_each_row_gets_alone(models, name, stage):
    alone, bodies = Alone(models / name, stage), requests_of(4 * CLIENTS, stage, seed=1)

    async def ask(url):
        left, answers = iter(enumerate(bodies)), {}
        async with client(url) as session:

            async def one():
                for k, body in left:
                    answers[k] = await session.post(alone.path, json=body)

            await asyncio.gather(*(one() for _ in range(CLIENTS)))
            metrics = (await session.get("/metrics")).text
        return answers, metrics

    with serving(models / name) as (process, url):
        answers, metrics = asyncio.run(ask(url))
        assert sorted(answers) == list(range(len(bodies)))
        energy_j = 0.0
        for k, body in enumerate(bodies):
            assert answers[k].status_code == 200, answers[k].text
            data = answers[k].json()
            assert bits(data) == alone.bits(body)
            assert (data["provenance"], data["device"]["provenance"]) == ("emulated", "modelled")
            energy_j += data["device"]["energy_j"]
        # Rows of several requests went together, and their shares make the whole.
        n_batches = float(re.search(r"batch_rows_count (\S+)", metrics)[1])
        assert n_batches < len(bodies) / 2
        whole_j = re.search(r'device_energy_joules_total{provenance="modelled"} (\S+)', metrics)[1]
        assert energy_j == pytest.approx(float(whole_j))
        code, (line,), err = end(process)
        assert (code, err) == (0, "")
        assert line.startswith(f"stopped: {len(bodies)} requests accepted, 0 withdrawn")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_under_load_loses_no_accepted_request(models, number):
    stage = Stage.REWARD
    alone = Alone(models / "reward", stage)
    bodies = requests_of(40, stage, seed=2, rows=(4, 9))
    expected = [alone.bits(body) for body in bodies]

    async def load(process, url):
        """64 clients that ask until the service is gone; the signal comes amid their work."""
        n_right, refused, told = 0, [], asyncio.Event()
        async with client(url) as session:

            async def one(n):
                nonlocal n_right
                while True:
                    n = (n + 7) % len(bodies)
                    try:
                        answer = await session.post(alone.path, json=bodies[n])
                    except httpx2.TransportError:
                        return  # gone: this one was not accepted
                    if answer.status_code != 200:
                        refused.append((answer.status_code, answer.json()["error"]))
                        return
                    assert bits(answer.json()) == expected[n]
                    n_right += 1
                    if n_right == 150:
                        process.send_signal(number)
                        told.set()

            await asyncio.gather(*map(one, range(CLIENTS)))
        assert told.is_set()
        return n_right, refused

    with serving(models / "reward", "--max-batch-rows", 8) as (process, url):
        n_right, refused = asyncio.run(load(process, url))
        out, err = process.communicate(timeout=240)
        assert (process.returncode, err) == (0, "")
        (n_accepted,) = re.search(r"stopped: (\d+) requests accepted, 0 withdrawn", out).groups()
        assert n_right == int(n_accepted)
        assert n_right >= 150
        stopping = (503, "the service is stopping and takes no further requests")
        assert set(refused) <= {stopping}


def test_a_second_signal_ends_at_once_and_counts(models):
    bodies = requests_of(8, Stage.REWARD, seed=3, rows=(60, 61), lengths=(100, 110))

    async def load(process, url):
        async with client(url) as session:
            asked = [asyncio.create_task(session.post("/v1/rewards", json=b)) for b in bodies]
            while (await session.get("/healthz")).json()["requests"]["accepted"] < len(bodies):
                pass
            process.send_signal(signal.SIGTERM)
            while (await session.get("/healthz")).json()["status"] != "draining":
                pass
            process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*asked, return_exceptions=True)

    with serving(models / "reward", "--max-batch-rows", 1) as (process, url):
        ends = asyncio.run(load(process, url))
        _, err = process.communicate(timeout=240)
        lost = [e for e in ends if isinstance(e, httpx2.TransportError)]
        assert lost
        assert process.returncode == 1
        assert err == (
            f"ecorl: stopped at once: {len(bodies)} requests accepted, 0 withdrawn by their "
            f"clients, 0 failed, {len(lost)} abandoned\n"
        )


def test_a_full_queue_makes_clients_come_again_and_loses_nothing(models):
    stage = Stage.REWARD
    alone = Alone(models / "reward", stage)
    bodies = requests_of(2 * CLIENTS, stage, seed=4, rows=(3, 6))

    async def ask(url):
        n_refused = 0
        async with client(url) as session:

            async def one(body):
                nonlocal n_refused
                while True:
                    answer = await session.post(alone.path, json=body)
                    if answer.status_code == 200:
                        return answer.json()
                    assert answer.status_code == 429, answer.text
                    assert int(answer.headers["retry-after"]) >= 1
                    n_refused += 1
                    await asyncio.sleep(0.05)

            return await asyncio.gather(*map(one, bodies)), n_refused

    with serving(models / "reward", "--queue-rows", 8, "--max-batch-rows", 5) as (process, url):
        answers, n_refused = asyncio.run(ask(url))
        assert n_refused
        for body, answer in zip(bodies, answers, strict=True):
            assert bits(answer) == alone.bits(body)
        code, (line,), _ = end(process)
        assert code == 0
        assert line.startswith(f"stopped: {len(bodies)} requests accepted")


def test_slow_and_vanishing_clients_harm_nobody(models):
    stage = Stage.REWARD
    alone = Alone(models / "reward", stage)
    bodies = requests_of(CLIENTS, stage, seed=5)

    async def ask(url):
        host, port = url.removeprefix("http://").split(":")
        held = []
        head = "POST /v1/rewards HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        for sent in ("POST /v1", head + 'Content-Length: 50\r\n\r\n{"rows"'):
            for _ in range(20):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(sent.encode())
                held.append(writer)
        async with client(url) as session:

            async def vanish(body):
                with contextlib.suppress(httpx2.TimeoutException):
                    await session.post(alone.path, json=body, timeout=0.005)

            _, answers = await asyncio.gather(
                asyncio.gather(*map(vanish, bodies)),
                asyncio.gather(*(session.post(alone.path, json=body) for body in bodies)),
            )
            health = (await session.get("/healthz")).json()
        return answers, health, held

    with serving(models / "reward") as (process, url):
        answers, health, held = asyncio.run(ask(url))
        for body, answer in zip(bodies, answers, strict=True):
            assert bits(answer.json()) == alone.bits(body)
        assert (health["status"], health["engine"]["faults"]) == ("ok", 0)
        assert len(held) == 40
        assert end(process)[0] == 0


NUMBERS = st.one_of(st.integers(-2, VOCAB + 1), st.integers(), st.floats(), st.none())
TOKENS = st.one_of(
    st.lists(st.integers(0, VOCAB - 1), max_size=POSITIONS + 2), st.lists(NUMBERS, max_size=4)
)
ROWS = st.fixed_dictionaries(
    {"token_ids": TOKENS}, optional={"n_completion": st.integers(-1, 9), "id": st.text(max_size=2)}
)
TEMPERATURES = st.floats(0, exclude_min=True) | st.floats()
BODIES = st.fixed_dictionaries(
    {"rows": st.lists(ROWS, max_size=4)}, optional={"temperature": TEMPERATURES}
)


@pytest.mark.parametrize(("name", "path"), [("lm", "/v1/logprobs"), ("reward", "/v1/rewards")])
def test_no_body_makes_the_service_fail(models, name, path):
    with serving(models / name) as (process, url):
        with httpx2.Client(base_url=url, trust_env=False, timeout=240) as session:

            @given(BODIES | st.binary(max_size=30))
            @settings(max_examples=examples(150), deadline=None)
            def judged(body):
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                headers = {"content-type": "application/json"}
                answer = session.post(path, content=raw, headers=headers)
                assert answer.status_code in (200, 400), answer.text
                assert answer.status_code == 200 or set(answer.json()) == {"error"}

            judged()
            health = session.get("/healthz").json()
        assert health["engine"]["faults"] == 0
        assert end(process)[0] == 0


def test_a_token_from_the_environment(models):
    with serving(models / "reward", ECORL_SERVE_TOKEN="s3cret") as (process, url):
        body = requests_of(1, Stage.REWARD, seed=6)[0]
        with httpx2.Client(base_url=url, trust_env=False) as session:
            assert session.post("/v1/rewards", json=body).status_code == 401
            headers = {"authorization": "Bearer s3cret"}
            assert session.post("/v1/rewards", json=body, headers=headers).status_code == 200
        assert end(process)[0] == 0
