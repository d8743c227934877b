"""Files of a time and an intensity, whose unit the header may name; the time may have an end."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

import numpy as np

from ecorl.carbon.traces.stamps import Label, label_of
from ecorl.carbon.traces.table import CsvTable
from ecorl.carbon.traces.trace import Content, Repair, check_unit
from ecorl.grid import Gas, Scope

GRAMS_PER_POUND = 453.59237


@dataclass(frozen=True, slots=True)
class Unit:
    """What a header says of its values.

    Attributes:
        g_per_kwh: what one of the unit is in g/kWh.
        gas: what the grams are of.
    """

    g_per_kwh: float
    gas: Gas


def unit_of(name: str) -> Unit | None:
    """The unit of an intensity that a header names.

    Spellings of all kinds count: gCO₂eq./kWh, kg CO2-eq per MWh, lbs/MWh, t(CO2)·GWh⁻¹.

    Args:
        name: of a column.

    Returns:
        The unit, or None where none is named.

    Raises:
        ValueError: for a unit that is none of an intensity, or that may mean several.
    """
    plain = _plain(name)
    gases = list(_NAMED_GAS.finditer(plain))
    other = None if gases else _OTHER_THING.search(plain)
    if other is not None:
        raise ValueError(f"the values are of {other[0]}, not of CO2")
    found = _KNOWN_ENERGY.search(plain) or _ANY_ENERGY.search(plain)
    if found is None:
        if _OTHER_UNIT.search(plain) or re.search(r"[(\[]", name):
            raise ValueError(_UNKNOWN)
        return None
    if _TIMES.search(plain[: found.start()]) or _AND_MORE.match(plain, found.end()):
        raise ValueError(_UNKNOWN)
    mass = " ".join(re.split(r"[ _-]+", found["mass"]))
    grams = _GRAMS_BY_CASE.get(mass) or _GRAMS.get(mass.lower())
    if grams is None and mass.lower() in _UNCLEAR:
        raise ValueError(f"{mass} may mean {_UNCLEAR[mass.lower()]}; {_ALLOWED}")
    kwh = _KWH.get(re.sub(r"[^a-z]", "", found["energy"].lower()))
    if grams is None or kwh is None:
        raise ValueError(_UNKNOWN)
    # Who writes no gas, or an equivalent of it, means all of them.
    is_co2 = gases and not any(gas["before"] or gas["equivalent"] for gas in gases)
    return Unit(grams / kwh, Gas.CO2 if is_co2 else Gas.CO2E)


_ALLOWED = "allowed are g, kg, t and lb, of CO2 or CO2e, per Wh, kWh, MWh and GWh"
_UNKNOWN = f"the unit is not known; {_ALLOWED}"

_GRAMS = {
    **dict.fromkeys(("g", "gram", "grams", "gramme", "grammes", "gramm"), 1.0),
    **dict.fromkeys(("kg", "kgs", "kilogram", "kilograms", "kilogramme", "kilogrammes"), 1e3),
    **dict.fromkeys(("t", "tonne", "tonnes", "tonnen"), 1e6),
    **dict.fromkeys(("metric ton", "metric tons", "metric tonne", "metric tonnes"), 1e6),
    **dict.fromkeys(("kt", "kilotonnes"), 1e9),
    **dict.fromkeys(("lb", "lbs", "pound", "pounds"), GRAMS_PER_POUND),
    **dict.fromkeys(("short ton", "short tons"), 2000 * GRAMS_PER_POUND),
}
_GRAMS_BY_CASE = {"mg": 1e-3, "Mg": 1e6, "Mt": 1e12}
_UNCLEAR = {
    "ton": "a metric, a short or a long ton",
    "tons": "metric, short or long tons",
    "mt": "metric tons or megatonnes",
}
_KWH = {
    prefix + watt_hour: kwh
    for names, watt_hours in (
        (("", "k", "m", "g", "t"), ("wh", "whr", "whe", "whel")),
        (("", "kilo", "mega", "giga", "tera"), ("watthour", "watthours")),
    )
    for prefix, kwh in zip(names, (1e-3, 1.0, 1e3, 1e6, 1e9), strict=True)
    for watt_hour in watt_hours
}

_MASS = r"(?<![^\W_])(?P<mass>(?:(?:metric|short)[ _-]+)?[a-z]+?)"
# Programs that read UTF-8 as something else spoil the small 2.
_GAS = (
    r"(?P<before>eq[ .-]*)?(?:co[ _]?[2?\ufffd]|carbon[ _]dioxide)"
    r"(?:[ _-]*(?P<equivalent>e|(?:e|ae?)q[a-z]*|[eæ]kv)\.?(?![a-z]))?"
)
_NAMED_GAS = re.compile(_GAS, re.IGNORECASE)
_OF = rf"(?:[ _.*-]*(?:(?:of|de) )?{_GAS})?"
_WATT_HOURS = r"(?P<energy>[kmgt]?w[ .*-]?h(?:r|[ _-]?el?)?|[a-z]*watt[ _-]?hours?)(?![a-z])"
_PER = r"(?:[ _]*/[ _]*|[ _]+(?:per|pro|par|por)[ _]+)"
# An amount, perhaps what it is of, and an energy: g_per_kwh, gCO2eq/kWh, kg CO2 MWh^-1.
_KNOWN_ENERGY = re.compile(
    rf"{_MASS}{_OF}(?:{_PER}|_|(?P<inverse>[ .*]+)){_WATT_HOURS}(?(inverse) ?\^?-1)", re.IGNORECASE
)
_ANY_ENERGY = re.compile(rf"{_MASS}{_OF}{_PER}(?P<energy>[a-z]+)", re.IGNORECASE)
# Multiples of a unit, and energy that is not electric: 100 g/kWh, gCO2/kWh*1000, gCO2/kWh(th).
_TIMES = re.compile(r"(?<![^ *x])10+\^?[36]?[ *]*$", re.IGNORECASE)
_AND_MORE = re.compile(r" ?[*x/] ?\d|[ _-]*(?:th|thermal|heat|fuel)(?![a-z])", re.IGNORECASE)
_OTHER_UNIT = re.compile(
    r"[%€$£]|(?<![a-z])(?:[kmgt]?wh?|eur|usd|price|percent(?:age)?|share|(?:t|kg|lbs?)[ _-]?co2\w*)"
    r"(?![a-z])",
    re.IGNORECASE,
)
_OTHER_THING = re.compile(
    r"(?<![a-z])(?:[ns]ox|so2|n2o|ch4|sf6|co|methane|n?m?vocs?|pm ?[0-9.]+|particulates?|dust|hg"
    r"|mercury|ash|waste|water|steam|coal|fuel(?![ _-]*mix))(?![a-z0-9])",
    re.IGNORECASE,
)

_SPOILT_2 = "₂".encode().decode("cp1252")
_PLAIN = str.maketrans(
    dict.fromkeys("\u2010\u2012\u2013\u2014\u2212", "-")
    | dict.fromkeys("·⋅•∙\N{MULTIPLICATION SIGN}", "*")
    | dict.fromkeys("\N{DIVISION SLASH}÷", "/")
    | dict.fromkeys("()[]{}", " ")
)


def _plain(name: str) -> str:
    """A name without brackets, marks and special forms of letters, digits and blanks."""
    name = re.sub(r"</?su[bp]>", "", name.replace(_SPOILT_2, "2"), flags=re.IGNORECASE)
    parts = unicodedata.normalize("NFKD", name)
    letters = "".join(part for part in parts if not unicodedata.combining(part))
    return " ".join(letters.translate(_PLAIN).split())


UNNAMED = ("time", "value")
"""What the columns of a file without a header are called."""

_ESTIMATED = re.compile(r"estimate", re.IGNORECASE)
_MARGINAL = re.compile(r"marginal|moer|[ls]rmer", re.IGNORECASE)


_SHORTEST_TIME = len("20220131")


def times_of(table: CsvTable) -> tuple[int, int | None] | None:
    """Numbers of the columns with the times, and with their ends, before that of the intensity.

    Args:
        table: a file.

    Returns:
        The numbers, the second None in a file of two columns; None for files of another form.
    """
    if len(table.columns) == len(UNNAMED):
        return 0, None
    if len(table.columns) != len(UNNAMED) + 1:
        return None
    names = table.columns[:2]
    ends = [n for n in (0, 1) if label_of(names[n], is_paired=True) is Label.END]
    # A name as short as "a" may be chance.
    are_times = all(len(cell.strip()) >= _SHORTEST_TIME for cell in table.rows[0][:2])
    return (1 - ends[0], ends[0]) if len(ends) == 1 and are_times else None


def read_two_columns(
    table: CsvTable, scope: Scope | None, times: tuple[int, int | None]
) -> Content:
    """The intensity of a file in this form, in its last column.

    Args:
        table: the file.
        scope: what the caller knows of the figures; None takes them for the life cycle's.
        times: numbers of the columns with the times and with their ends.

    Raises:
        DataError: for a unit that is not known, for marginal intensities, and for figures that are
            none.
    """
    value = len(table.columns) - 1
    name = table.columns[value]
    if _MARGINAL.search(name):
        raise table.header_mistake(
            value, "a recording is of average intensities, not marginal ones"
        )
    try:
        unit = unit_of(name)
    except ValueError as error:
        raise table.header_mistake(value, str(error)) from error
    g_per_kwh = table.numbers(value) * (1.0 if unit is None else unit.g_per_kwh)
    scope = scope or Scope.LIFE_CYCLE
    check_unit(table, value, g_per_kwh, scope, is_named=unit is not None)
    repairs = []
    if unit is None:
        what = "no unit is named, and the values were taken as gCO2e/kWh"
        repairs.append(Repair(table.lines[0], name, what))
    return Content(
        time=times[0],
        value=value,
        value_name=name,
        g_per_kwh=g_per_kwh,
        figures=((value, g_per_kwh),),
        scope=scope,
        gas=Gas.CO2E if unit is None else unit.gas,
        factors=f"not stated in {table.path.name}",
        estimated=np.ones(len(g_per_kwh), np.bool_) if _ESTIMATED.search(name) else None,
        repairs=tuple(repairs),
        end=times[1],
    )
