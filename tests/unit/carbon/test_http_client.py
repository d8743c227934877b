"""JSON over HTTP from a server that errs in every way, and keys that never show."""

from __future__ import annotations

import copy
import gzip
import json
import logging
import pickle
import sys
import traceback

import pytest

from ecorl.carbon.feeds.http import HttpLimits, JsonClient, Secret, read_key
from ecorl.errors import (
    ConfigError,
    FeedError,
    FeedMalformed,
    FeedRefused,
    FeedUnreachable,
    MissingToolError,
)
from tests.fakes.grid_server import Answer, GridServer, unused_url

KEY = "k3y-that-nobody-may-see"
PATIENT = HttpLimits(connect_s=120.0, read_s=120.0, total_s=120.0, body_bytes=1000)
"""For answers that come: a busy machine may take long for them."""

QUICK = HttpLimits(connect_s=120.0, read_s=0.2, total_s=0.3, body_bytes=10_000)
"""For answers that never end."""


@pytest.fixture
def other(server):
    other = GridServer()
    yield other
    other.close()


def client_of(server, limits=PATIENT):
    return JsonClient("A source", server.url, {"auth-token": Secret(KEY)}, limits)


def moved(where, status=302):
    return Answer(status=status, headers={"Location": where})


def test_a_value_with_its_query_and_its_key(server):
    server.script = [{"a": [1, 2.5, None, "é"]}]
    assert client_of(server).get("/v3/x", {"zone": "D E", "n": "1"}) == {"a": [1, 2.5, None, "é"]}
    (asked,) = server.asked
    assert (asked.path, asked.query) == ("/v3/x", {"zone": "D E", "n": "1"})
    assert asked.headers["auth-token"] == KEY
    assert asked.headers["user-agent"].startswith("ecorl/")
    assert "authorization" not in asked.headers


def test_a_compressed_answer(server):
    raw = gzip.compress(json.dumps([1]).encode())
    server.script = [Answer(raw, headers={"Content-Encoding": "gzip"})]
    assert client_of(server).get("/x") == [1]


def refusal(server, answer, caplog):
    """With what one answer is refused: in one line, without the key."""
    server.script = [answer]
    server.asked.clear()
    with caplog.at_level(logging.DEBUG, "ecorl"), pytest.raises(FeedError) as caught:
        client_of(server).get("/x", {"zone": "DE"})
    assert len(str(caught.value).splitlines()) == 1
    assert len(server.asked) == 1
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
    assert KEY not in shown
    # What the libraries raised has the address in it, and does not hang on the error.
    assert caught.value.__context__ is None
    return caught.value


def test_what_is_no_value(server, caplog, snapshot):
    answers = (
        (Answer(status=400), FeedRefused),
        (Answer(status=401), FeedRefused),
        (Answer(status=404), FeedRefused),
        (Answer(status=500), FeedRefused),
        (Answer(status=599), FeedRefused),
        (Answer(status=204), FeedMalformed),
        (Answer(status=304), FeedMalformed),
        (Answer(b""), FeedMalformed),
        (Answer(b'{"a": 1'), FeedMalformed),
        (Answer(b"<html>busy</html>"), FeedMalformed),
        (Answer(b"{}{}"), FeedMalformed),
        (Answer(b'"\xff"'), FeedMalformed),
        (Answer(b'{"a": NaN}'), FeedMalformed),
        (Answer(b"[-Infinity]"), FeedMalformed),
        (Answer(b"null"), FeedMalformed),
        (Answer(b"[" * 200_000), FeedMalformed),
        (Answer(b"no", headers={"Content-Encoding": "gzip"}), FeedMalformed),
        (Answer({"a": 1}, cut=2), FeedUnreachable),
        (moved(""), FeedMalformed),
        (moved("http://[::1"), FeedMalformed),
        (moved("http://localhost/"), FeedMalformed),
        (moved("ftp://127.0.0.1/"), FeedMalformed),
        (moved(f"https://{KEY}@127.0.0.1/"), FeedMalformed),
    )
    errors = [refusal(server, answer, caplog) for answer, _ in answers]
    assert [type(error) for error in errors] == [wanted for _, wanted in answers]
    snapshot("\n".join(map(str, errors)))


def test_a_key_in_the_name_of_a_host_does_not_show(server, caplog):
    error = refusal(server, moved(f"https://{KEY}.invalid/"), caplog)
    assert type(error) is FeedUnreachable


def test_json_deeper_than_python_goes(server):
    server.script = [Answer(b"[" * 200_000)]
    with pytest.raises(FeedMalformed, match="too deep"):
        client_of(server, HttpLimits()).get("/x")
    server.script = [Answer(b"[" * 900)]
    with pytest.raises(FeedMalformed):
        client_of(server).get("/x")
    server.script = [Answer(b"9" * 5000)]
    with pytest.raises(FeedMalformed, match="number"):
        client_of(server, HttpLimits()).get("/x")


@pytest.mark.parametrize(
    ("status", "headers", "wait_s"),
    [
        (429, {}, None),
        (429, {"Retry-After": "120"}, 120.0),
        (503, {"Retry-After": " 5 "}, 5.0),
        (503, {"Retry-After": "soon"}, None),
        (503, {"Retry-After": "-5"}, None),
        (503, {"Retry-After": "9" * 40}, None),
        (500, {"Retry-After": "120"}, None),
        (
            429,
            {
                "Retry-After": "Wed, 21 Oct 2015 07:28:30 GMT",
                "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
            },
            30.0,
        ),
        (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:30 GMT"}, 0.0),
    ],
)
def test_how_long_a_source_asks_to_be_left_alone(server, status, headers, wait_s):
    server.script = [Answer(status=status, headers=headers)]
    with pytest.raises(FeedRefused, match=str(status)) as caught:
        client_of(server).get("/x")
    assert caught.value.retry_after_s == wait_s


def test_a_status_that_says_that_there_is_none(server):
    server.script = [Answer(status=403), Answer(status=404)]
    assert client_of(server).get("/x", absent=(401, 403)) is None
    with pytest.raises(FeedRefused, match="404"):
        client_of(server).get("/x", absent=(401, 403))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_on_the_same_host_keeps_the_key(server, status):
    server.script = [moved("other/y?z=1", status), {"a": 1}]
    assert client_of(server).get("/v3/x") == {"a": 1}
    assert server.paths == ["/v3/x", "/v3/other/y"]
    assert server.asked[1].query == {"z": "1"}
    assert server.asked[1].headers["auth-token"] == KEY


def test_a_redirect_to_another_server_goes_without_the_key(server, other):
    server.script = [moved(f"{other.url}/y")]
    other.script = [moved(f"{server.url}/z")]
    with pytest.raises(FeedRefused):
        client_of(server).get("/x")
    assert "auth-token" not in other.asked[0].headers
    assert server.asked[1].headers["auth-token"] == KEY  # back at home it has it again


def test_the_body_of_a_redirect_is_not_read(server):
    # Longer than the client waits for the whole answer.
    redirect = Answer(b"x" * 5000, status=302, headers={"Location": "/y"}, drip_s=0.1)
    server.script = [redirect, {"a": 1}]
    assert client_of(server).get("/x") == {"a": 1}


def test_redirects_in_a_circle(server):
    server.script = {"/x": moved("/y"), "/y": moved("/x")}
    with pytest.raises(FeedMalformed, match="3 times"):
        client_of(server).get("/x")
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"1" * 5000, drip_s=0.02, headers={"Connection": "keep-alive"}),
        Answer(b"1" * 5000, drip_s=0.02, headers={"Connection": "close"}),
        Answer(b"1" * 5000, drip_s=0.02, drips_headers=True),
        Answer(b"1", drip_s=100.0),
    ],
    ids=["body", "last body", "headers", "silence"],
)
def test_an_answer_that_drips_is_cut_off(server, answer):
    server.script = [answer]
    # The whole answer would come.
    with pytest.raises(FeedUnreachable, match=r"within 0\.3 s|silent for 0\.2 s") as caught:
        client_of(server, QUICK).get("/x")
    assert type(caught.value) is FeedUnreachable


def test_nobody_at_home():
    url = unused_url()
    with pytest.raises(FeedUnreachable, match=r"^A source \(/x\)"):
        JsonClient("A source", url, limits=PATIENT).get("/x")
    for host in ("no-such-host.invalid", "x" * 80 + ".invalid"):
        with pytest.raises(FeedUnreachable):
            JsonClient("A source", f"https://{host}", {"k": Secret(KEY)}, PATIENT).get("/x")


def test_a_server_without_tls(server):
    with pytest.raises(FeedUnreachable, match="secure"):
        JsonClient("A source", server.url.replace("http:", "https:"), limits=PATIENT).get("/x")


def test_a_login_of_the_user_is_not_sent(server, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    server.script = [{}]
    client_of(server).get("/x")
    assert "authorization" not in server.asked[0].headers


@pytest.mark.parametrize(
    "url",
    ["", "host", "ftp://host", "https://", "https://host:0", "https://host:x", "https://[::1",
     f"https://me:{KEY}@host", f"https://host/?token={KEY}", f"https://host/#{KEY}",
     "https://host/\n", "http://192.0.2.1"],
)  # fmt: skip
def test_addresses_that_are_refused(url):
    with pytest.raises(ConfigError, match="base_url") as caught:
        JsonClient("A source", url, {"auth-token": Secret(KEY)})
    assert KEY not in str(caught.value)


def test_an_address_without_tls_serves_where_no_key_is_sent():
    JsonClient("A source", "http://192.0.2.1")
    JsonClient("A source", "http://localhost", {"auth-token": Secret(KEY)})


def test_a_key_that_no_header_carries(server):
    for key in ("a\nb", "é", "a\x00"):
        with pytest.raises(ConfigError) as caught:
            JsonClient("A source", server.url, {"auth-token": Secret(key)})
        assert caught.value.key == "auth-token"
        assert key not in str(caught.value)


def test_without_requests(monkeypatch, snapshot):
    monkeypatch.setitem(sys.modules, "requests", None)
    monkeypatch.delitem(sys.modules, "ecorl.carbon.feeds.transport", raising=False)
    monkeypatch.delattr("ecorl.carbon.feeds.transport", raising=False)
    with pytest.raises(MissingToolError) as caught:
        JsonClient("A source", "https://host")
    snapshot(str(caught.value))


def test_a_secret_shows_nowhere():
    secret = Secret(KEY)
    assert secret.reveal() == KEY
    for text in (str(secret), repr(secret), f"{secret}", f"{secret!r}", f"{[secret]}"):
        assert KEY not in text
    for write in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            write(secret)
    assert not hasattr(secret, "__dict__")


def test_the_key_of_the_file_goes_before_that_of_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_bytes(b"\xef\xbb\xbf  from file \r\nsecond line\n")
    monkeypatch.setenv("SOME_KEY", " from environment\n")
    assert read_key("SOME_KEY", file).reveal() == "from file"
    assert read_key("SOME_KEY", None).reveal() == "from environment"


@pytest.mark.parametrize("content", [b"", b"\n" + KEY.encode(), b" \n", b"\xff" + KEY.encode(),
                                     KEY.encode() + b"\x00"])  # fmt: skip
def test_a_file_without_a_key(tmp_path, content, monkeypatch):
    file = tmp_path / "key"
    file.write_bytes(content)
    monkeypatch.setenv("SOME_KEY", "other")
    with pytest.raises(ConfigError, match="SOME_KEY") as caught:
        read_key("SOME_KEY", file)
    assert caught.value.key == "key_file"
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__context__)
    assert KEY not in shown
    assert str(file) in str(caught.value)


def test_no_key_at_all(tmp_path, monkeypatch, snapshot):
    monkeypatch.delenv("SOME_KEY", raising=False)
    lines = []
    for value, path in (
        (None, None), (f"{KEY}\n{KEY}", None), (KEY, tmp_path / "none"), (KEY, tmp_path)
    ):  # fmt: skip
        if value is not None:
            monkeypatch.setenv("SOME_KEY", value)
        with pytest.raises(ConfigError) as caught:
            read_key("SOME_KEY", path)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))
