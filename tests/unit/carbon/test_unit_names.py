"""Units of intensities as headers spell them: each form is read, what is unclear is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.carbon.traces.two_columns import unit_of
from ecorl.grid import Gas

GRAMS = {
    **dict.fromkeys(("g", "gram", "grams"), 1.0),
    **dict.fromkeys(("kg", "KG", "kilograms"), 1e3),
    **dict.fromkeys(("t", "tonnes", "metric tons", "Mg"), 1e6),
    **dict.fromkeys(("lb", "lbs", "pounds"), 453.59237),
    "mg": 1e-3,
}
GASES = {
    "": Gas.CO2E,
    **dict.fromkeys(("CO2", "CO₂", "co2", "CO<sub>2</sub>"), Gas.CO2),
    **dict.fromkeys(
        ("CO2e", "CO₂eq", "CO2eq.", "CO2 eq.", "CO₂-eq", "CO2\N{NON-BREAKING HYPHEN}eq."), Gas.CO2E
    ),
    **dict.fromkeys(("CO2-Äq.", "CO2éq", "éq. CO2", "CO2 equivalent", "CO₂-ekv"), Gas.CO2E),
}
KWH = {
    "Wh": 1e-3,
    **dict.fromkeys(("kWh", "KWH", "kW·h", "kWhe", "kilowatt-hour"), 1.0),
    **dict.fromkeys(("MWh", "MW-h", "MWhr", "megawatt hour"), 1e3),
    "GWh": 1e6,
}
PER = ("/", " / ", " per ", "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}", "\N{DIVISION SLASH}")
AROUND = ("{}", "Carbon intensity {}", "intensity ({})", "[{}] mean", "intensity_{}", "{} (direct)")


@given(
    mass=st.sampled_from(sorted(GRAMS)),
    gap=st.sampled_from([" ", "\N{NO-BREAK SPACE}", "-", ""]),
    gas=st.sampled_from(sorted(GASES)),
    is_inverse=st.booleans(),
    per=st.sampled_from(PER),
    energy=st.sampled_from(sorted(KWH)),
    around=st.sampled_from(AROUND),
)
def test_composed_units_are_read(mass, gap, gas, is_inverse, per, energy, around):
    amount = f"{mass}{gap}{gas}" if gas else mass
    unit = f"{amount} {energy}⁻¹" if is_inverse else f"{amount}{per}{energy}"
    found = unit_of(around.format(unit))
    assert found is not None
    assert found.g_per_kwh == pytest.approx(GRAMS[mass] / KWH[energy])
    assert found.gas is GASES[gas]


@pytest.mark.parametrize(
    ("name", "g_per_kwh", "gas"),
    [
        ("gCO₂eq./kWh", 1, Gas.CO2E),
        ("tCO2 eq./MWh", 1000, Gas.CO2E),
        ("intensity g Wh-1", 1000, Gas.CO2E),
        ("g·kWh-1", 1, Gas.CO2E),
        ("carbon_intensity_gco2_kwh", 1, Gas.CO2),
        ("lb/MWh CO2", 0.45359237, Gas.CO2),
        ("g(CO2e)/kWh(e)", 1, Gas.CO2E),
        ("gCO?eq/kWh", 1, Gas.CO2E),
        ("gCO₂eq/kWh".encode().decode("cp1252"), 1, Gas.CO2E),
        ("short tons CO2/MWh", 907.18474, Gas.CO2),
        ("MtCO2/TWh", 1000, Gas.CO2),
        ("CO2 (g/kWh)", 1, Gas.CO2),
        ("taux_co2_g_kwh", 1, Gas.CO2),
        ("CO2-Äq. (g/kWh)", 1, Gas.CO2E),
        ("Carbon dioxide equivalent [kg/MWh]", 1, Gas.CO2E),
        ("g CO2-Äquiv./kWh", 1, Gas.CO2E),
        ("greenhouse gas of NO1, 10 min mean (g/kWh)", 1, Gas.CO2E),
    ],
)
def test_forms_of_exports(name, g_per_kwh, gas):
    found = unit_of(name)
    assert (found.g_per_kwh, found.gas) == (pytest.approx(g_per_kwh), gas)


def test_what_is_unclear_or_of_something_else_is_refused_by_name(snapshot):
    lines = []
    for name in (
        "tons CO2/MWh",
        "mtCO2/MWh",
        "lbs SO2/MWh",
        "NOₓ [g/kWh]",
        "gCO/kWh",
        "gC/kWh",
        "g/GJ",
        "EUR/MWh",
        "PM2.5 (mg/kWh)",
        "Methane g/kWh",
        "water use (kg/kWh)",
        "µg/kWh",
        "100 g/kWh",
        "gCO2/kWh x10",
        "gCO2/kWh(th)",
        "total tCO2",
        "renewable_percentage",
        "share of wind",
        "price €",
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            unit_of(name)
        lines.append(f"{name}: {caught.value}")
    snapshot("\n".join(lines))


@pytest.mark.parametrize("name", ["carbon_intensity", "intensity_avg", "co2", "value"])
def test_names_without_a_unit_have_none(name):
    assert unit_of(name) is None
