"""``[carbon]``: feeds of the grid's intensity, waiting for a clean window, controllers."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, StrictBool, StrictFloat, StrictInt, model_validator

from ecorl.config.base import Model, PresetPath, SomePath, Text
from ecorl.config.mistakes import RefusedValue

ControllerName = Literal[
    "stochastic",
    "receding",
    "width-fixed",
    "gear-fixed",
    "carbonscaler",
    "carbonscaler-fp8",
    "dual",
    "dual-printed",
    "soft-q",
    "soft-q-printed",
    "carl",
    "suspend",
    "spot",
    "race",
    "fcfs",
    "static",
]
"""Names of the controllers that keep a hard deadline."""


class ControlConfig(Model):
    """Who decides when the training stage runs, how wide and in which gear.

    With a controller there is a hard deadline: the run pauses in dirty hours for as long as the
    steps that are left can still be made in time, and then goes on whatever the grid does. Gears of
    ``[gears]`` and widths of ``trainer.widths`` are chosen too, by ``table`` or by the run's own
    steps. Other keys are for plans and simulations alone (``ecorl carbon plan``, ``simulate``).
    """

    controller: ControllerName | None = Field(
        None,
        description="who decides; stochastic is what plans take; not set: the threshold of "
        "[carbon], if there is one",
    )
    deadline: AwareDatetime | None = Field(
        None, description="date and time by which training has to be over; a promise that is kept"
    )
    deadline_in_s: StrictFloat | None = Field(
        None, gt=0, le=315_360_000, description="the same as a time after the start of the run"
    )
    slack: Annotated[StrictFloat, Field(ge=1, le=1000)] | None = Field(
        None,
        description="the same as a factor: how many times the time that the run would take "
        "without a pause",
    )
    reserve: Annotated[StrictFloat, Field(ge=0, le=1)] = Field(
        0.05,
        description="time that is kept free before the deadline, as a share of the time that the "
        "steps left will take",
    )
    late_g_per_h: StrictFloat = Field(
        0.0, ge=0, le=1e12, description="what an hour after carbon.soft_deadline counts as"
    )
    seed: StrictInt = Field(
        0, ge=0, le=2**32 - 1, description="seed of controllers that draw at random"
    )
    spot_prices: SomePath | None = Field(
        None, description="CSV of time and price of a worker, for the controller spot"
    )
    tokens: Annotated[StrictFloat, Field(gt=0, le=1e18)] | None = Field(
        None, description="number of tokens to train; for plans and simulations alone"
    )
    table: PresetPath | None = Field(
        None,
        description="TOML of power and throughput by width and gear, from `ecorl carbon profile`; "
        "not set: the run times each gear first; {presets} is the folder of the presets",
    )
    low_share: StrictFloat = Field(
        1.0, ge=0, le=1, description="largest share of the tokens that are trained on in FP8"
    )
    base_w: Annotated[StrictFloat, Field(ge=0, le=1e9)] = Field(
        0.0, description="power that is drawn for as long as the machines are kept; for plans alone"
    )
    idle_w: Annotated[StrictFloat, Field(ge=0, le=1e6)] = Field(
        0.0, description="power of each kept worker that does not train; for plans alone"
    )
    kept: Literal["deadline", "done"] = Field(
        "deadline",
        description="until when machines are kept: the deadline, or done with the last token; for "
        "plans alone",
    )
    width_change_s: StrictFloat = Field(
        0.0, ge=0, le=86_400, description="time without training when the width changes"
    )
    gear_change_s: StrictFloat = Field(
        0.0, ge=0, le=86_400, description="time without training when the gear alone changes"
    )
    epoch_s: StrictFloat = Field(
        300.0, ge=1, le=86_400, description="time between two decisions; for plans alone"
    )

    @model_validator(mode="after")
    def _keys_agree(self) -> ControlConfig:
        given = {
            "deadline": self.deadline,
            "deadline_in_s": self.deadline_in_s,
            "slack": self.slack,
        }
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            allowed = f"nothing beside carbon.control.{named[0]}, or the other way round"
            raise RefusedValue(named[1], given[named[1]], allowed)
        if self.controller and not named:
            allowed = "a controller together with 'deadline', 'deadline_in_s' or 'slack'"
            raise RefusedValue("controller", self.controller, allowed)
        if self.controller == "spot" and self.spot_prices is None:
            raise RefusedValue("spot_prices", None, "a CSV of time and price, for 'spot'")
        return self


FeedName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
"""The name of a feed in the record."""


class ConstantFeedConfig(Model):
    """One stated figure, the same at any time."""

    type: Literal["constant"] = "constant"
    name: FeedName = Field("constant", description="name of this feed in the record")
    g_per_kwh: StrictFloat = Field(gt=0, le=3000, description="carbon intensity")
    source: Text = Field(description="where the figure comes from")
    scope: Literal["life_cycle", "direct"] = Field(
        "life_cycle",
        description="which emissions of a power station count: those of its whole life cycle, or "
        "those of its chimney alone (direct)",
    )
    basis: Literal["location", "market"] = Field(
        "location",
        description="what the figure speaks of: the grid of the location, or what was bought by "
        "contract (market)",
    )


class SyntheticFeedConfig(Model):
    """A made-up day, lowest at 03:00 and highest at 18:00; of no grid, and labelled as modelled."""

    type: Literal["synthetic"] = "synthetic"
    name: FeedName = Field("synthetic", description="name of this feed in the record")
    low_g_per_kwh: StrictFloat = Field(
        200.0, gt=0, le=3000, description="carbon intensity at 03:00"
    )
    high_g_per_kwh: StrictFloat = Field(
        450.0, gt=0, le=3000, description="carbon intensity at 18:00"
    )
    utc_offset_h: StrictFloat = Field(0.0, ge=-14, le=14, description="local time minus UTC")
    speed: Annotated[StrictFloat, Field(gt=0, le=1e6)] = Field(
        1.0, description="how fast the day passes, a factor: seconds of it in a real second"
    )

    @model_validator(mode="after")
    def _low_is_low(self) -> SyntheticFeedConfig:
        if self.low_g_per_kwh > self.high_g_per_kwh:
            allowed = f"at most high_g_per_kwh = {self.high_g_per_kwh:g}"
            raise RefusedValue("low_g_per_kwh", self.low_g_per_kwh, allowed)
        return self


class ReplayFeedConfig(Model):
    """A recorded trace, played as if it happened now."""

    type: Literal["replay"] = "replay"
    name: FeedName = Field("replay", description="name of this feed in the record")
    path: PresetPath = Field(
        description="recording: CSV of EIA-930, an export of Electricity Maps, or time and "
        "intensity; {presets} is the folder of the presets"
    )
    source: Text | None = Field(None, description="what the recording is of, where it does not say")
    starts_at: AwareDatetime | None = Field(
        None,
        description="date and time in the recording at which the run starts; not set: its first",
    )
    speed: Annotated[StrictFloat, Field(gt=0, le=1e6)] = Field(
        1.0, description="how fast it is played, a factor: seconds of it in a real second"
    )
    delay_s: StrictFloat = Field(
        0.0, ge=0, le=864_000, description="how late each value becomes known, in time of the run"
    )
    scope: Literal["life_cycle", "direct"] | None = Field(
        None,
        description="which emissions of a power station are taken, where the file has both or "
        "does not say: life_cycle or direct (its chimney alone)",
    )


class UkFeedConfig(Model):
    """UK Carbon Intensity: Great Britain or a region of it, half-hourly, without a key."""

    type: Literal["uk"] = "uk"
    name: FeedName = Field("uk_carbon_intensity", description="name of this feed in the record")
    region: Text | None = Field(
        None,
        description='number of a region, "1" to "17", or the first half of a postcode; not set: '
        "all of Great Britain",
    )
    base_url: Text | None = Field(None, description="another address (URL) of the service")


class ElectricityMapsFeedConfig(Model):
    """Electricity Maps: the average intensity of a zone, hourly."""

    type: Literal["electricity_maps"] = "electricity_maps"
    name: FeedName = Field("electricity_maps", description="name of this feed in the record")
    zone: Text = Field(description="zone as the service names it, e.g. DE")
    scope: Literal["life_cycle", "direct"] = Field(
        "life_cycle",
        description="which emissions of a power station count: those of its whole life cycle, or "
        "those of its chimney alone (direct)",
    )
    with_mix: StrictBool = Field(False, description="ask for the mix of power stations as well")
    key_file: SomePath | None = Field(
        None,
        description="file whose first line is the key of the service; not set: the environment "
        "variable ELECTRICITY_MAPS_TOKEN holds it",
    )
    base_url: Text | None = Field(None, description="another address (URL) of the service")


class WattTimeFeedConfig(Model):
    """WattTime: the marginal intensity of a region, every five minutes."""

    type: Literal["watttime"] = "watttime"
    name: FeedName = Field("watttime", description="name of this feed in the record")
    region: Text = Field(description="region as the service names it, e.g. CAISO_NORTH")
    user: Text | None = Field(
        None,
        description="name of the account; not set: the environment variable WATTTIME_USER holds it",
    )
    key_file: SomePath | None = Field(
        None,
        description="file whose first line is the password; not set: the environment variable "
        "WATTTIME_PASSWORD holds it",
    )
    base_url: Text | None = Field(None, description="another address (URL) of the service")


FeedConfig = Annotated[
    ConstantFeedConfig
    | SyntheticFeedConfig
    | ReplayFeedConfig
    | UkFeedConfig
    | ElectricityMapsFeedConfig
    | WattTimeFeedConfig,
    Field(discriminator="type"),
]
"""A feed of intensities, chosen by ``type``."""


class CarbonConfig(Model):
    """Where the carbon intensity of the grid is asked for, and waiting for clean hours.

    The feeds are asked in their order until one has a value that is fresh and can be believed;
    average and marginal feeds are two lists of their own. Without a feed of averages the constant
    ``accounting.intensity_g_per_kwh`` counts. Nothing is waited for unless a threshold is set.
    """

    feeds: tuple[FeedConfig, ...] = Field(
        (), description="who is asked for the intensity, in this order"
    )
    recheck_s: StrictFloat = Field(
        300.0, ge=0.1, le=86_400, description="time between two questions to the feeds"
    )
    stale_after_s: Annotated[StrictFloat, Field(ge=0, le=864_000)] = Field(
        3600.0, description="how long a value still counts after the interval that it speaks of"
    )
    waits_for: Literal["average", "marginal"] = Field(
        "average",
        description="which intensity the threshold is compared with: the mean of the grid, or "
        "that of the power station that follows demand (marginal; needs a watttime feed)",
    )
    threshold_g_per_kwh: Annotated[StrictFloat, Field(gt=0, le=3000)] | None = Field(
        None,
        description="training runs while the intensity is at or below this; not set: it never "
        "waits",
    )
    threshold_percentile: Annotated[StrictFloat, Field(ge=0, le=100)] | None = Field(
        None,
        description="the same as a percentile (in percent) of the forecast for the coming "
        "horizon_s",
    )
    horizon_s: StrictFloat = Field(
        86_400.0, ge=60, le=345_600, description="how far ahead threshold_percentile looks"
    )
    max_wait_s: Annotated[StrictFloat, Field(ge=0, le=31_536_000)] = Field(
        43_200.0, description="longest wait of the whole run, all pauses together"
    )
    soft_deadline: AwareDatetime | None = Field(
        None, description="date and time by which training should be over; the wait is cut for it"
    )
    pause: Literal["start", "steps"] = Field(
        "start",
        description="when it may wait: before the first step alone (start), or before any step",
    )
    control: ControlConfig = Field(
        ControlConfig(), description="a controller that decides in place of a threshold"
    )

    @property
    def waits(self) -> bool:
        """Whether a threshold ever asks the training stage to wait."""
        return self.threshold_g_per_kwh is not None or self.threshold_percentile is not None

    @model_validator(mode="after")
    def _keys_agree(self) -> CarbonConfig:
        counts = Counter(feed.name for feed in self.feeds)
        for number, feed in enumerate(self.feeds):
            if counts[feed.name] > 1:
                allowed = "a name that no other feed has"
                raise RefusedValue(("feeds", number, "name"), feed.name, allowed)
        fixed, relative = self.threshold_g_per_kwh, self.threshold_percentile
        if fixed is not None and relative is not None:
            allowed = "nothing beside carbon.threshold_percentile, or the other way round"
            raise RefusedValue("threshold_g_per_kwh", fixed, allowed)
        if self.control.controller is not None and self.waits:
            allowed = "no controller beside carbon.threshold_..., or no threshold"
            raise RefusedValue(("control", "controller"), self.control.controller, allowed)
        is_fed = any(isinstance(feed, WattTimeFeedConfig) for feed in self.feeds)
        if self.waits_for == "marginal" and not is_fed:
            allowed = "'average': no feed of marginal intensities is configured"
            raise RefusedValue("waits_for", self.waits_for, allowed)
        return self
