"""The HTTP endpoints of the scoring service.

    POST /v1/rewards    rewards from a reward model
    POST /v1/logprobs   log-probs of completions from a causal language model
    POST /openrlhf      rewards of texts, for the remote rewards of OpenRLHF, ROLL and verl; clients
                        that send no header ask /openrlhf/TOKEN
    GET  /v1/model      the model, its limits, and the figures behind modelled time and energy
    GET  /v1/tokenizer  its tokenizer.json, for a check that a policy's token ids survive as text
    GET  /metrics       metrics for Prometheus
    GET  /healthz       alive, draining or failed, and engine faults; needs no token

Every error response is JSON ``{"error": "..."}`` with one line that gives the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ecorl.devices import DeviceFigure
from ecorl.engines.lanes.threaded import AsyncEngine
from ecorl.records import Stage
from ecorl.serve.access import behind, is_allowed, is_same
from ecorl.serve.batcher import MicroBatcher
from ecorl.serve.http_errors import DRAINING, BodyReader, HttpError
from ecorl.serve.metrics import CONTENT_TYPE, ServiceMetrics
from ecorl.serve.parsing import BodyParser, ScoreRows, TextParser, one_line
from ecorl.serve.responses import Answer, PendingRequest, as_json, as_rewards, dump
from ecorl.serve.settings import ServedModel, ServeSettings

logger = logging.getLogger(__name__)

REWARDS, LOGPROBS, OPENRLHF, MODEL, TOKENIZER, METRICS, HEALTH = (
    "/v1/rewards", "/v1/logprobs", "/openrlhf", "/v1/model", "/v1/tokenizer", "/metrics",
    "/healthz",
)  # fmt: skip
_PATHS = (REWARDS, LOGPROBS, OPENRLHF, MODEL, TOKENIZER, METRICS, HEALTH)
SERVICE = "service"
"""Key of the service in the application's state, where its connections find it."""

_LARGE_BODY_BYTES = 64 << 10
"""Larger bodies are parsed on a thread, one at a time: the memory for parsing is bounded once, and
the event loop serves other clients meanwhile. Assumed: parsing a smaller one takes 1 or 2 ms."""

_LARGE_TEXT_BYTES = 4 << 10
"""The same for texts, which are tokenised as well: a smaller body takes about 2 ms, measured."""

_CLIENT_GONE = 499
"""Status in the metrics for a client that went away before its response; no client sees it."""


def path_of(stage: Stage) -> str:
    """The path of the endpoint that serves a model of this stage."""
    return LOGPROBS if stage is Stage.REFERENCE else REWARDS


class ScoringService:
    """Serves one model over HTTP.

    Args:
        lane: the engine behind its asynchronous lane; the caller closes it.
        served: the model's name, limits and provenance.
        settings: limits of the service.
        token: the token that clients must send; None when they need none.

    Attributes:
        metrics: the counters behind ``/metrics``.
        batcher: gathers rows into micro-batches.
        failure: the defect that ended the work on micro-batches, on one line; None without one.
        on_failure: called when such a defect occurs.
        n_unread: responses that were cut off because their clients did not read them.
    """

    def __init__(
        self,
        lane: AsyncEngine,
        served: ServedModel,
        settings: ServeSettings | None = None,
        token: str | None = None,
    ) -> None:
        self.settings = settings or ServeSettings()
        self.metrics = ServiceMetrics()
        self.failure: str | None = None
        self.on_failure: Callable[[], None] | None = None
        self.n_unread = 0
        self.batcher = MicroBatcher(lane, self.settings, self.metrics)
        self._lane, self._served = lane, served
        self._reader = BodyReader(self.settings)
        self._parser = BodyParser(served, self.settings.request_rows)
        self._texts: TextParser | None = None
        if served.tokenizer is not None:
            self._texts = TextParser(served, served.tokenizer, self.settings.request_rows)
        self._token = token
        self._parsing = asyncio.Lock()
        self.app = Starlette(
            routes=[
                Route(REWARDS, self._rewards, methods=["POST"]),
                Route(LOGPROBS, self._logprobs, methods=["POST"]),
                Route(OPENRLHF, self._openrlhf, methods=["POST"]),
                Route(MODEL, self._model, methods=["GET"]),
                Route(TOKENIZER, self._tokenizer, methods=["GET"]),
                Route(METRICS, self._metrics, methods=["GET"]),
                Route(HEALTH, self._health, methods=["GET"]),
            ],
            middleware=[
                Middleware(_Counting, metrics=self.metrics),
                Middleware(_Access, metrics=self.metrics, token=token),
            ],
            exception_handlers={HttpError: self._refusal, HTTPException: self._not_found},
            lifespan=self._lifespan,
        )
        # No redirect from a path with a trailing slash: clients lose the body of a redirected POST.
        self.app.router.redirect_slashes = False

    def drain(self) -> None:
        """Refuse further requests; the accepted ones are still answered."""
        self.batcher.drain()
        self._reader.stop()

    def count_not_http(self) -> None:
        """Count bytes that are not HTTP; they reach no endpoint that would count them."""
        self.metrics.requests.labels("other", "400").inc()
        self.metrics.refused.labels("not_http").inc()

    def count_unread(self) -> None:
        """Count a response that was cut off because its client did not read it."""
        self.n_unread += 1
        self.metrics.unread.inc()

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
        work = asyncio.create_task(self.batcher.run(), name="ecorl-serve-batches")
        work.add_done_callback(self._work_ended)
        try:
            yield {SERVICE: self}
        finally:
            work.cancel()
            await asyncio.wait({work})

    def _work_ended(self, work: asyncio.Task[None]) -> None:
        """Record why the work on micro-batches ended, and end the service."""
        error = None if work.cancelled() else work.exception()
        if error is None:
            return
        message = " ".join(f"{type(error).__name__}: {error}".split())
        place = traceback.extract_tb(error.__traceback__)[-1]
        self.failure = f"{message} ({Path(place.filename).name}:{place.lineno})"
        logger.info("the work on micro-batches ended", exc_info=error)
        self.drain()
        if self.on_failure is not None:
            self.on_failure()

    async def _rewards(self, request: Request) -> Response:
        return await self._scored(request, Stage.REWARD)

    async def _logprobs(self, request: Request) -> Response:
        return await self._scored(request, Stage.REFERENCE)

    async def _scored(self, request: Request, stage: Stage) -> Response:
        self._check_stage(stage)

        async def score() -> bytes:
            rows = await self._rows_of(request, self._parser.parse, _LARGE_BODY_BYTES)
            answer = await self._answer(request, self.batcher.submit(rows))
            return as_json(rows, answer, self._served, self._lane.device)

        return await self._answered(request, score)

    async def _openrlhf(self, request: Request) -> Response:
        """Answer rewards of texts to a client that gives up after few tries: it waits instead."""
        self._check_stage(Stage.REWARD)
        texts, until_s = self._texts, time.monotonic() + self.settings.wait_s
        if texts is None:
            why = self._served.why_no_texts
            raise HttpError(409, f"{OPENRLHF} is not offered: {why}", "no_tokenizer")

        async def score() -> bytes:
            try:
                rows = await self._rows_of(request, texts.parse, _LARGE_TEXT_BYTES)
                pending = self.batcher.submit(rows, patient=True)
            except HttpError as refusal:
                if refusal.kind == DRAINING:
                    # At the end of the drain the refusal costs its client one of few tries; at
                    # once it would cost all of them while the others are still being answered.
                    await self.batcher.idle()
                raise
            return as_rewards(await self._answer(request, pending, until_s))

        return await self._answered(request, score)

    async def _answered(
        self, request: Request, score: Callable[[], Coroutine[Any, Any, bytes]]
    ) -> Response:
        _check_type(request)
        try:
            return _json(await score())
        except ClientDisconnect:
            self.metrics.refused.labels("client_gone").inc()
            return Response(status_code=_CLIENT_GONE)

    async def _rows_of(
        self, request: Request, parse: Callable[[bytearray], ScoreRows], large_bytes: int
    ) -> ScoreRows:
        """Read and parse the rows. The body is freed here, and not kept while the rows wait."""
        async with self._reader.reading(request) as body:
            if len(body) <= large_bytes:
                return parse(body)
            async with self._parsing:
                return await asyncio.to_thread(parse, body)

    async def _answer(
        self, request: Request, pending: PendingRequest, until_s: float | None = None
    ) -> Answer:
        """Wait for the results, until the client goes away or a time (monotonic, s) has come.

        Raises:
            HttpError: when the engine failed, or the time has come.
            ClientDisconnect: when the client went away; its rows leave the queue.
        """
        gone = asyncio.create_task(_gone(request))
        try:
            either: set[asyncio.Future[Any]] = {pending.future, gone}
            limit_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            done, _ = await asyncio.wait(
                either, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self.batcher.give_up(pending, self._too_late())
            elif not pending.future.done():
                raise ClientDisconnect
            return pending.future.result()
        finally:
            gone.cancel()
            self.batcher.withdraw(pending)

    def _too_late(self) -> HttpError:
        message = f"no answer within {self.settings.wait_s:g} s"
        if self.batcher.n_faults_in_a_row:
            message += one_line(f": the engine failed: {self.batcher.last_fault}")
        return HttpError(503, message, "wait_over", retry_after_s=1)

    def _check_stage(self, asked: Stage) -> None:
        if asked is self._served.stage:
            return
        has, lacks = "a reward model answers rewards", "log-probs"
        if self._served.stage is Stage.REFERENCE:
            has, lacks = "a causal language model answers log-probs", "rewards"
        message = f"{self._served.name} does not answer {lacks}: {has}"
        raise HttpError(409, f"{message}, at POST {path_of(self._served.stage)}", "other_stage")

    async def _model(self, request: Request) -> Response:
        served, limits = self._served, self.settings
        return _json(
            dump(
                {
                    "model": served.name,
                    "stage": str(served.stage),
                    "answers": path_of(served.stage),
                    "texts": {
                        "path": OPENRLHF,
                        "offered": self._texts is not None,
                        "why_not": None if self._texts else served.why_no_texts,
                    },
                    "provenance": str(served.provenance),
                    "engine": self._lane.name,
                    "row_invariant": self._lane.row_invariant,
                    "shape": asdict(self._lane.model),
                    "limits": {
                        "vocab_size": served.vocab_size,
                        "row_tokens": served.max_row_tokens,
                        "request_rows": limits.request_rows,
                        "queue_rows": limits.queue_rows,
                        "waiting_rows": limits.waiting_rows,
                        "waiting_tokens": limits.waiting_tokens,
                        "wait_s": limits.wait_s,
                        "body_bytes": limits.max_body_bytes,
                        "batch_rows": limits.max_batch_rows,
                        "batch_tokens": limits.max_batch_tokens,
                        "batch_delay_s": limits.batch_delay_s,
                    },
                    "device": {
                        "name": self._lane.device,
                        "figures": {
                            name: _told(figure) for name, figure in served.device_figures.items()
                        },
                    },
                }
            )
        )

    async def _tokenizer(self, request: Request) -> Response:
        tokenizer = self._served.tokenizer
        if tokenizer is None:
            why = self._served.why_no_texts
            raise HttpError(409, f"there is no tokenizer: {why}", "no_tokenizer")
        return _json(tokenizer.to_json().encode())

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def _health(self, request: Request) -> Response:
        available, n_faults = self._lane.available, self.batcher.n_faults
        in_a_row = self.batcher.n_faults_in_a_row
        state = "ok"
        if self.failure is not None:
            state = "failed"
        elif self.batcher.draining:
            state = "draining"
        elif not available:
            state = "engine unavailable"
        elif in_a_row:
            state = "engine failing"
        data = {
            "status": state,
            "draining": self.batcher.draining,
            "queue_rows": self.batcher.n_waiting,
            "requests": {
                "accepted": self.batcher.n_accepted,
                "unanswered": self.batcher.n_unanswered,
            },
            "engine": {"available": available, "faults": n_faults, "in_a_row": in_a_row},
        }
        return _json(dump(data), 503 if self.batcher.draining or not available else 200)

    async def _refusal(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HttpError)
        self.metrics.refused.labels(error.kind).inc()
        return _error(error)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = request.method, request.url.path[:200]
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            message, kind = f"method = {method!r}: allowed is {allowed} at {path}", "wrong_method"
        else:
            # A client may have put its token into a wrong path; no error shows it.
            shown = "(with the token)" if self._token and self._token in path else repr(path)
            message = f"path = {shown}: allowed is one of {', '.join(_PATHS)}"
            kind = "unknown_path"
        self.metrics.refused.labels(kind).inc()
        return _error(HttpError(error.status_code, message, kind, headers=error.headers))


class _Access:
    """Refuses requests without the token, except to the health endpoint, for monitoring."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, token: str | None) -> None:
        self._app, self._metrics, self._token = app, metrics, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != HEALTH:
            in_path = behind(OPENRLHF, scope["path"])
            if in_path:  # from here on the token is in no path that a message could show
                scope = {**scope, "path": OPENRLHF, "raw_path": OPENRLHF.encode()}
            refusal = self._refusal(scope, in_path)
            if refusal is not None:
                self._metrics.refused.labels(refusal.kind).inc()
                await _error(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, in_path: str | None) -> HttpError | None:
        """The error for a request that does not show the token, by header or path; else None."""
        shown = Request(scope).headers.get("authorization")
        if is_allowed(shown, self._token) or (self._token and is_same(in_path or "", self._token)):
            return None
        given = "(not given)" if shown is None and not in_path else "(not the one)"
        message = f"authorization = {given}: allowed is 'Bearer TOKEN' with the service's own"
        if scope["path"] == OPENRLHF:
            message += f", or POST {OPENRLHF}/TOKEN"
        return HttpError(401, message, "unauthorised", headers={"www-authenticate": "Bearer"})


class _Counting:
    """Counts requests and measures their time, by path and status."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = OPENRLHF if behind(OPENRLHF, scope["path"]) else scope["path"]
        path = path if path in _PATHS else "other"
        start_s = time.monotonic()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(path, str(message["status"])).inc()
                self._metrics.request_s.labels(path).observe(time.monotonic() - start_s)
            await send(message)

        await self._app(scope, receive, counted)


def _check_type(request: Request) -> None:
    for name, default, wanted in (
        ("content-type", "(not given)", "application/json"),
        ("content-encoding", "identity", "identity"),
    ):
        given = request.headers.get(name, default)
        if given.partition(";")[0].strip().lower() != wanted:
            message = f"{name} = {given[:100]}: allowed is {wanted}"
            raise HttpError(415, message, "wrong_type")


async def _gone(request: Request) -> None:
    """Return when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _told(figure: DeviceFigure) -> dict[str, Any]:
    """A figure for JSON; one without an interval has no ends."""
    return {key: value for key, value in asdict(figure).items() if value is not None}


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _error(refusal: HttpError) -> Response:
    body = dump({"error": str(refusal)})
    return Response(body, refusal.status, refusal.headers, media_type="application/json")
