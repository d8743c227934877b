"""UK Carbon Intensity: Great Britain and its regions, by the National Energy System Operator.

Its methodology: grams of CO2 a kilowatt-hour consumed, of the generation of electricity alone,
with imports over the interconnectors and the losses of transmission and distribution; each fuel has
one factor (the service's ``/intensity/factors``), an import that of the country it comes from.
National values are forecast, and estimated anew from metered generation after their half hour
(``actual``); regional ones are modelled, and only ever forecast.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterator, Mapping

from ecorl.carbon.feeds import answers
from ecorl.carbon.feeds.http import DEFAULT_LIMITS, HttpLimits, JsonClient
from ecorl.carbon.feeds.protocol import FeedInfo
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.errors import ConfigError, FeedError, FeedMalformed, FeedSilent
from ecorl.grid import AverageIntensity, Basis, Fuel, Gas, Scope, provider_provenance

_log = logging.getLogger(__name__)

PUBLIC_URL = "https://api.carbonintensity.org.uk"
HALF_HOUR_S = 1800.0
FACTORS = "NESO factors by fuel and by country of import"

_OUTWARD = re.compile(r"[A-Z]{1,2}[0-9][A-Z0-9]?")
_LONGEST_S = 13 * 86400.0  # the source answers for 14 days at most
_SUM = (90.0, 110.0)  # percentages are rounded, and together about 100

_Mix = Mapping[Fuel, float]


class UkCarbonIntensityFeed:
    """The average intensity of Great Britain or of one of its regions, each half hour.

    Args:
        region: None for the whole of Great Britain, a region's number from 1 to 17, or the outward
            half of a postcode, e.g. ``RG10``.
        with_mix: whether the national feed asks for the generation mix too, which takes a request
            of its own. Regional answers bring theirs.
        base_url: address of the service.
        limits: how long and how large its answers may be.

    Raises:
        ConfigError: when there is no such region.
        MissingToolError: without the package requests.
    """

    def __init__(
        self,
        region: int | str | None = None,
        *,
        with_mix: bool = True,
        base_url: str = PUBLIC_URL,
        limits: HttpLimits = DEFAULT_LIMITS,
    ) -> None:
        self._region, self._with_mix = _checked(region), with_mix
        place = "Great Britain" if region is None else f"region {self._region}"
        source = f"UK Carbon Intensity, {place}"
        self.info = FeedInfo(
            name="uk_carbon_intensity",
            source=source,
            interval_s=HALF_HOUR_S,
            licence="CC BY 4.0",
        )
        self._client = JsonClient(source, base_url, limits=limits)

    def read(self, now_s: float) -> AverageIntensity:
        """The value of the current half hour.

        Args:
            now_s: time, s since 1970.

        Raises:
            FeedError: when there is none.
        """
        periods = self._periods(
            "/intensity" if self._region is None else self._prefix + self._suffix
        )
        mixes = self._mixes("/generation") if periods else {}
        found = [value for value in self._values(periods, mixes, now_s) if value is not None]
        if not found:
            raise FeedSilent(f"{self.info.source} has no value for the current half hour")
        return max(found, key=lambda value: value.start_s)

    def history(self, start_s: float, end_s: float) -> tuple[AverageIntensity, ...]:
        """Values of earlier half hours, in the order of time; what is missing is left out.

        Args:
            start_s: begin of the first half hour, s since 1970, at the earliest.
            end_s: end of the last one, at the latest.

        Raises:
            FeedError: when the source does not answer.
        """
        found: list[AverageIntensity] = []
        now_s = time.time()
        from_s = math.ceil(start_s / HALF_HOUR_S) * HALF_HOUR_S
        while from_s + HALF_HOUR_S <= end_s:
            until_s = min(end_s, from_s + _LONGEST_S)
            span = f"/{_moment(from_s)}/{_moment(until_s)}"
            periods = self._periods(f"{self._prefix}/intensity{span}{self._suffix}")
            values = self._values(periods, self._mixes(f"/generation{span}"), now_s)
            # The source adds the half hour that ends where the range begins.
            found += answers.in_order((v for v in values if v is not None), from_s, until_s)
            from_s = until_s
        return tuple(found)

    def forecast(self, now_s: float) -> Forecast | None:
        """The service's own forecast of the next 48 hours, without an interval.

        Args:
            now_s: time, s since 1970; it stands for when the forecast was made, which the service
                does not say.

        Raises:
            FeedError: when the source does not answer.
        """
        periods = self._periods(f"{self._prefix}/intensity/{_moment(now_s)}/fw48h{self._suffix}")
        points = []
        for period in periods:
            value = period.get("intensity").find("forecast")
            start_s = _start_s(period)
            points.append(answers.ForecastPoint(start_s, None if value is None else value.number()))
        return answers.forecast_of(self.info.source, points, HALF_HOUR_S, now_s, now_s)

    @property
    def _prefix(self) -> str:
        return "" if self._region is None else "/regional"

    @property
    def _suffix(self) -> str:
        if self._region is None:
            return ""
        kind = "regionid" if isinstance(self._region, int) else "postcode"
        return f"/{kind}/{self._region}"

    def _ask(self, path: str) -> answers.AnswerPart:
        answer = answers.AnswerPart(self.info.source, "", self._client.get(path))
        answers.refuse_made_up(answer)
        return answer.get("data")

    def _periods(self, path: str) -> list[answers.AnswerPart]:
        """The half hours of an answer, each with its intensity."""
        answer = self._ask(path)
        if self._region is None:
            return answer.items()
        # The documentation has a list with the one region; ranges of time come without the list.
        regions = answer.items() if isinstance(answer.value, list) else [answer]
        if not regions:
            return []
        region = regions[0]
        if isinstance(self._region, int):
            if region.get("regionid").number() != self._region:
                raise FeedMalformed(f"{self.info.source} answers for another region")
        elif (postcode := region.find("postcode")) is not None:
            postcode.expect(self._region, "postcode")
        return region.get("data").items()

    def _values(
        self, periods: list[answers.AnswerPart], mixes: Mapping[float, _Mix], now_s: float
    ) -> Iterator[AverageIntensity | None]:
        for period in periods:
            intensity = period.get("intensity")
            actual, forecast = intensity.find("actual"), intensity.find("forecast")
            value = forecast if actual is None else actual
            if value is None:
                yield None
                continue
            start_s = _start_s(period)
            mix = mixes.get(start_s)
            if self._region is not None:
                mix = self._mix(period)
            yield AverageIntensity(
                feed=self.info.name,
                start_s=start_s,
                interval_s=HALF_HOUR_S,
                g_per_kwh=value.number(),
                gas=Gas.CO2,
                basis=Basis.LOCATION,
                scope=Scope.DIRECT,
                factors=FACTORS,
                # What it calls actual is, by its own words, an estimate from metered generation.
                is_estimated=True,
                fetched_s=now_s,
                provenance=provider_provenance(is_estimated=True),
                mix=mix,
            )

    def _mixes(self, path: str) -> dict[float, _Mix]:
        """The national mix of each half hour that an answer has; a fault costs the mix alone."""
        if self._region is not None or not self._with_mix:
            return {}
        try:
            answer = self._ask(path)
            # The current half hour comes without the list that the documentation shows.
            periods = answer.items() if isinstance(answer.value, list) else [answer]
            found = {_start_s(period): self._mix(period) for period in periods}
        except FeedError as error:
            _log.info("no generation mix: %s", error)
            return {}
        return {start_s: mix for start_s, mix in found.items() if mix is not None}

    def _mix(self, period: answers.AnswerPart) -> _Mix | None:
        listed = period.find("generationmix")
        if listed is None:
            return None
        try:
            percent = [
                (answers.fuel_of(item.get("fuel").text()), item.get("perc").number())
                for item in listed.items()
            ]
            if percent and not _SUM[0] <= sum(amount for _, amount in percent) <= _SUM[1]:
                raise FeedMalformed(f"{self.info.source} answers with a mix that is not whole")
            return answers.shares(self.info.source, percent)
        except FeedError as error:
            _log.info("no generation mix: %s", error)
            return None


def _checked(region: int | str | None) -> int | str | None:
    if region is None or (type(region) is int and 1 <= region <= 17):
        return region
    if isinstance(region, str):
        if region.isascii() and region.isdecimal():
            return _checked(int(region[:4]))
        if _OUTWARD.fullmatch(region.upper()):
            return region.upper()
    allowed = "a region's number from 1 to 17, or the outward half of a postcode such as RG10"
    raise ConfigError("region", region, allowed)


def _moment(moment_s: float) -> str:
    return answers.utc(moment_s).strftime("%Y-%m-%dT%H:%MZ")


def _start_s(period: answers.AnswerPart) -> float:
    """Begin of a half hour, after a check that it is one."""
    start_s = period.get("from").moment_s()
    if period.get("to").moment_s() - start_s != HALF_HOUR_S:
        raise FeedMalformed(f"{period.source} answers with {period.where} that is no half hour")
    return start_s
