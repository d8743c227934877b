"""XRT: the electrical report and the card list, on stand-ins for pyxrt."""

import json
import sys
from types import SimpleNamespace

import pytest

from ecorl import errors
from ecorl.drivers.xrt.power import XrtDriver, parse_electrical


def rail(name, volts, amps, **extra):
    present = {"voltage": str(volts != "0.000").lower(), "current": str(amps != "0.000").lower()}
    return {
        "id": name,
        "description": name,
        "voltage": {"volts": volts, "is_present": present["voltage"], **extra},
        "current": {"amps": amps, "is_present": present["current"]},
    }


PEX, AUX, V3 = (
    rail("12v_pex", "12.105", "1.500"),
    rail("12v_aux", "12.200", "0.500"),
    rail("3v3_pex", "3.300", "0.100"),
)
RAILS_W = 12.105 * 1.5 + 12.2 * 0.5 + 3.3 * 0.1


def report(watts="N/A", rails=(PEX, AUX, V3)):
    return json.dumps({"power_consumption_watts": watts, "power_rails": list(rails)})


def test_the_stated_figure_comes_first():
    assert parse_electrical(report("21.406")) == 21.406


@pytest.mark.parametrize("watts", ["N/A", "NA", "", None, "0.000000", 0])
def test_rails_where_there_is_no_figure(watts):
    assert parse_electrical(report(watts)) == pytest.approx(RAILS_W)


def test_other_rails_are_not_added():
    derived = rail("vccint", "0.850", "10.000")
    assert parse_electrical(report(rails=(PEX, AUX, V3, derived))) == pytest.approx(RAILS_W)


def test_an_unused_connector_adds_nothing():
    unused = rail("12v_aux", "0.000", "0.000")
    wanted = 12.105 * 1.5 + 3.3 * 0.1
    assert parse_electrical(report(rails=(PEX, unused, V3))) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "rails",
    [
        (AUX, V3),
        (PEX, AUX),
        (PEX, V3),
        (),
        (rail("12v_pex", "0.000", "0.000"), AUX, V3),
        (PEX, rail("12v_aux", "0.000", "0.000", error_msg="cannot read"), V3),
        (PEX, rail("12v_aux", "N/A", "0.500"), V3),
        (PEX, {"id": "12v_aux"}, V3),
    ],
)
def test_missing_rails_make_the_power_missing(rails):
    assert parse_electrical(report(rails=rails)) is None


def test_a_report_without_power():
    assert parse_electrical("{}") is None
    assert parse_electrical('{"power_consumption_watts": "N/A"}') is None
    # Boost's writer puts an empty list as an empty string.
    assert parse_electrical('{"power_consumption_watts": "", "power_rails": ""}') is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "21.4",
        '{"power_consumption_watts": "many"}',
        '{"power_consumption_watts": "-5"}',
        '{"power_consumption_watts": "inf"}',
        '{"power_consumption_watts": true}',
        '{"power_rails": 3}',
        '{"power_rails": [1]}',
    ],
)
def test_malformed_reports(text):
    with pytest.raises(errors.DriverError):
        parse_electrical(text)


@pytest.mark.parametrize(
    "text",
    [report("1000.1"), report("4294967"), report(rails=(rail("12v_pex", "12", "90"), AUX, V3))],
)
def test_power_that_no_card_draws_is_no_reading(text):
    with pytest.raises(errors.NotSupported, match=" W"):
        parse_electrical(text)
    assert parse_electrical(report("1000")) == 1000.0


class Card:
    def __init__(self, answers):
        self.answers = answers

    def get_info(self, key):
        answer = self.answers[key]
        if isinstance(answer, Exception):
            raise answer
        return answer


def fake_pyxrt(cards, counts=True):
    def device(index):
        if index >= len(cards):
            raise RuntimeError("Could not open device with index '9': No such device")
        if isinstance(cards[index], Exception):
            raise cards[index]
        return Card(cards[index])

    module = SimpleNamespace(
        device=device,
        xrt_info_device=SimpleNamespace(electrical="electrical", name="name", bdf="bdf"),
    )
    if counts:
        module.enumerate_devices = lambda: len(cards)
    return module


GOOD = {"electrical": report("30.0"), "name": "u55c", "bdf": "0000:03:00.1"}


@pytest.mark.parametrize("counts", [True, False])
def test_cards_of_new_and_old_bindings(counts):
    driver = XrtDriver(fake_pyxrt([GOOD, GOOD], counts))
    driver.open()
    cards = driver.cards()
    assert [(c.index, c.name, c.bdf) for c in cards] == [
        (0, "u55c", "0000:03:00.1"),
        (1, "u55c", "0000:03:00.1"),
    ]
    assert driver.power_w(cards[0]) == 30.0


def test_a_card_that_does_not_open_is_left_out():
    driver = XrtDriver(fake_pyxrt([RuntimeError("bad firmware"), GOOD]))
    driver.open()
    assert [card.index for card in driver.cards()] == [1]


def test_no_card_no_permission_no_binding(monkeypatch):
    driver = XrtDriver(fake_pyxrt([]))
    driver.open()
    with pytest.raises(errors.DriverNotLoaded):
        driver.cards()
    driver = XrtDriver(fake_pyxrt([RuntimeError("Permission denied")]))
    driver.open()
    with pytest.raises(errors.NoPermission):
        driver.cards()
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    with pytest.raises(errors.LibraryNotFound):
        XrtDriver().open()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (RuntimeError("No such device with index"), errors.DeviceLost),
        (RuntimeError("operation timed out"), errors.DriverTimeout),
        (OSError("Operation not permitted"), errors.NoPermission),
        (RuntimeError("xclmgmt"), errors.DriverError),
    ],
)
def test_faults_while_reading(fault, kind):
    driver = XrtDriver(fake_pyxrt([GOOD | {"electrical": fault}]))
    driver.open()
    with pytest.raises(errors.DriverError) as caught:
        driver.power_w(driver.cards()[0])
    assert type(caught.value) is kind
