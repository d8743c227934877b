"""Rewards of texts, as the clients of OpenRLHF, ROLL and verl ask for them."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from stub_service import (
    EOS,
    NO_NUMBER,
    POSITIONS,
    RAISE,
    VOCAB,
    StubEngine,
    ask,
    exchange,
    head_of,
    in_loop,
    reward_of,
    rewards,
    running,
    save_tokenizer,
    service_of,
    until,
)

from ecorl.engines.models.text_tokenizer import TextTokenizer
from ecorl.errors import CheckpointError
from ecorl.records import Stage
from ecorl.serve.access import behind

PATH, SECRET = "/openrlhf", "s3cret/with=signs"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return TextTokenizer(folder)


@pytest.fixture
def client_of(tokenizer):
    opened = []

    def make(engine=None, **more):
        service = service_of(engine or StubEngine(), **{"tokenizer": tokenizer} | more)
        client = TestClient(service.app)
        client.service = service
        client.__enter__()
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.__exit__(None, None, None)


def question(*texts, **more):
    """A body as OpenRLHF sends it."""
    asked = {"query": list(texts), "prompts": ["a prompt"] * len(texts)}
    return asked | {"labels": [None] * len(texts)} | more


def refused(answer, status):
    assert answer.status_code == status, answer.text
    ((key, line),) = answer.json().items()
    assert key == "error"
    assert len(line.splitlines()) == 1
    return line


def as_float32(value):
    return np.asarray(value, np.float32).tobytes()


def test_one_text_is_answered_by_a_number_that_makes_a_tensor_of_one_value(client_of):
    engine = StubEngine()
    answer = client_of(engine).post(PATH, json=question("4 5 <eos>"))
    assert answer.status_code == 200
    told = answer.json()
    assert told == {"rewards": told["scores"], "scores": told["scores"], "extra_logs": {}}
    # As OpenRLHF's samples_generator does it; the local reward model gives this shape too.
    tensor = torch.tensor([told["rewards"]])
    assert (tensor.shape, tensor.dtype) == ((1,), torch.float32)
    # The special token in the text counts as one, and none is added, cut off or filled up.
    assert tensor.numpy().tobytes() == as_float32([reward_of([4, 5, EOS])])
    assert [row.tolist() for row in engine.batches[0].token_ids] == [[4, 5, EOS]]


def test_several_texts_are_answered_by_lists(client_of):
    told = client_of().post(PATH, json=question("1 2", "3")).json()
    assert told["rewards"] == told["scores"] == [float(reward_of([1, 2])), float(reward_of([3]))]


def test_what_other_frameworks_leave_out_or_add_is_no_mistake(client_of):
    client = client_of()
    expected = float(reward_of([7]))
    for more in (
        {}, {"prompts": None, "labels": None}, {"labels": ["a label"], "prompts": [None]},
        {"labels": [3.5], "data_source": {"a": [1]}, "extra_info": None},
        {"labels": [{"answer": 5}], "prompts": [["a", 1]]}, {"labels": {"answer": [5, None]}},
        {"labels": "text", "prompts": 5}, {"labels": [], "prompts": ["a", "b"]},
        {"labels": [float("nan"), 10**400, [[[]]], {}, True]},
    ):  # fmt: skip
        # httpx itself refuses NaN, which Python's json writes and aiohttp sends.
        body = json.dumps({"query": ["7"]} | more)
        answer = client.post(PATH, content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["rewards"]) == (200, expected)


def test_mistakes_are_told_on_one_line(client_of, snapshot):
    client = client_of()
    lines = []
    for body, key_and_value in (
        ([], "body = []"),
        ({}, "query = (not given)"),
        ({"query": "1"}, "query = '1'"),
        ({"query": []}, "query = []"),
        ({"query": ["1"] * 300}, "query = (300 texts)"),
        ({"query": ["1", 2]}, "query[1] = 2"),
        ({"query": [""]}, "query[0] = ''"),
        ({"query": [" "]}, "query[0] = (0 tokens)"),
        ({"query": ["1 " * 65]}, "query[0] = (65 tokens)"),
        ({"query": ["1" * 9999]}, "query[0] = (9999 characters)"),
        ({"query": ["beyond"]}, f"query[0] = (text with token id {VOCAB})"),
    ):
        lines.append(refused(client.post(PATH, json=body), 400))
        assert lines[-1].startswith(f"{key_and_value}: ")
    snapshot("\n".join(lines))


def test_what_is_not_json_or_not_told_to_be(client_of):
    client, headers = client_of(), {"content-type": "application/json"}
    for raw in (b"{", b'{"query": ["\\ud800"]}', b"\xff", b""):
        line = refused(client.post(PATH, content=raw, headers=headers), 400)
        assert "JSON" in line
    refused(client.post(PATH, content=b"{}"), 415)
    assert "method = 'GET'" in refused(client.get(PATH), 405)


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(client_of):
    client, headers = client_of(), {"content-type": "application/json"}
    n = (1 << 18) + 2
    values = b",".join([b"[]"] * (n // 2))
    raw = b'{"query": ["1"], "more": [' + values + b"]}"
    line = refused(client.post(PATH, content=raw, headers=headers), 400)
    assert re.match(r"body = \(\d+ values\): .* 262144 ", line)
    text = ',[{\\"\\' * n  # marks within a text are none
    asked = {"query": ["1"], "labels": [text]}
    assert client.post(PATH, json=asked).status_code == 200


def test_a_text_without_a_usable_number_is_an_error_and_no_null(client_of, snapshot):
    line = refused(client_of().post(PATH, json=question("1", str(NO_NUMBER))), 422)
    snapshot(line)


def test_a_model_without_texts_says_why_and_answers_the_rest(client_of, snapshot):
    client = client_of(tokenizer=None)
    first = refused(client.post(PATH, json=question("1")), 409)
    texts = client.get("/v1/model").json()["texts"]
    assert (texts["path"], texts["offered"]) == (PATH, False)
    assert texts["why_not"] in first
    assert client.post("/v1/rewards", json={"rows": [{"token_ids": [1]}]}).status_code == 200
    client = client_of(StubEngine(Stage.REFERENCE))
    snapshot(f"{first}\n{refused(client.post(PATH, json=question('1')), 409)}")


def test_the_model_and_the_metrics_tell_of_it(client_of):
    client = client_of(wait_s=9.0, waiting_rows=7)
    client.post(PATH, json=question("1"))
    told = client.get("/v1/model").json()
    assert told["texts"] == {"path": PATH, "offered": True, "why_not": None}
    limits = told["limits"]
    assert (limits["wait_s"], limits["waiting_rows"]) == (9.0, 7)
    assert limits["waiting_tokens"] == client.service.settings.waiting_tokens
    text = client.get("/metrics").text
    assert 'ecorl_serve_requests_total{path="/openrlhf",status="200"} 1.0' in text


def test_the_tokenizer_is_told_to_who_may_ask(client_of, tokenizer):
    told = client_of().get("/v1/tokenizer")
    assert told.json()["model"]["vocab"].items() <= tokenizer.vocab.items()
    assert client_of(token="secret").get("/v1/tokenizer").status_code == 401
    assert client_of(tokenizer=None).get("/v1/tokenizer").status_code == 409


def test_tokenizers_that_cannot_be_used(tmp_path):
    with pytest.raises(CheckpointError, match=r"no tokenizer.json$"):
        TextTokenizer(tmp_path)
    for content in (b"{", b"{}", b"\xff"):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"^tokenizer.json "):
            TextTokenizer(tmp_path)


def test_the_token_may_stand_in_the_path(client_of):
    client = client_of(token=SECRET)
    right = f"{PATH}/s3cret/with%3Dsigns"
    for path in (right, f"{PATH}/{SECRET}"):
        assert client.post(path, json=question("1")).status_code == 200
    headers = {"authorization": f"Bearer {SECRET}"}
    assert client.post(PATH, json=question("1"), headers=headers).status_code == 200
    for path in (
        PATH, f"{PATH}/", f"{PATH}/s3cret", f"{right}x", f"{PATH}/{SECRET}/", f"/{SECRET}{PATH}",
        f"/v1/rewards/{SECRET}", f"{PATH}/%C3%A9",
    ):  # fmt: skip
        line = refused(client.post(path, json=question("1")), 401)
        assert SECRET not in line
    assert refused(client.post(PATH, json=question("1")), 401).endswith("/openrlhf/TOKEN")
    # No other endpoint takes it from the path, and no answer or metric shows it.
    assert "method = 'GET': allowed is POST" in refused(client.get(right), 405)
    line = refused(client.get(f"/v2/{SECRET}", headers=headers), 404)
    assert line.startswith("path = (with the token): ")
    text = client.get("/metrics", headers=headers).text
    assert "s3cret" not in text
    assert 'path="/openrlhf",status="401"' in text
    assert 'refused_total{reason="unauthorised"} 9.0' in text


def test_without_a_token_the_service_takes_any_in_the_path(client_of):
    assert client_of().post(f"{PATH}/left-over", json=question("1")).status_code == 200


@pytest.mark.parametrize(
    ("path", "token"),
    [("/a", None), ("/a/", ""), ("/a/b/c", "b/c"), ("/ab", None), ("/", None)],
)
def test_what_stands_behind_a_path(path, token):
    assert behind("/a", path) == token


def raw_of(*texts, path=PATH):
    body = json.dumps(question(*texts)).encode()
    return head_of(len(body), path) + body


def one_reward(answer):
    status, told = answer
    assert status == 200, told
    return told["rewards"]


def test_the_token_is_in_no_log(tokenizer, caplog, capfd):
    async def test():
        engine = StubEngine()
        async with running(engine, token=SECRET, tokenizer=tokenizer) as (_, _, port):
            assert one_reward(await exchange(port, raw_of("1", path=f"{PATH}/{SECRET}")))
            for path in (f"{PATH}/{SECRET}x", f"/{SECRET}"):
                status, _ = await exchange(port, raw_of("1", path=path))
                assert status == 401
            engine.score = None  # a defect below the service
            asked = asyncio.create_task(exchange(port, raw_of("1", path=f"{PATH}/{SECRET}")))
            await until(lambda: "the engine failed" in caplog.text)
            assert not asked.done()
            asked.cancel()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(test())
    assert "engine failed" in caplog.text
    for text in (caplog.text, *capfd.readouterr()):
        assert "s3cret" not in text


def test_many_clients_wait_for_a_place_instead_of_a_429(tokenizer):
    async def test():
        engine = StubEngine()
        limits = {"queue_rows": 2, "max_batch_rows": 2, "waiting_rows": 60}
        async with running(engine, tokenizer=tokenizer, **limits) as (runner, _, port):
            batcher = runner._service.batcher
            engine.gate.clear()
            asked = []
            for n in range(1, 41):  # one after the other, to know their order
                asked.append(asyncio.create_task(exchange(port, raw_of(str(n)))))
                await until(lambda n=n: batcher.n_accepted == n)
            await until(lambda: batcher.n_waiting >= 38)
            status, _ = await ask(port, [1])
            assert status == 429  # as ever at the other endpoint
            engine.gate.set()
            got = await asyncio.gather(*asked)
            assert [one_reward(a) for a in got] == [float(reward_of([n])) for n in range(1, 41)]
            order = [int(row[0]) for batch in engine.batches for row in batch.token_ids]
            assert order == sorted(order)

    asyncio.run(test())


def test_a_client_that_went_away_leaves_the_queue_and_too_many_get_a_503(tokenizer):
    async def test():
        engine = StubEngine()
        limits = {"queue_rows": 1, "max_batch_rows": 1, "waiting_rows": 1}
        async with running(engine, tokenizer=tokenizer, **limits) as (runner, _, port):
            batcher = runner._service.batcher
            engine.gate.clear()
            first = asyncio.create_task(exchange(port, raw_of("1")))
            await until(lambda: len(engine.batches) == 1)
            others = [asyncio.create_task(exchange(port, raw_of(t))) for t in ("2", "3")]
            await until(lambda: batcher.n_waiting == 2)
            status, told = await exchange(port, raw_of("4"))
            assert status == 503
            assert "2 rows" in told["error"]
            others[0].cancel()
            await until(lambda: batcher.n_waiting == 1)
            last = asyncio.create_task(exchange(port, raw_of("5")))
            await until(lambda: batcher.n_waiting == 2)
            engine.gate.set()
            for task, token in ((first, 1), (others[1], 3), (last, 5)):
                assert one_reward(await task) == float(reward_of([token]))
            assert batcher.n_withdrawn == 1

    asyncio.run(test())


def test_a_wait_has_an_end_that_names_the_fault(tokenizer):
    async def test():
        engine = StubEngine()
        async with running(engine, tokenizer=tokenizer, wait_s=0.4) as (runner, _, port):
            status, told = await exchange(port, raw_of(str(RAISE)))
            assert status == 503
            assert "0.4 s: " in told["error"]
            assert "engine failed" in told["error"]
            assert runner._service.batcher.n_waiting == 0
            engine.gate.clear()
            status, told = await exchange(port, raw_of("1"))
            assert status == 503
            engine.gate.set()
            assert one_reward(await exchange(port, raw_of("2"))) == float(reward_of([2]))

    asyncio.run(test())


def test_the_end_answers_what_waits_and_refuses_what_is_new(tokenizer):
    async def test():
        engine = StubEngine()
        limits = {"queue_rows": 1, "max_batch_rows": 1}
        async with running(engine, tokenizer=tokenizer, **limits) as (runner, task, port):
            batcher = runner._service.batcher
            engine.gate.clear()
            asked = [asyncio.create_task(exchange(port, raw_of(str(n)))) for n in range(1, 6)]
            await until(lambda: batcher.n_accepted == 5)
            runner.stop()
            new = [asyncio.create_task(exchange(port, raw_of("9"))) for _ in range(2)]
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in new)  # until the others have been answered
            new.pop().cancel()
            engine.gate.set()
            status, told = await new[0]
            assert status == 503
            assert "stopping" in told["error"]
            got = sorted(one_reward(a) for a in await asyncio.gather(*asked))
            assert got == [float(reward_of([n])) for n in range(1, 6)]
            ended = await task
            assert (ended.n_accepted, ended.n_failed, ended.forced) == (5, 0, False)

    asyncio.run(test())


@in_loop
async def test_long_texts_are_tokenised_beside_the_loop():
    class Slow(TextTokenizer):
        longest = 10_000

        def __init__(self):
            pass

        def ids(self, text):
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()  # on a thread
            return [3] * POSITIONS

    async with running(StubEngine(), tokenizer=Slow()) as (_, _, port):
        long = asyncio.create_task(exchange(port, raw_of("word " * 5000)))
        assert rewards(await ask(port, [7])) == [float(reward_of([7]))]
        assert one_reward(await long) == float(reward_of([3]))


def test_texts_that_begin_twice_are_warned_of_once(tokenizer, caplog):
    service = service_of(StubEngine(), tokenizer=tokenizer, begin=(1,))
    with TestClient(service.app) as client, caplog.at_level(logging.WARNING):
        for texts in (["1 5", "5 1 1"], ["1 1 5", "1 1 6"], ["1 1 7"]):
            assert client.post(PATH, json=question(*texts)).status_code == 200
    (line,) = [line for line in caplog.messages if "twice" in line]
    assert line.startswith("query[0]: ")
