"""The service's benchmark: what counts as lost or mixed up, and the figures of known passes."""

from __future__ import annotations

import asyncio
import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import serving
from benchmarks.studies.peers import ModelSize
from benchmarks.studies.serving import (
    Answered,
    CheckedAnswers,
    Clients,
    Request,
    judge,
    make_requests,
    mean_batch_rows,
)
from ecorl.errors import RunError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.serve")


def by_id(figures):
    assert len({f.id for f in figures}) == len(figures)
    return {f.id: f for f in figures}


def answered(id="row-0", reward=0.5, status=200, energy_j=2.0):
    rows = [{"id": id, "reward": reward}]
    return Answered(
        status, json.dumps({"rows": rows, "device": {"energy_j": energy_j}}).encode(), 1
    )


def bits(value):
    return np.asarray([value], np.float32).tobytes()


def test_answers_are_held_against_the_truth():
    requests = make_requests(3, (2, 4), 10, seed=0)
    truth = [bits(0.5)] * 3
    right = [answered(f"row-{k}") for k in range(3)]
    assert judge(requests, right, truth) == CheckedAnswers(3, 0, 0, 6.0)
    for wrong, n_lost, n_mixed, energy_j in (
        (answered("row-2"), 0, 1, 6.0),
        (answered("row-1", np.nextafter(np.float32(0.5), np.float32(1)).item()), 0, 1, 6.0),
        (answered("row-1", None), 0, 1, 6.0),
        (answered("row-1", energy_j=None), 0, 0, None),
        (answered(status=429), 1, 0, None),
        (Answered(None, b"", 1.0), 1, 0, None),
    ):
        judged = judge(requests, [right[0], wrong, right[2]], truth)
        assert judged == CheckedAnswers(3, n_lost, n_mixed, energy_j)
    assert CheckedAnswers(1, 0, 1, 2.0) + CheckedAnswers(2, 1, 0, 3.0) == CheckedAnswers(
        3, 1, 1, 5.0
    )
    assert (CheckedAnswers(1, 0, 1, 2.0) + CheckedAnswers(2, 1, 0, None)).energy_j is None


def test_requests_span_the_lengths_and_carry_other_ids():
    requests = make_requests(200, (2, 4), 10, seed=0)
    assert {len(r.token_ids) for r in requests} == {2, 3, 4}
    assert len({r.id for r in requests}) == 200
    body = json.loads(requests[3].body())
    assert body == {"rows": [{"id": "row-3", "token_ids": requests[3].token_ids.tolist()}]}


def test_rows_of_a_micro_batch_between_two_readings():
    text = "ecorl_serve_batch_rows_sum {}\necorl_serve_batch_rows_count {}\n"
    assert mean_batch_rows(text.format(10.0, 4.0), text.format(70.0, 9.0)) == 12.0
    assert mean_batch_rows(text.format(10.0, 4.0), text.format(10.0, 4.0)) is None
    with pytest.raises(RunError, match="no ecorl_serve_batch_rows_sum"):
        mean_batch_rows("", "")


def test_clients_notice_what_is_lost():
    """A server that breaks every third connection amid its answer."""

    async def served(n_seen, reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().split(b"content-length: ")[1].split()[0])
            body = await reader.readexactly(length)
            n_seen.append(body)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length)
            writer.write(body[:-1] if len(n_seen) % 3 == 0 else body)
            if len(n_seen) % 3 == 0:
                writer.close()
                return

    clients = Clients("http://127.0.0.1:0", [b"a%d" % k for k in range(9)], 1)
    n_seen = []

    async def start():
        server = await asyncio.start_server(lambda r, w: served(n_seen, r, w), "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]

    server, port = clients._loop.run(start())
    clients._connections[0]._port = port
    clients.send_all()
    server.close()
    clients.close()
    (answers,) = clients.answers
    assert [a.status for a in answers] == [200, 200, None] * 3
    assert [a.body for a in answers if a.status] == [b"a%d" % k for k in (0, 1, 3, 4, 6, 7)]


def seen(script, lost=0, mixed=0, energy_j=6.0):
    times = {
        script.MANY: [1.0, 2.0, 1.0],
        script.ONE: [3.0, 4.0, 4.0],
        script.UNDELAYED: [1.5, 2.0, 2.0],
    }
    judged = {
        script.MANY: CheckedAnswers(40, lost, mixed, energy_j),
        script.ONE: CheckedAnswers(40, 0, 0, 9.0),
        script.UNDELAYED: CheckedAnswers(40, 0, 0, 9.0),
    }
    return script.Seen(times, [1.0] * 99 + [50.0], judged, 7.0)


def test_figures_of_known_passes(script, snapshot):
    figures = by_id(script.figures_of(seen(script), 120))
    assert figures["serve.throughput_ratio_64"].value == 3.0
    assert figures["serve.throughput_ratio_64"].holds
    assert figures["serve.throughput_ratio_64_undelayed"].value == 1.5
    snapshot(figures["serve.throughput_ratio_64"].note)
    assert figures["serve.tokens_per_s_64"].value == 120.0
    assert figures["serve.tokens_per_s_one"].value == 30.0
    assert figures["serve.lost_requests"].value == 0
    assert figures["serve.mixed_answers"].holds
    assert figures["serve.mixed_answers"].spread == {"n": 120}
    assert figures["serve.card_energy_ratio_64"].value == 1.5
    assert str(figures["serve.card_energy_ratio_64"].provenance) == "modelled"


def test_figures_of_a_service_that_loses_and_mixes(script):
    figures = by_id(script.figures_of(seen(script, lost=1, mixed=2, energy_j=None), 120))
    for id, n in (("serve.lost_requests", 1), ("serve.mixed_answers", 2)):
        assert (figures[id].value, figures[id].holds) == (n, False)
    for id in ("throughput_ratio_64", "throughput_ratio_64_undelayed", "card_energy_ratio_64"):
        assert figures[f"serve.{id}"].value is None


def test_a_small_load_from_end_to_end(script, require_tool, tmp_path):
    for tool in ("torch", "gxx"):
        require_tool(tool)
    load = script.Load(ModelSize(64, 1, 112, 4, 2, 97), 80, (4, 12), 1)
    found, n_tokens = script.run_load(load, tmp_path)
    assert set(found.judged) == {script.MANY, script.ONE, script.UNDELAYED}
    assert {(j.n, j.n_lost, j.n_mixed) for j in found.judged.values()} == {(160, 0, 0)}
    assert 80 * 4 <= n_tokens <= 80 * 12
    assert found.batch_rows > 1
    assert len(found.latencies_ms) == 80


def test_a_service_that_does_not_start(tmp_path):
    with (
        pytest.raises(RunError, match=rf"ecorl: .*{tmp_path / 'none'}"),
        serving.service(tmp_path / "none", tmp_path / "log"),
    ):
        pytest.fail("it started")


def test_the_direct_engine_is_asked_row_by_row():
    class Engine:
        def score(self, batch):
            assert len(batch) == 1
            values = np.asarray([batch.token_ids[0].sum()], np.float32)
            return type("Result", (), {"values": values})

    rows = [Request("a", np.asarray([1, 2])), Request("b", np.asarray([3]))]
    assert serving.alone(Engine(), rows) == [bits(3), bits(3)]
