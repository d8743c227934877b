"""A server of grid data on this machine that answers what a test has scripted, and remembers."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Answer:
    """One scripted answer.

    `body` is sent as it is when it is bytes, else as JSON. `drip_s` is the pause before each byte
    of the body, and of the headers too with `drips_headers`. `cut` bytes of the end are left out,
    although the headers promise them.
    """

    body: object = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drip_s: float = 0.0
    drips_headers: bool = False
    cut: int = 0

    @property
    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class Asked:
    """One request: its path, its query, and its headers by names in lower case."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]


class GridServer:
    """Answers requests in the order of `script`; a dict in it answers by path, and stays.

    After the last answer of a list it says 599, so that a request that no test expects shows.
    """

    def __init__(self):
        self.script, self.asked = [], []
        self._stopped = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                parts = urlsplit(self.path)
                headers = {name.lower(): value for name, value in self.headers.items()}
                server.asked.append(Asked(parts.path, dict(parse_qsl(parts.query)), headers))
                with contextlib.suppress(OSError):  # tests have clients that go before the end
                    self._send(server._next(parts.path))

            def _send(self, answer):
                head = f"HTTP/1.0 {answer.status} Scripted\r\n"
                headers = {"Content-Length": str(len(answer.raw)), **answer.headers}
                head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
                self._write(head.encode("latin-1"), answer.drip_s if answer.drips_headers else 0)
                self._write(answer.raw[: len(answer.raw) - answer.cut], answer.drip_s)

            def _write(self, raw, drip_s):
                for piece in [raw] if not drip_s else [raw[i : i + 1] for i in range(len(raw))]:
                    if drip_s and server._stopped.wait(drip_s):
                        return
                    self.wfile.write(piece)
                    self.wfile.flush()

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def _next(self, path):
        if isinstance(self.script, dict):
            found = self.script.get(path, Answer(status=404))
        else:
            found = self.script.pop(0) if self.script else Answer(status=599)
        return found if isinstance(found, Answer) else Answer(found)

    @property
    def paths(self):
        return [asked.path for asked in self.asked]

    def close(self):
        self._stopped.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def unused_url():
    """An address of this machine at which nobody listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return f"http://127.0.0.1:{server.server_port}"
