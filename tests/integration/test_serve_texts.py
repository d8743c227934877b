"""Rewards of texts from `ecorl fpga serve`, asked as OpenRLHF asks, also over a restart."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies.peers import ModelSize, make_reward_checkpoint
from tests.conftest import demand

POSITIONS, CLIENTS = 128, 32
TEXT = "The reward of a text is the reward of its tokens, <|im_start|>special ones<|im_end|> too. "
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def reward(tmp_path_factory) -> Path:
    """A reward model with a byte-level tokenizer, as those of Qwen and Llama 3 are."""
    for tool in ("torch", "gxx"):
        demand(tool)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator([TEXT] * 9, trainer)
    folder = tmp_path_factory.mktemp("texts") / "reward"
    size = ModelSize(64, 2, 112, 4, 2, made.get_vocab_size())
    make_reward_checkpoint(folder, size, POSITIONS, seed=3)
    made.save(str(folder / "tokenizer.json"))
    return folder


def start(model, port, **environment):
    """The service as a process, before it has said anything."""
    command = [sys.executable, "-m", "ecorl.cli", "fpga", "serve", "--model", str(model)]
    return subprocess.Popen(
        [*command, "--port", str(port), "--threads", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def address_of(process):
    first = process.stdout.readline()
    assert first.startswith("serving "), first + process.stderr.read()
    return re.search(r"http://\S+:\d+", first)[0]


def stopped(process):
    """End the service by a signal; what it wrote since."""
    process.send_signal(signal.SIGTERM)
    process.wait(240)
    # Not `communicate`: lines that came with the first one are in the reader's buffer.
    out, err = process.stdout.read(), process.stderr.read()
    assert process.returncode == 0, err
    return out, err


def post(url, data):
    """One request on a connection of its own, as OpenRLHF's client makes it."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(data).encode(), headers)
    with DIRECT.open(request, timeout=240) as answer:
        return json.loads(answer.read())


def fetch(url, text, tried=None, is_back=None):
    """OpenRLHF's `_post_request`: five tries, a second apart; any failure is a try.

    HTTP errors are OSErrors; an answer cut off in its body is an HTTPException. How many seconds a
    service takes to come back is the machine's affair: a failed try waits for it.
    """
    for _ in range(5):
        try:
            return post(url, {"query": [text], "prompts": ["p"], "labels": [None]})
        except (OSError, http.client.HTTPException, ValueError) as error:
            if tried is not None:
                tried.append(str(error))
        if is_back is not None:
            is_back.wait(240)
        time.sleep(1)
    raise RuntimeError("Request error for 5 times, returning None.")


def texts_of(reward, n, seed):
    """Ids and their text, such that the text has these ids."""
    from tokenizers import Tokenizer

    inner = Tokenizer.from_file(str(reward / "tokenizer.json"))
    rng = np.random.default_rng(seed)
    words = [w for w in re.split(r"(?<= )", TEXT) if w]
    made = []
    for _ in range(n):
        text = "".join(rng.choice(words, rng.integers(3, 14)))
        ids = inner.encode(text, add_special_tokens=False).ids
        assert inner.decode(ids, skip_special_tokens=False) == text
        made.append((ids, text))
    assert any(inner.token_to_id("<|im_end|>") in ids for ids, _ in made)
    return made


def test_the_reward_of_a_text_is_that_of_its_ids(reward):
    process = start(reward, 0, ECORL_SERVE_TOKEN="s3cret")
    try:
        url = address_of(process)
        samples = texts_of(reward, 3 * CLIENTS, seed=1)
        at = f"{url}/openrlhf/s3cret"
        with ThreadPoolExecutor(CLIENTS) as pool:
            got = list(pool.map(lambda s: fetch(at, s[1])["rewards"], samples))
        request = urllib.request.Request(
            f"{url}/v1/rewards",
            json.dumps({"rows": [{"token_ids": ids} for ids, _ in samples]}).encode(),
            {"content-type": "application/json", "authorization": "Bearer s3cret"},
        )
        with DIRECT.open(request, timeout=240) as answer:
            expected = [row["reward"] for row in json.loads(answer.read())["rows"]]
        assert got == expected
        assert len(set(got)) > CLIENTS
        with pytest.raises(urllib.error.HTTPError, match="401"):
            post(f"{url}/openrlhf/s3cre", {"query": ["a"]})
        with pytest.raises(urllib.error.HTTPError, match="400") as caught:
            post(at, {"query": ["a" * POSITIONS * 2]})
        line = json.loads(caught.value.read())["error"]
        assert re.fullmatch(
            r"query\[0\] = \(\d+ tokens\): allowed is text of 1 to 128 tokens", line
        )
        out, err = stopped(process)
        assert f"OpenRLHF: --reward.remote_url {url}/openrlhf/TOKEN\n" in out
        assert "s3cre" not in out + err
    finally:
        process.kill()
        process.communicate()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_clients_that_retry_five_times_survive_a_restart(reward, number):
    """The process ends in the middle of its work and is started again at once, on its port."""
    port = free_port()
    process, again = start(reward, port), None
    samples = texts_of(reward, 60, seed=2)
    n_done, tried, end_s = [0] * CLIENTS, [], time.monotonic() + 240.0
    is_back = threading.Event()
    url = f"http://127.0.0.1:{port}/openrlhf"
    truth, wrong = {}, []

    def client(k):
        after = 0
        while after < 5 and time.monotonic() < end_s:
            _, text = samples[(k + 7 * n_done[k]) % len(samples)]
            seen = is_back.is_set()
            value = fetch(url, text, tried, is_back)["rewards"]
            if truth.setdefault(text, value) != value:
                wrong.append(text)
            n_done[k] += 1
            after += seen
        return after

    try:
        address_of(process)
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(client, k) for k in range(CLIENTS)]
            while sum(n_done) < 4 * CLIENTS and time.monotonic() < end_s:
                time.sleep(0.01)
            process.send_signal(number)
            process.wait(240)
            again = start(reward, port)
            address_of(again)
            is_back.set()
            assert [each.result() for each in clients] == [5] * CLIENTS
        assert tried  # the end hit them
        assert not wrong
        stopped(again)
    finally:
        for each in (process, again):
            if each is not None:
                each.kill()
                each.communicate()


def test_a_model_without_a_tokenizer_says_so_and_answers_ids(reward, tmp_path):
    for file in reward.iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).symlink_to(file)
    process = start(tmp_path, 0)
    try:
        url = address_of(process)
        with pytest.raises(urllib.error.HTTPError, match="409") as caught:
            post(f"{url}/openrlhf", {"query": ["a"]})
        why = "/openrlhf is not offered: the checkpoint holds no tokenizer.json"
        assert json.loads(caught.value.read())["error"] == why
        assert post(f"{url}/v1/rewards", {"rows": [{"token_ids": [1, 2]}]})["rows"][0]["reward"]
        out, _ = stopped(process)
        assert f"rewards of texts: {why}\n" in out
    finally:
        process.kill()
        process.communicate()
