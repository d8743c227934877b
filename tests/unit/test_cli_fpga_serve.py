"""`ecorl fpga serve`: mistakes that end it before it serves."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from ecorl import cli


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
