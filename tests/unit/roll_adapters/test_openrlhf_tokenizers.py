"""A reward model that would read other tokens than the policy wrote is refused at the start."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import ray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ecorl.config import Config, StaticPolicyConfig
from ecorl.config.placement import PlacementConfig
from ecorl.engines.models.text_tokenizer import TextTokenizer
from ecorl.errors import ConfigError
from ecorl.records import Action
from roll_adapters.openrlhf.checks import fitted
from tests.fakes.openrlhf import flags

MOVED = Config(
    placement=PlacementConfig(policy=StaticPolicyConfig(reward=Action.CONCURRENT))
)  # fmt: skip


def letters(words: str) -> Tokenizer:
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<e>", *words])}, "<e>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return made


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """Another test of this process may have joined a cluster: here nothing is about cards."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.fixture
def save(tmp_path):
    def saved(name, words):
        wrapped = PreTrainedTokenizerFast(tokenizer_object=letters(words), eos_token="<e>")
        wrapped.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return saved


@pytest.fixture
def service(tmp_path):
    """What answers at /v1/tokenizer, and what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("Authorization")))
            file = tmp_path / "served" / "tokenizer.json"
            self.send_response(200 if file.is_file() else 409)
            self.end_headers()
            self.wfile.write(file.read_bytes() if file.is_file() else b"{}")

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def job(policy, reward=None, url=None):
    return flags(
        actor__model_name_or_path=policy,
        reward__model_name_or_path=reward,
        reward__remote_url=[url] if url else None,
        algo__kl__init_coef=0,
    )


def test_a_reward_model_of_the_same_tokens_may_leave_the_gpu(save):
    policy, reward = save("policy", "abc"), save("reward", "abc")
    assert fitted(MOVED, job(policy, reward)).adapter == "openrlhf"


def test_a_reward_model_of_other_tokens_is_refused_only_where_it_moves(save):
    policy, reward = save("policy", "abc"), save("reward", "cba")
    with pytest.raises(ConfigError, match=r"--reward.model_name_or_path = "):
        fitted(MOVED, job(policy, reward))
    assert fitted(Config(), job(policy, reward)).adapter == "openrlhf"


def test_a_service_is_asked_for_its_tokenizer(save, service):
    base, asked = service
    policy = save("policy", "abc")
    save("served", "abc")
    fitted(Config(), job(policy, url=f"{base}/openrlhf/secret"))
    assert asked == [("/v1/tokenizer", "Bearer secret")]
    save("served", "cab")
    with pytest.raises(ConfigError, match=r"--reward.remote_url") as refused:
        fitted(Config(), job(policy, url=f"{base}/openrlhf/secret"))
    assert "secret" not in str(refused.value)


def test_a_service_without_texts_is_refused_and_an_absent_one_is_not(
    save, service, caplog, snapshot
):
    base, _ = service
    policy = save("policy", "abc")
    with pytest.raises(ConfigError, match="409"):
        fitted(Config(), job(policy, url=f"{base}/openrlhf"))
    # It may be started later.
    fitted(Config(), job(policy, url="http://127.0.0.1:1/openrlhf"))
    (line,) = caplog.messages
    snapshot(line.partition(": ")[0])  # and the system's words
    # Others' services are not known.
    fitted(Config(), job(policy, url=f"{base}/get_reward"))


def test_a_service_that_breaks_off_is_taken_for_an_absent_one(save, caplog):
    policy = save("policy", "abc")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}")

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/openrlhf"
        fitted(Config(), job(policy, url=url))
    assert "IncompleteRead" in caplog.text


def test_the_service_tells_its_tokenizer(save):
    folder = save("served", "abc")
    told = json.loads(TextTokenizer(Path(folder)).to_json())
    assert told["model"]["vocab"] == {"<e>": 0, "a": 1, "b": 2, "c": 3}
