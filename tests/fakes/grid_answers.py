"""Answers of grid services in their documented form, with made-up values, for tests.

Bodies follow the providers' public documentation. Where their services are known to answer
otherwise than documented, tests have both forms.
"""

from __future__ import annotations

import copy

from hypothesis import strategies as st

NOON_S = 1_768_478_400.0  # 2026-01-15T12:00Z
NOW_S = NOON_S + 600.0

# UK Carbon Intensity


def half_hour(clock, forecast=266, actual=263, day="2026-01-15", until=None):
    hour, minute = map(int, clock.split(":"))
    end = until or f"{hour + (minute == 30):02}:{30 - minute:02}"
    value = {"forecast": forecast, "actual": actual, "index": "moderate"}
    return {"from": f"{day}T{clock}Z", "to": f"{day}T{end}Z", "intensity": value}


MIX = [
    {"fuel": "gas", "perc": 43.6},
    {"fuel": "coal", "perc": 0.7},
    {"fuel": "biomass", "perc": 4.2},
    {"fuel": "nuclear", "perc": 17.6},
    {"fuel": "hydro", "perc": 1.9},
    {"fuel": "imports", "perc": 6.5},
    {"fuel": "other", "perc": 0.3},
    {"fuel": "wind", "perc": 6.8},
    {"fuel": "solar", "perc": 18.4},
]


def mixed(clock, mix=MIX):
    period = half_hour(clock)
    return {"from": period["from"], "to": period["to"], "generationmix": mix}


def regional(*clocks, region=13, **more):
    periods = []
    for clock in clocks:
        period = half_hour(clock) | {"generationmix": MIX}
        del period["intensity"]["actual"]
        periods.append(period)
    names = {"regionid": region, "dnoregion": "UKPN London", "shortname": "London"}
    return names | more | {"data": periods}


# Electricity Maps


def hour(clock="12:00", value=302, **more):
    return {
        "zone": "DE",
        "carbonIntensity": value,
        "datetime": f"2026-01-15T{clock}:00.000Z",
        "updatedAt": "2026-01-15T11:48:02.892Z",
        "createdAt": "2026-01-12T12:47:01.319Z",
        "emissionFactorType": "lifecycle",
        "isEstimated": True,
        "estimationMethod": "TIME_SLICER_AVERAGE",
        "temporalGranularity": "hourly",
    } | more


def without(body, *names):
    return {name: value for name, value in body.items() if name not in names}


BREAKDOWN = {
    "zone": "DE",
    "datetime": "2026-01-15T12:00:00.000Z",
    "powerConsumptionBreakdown": {
        "nuclear": None, "geothermal": 10, "biomass": 90, "coal": 300, "wind": 250, "solar": 0,
        "hydro": 50, "gas": 200, "oil": 20, "unknown": 30, "hydro discharge": 45,
        "battery discharge": 5,
    },
    "powerProductionBreakdown": {"nuclear": None, "coal": 900},
    "fossilFreePercentage": 45,
    "renewablePercentage": 40,
    "isEstimated": True,
}  # fmt: skip

FORECAST = {
    "zone": "DE",
    "forecast": [
        {"carbonIntensity": 310, "datetime": "2026-01-15T13:00:00.000Z"},
        {"carbonIntensity": 300, "datetime": "2026-01-15T12:00:00.000Z"},
        {"carbonIntensity": 290, "datetime": "2026-01-15T11:00:00.000Z"},
        {"carbonIntensity": None, "datetime": "2026-01-15T14:00:00.000Z"},
        {"carbonIntensity": 330, "datetime": "2026-01-15T15:00:00.000Z"},
    ],
    "updatedAt": "2026-01-15T11:48:02.000Z",
}

# WattTime


def marginal(*points, **meta):
    """An answer of WattTime; points are clock and value."""
    return {
        "data": [
            {"point_time": f"2026-01-15T{clock}:00+00:00", "value": value, **more}
            for clock, value, more in ((*p, {})[:3] for p in points)
        ],
        "meta": {
            "data_point_period_seconds": 300,
            "region": "CAISO_NORTH",
            "signal_type": "co2_moer",
            "units": "lbs_co2_per_mwh",
            "model": {"date": "2023-03-01", "type": "binned_regression"},
            "generated_at_period_seconds": 300,
            "generated_at": "2026-01-15T12:10:00+00:00",
            "warnings": [{"type": "EXAMPLE_WARNING", "message": "an example"}],
        }
        | meta,
    }


# Any answer

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["2026-01-15T12:00Z", "DE", "lifecycle", "gas", "13", "co2_moer"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def places(body, path=()):
    """Paths to all parts of a JSON value."""
    yield path
    if isinstance(body, dict | list):
        for name, part in body.items() if isinstance(body, dict) else enumerate(body):
            yield from places(part, (*path, name))


@st.composite
def damaged(draw, body):
    """The body with one of its parts replaced by any value, or left out."""
    path = draw(st.sampled_from(list(places(body))))
    if not path:
        return draw(VALUES)
    body = copy.deepcopy(body)
    inner = body
    for name in path[:-1]:
        inner = inner[name]
    if draw(st.booleans()):
        inner[path[-1]] = draw(VALUES)
    else:
        del inner[path[-1]]
    return body
