"""Small ledgers with known numbers, written by the ledger itself on a clock that stands still."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from ecorl.carbon.building import FROM_ACCOUNTING
from ecorl.carbon.feeds.local import ConstantFeed
from ecorl.config import AccountingConfig, config_toml, validate_config
from ecorl.control import Command, GearChoice, Why
from ecorl.grid import AverageIntensity, Basis, Gas, Scope
from ecorl.ledger import LEDGER_FILE, DeviceRecord, Ledger, LedgerReader, schema
from ecorl.ledger import encoding as encoding_module
from ecorl.ledger import ledger as ledger_module
from ecorl.records import (
    Action,
    BarrierWait,
    EnergyMethod,
    EventKind,
    PowerSample,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)
from ecorl.report import Report, build_report, read_config

UNIX_S = 1.8e9
"""Wall clock minus monotonic time of the runs that are made here, s."""


class RunMaker:
    """Writes a run; `clock` is the monotonic time in s that the ledger sees."""

    def __init__(self, folder: Path, now, node: str | None = None) -> None:
        self.folder = folder
        self._now = now
        self.ledger = Ledger.create(
            folder / LEDGER_FILE,
            run_id="r<1>",
            config_toml="",
            meta={"commit": "c0ffee"},
            node=node,
        )

    def clock(self, t_s: float) -> None:
        self._now[0] = t_s

    def config(self, **kwargs) -> None:
        """A config in the folder alone."""
        (self.folder / "config.toml").write_text(
            config_toml(validate_config(kwargs)), encoding="utf-8"
        )

    def recorded_config(self, text: str) -> None:
        """A config in the ledger, as a run records it at its start."""
        assert self.ledger.flush()
        with contextlib.closing(sqlite3.connect(self.folder / LEDGER_FILE)) as db, db:
            db.execute("UPDATE run SET config_toml = ?", (text,))

    def ran(
        self,
        stage: Stage,
        span: tuple[float, float],
        energy_j: float | None,
        *,
        device: str = "gpu0:h100",
        iteration: int = 1,
        tokens: int = 100,
        provenance: Provenance = Provenance.MEASURED,
        time_s: float | None = -1.0,
        **kwargs,
    ) -> None:
        """One execution; on a device other than gpu its time is modelled."""
        device_id, name = device.split(":")
        start, end = span
        own = provenance is Provenance.MEASURED or device_id.startswith("gpu")
        energy = StageEnergy(
            device_ids=kwargs.pop("meters", (device_id,)),
            t_start_s=start,
            t_end_s=end,
            energy_j=energy_j,
            mean_power_w=None,
            counter_energy_j=kwargs.pop("counter_j", None),
            integral_energy_j=kwargs.pop("integral_j", None),
            n_samples=kwargs.pop("n_samples", 20),
            coverage=1.0,
            method=EnergyMethod(kwargs.pop("method", "integral")),
            provenance=provenance,
        )
        fields = {
            "iteration": iteration,
            "stage": stage,
            "action": Action.GPU if device_id.startswith("gpu") else Action.CONCURRENT,
            "device_ids": (device_id,),
            "device": name,
            "t_start_s": start,
            "t_end_s": end,
            "time_s": end - start if time_s == -1.0 else time_s,
            "time_provenance": Provenance.MEASURED if own else Provenance.MODELLED,
            "host_time_s": end - start,
            "wait_s": 0.0,
            "n_sequences": 10,
            "n_tokens": 2 * tokens,
            "n_output_tokens": tokens,
            "energy": energy,
        }
        self.ledger.result(StageResult(**(fields | kwargs)))

    def standard(self) -> None:
        """One iteration of 20 s: 1680 J measured on gpu0, 40 J modelled on fpga0, one wait."""
        card = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 0.5}
        self.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 30.0))
        self.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MODELLED, "cycle model", 20.0))
        self.ran(Stage.GENERATION, (1000, 1010), 1000.0)
        self.ran(Stage.REWARD, (1010, 1012), 40.0, **card)
        self.clock(1012.0)
        self.ledger.barrier(BarrierWait(1, Stage.REWARD, 1.5, 10, 0, 0))
        self.ran(Stage.REWARD, (1012, 1013), 80.0)
        self.ran(Stage.ACTOR_TRAIN, (1013, 1018), 600.0)
        self.clock(1020.0)
        self.ledger.event(EventKind.FINISH, "")

    def power(self, device_id: str, seconds: range, power_w: float, counter_j=None) -> None:
        """Two readings a second."""
        self.ledger.samples(
            PowerSample(
                device_id=device_id,
                t_s=s + half,
                power_w=power_w,
                energy_j=None if counter_j is None else counter_j(s + half),
                utilisation=None,
                provenance=Provenance.MEASURED,
                source="nvml",
            )
            for s in seconds
            for half in (0.0, 0.5)
        )

    def heard(self, t_s: float, g_per_kwh: float | None, kind=AverageIntensity, **kwargs) -> None:
        """What a feed told at a time; by default it holds for that second, and counts on."""
        self.clock(t_s)
        fields = {
            "feed": "f",
            "start_s": UNIX_S + t_s,
            "interval_s": 1.0,
            "gas": Gas.CO2E,
            "basis": Basis.LOCATION,
            "scope": Scope.LIFE_CYCLE,
            "factors": "its own",
            "is_estimated": None,
            "fetched_s": UNIX_S + t_s,
            "provenance": Provenance.PUBLISHED,
        }
        value = None if g_per_kwh is None else kind(g_per_kwh=g_per_kwh, **(fields | kwargs))
        self.ledger.control.intensity(kind, value)

    def stated(self, **accounting) -> None:
        """The config's constant intensity, as a run without a feed records it at its start."""
        told = AccountingConfig(**accounting)
        feed = ConstantFeed(told.intensity_g_per_kwh, told.origin, name=FROM_ACCOUNTING)
        self.ledger.control.intensity(AverageIntensity, feed.read(UNIX_S + self._now[0]))

    def pue(self, t_s: float, value: float | None) -> None:
        """The PUE from a time of this clock on."""
        self.ledger.control.pue(UNIX_S + t_s, value)

    def chose(self, t_s: float, command: Command, why: Why, memory=None, **kwargs) -> None:
        """A decision about the training stage, with what its controller remembers."""
        self.clock(t_s)
        reason = f"because {why}"
        self.ledger.control.choice(
            GearChoice(UNIX_S + t_s, command, why, "threshold", reason, UNIX_S + t_s, **kwargs),
            memory,
        )

    def resume(self, t_s: float, from_step: int) -> None:
        self.ledger.close()
        self.clock(t_s)
        self.ledger = Ledger.open_for_resume(self.folder / LEDGER_FILE, from_step=from_step)

    def report(self) -> Report:
        assert self.ledger.flush()
        with LedgerReader(self.folder) as reader:
            return build_report(reader, read_config(reader.run(), self.folder))


@pytest.fixture
def now(monkeypatch):
    """The monotonic time that ledgers see, s, in a list of one."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: UNIX_S + now[0])
    for module in (ledger_module, schema, encoding_module):
        monkeypatch.setattr(module, "time", clock)
    return now


@pytest.fixture
def run(tmp_path, now):
    maker = RunMaker(tmp_path, now)
    yield maker
    maker.ledger.close()


@pytest.fixture
def run_of(tmp_path, now):
    """Makes runs by name; each begins at the same time."""
    made = []

    def make(name):
        (tmp_path / name).mkdir()
        now[0] = 1000.0
        made.append(RunMaker(tmp_path / name, now))
        return made[-1]

    yield make
    for maker in made:
        maker.ledger.close()


@pytest.fixture
def named_run(tmp_path, now):
    """A run whose ledger names its machine, as those of `ecorl run` do."""
    maker = RunMaker(tmp_path, now, node="head")
    yield maker
    maker.ledger.close()
