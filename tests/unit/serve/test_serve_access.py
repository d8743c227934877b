"""Tokens and addresses."""

from __future__ import annotations

import socket

import pytest

from ecorl.errors import ConfigError
from ecorl.serve.access import TOKEN_VARIABLE, bind, is_allowed, is_loopback, load_token, url_of


def test_the_token_of_the_file_goes_before_that_of_the_environment(tmp_path):
    file = tmp_path / "token"
    file.write_text("abc-123\n")
    assert load_token(file, {TOKEN_VARIABLE: "other"}) == "abc-123"
    assert load_token(None, {TOKEN_VARIABLE: "other"}) == "other"
    assert load_token(None, {}) is None


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"two\nlines", b"\xff", b"a\x00b"])
def test_a_token_that_no_header_could_carry_is_refused(tmp_path, content):
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"--token-file = ") as caught:
        load_token(file, {})
    assert len(str(caught.value).splitlines()) == 1
    given = content.decode("utf-8", "surrogateescape")
    with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
        load_token(None, {TOKEN_VARIABLE: given})


def test_a_token_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_token(tmp_path / "none", {})
    with pytest.raises(ConfigError, match="directory"):
        load_token(tmp_path, {})


def test_who_is_let_in():
    assert is_allowed(None, None)
    assert is_allowed("Bearer abc", "abc")
    assert is_allowed("bearer  abc", "abc")
    for header in (None, "", "abc", "Bearer", "Bearer ab", "Bearer abcd", "Basic abc", "Bearer é€"):
        assert not is_allowed(header, "abc")


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("some.name", False), ("", False)],
)  # fmt: skip
def test_what_only_this_machine_reaches(host, own):
    assert is_loopback(host) is own
    if not own:
        with pytest.raises(ConfigError, match=r"--host = .*loopback.*--token-file"):
            bind(host, 0, None)


def test_a_port_that_is_taken_and_one_that_is_free():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port = {port}: "):
            bind("127.0.0.1", port, None)
    with bind("127.0.0.1", 0, None) as bound:
        assert url_of(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"
    with bind("0.0.0.0", 0, "token") as bound:
        assert bound.getsockname()[1] > 0


def test_an_address_of_elsewhere():
    for host in ("192.0.2.1", "no-such-host.invalid", "x" * 300):
        with pytest.raises(ConfigError, match=r"--host = "):
            bind(host, 0, "token")
