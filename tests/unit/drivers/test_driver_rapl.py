"""RAPL on a made powercap folder."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl import errors
from ecorl.drivers import rapl


def make_zone(root, folder, name, energy_uj="5000000", range_uj="10000000"):
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return path


def test_packages_and_their_memory_are_found_once(tmp_path):
    make_zone(tmp_path, "intel-rapl:0", "package-0")
    make_zone(tmp_path, "intel-rapl:0:0", "core")
    make_zone(tmp_path, "intel-rapl:0:1", "dram")
    make_zone(tmp_path, "intel-rapl:1", "package-1")
    make_zone(tmp_path, "intel-rapl:2", "psys")
    make_zone(tmp_path, "intel-rapl-mmio:0", "package-0")
    zones = rapl.find_zones(tmp_path)
    assert [zone.zone_id for zone in zones] == ["cpu0", "cpu1", "dram0"]
    assert zones[0].range_j == 10.0
    assert rapl.read_counter_j(zones[0]) == 5.0


def test_nothing_there(tmp_path):
    with pytest.raises(errors.LibraryNotFound):
        rapl.find_zones(tmp_path / "none")
    with pytest.raises(errors.DriverNotLoaded):
        rapl.find_zones(tmp_path)


@pytest.mark.parametrize("text", ["", "abc", "-1", "1.5"])
def test_malformed_counter(tmp_path, text):
    make_zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=text)
    with pytest.raises(errors.DriverError):
        rapl.find_zones(tmp_path)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, errors.NoPermission),
        (errno.EPERM, errors.NoPermission),
        (errno.ENODEV, errors.DeviceLost),
        (errno.ETIMEDOUT, errors.DriverTimeout),
        (errno.ENODATA, errors.NotSupported),
        (errno.EIO, errors.DriverError),
    ],
)
def test_operating_system_errors(tmp_path, monkeypatch, number, kind):
    # Tests may run as root, whom no file mode stops: the error is raised where the file is read.
    make_zone(tmp_path, "intel-rapl:0", "package-0")
    real = Path.read_text

    def read_text(self, *args, **kwargs):
        if self.name == "energy_uj":
            raise OSError(number, "refused")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(errors.DriverError) as caught:
        rapl.find_zones(tmp_path)
    assert type(caught.value) is kind


def test_zone_that_disappears(tmp_path):
    path = make_zone(tmp_path, "intel-rapl:0", "package-0")
    (zone,) = rapl.find_zones(tmp_path)
    (path / "energy_uj").unlink()
    with pytest.raises(errors.DeviceLost):
        rapl.read_counter_j(zone)


@given(
    start=st.integers(0, 999),
    steps=st.lists(st.integers(0, 999), min_size=1, max_size=50),
)
def test_wrap_around_is_undone(start, steps):
    counter = rapl.UnwrappedCounter(range_j=1000.0)
    total = start
    assert counter.update(float(start), 0.0) == start
    for i, step in enumerate(steps):
        total += step
        assert counter.update(float(total % 1000), 1.0 + i) == total


@pytest.mark.parametrize(
    ("before_j", "after_j"),
    [(100_010.0, 5.0), (100_010.0, 100_010.0 - 1e-6), (5.0, 100_010.0)],
)
def test_a_counter_that_starts_again_is_no_wrap(before_j, after_j):
    """Suspend or firmware: the fall would be a wrap of 162138 J within 0.1 s; a leap likewise."""
    counter = rapl.UnwrappedCounter(range_j=262_143.0)
    assert counter.update(before_j, 0.0) == before_j
    assert counter.update(after_j, 0.1) is None
    assert counter.update(after_j + 20.0, 0.2) == pytest.approx(before_j + 20.0)


def test_a_wrap_at_any_power_that_a_package_may_draw():
    counter = rapl.UnwrappedCounter(range_j=262_143.0)
    counter.update(262_100.0, 0.0)
    assert counter.update(57.0, 0.1) == pytest.approx(262_200.0)
    # 2 kW, with the slack of one refresh
    assert counter.update(257.0, 0.2) == pytest.approx(262_400.0)
    assert counter.update(257.0 + 2000.0 * 0.11 + 1.0, 0.3) is None
