"""`ecorl fpga serve`: mistakes that end it before it serves."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ecorl import cli
from ecorl.cli.fpga import serve as fpga_serve
from ecorl.serve.server import ServiceEnd


@pytest.fixture
def the_line(monkeypatch, capsys, tmp_path):
    """Run the command; the one line on standard error of a user's mistake."""

    def call(*args, model=tmp_path / "none"):
        words = ["ecorl", "fpga", "serve", "--model", str(model), *map(str, args)]
        monkeypatch.setattr(sys, "argv", words)
        for name in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
            monkeypatch.setenv(name, os.environ.get(name, "1"))
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        assert (caught.value.code, streams.out) == (2, "")
        (line,) = streams.err.splitlines()
        return line

    return call


def test_mistakes_get_one_line(the_line, tmp_path, monkeypatch):
    monkeypatch.delenv("ECORL_SERVE_TOKEN", raising=False)
    line = the_line("--host", "0.0.0.0", "--port", 0)
    assert line.startswith("ecorl: --host = '0.0.0.0': allowed is a loopback address")
    line = the_line("--token-file", tmp_path / "token", "--port", 0)
    assert line.startswith(f"ecorl: --token-file = '{tmp_path}/token': allowed is a readable file")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = the_line("--port", port)
        assert line.startswith(f"ecorl: --port = {port}: allowed is a free port of 127.0.0.1")
    assert the_line("--port", 0) == f"ecorl: {tmp_path / 'none'}: no such checkpoint folder"
    assert "--max-batch-rows" in the_line("--max-batch-rows", 0)
    assert "--drain-s" in the_line("--drain-s", "nan")
    monkeypatch.setenv("ECORL_SERVE_TOKEN", "")
    assert the_line("--port", 0).startswith("ecorl: ECORL_SERVE_TOKEN = '...': allowed is one")


def test_without_its_libraries_it_says_what_to_install(the_line, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    line = the_line("--port", 0)
    assert line == "ecorl: ecorl fpga serve needs starlette: pip install 'ecorl[serve]'"


def test_options_that_exclude_each_other(the_line, tmp_path):
    xclbin = tmp_path / "a.xclbin"
    given = ("--port", 0)
    line = the_line(*given, "--via", "csim", "--bitstream", xclbin)
    assert line == (f"ecorl: --bitstream = '{xclbin}': allowed is --via xrt; none with --via csim")
    line = the_line(*given, "--via", "xrt", "--device", 1, "--device", 0, "--device", 1)
    assert line == "ecorl: --device = [1, 0, 1]: allowed is each card once"
    told = "ecorl: --device = [0]: allowed is --via xrt or a bitstream; none with --via csim"
    for via in ((), ("--via", "csim")):
        assert the_line(*given, *via, "--device", 0) == told
    assert the_line(*given, "--via", "gpu").startswith("ecorl: --via = 'gpu': allowed is one of")
    missing = "a file from make bitstream ({})"
    told = f"ecorl: --bitstream = '{xclbin}': allowed is {missing}"
    assert the_line(*given, "--bitstream", xclbin) == told.format("there is no such file")
    xclbin.touch()
    manifest = "its manifest a.json, which make bitstream writes beside it, is not there"
    assert the_line(*given, "--bitstream", xclbin) == told.format(manifest)
    # Where nothing names a host, a bitstream takes XRT.
    xclbin.with_suffix(".json").touch()
    assert fpga_serve._engine_options(None, xclbin, [2, 0], 1)["backend"].host == "xrt"
    assert fpga_serve._engine_options(None, None, None, 1)["backend"].host == "csim"


def test_cards_that_a_model_does_not_run_on_are_refused(the_line, monkeypatch):
    """Known once the engine is loaded: auto has found no XRT, or a model that it cannot run."""
    engine = SimpleNamespace(host="csim", close=lambda: None)
    config = SimpleNamespace(is_reward=True, max_positions=64)
    monkeypatch.setattr("ecorl.engines.models.decoder_config.read_config", lambda folder: config)
    monkeypatch.setattr("ecorl.engines.fpga.engine.FpgaEngine", lambda *_, **__: engine)
    given = ("--port", 0)
    line = the_line(*given, "--via", "auto", "--device", 0)
    assert line.startswith(
        "ecorl: --device = [0]: allowed is a card of XRT, which is not installed"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_loads_ends_with_one_line(monkeypatch, capsys, number):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]

    def load(*_):
        signal.raise_signal(number)
        raise AssertionError("went on")

    monkeypatch.setattr(fpga_serve, "_loaded", load)
    monkeypatch.setattr(sys, "argv", ["ecorl", "fpga", "serve", "--model", "m", "--port", "0"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code in (0, None)
    streams = capsys.readouterr()
    told = "stopped while the model was loading: nothing was accepted"
    assert (streams.out.splitlines(), streams.err) == ([told], "")
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before


def test_clients_connect_while_the_model_loads(monkeypatch, capsys):
    """Those that retry for a few seconds alone would not survive the loading of a large model."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    seen = []

    def load(*_):
        with socket.create_connection(("127.0.0.1", port), timeout=240) as client:
            seen.append(client.getpeername()[1])
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(fpga_serve, "_loaded", load)
    words = ["ecorl", "fpga", "serve", "--model", "m", "--port", str(port)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        cli.main()
    assert seen == [port]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((1024, 20_000), [(1512, 20_000)]),
        ((1024, 1200), [(1200, 1200)]),
        ((1024, resource.RLIM_INFINITY), [(1512, resource.RLIM_INFINITY)]),
        ((4096, 20_000), []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), []),
    ],
)
def test_open_files_are_allowed_for_the_clients_that_may_wait(monkeypatch, limits, expected):
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: made.append(given))
    fpga_serve._allow_connections(1000)
    assert made == expected


ENDED = ServiceEnd(9, 1, 2, 0, 0, forced=False, failure=None)


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        (ENDED, "stopped: 9 requests accepted, 1 withdrawn by their clients, 2 failed, all others "
         "answered"),
        (replace(ENDED, n_unread=3), "stopped: 9 requests accepted, 1 withdrawn by their clients, "
         "2 failed, 3 answers not read by their clients, all others answered"),
        (replace(ENDED, forced=True, n_abandoned=4), "ecorl: stopped at once: 9 requests accepted, "
         "1 withdrawn by their clients, 2 failed, 4 abandoned"),
        (replace(ENDED, failure="KeyError: 'x' (a.py:1)"), "ecorl: the service failed: KeyError: "
         "'x' (a.py:1): 9 requests accepted, 1 withdrawn by their clients, 2 failed"),
    ],
)  # fmt: skip
def test_the_end_is_told_with_what_became_of_the_requests(ended, line, monkeypatch, capsys):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    fpga_serve._tell_end(ended)
    streams = capsys.readouterr()
    is_good = not ended.forced and ended.failure is None
    assert codes == ([] if is_good else [1])
    assert (streams.out, streams.err) == ((line + "\n", "") if is_good else ("", line + "\n"))
