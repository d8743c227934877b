"""WattTime: the marginal operating emissions rate of a region, every 5 minutes.

The rate (signal ``co2_moer``) is in pounds of CO2 a megawatt-hour, of the power stations that
answer to a change of load, with those beyond the region's borders; it is computed by a model.
Requests are put together by the provider's own client, and go over `JsonClient`: the client alone
would repeat a failed request for minutes, and would leave the password in the environment, where
each child process finds it.
"""

from __future__ import annotations

import base64
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ecorl.carbon.feeds.answers import (
    AnswerPart,
    ForecastPoint,
    forecast_of,
    in_order,
    refuse_made_up,
    utc,
)
from ecorl.carbon.feeds.http import DEFAULT_LIMITS, HttpLimits, JsonClient, Secret
from ecorl.carbon.feeds.protocol import FeedInfo
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.errors import ConfigError, FeedMalformed, FeedRefused, FeedSilent, MissingToolError
from ecorl.grid import Basis, Gas, MarginalIntensity, Scope, provider_provenance

_log = logging.getLogger(__name__)

PUBLIC_URL = "https://api.watttime.org"
USER_VARIABLE = "WATTTIME_USER"
KEY_VARIABLE = "WATTTIME_PASSWORD"
SIGNAL = "co2_moer"
FIVE_MINUTES_S = 300.0
G_PER_KWH_OF_LB_PER_MWH = 453.59237 / 1000.0
"""Grams of a pound, over kilowatt-hours of a megawatt-hour."""

_UNIT = "lbs_co2_per_mwh"
_REGION = re.compile(r"[A-Z][A-Z0-9_]{1,63}")
_HORIZON_HOURS = 72  # the longest that the service has


class WattTimeFeed:
    """The marginal intensity of a region, every 5 minutes.

    Args:
        region: the region as the service names it, e.g. ``CAISO_NORTH``.
        user: name of the account.
        password: its password.
        base_url: address of the service.
        limits: how long and how large an answer may be; a reading takes up to two requests, of
            which the first logs in.

    Raises:
        ConfigError: when the region or the user cannot be one.
        MissingToolError: without the packages watttime and requests.
    """

    def __init__(
        self,
        region: str,
        user: str,
        password: Secret,
        *,
        base_url: str = PUBLIC_URL,
        limits: HttpLimits = DEFAULT_LIMITS,
    ) -> None:
        if not _REGION.fullmatch(region):
            raise ConfigError("region", region, "a region's name such as CAISO_NORTH")
        if not user or ":" in user or not user.isprintable():
            raise ConfigError("user", user, "the name of an account, without a colon")
        self._region = region
        self.info = FeedInfo(
            name="watttime",
            source=f"WattTime, region {region}",
            interval_s=FIVE_MINUTES_S,
            licence="the terms of the account",
        )
        login = base64.b64encode(f"{user}:{password.reveal()}".encode()).decode()
        door = _Door(self.info.source, base_url, Secret(f"Basic {login}"), limits)
        self._historical, self._forecasts = _clients(door)

    def read(self, now_s: float) -> MarginalIntensity:
        """The estimate for the current 5 minutes.

        Args:
            now_s: time, s since 1970.

        Raises:
            FeedError: when there is none.
        """
        answer = self._ask_forecast(hours=0)
        values = self._values(answer, now_s, is_estimated=True)
        if not values:
            raise FeedSilent(f"{self.info.source} has no value for the current 5 minutes")
        values.sort(key=lambda value: value.start_s)
        begun = [value for value in values if value.start_s <= now_s]
        return begun[-1] if begun else values[0]

    def history(self, start_s: float, end_s: float) -> tuple[MarginalIntensity, ...]:
        """Values of earlier intervals, in the order of time; what is missing is left out.

        They count as estimated where the service had to fill in what its model takes.

        Args:
            start_s: begin of the first interval, s since 1970, at the earliest.
            end_s: end of the last one, at the latest.

        Raises:
            FeedError: when the source does not answer.
        """
        if end_s - start_s < FIVE_MINUTES_S:
            return ()
        answers = self._ask(
            self._historical,
            lambda client: client.get_historical_jsons(
                utc(start_s), utc(end_s), self._region, SIGNAL, include_imputed_marker=True
            ),
        )
        now_s = time.time()
        found = [
            value
            for answer in answers
            for value in self._values(AnswerPart(self.info.source, "", answer), now_s, None)
        ]
        return in_order(found, start_s, end_s)

    def forecast(self, now_s: float) -> Forecast | None:
        """The service's own forecast of the next 72 hours, without an interval.

        Args:
            now_s: time, s since 1970.

        Raises:
            FeedError: when the source does not answer.
        """
        answer = self._ask_forecast(_HORIZON_HOURS)
        points = [
            ForecastPoint(value.start_s, value.g_per_kwh)
            for value in self._values(answer, now_s, is_estimated=True)
        ]
        generated = answer.get("meta").find("generated_at")
        issued_s = now_s if generated is None else generated.moment_s()
        return forecast_of(self.info.source, points, FIVE_MINUTES_S, issued_s, now_s)

    def _ask_forecast(self, hours: int) -> AnswerPart:
        answer = self._ask(
            self._forecasts,
            lambda client: client.get_forecast_json(self._region, SIGNAL, horizon_hours=hours),
        )
        return AnswerPart(self.info.source, "", answer)

    def _ask(self, client: Any, call: Callable[[Any], Any]) -> Any:
        """The answer to a call of the client, with a new token where the service wants one.

        The client counts a token's age by this machine's local time, which may jump.
        """
        for _ in range(2):
            try:
                return call(client)
            except _TokenRefused:
                client.token_valid_until = None
        raise FeedRefused(f"{self.info.source} refuses a token that it has just given")

    def _values(
        self, answer: AnswerPart, now_s: float, is_estimated: bool | None
    ) -> list[MarginalIntensity]:
        """Intensities of an answer, in its order."""
        meta = answer.get("meta")
        meta.get("region").expect(self._region, "region")
        meta.get("signal_type").expect(SIGNAL, "signal")
        meta.get("units").expect(_UNIT, "unit")
        period = meta.find("data_point_period_seconds")
        if period is not None and period.number() != FIVE_MINUTES_S:
            raise FeedMalformed(f"{self.info.source} answers with intervals other than 5 minutes")
        found = []
        for point in answer.get("data").items():
            value, imputed = point.find("value"), point.find("imputed_data_used")
            if value is None:
                continue
            is_imputed = is_estimated if imputed is None else imputed.flag()
            found.append(
                MarginalIntensity(
                    feed=self.info.name,
                    start_s=point.get("point_time").moment_s(),
                    interval_s=FIVE_MINUTES_S,
                    g_per_kwh=value.number() * G_PER_KWH_OF_LB_PER_MWH,
                    gas=Gas.CO2,
                    basis=Basis.LOCATION,
                    scope=Scope.DIRECT,
                    factors="WattTime MOER model",
                    is_estimated=is_imputed,
                    fetched_s=now_s,
                    provenance=provider_provenance(is_imputed),
                )
            )
        return found


class _TokenRefused(Exception):
    """The service wants a new token."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the provider's client asks of an answer of requests."""

    value: object

    def raise_for_status(self) -> None:
        """Do nothing: an answer of another status has raised an error before."""

    def json(self) -> object:
        """The value."""
        return self.value


class _Door:
    """Stands where the provider's client has its session, and lets checked answers through.

    Errors of feeds pass through the client, which handles those of requests alone.
    """

    def __init__(self, source: str, base_url: str, login: Secret, limits: HttpLimits) -> None:
        self._source, self._limits = source, limits
        self._login = JsonClient(source, base_url, {"Authorization": login}, limits)
        self.base_url = base_url.rstrip("/")

    def get(
        self,
        url: str,
        params: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        **_: object,
    ) -> _Answer:
        """Answer as ``requests.Session.get`` does. The client's login and time-outs are not used.

        Raises:
            FeedError: when there is no answer that the client can read.
        """
        path = url.removeprefix(self.base_url)
        if path == "/login":
            return _Answer(
                {"token": self._token(AnswerPart(self._source, "", self._login.get(path)))}
            )
        keys = {"Authorization": Secret((headers or {})["Authorization"])}
        client = JsonClient(self._source, self.base_url, keys, self._limits)
        query = {name: _shown(value) for name, value in (params or {}).items()}
        value = client.get(path, query, absent=(401,))
        if value is None:
            raise _TokenRefused
        return _Answer(self._readable(AnswerPart(self._source, "", value)))

    def _token(self, answer: AnswerPart) -> str:
        token = answer.get("token").text()
        if not (token and token.isascii() and token.isprintable()):
            raise FeedMalformed(f"{self._source} answers with a token that no header can carry")
        return token

    def _readable(self, answer: AnswerPart) -> dict[str, object]:
        """The answer with the parts that the client itself reads, of the type that it takes."""
        refuse_made_up(answer)
        meta = answer.get("meta")
        plain = {name: part.value for name, part in meta.fields()}
        if plain.pop("warnings", None):
            _log.info("%s has warnings about its answer", self._source)
        plain["model"] = {"date": meta.get("model").get("date").text()}
        return {"meta": plain, "data": answer.get("data").value}


def _shown(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _clients(door: _Door) -> tuple[Any, Any]:
    """The provider's clients of past values and of forecasts, behind a door."""
    try:
        with _logging_as_it_is():
            from watttime import WattTimeForecast, WattTimeHistorical
    except ModuleNotFoundError as error:
        message = f"this feed needs the package {error.name}: pip install 'ecorl[carbon]'"
        raise MissingToolError(message) from error
    made = WattTimeHistorical(), WattTimeForecast()
    for client in made:
        client.session.close()
        client.session, client.url_base = door, door.base_url
    return made


@contextmanager
def _logging_as_it_is() -> Iterator[None]:
    """Keep an import from setting up the logging of the whole process, as that of watttime does.

    It calls ``logging.basicConfig``, which does nothing where the root logger has a handler.
    """
    root, guard = logging.getLogger(), logging.NullHandler()
    root.addHandler(guard)
    try:
        yield
    finally:
        root.removeHandler(guard)
