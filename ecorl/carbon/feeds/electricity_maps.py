"""Electricity Maps: the average intensity of what a zone consumes, each hour.

The service traces the flows between zones, so that imports count with what they were made from.
Which zones and which requests a token may make is a matter of its plan: the current value and the
last 24 hours belong to all of them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping

from ecorl.carbon.feeds import answers
from ecorl.carbon.feeds.http import DEFAULT_LIMITS, HttpLimits, JsonClient, Secret
from ecorl.carbon.feeds.protocol import FeedInfo
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.marks import names_estimation
from ecorl.errors import ConfigError, FeedError, FeedMalformed, FeedSilent
from ecorl.grid import AverageIntensity, Basis, Fuel, Gas, Scope, provider_provenance

_log = logging.getLogger(__name__)

PUBLIC_URL = "https://api.electricitymaps.com/v3"
KEY_VARIABLE = "ELECTRICITY_MAPS_TOKEN"
HOUR_S = 3600.0

_ZONE = re.compile(r"[A-Z][A-Z0-9]{1,4}(-[A-Z0-9]{1,8}){0,3}")
_FACTOR_TYPES = {Scope.LIFE_CYCLE: "lifecycle", Scope.DIRECT: "direct"}
_HORIZONS = ("72", "24")  # h; the longest that the service has, and its default
_NO_ACCESS = (401, 403)  # the service says 401 for what a plan does not cover, too
_FACTORS = {
    Scope.LIFE_CYCLE: "Electricity Maps, life cycle (IPCC 2014, regional ones where known)",
    Scope.DIRECT: "Electricity Maps, direct (IPCC 2014, regional ones where known)",
}
_FUELS = {
    "hydro discharge": Fuel.STORAGE,
    "battery discharge": Fuel.STORAGE,
    "unknown": Fuel.OTHER,
}


class ElectricityMapsFeed:
    """The average intensity of a zone, each hour.

    Args:
        zone: the zone as the service names it, e.g. ``DE`` or ``US-CAL-CISO``.
        key: the token of an account.
        scope: life-cycle or direct emissions.
        with_mix: whether a reading asks for the mix of what is consumed too, which takes a
            request of its own.
        base_url: address of the service with the version of its interface; version 4 answers in
            the same form.
        limits: how long and how large its answers may be.

    Raises:
        ConfigError: when the zone or the key cannot be one.
        MissingToolError: without the package requests.
    """

    def __init__(
        self,
        zone: str,
        key: Secret,
        *,
        scope: Scope = Scope.LIFE_CYCLE,
        with_mix: bool = False,
        base_url: str = PUBLIC_URL,
        limits: HttpLimits = DEFAULT_LIMITS,
    ) -> None:
        if not _ZONE.fullmatch(zone):
            raise ConfigError("zone", zone, "a zone's name such as DE or US-CAL-CISO")
        self._zone, self._scope, self._with_mix = zone, scope, with_mix
        source = f"Electricity Maps, zone {zone}"
        self.info = FeedInfo(
            name="electricity_maps",
            source=source,
            interval_s=HOUR_S,
            licence="the terms of the account",
        )
        self._client = JsonClient(source, base_url, {"auth-token": key}, limits)

    def read(self, now_s: float) -> AverageIntensity:
        """The newest value.

        Args:
            now_s: time, s since 1970.

        Raises:
            FeedError: when there is none.
        """
        answer = self._ask("/carbon-intensity/latest", self._factor_type, absent=(404,))
        if answer is None:
            raise FeedSilent(f"{self.info.source} has no recent value")
        mix = self._mix(answer) if self._with_mix else None
        value = self._value(answer, now_s, mix)
        if value is None:
            raise FeedSilent(f"{self.info.source} has no value for its newest hour")
        return value

    def history(self, start_s: float, end_s: float) -> tuple[AverageIntensity, ...]:
        """Values of the last 24 hours, in the order of time; the service has no earlier ones here.

        Args:
            start_s: begin of the first hour, s since 1970, at the earliest.
            end_s: end of the last one, at the latest.

        Raises:
            FeedError: when the source does not answer.
        """
        answer = self._ask("/carbon-intensity/history", self._factor_type)
        if answer is None:
            return ()
        listed = answer.find("history") or answer.get("data")  # the second in version 4
        values = [self._value(item, time.time(), None) for item in listed.items()]
        return answers.in_order((value for value in values if value is not None), start_s, end_s)

    def forecast(self, now_s: float) -> Forecast | None:
        """The service's own forecast, without an interval, or None where the plan has none.

        The service forecasts life-cycle emissions, so that a feed of direct ones has none.

        Args:
            now_s: time, s since 1970.

        Raises:
            FeedError: when the source does not answer.
        """
        if self._scope is not Scope.LIFE_CYCLE:
            return None
        for hours in _HORIZONS:
            wanted = {"horizonHours": hours}
            answer = self._ask("/carbon-intensity/forecast", wanted, absent=_NO_ACCESS)
            if answer is not None:
                return self._forecast(answer, now_s)
        _log.info("%s: the plan has no forecast", self.info.source)
        return None

    @property
    def _factor_type(self) -> Mapping[str, str]:
        return {"emissionFactorType": _FACTOR_TYPES[self._scope]}

    def _ask(
        self, path: str, parameters: Mapping[str, str], absent: tuple[int, ...] = ()
    ) -> answers.AnswerPart | None:
        """An answer for this zone by the hour, or None for a status in `absent`."""
        wanted = {"zone": self._zone, "temporalGranularity": "hourly", **parameters}
        value = self._client.get(path, wanted, absent)
        if value is None:
            return None
        answer = answers.AnswerPart(self.info.source, "", value)
        answers.refuse_made_up(answer)
        # For a zone that it does not know the service takes that of the caller's address.
        answer.get("zone").expect(self._zone, "zone")
        granularity = answer.find("temporalGranularity")
        if granularity is not None:
            granularity.expect("hourly", "length of interval")
        return answer

    def _value(
        self, item: answers.AnswerPart, fetched_s: float, mix: Mapping[Fuel, float] | None
    ) -> AverageIntensity | None:
        """The intensity of an hour, or None where the service has no value for it."""
        factor_type = item.find("emissionFactorType")
        if factor_type is not None:
            factor_type.expect(_FACTOR_TYPES[self._scope], "kind of emission factors")
        value, is_estimated = item.find("carbonIntensity"), _is_estimated(item)
        if value is None:
            return None
        return AverageIntensity(
            feed=self.info.name,
            start_s=item.get("datetime").moment_s(),
            interval_s=HOUR_S,
            g_per_kwh=value.number(),
            gas=Gas.CO2E,
            basis=Basis.LOCATION,
            scope=self._scope,
            factors=_FACTORS[self._scope],
            is_estimated=is_estimated,
            fetched_s=fetched_s,
            provenance=provider_provenance(is_estimated),
            mix=mix,
        )

    def _mix(self, answer: answers.AnswerPart) -> Mapping[Fuel, float] | None:
        """The mix of the hour that an answer is for; a fault costs the mix alone."""
        try:
            breakdown = self._ask("/power-breakdown/latest", {})
            if breakdown is None:
                return None
            if breakdown.get("datetime").moment_s() != answer.get("datetime").moment_s():
                raise FeedMalformed(f"{self.info.source} answers with the mix of another hour")
            amounts = [
                (_FUELS.get(name) or answers.fuel_of(name), amount.number())
                for name, amount in breakdown.get("powerConsumptionBreakdown").fields()
            ]
            return answers.shares(self.info.source, amounts)
        except FeedError as error:
            _log.info("no generation mix: %s", error)
            return None

    def _forecast(self, answer: answers.AnswerPart, now_s: float) -> Forecast:
        points = []
        for item in answer.get("forecast").items():
            value = item.find("carbonIntensity")
            start_s = item.get("datetime").moment_s()
            points.append(answers.ForecastPoint(start_s, None if value is None else value.number()))
        updated = answer.find("updatedAt")
        issued_s = now_s if updated is None else updated.moment_s()
        return answers.forecast_of(self.info.source, points, HOUR_S, issued_s, now_s)


def _is_estimated(item: answers.AnswerPart) -> bool | None:
    """Whether an hour is an estimate, by the service's flag or else by the method that it names."""
    flag, method = item.find("isEstimated"), item.find("estimationMethod")
    if flag is None and method is not None and names_estimation(method.text()):
        return True
    return None if flag is None else flag.flag()
