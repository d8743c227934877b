"""The endpoints as a client meets them, without a network."""

from __future__ import annotations

import asyncio
import json

import httpx2
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from stub_service import (
    NO_NUMBER,
    REFUSE,
    StubEngine,
    body_of,
    logprobs_of,
    reward_of,
    service_of,
)

from ecorl.engines.protocol import EngineReport
from ecorl.records import Provenance, Stage

JSON = {"content-type": "application/json"}


@pytest.fixture
def client_of():
    """Makes a client of a service; keyword arguments are its settings."""
    opened = []

    def make(engine=None, **settings):
        service = service_of(engine or StubEngine(), **settings)
        client = TestClient(service.app)
        client.service = service
        client.__enter__()
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.__exit__(None, None, None)


def refused(answer, status):
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    ((key, line),) = answer.json().items()
    assert key == "error"
    assert len(line.splitlines()) == 1
    return line


def metrics(client):
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (s.name.removeprefix("ecorl_serve_"), *s.labels.values()): s.value
        for family in families
        for s in family.samples
    }


def test_rewards_with_provenance_and_the_devices_share(client_of):
    rows = [{"id": "a", "token_ids": [1, 2, 3], "n_completion": 2}, {"token_ids": [4]}]
    answer = client_of().post("/v1/rewards", json={"rows": rows})
    assert answer.status_code == 200
    assert answer.json() == {
        "model": "stub-model",
        "stage": "reward",
        "provenance": "emulated",
        "rows": [
            {"id": "a", "reward": float(reward_of([1, 2, 3]))},
            {"id": None, "reward": float(reward_of([4]))},
        ],
        "device": {"name": "stub_card", "time_s": 0.5, "energy_j": 8.0, "provenance": "modelled"},
    }


def test_log_probs_at_a_temperature(client_of):
    client = client_of(StubEngine(Stage.REFERENCE))
    rows = [{"token_ids": [1, 2, 3], "n_completion": 2}, {"token_ids": [4], "n_completion": 0}]
    answer = client.post("/v1/logprobs", json={"rows": rows, "temperature": 0.7}).json()
    first, second = answer["rows"]
    expected = logprobs_of([1, 2, 3], 2, 0.7)
    assert np.asarray(first["logprobs"], np.float32).tobytes() == expected.tobytes()
    assert second["logprobs"] == []


def test_a_row_without_a_number_is_null_with_a_reason(client_of, snapshot):
    answer = client_of().post("/v1/rewards", json={"rows": [{"token_ids": [NO_NUMBER]}]})
    (row,) = answer.json()["rows"]
    assert row["reward"] is None
    snapshot(row["reason"])
    assert set(answer.json()["device"].values()) == {"stub_card", None}
    client = client_of(StubEngine(Stage.REFERENCE))
    rows = [{"token_ids": [2, t], "n_completion": 1} for t in (NO_NUMBER, 3)]
    wrong, right = client.post("/v1/logprobs", json={"rows": rows}).json()["rows"]
    assert wrong["logprobs"] is None
    assert right["logprobs"] == [float(logprobs_of([2, 3], 1)[0])]


def test_the_other_stage_is_refused_with_the_way(client_of, snapshot):
    first = refused(client_of().post("/v1/logprobs", json={}), 409)
    second = refused(client_of(StubEngine(Stage.REFERENCE)).post("/v1/rewards", json={}), 409)
    snapshot(f"{first}\n{second}")


def test_what_is_no_request_for_scores(client_of):
    client, body = client_of(), body_of([1])
    assert "'/v2'" in refused(client.get("/v2"), 404)
    assert "'/v1/rewards/'" in refused(client.post("/v1/rewards/", json={}), 404)
    answer = client.get("/v1/rewards")
    assert refused(answer, 405).startswith("method = 'GET': allowed is POST")
    assert answer.headers["allow"] == "POST"
    for headers in ({}, {"content-type": "text/plain"}, {**JSON, "content-encoding": "gzip"}):
        refused(client.post("/v1/rewards", content=body, headers=headers), 415)
    utf8 = {"content-type": "Application/JSON; charset=utf-8"}
    assert client.post("/v1/rewards", content=body, headers=utf8).status_code == 200
    refused(client.post("/v1/rewards", content=b"{", headers=JSON), 400)


def test_large_bodies_are_cut_off_with_and_without_a_length(client_of):
    client = client_of(max_body_bytes=100)
    fits = body_of([1, 2]).ljust(100)
    assert client.post("/v1/rewards", content=fits, headers=JSON).status_code == 200
    for content in (fits + b" ", iter([fits, b" "]), iter([b" "] * 101)):
        line = refused(client.post("/v1/rewards", content=content, headers=JSON), 413)
        assert "100 bytes" in line


def test_bodies_in_memory_have_a_limit_together(client_of):
    client = client_of(max_reading_bytes=60)
    body = body_of([1])
    assert len(body) < 60
    for _ in range(3):  # what was read is given back
        assert client.post("/v1/rewards", content=body, headers=JSON).status_code == 200
    answer = client.post("/v1/rewards", content=body.ljust(61), headers=JSON)
    assert "memory" in refused(answer, 429)
    assert client.post("/v1/rewards", content=body, headers=JSON).status_code == 200


def test_a_token_guards_all_but_health(client_of):
    client = client_of(token="s3cret")
    assert client.get("/healthz").status_code == 200
    right = {"authorization": "Bearer s3cret"}
    for path in ("/v1/model", "/metrics", "/nowhere"):
        for header in (None, "s3cret", "Basic s3cret", "Bearer", "Bearer s3cre", "Bearer s3cretx"):
            headers = {} if header is None else {"authorization": header}
            answer = client.get(path, headers=headers)
            assert "'Bearer TOKEN'" in refused(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "s3cret'" not in answer.text
        assert client.get(path, headers=right).status_code in (200, 404)
    answer = client.post("/v1/rewards", content=body_of([1]), headers=JSON)
    refused(answer, 401)
    answer = client.post("/v1/rewards", content=body_of([1]), headers=JSON | right)
    assert answer.status_code == 200
    odd = client.get("/v1/model", headers=[(b"authorization", b"Bearer \xe9\xff")])
    refused(odd, 401)


def test_health_tells_of_faults_and_of_the_end(client_of):
    client = client_of()
    health = client.get("/healthz")
    assert (health.status_code, health.json()["status"]) == (200, "ok")
    line = refused(client.post("/v1/rewards", json={"rows": [{"token_ids": [REFUSE]}]}), 503)
    assert line.endswith("EngineError: the stub says no")
    health = client.get("/healthz")
    assert (health.status_code, health.json()["status"]) == (200, "engine failing")
    assert client.post("/v1/rewards", content=body_of([1]), headers=JSON).status_code == 200
    health = client.get("/healthz").json()
    assert (health["status"], health["engine"]["faults"]) == ("ok", 1)
    assert health["requests"] == {"accepted": 2, "unanswered": 0}
    client.service.batcher.drain()
    health = client.get("/healthz")
    assert (health.status_code, health.json()["status"]) == (503, "draining")
    answer = client.post("/v1/rewards", content=body_of([1]), headers=JSON)
    assert "stopping" in refused(answer, 503)
    assert answer.headers["retry-after"] == "5"


def test_the_stated_size_of_a_request_is_taken_and_no_larger_one(client_of):
    client = client_of(queue_rows=8, max_batch_rows=1)
    limits = client.get("/v1/model").json()["limits"]
    assert (limits["request_rows"], limits["queue_rows"]) == (2, 8)
    fits = client.post("/v1/rewards", content=body_of([1], [2]), headers=JSON)
    assert fits.status_code == 200
    line = refused(client.post("/v1/rewards", content=body_of([1], [2], [3]), headers=JSON), 400)
    assert line.startswith("rows = (3 rows): ")
    assert "1 to 2" in line


def test_the_model_and_what_its_figures_rest_on(client_of):
    told = client_of(max_batch_rows=9).get("/v1/model").json()
    assert (told["model"], told["stage"], told["answers"]) == (
        "stub-model", "reward", "/v1/rewards",
    )  # fmt: skip
    assert (told["provenance"], told["row_invariant"]) == ("emulated", True)
    assert (told["limits"]["row_tokens"], told["limits"]["vocab_size"]) == (64, 1000)
    assert told["limits"]["batch_rows"] == 9
    assert told["device"]["figures"]["active_w"] == {
        "value": 16.0, "unit": "W", "provenance": "published", "source": "a test",
    }  # fmt: skip


def test_metrics_count_what_happened(client_of):
    client = client_of()
    rows = [{"token_ids": [1, 2, 3]}, {"token_ids": [NO_NUMBER]}]
    client.post("/v1/rewards", json={"rows": rows})
    client.post("/v1/rewards", json={"rows": [{"token_ids": [REFUSE, 1]}]})
    client.get("/nowhere")
    seen = metrics(client)
    assert seen["requests_total", "/v1/rewards", "200"] == 1
    assert seen["requests_total", "/v1/rewards", "503"] == 1
    assert seen["requests_total", "other", "404"] == 1
    assert seen["refused_total", "engine_fault"] == 1
    assert seen["refused_total", "unknown_path"] == 1
    outcomes = {key[1]: n for key, n in seen.items() if key[0] == "rows_total"}
    assert outcomes == {"answered": 1, "without_answer": 1, "failed": 1}
    assert (seen["tokens_total",], seen["queue_rows",], seen["engine_faults_total",]) == (6, 0, 1)
    assert (seen["batch_rows_sum",], seen["batch_rows_count",]) == (3, 2)
    assert seen["device_energy_joules_total", "modelled"] == 8.0
    assert seen["device_seconds_total", "modelled"] == 0.5


def test_what_the_device_does_not_tell_has_no_sample(client_of):
    engine = StubEngine()
    engine.report = EngineReport(None, None, Provenance.MODELLED, 0.1)
    client = client_of(engine)
    answer = client.post("/v1/rewards", content=body_of([1]), headers=JSON).json()
    assert answer["device"] == {
        "name": "stub_card", "time_s": None, "energy_j": None, "provenance": None,
    }  # fmt: skip
    assert not [key for key in metrics(client) if key[0].startswith("device")]


def test_many_clients_at_once_get_their_own_rows():
    async def test():
        engine = StubEngine()
        service = service_of(engine, max_batch_rows=16)
        transport = httpx2.ASGITransport(service.app)
        async with (
            service.app.router.lifespan_context(service.app),
            httpx2.AsyncClient(transport=transport, base_url="http://here") as client,
        ):

            async def one(n):
                rows = [[n, n + k] for k in range(1 + n % 3)]
                answer = await client.post("/v1/rewards", content=body_of(*rows), headers=JSON)
                got = [row["reward"] for row in answer.json()["rows"]]
                assert got == [float(reward_of(row)) for row in rows]

            await asyncio.gather(*map(one, range(200)))
        assert sum(map(len, engine.batches)) == sum(1 + n % 3 for n in range(200))
        assert max(map(len, engine.batches)) == 16

    asyncio.run(test())


def test_error_lines_are_json_whatever_was_sent(client_of):
    client = client_of()
    body = json.dumps({"rows": [{"token_ids": [1], "id": 5, "\u2028é\x00": 1}]}).encode()
    refused(client.post("/v1/rewards", content=body, headers=JSON), 400)


def test_a_defect_in_the_work_on_batches_hangs_nobody(client_of, monkeypatch):
    client = client_of()
    monkeypatch.setattr(
        client.service.batcher, "_deliver", lambda *_: (_ for _ in ()).throw(KeyError("a defect"))
    )
    answer = client.post("/v1/rewards", content=body_of([1]), headers=JSON)
    assert "has stopped" in refused(answer, 503)
    health = client.get("/healthz")
    assert (health.status_code, health.json()["status"]) == (503, "failed")
    refused(client.post("/v1/rewards", content=body_of([1]), headers=JSON), 503)
    assert client.service.failure.startswith("KeyError: 'a defect' (test_serve_app.py:")
    assert client.service.batcher.n_failed == 1
