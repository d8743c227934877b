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


def test_mistakes_get_one_line(the_line, tmp_path, monkeypatch, snapshot):
    monkeypatch.delenv("ECORL_SERVE_TOKEN", raising=False)
    lines = [
        the_line("--host", "0.0.0.0", "--port", 0),
        the_line("--token-file", tmp_path / "token", "--port", 0),
        the_line("--port", 0),
        the_line("--max-batch-rows", 0),
        the_line("--drain-s", "nan"),
    ]
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        lines.append(the_line("--port", port))
    monkeypatch.setenv("ECORL_SERVE_TOKEN", "")
    lines.append(the_line("--port", 0))
    snapshot("\n".join(lines), port=port)


def test_without_its_libraries_it_says_what_to_install(the_line, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    line = the_line("--port", 0)
    assert "starlette" in line
    assert "ecorl[serve]" in line


def test_options_that_exclude_each_other(the_line, tmp_path, snapshot):
    xclbin = tmp_path / "a.xclbin"
    given = ("--port", 0)
    lines = [
        the_line(*given, *args)
        for args in (
            ("--via", "csim", "--bitstream", xclbin),
            ("--via", "xrt", "--device", 1, "--device", 0, "--device", 1),
            ("--device", 0),
            ("--via", "csim", "--device", 0),
            ("--via", "gpu"),
            ("--bitstream", xclbin),
        )
    ]
    xclbin.touch()
    lines.append(the_line(*given, "--bitstream", xclbin))
    snapshot("\n".join(lines))
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
    line = the_line("--port", 0, "--via", "auto", "--device", 0)
    assert line.startswith("ecorl: --device = [0]: ")


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
    (line,) = streams.out.splitlines()
    assert line.startswith("stopped ")
    assert streams.err == ""
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


def test_the_end_is_told_with_what_became_of_the_requests(monkeypatch, capsys, snapshot):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    for ended in (ENDED, replace(ENDED, n_unread=3)):
        fpga_serve._tell_end(ended)
    good = capsys.readouterr()
    assert (codes, good.err) == ([], "")
    forced = replace(ENDED, forced=True, n_abandoned=4)
    for ended in (forced, replace(ENDED, failure="KeyError: 'x' (a.py:1)")):
        fpga_serve._tell_end(ended)
    bad = capsys.readouterr()
    assert (codes, bad.out) == ([1, 1], "")
    snapshot(good.out + bad.err)
