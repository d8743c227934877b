"""The energy part of the EU AI Act's technical documentation: Annex XI, section 1, point 2(e).

Regulation (EU) 2024/1689 asks providers of general-purpose AI models for the known or estimated
energy consumption of the model. What a run's record has of it is said here, with how it was
obtained and what is missing; it is one run's, and a provider adds up those of its model.
"""

from __future__ import annotations

from datetime import UTC, datetime

from ecorl.records import Provenance
from ecorl.report.model import DeviceTelemetry
from ecorl.report.render.numbers import duration, figure, share
from ecorl.report.sharing.summary import RunSummary
from ecorl.units import kwh_from_joules

_OBTAINED = {
    Provenance.MEASURED: "measured with instruments of the devices",
    Provenance.REPLAYED: "replayed from a recording: no energy of this run",
    Provenance.EMULATED: "taken from emulated devices: no energy of real ones",
    Provenance.MODELLED: "estimated: modelled from device profiles and utilisation",
    Provenance.PUBLISHED: "estimated from published figures",
}


def annex_xi(s: RunSummary, telemetry: tuple[DeviceTelemetry, ...], covered: float | None) -> str:
    """Plain text for point 2(e).

    Args:
        s: the run's figures.
        telemetry: how each device was read.
        covered: share of the stage calls that have an energy figure; None without any call.
    """
    started = datetime.fromtimestamp(s.started_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        "EU AI Act (Regulation (EU) 2024/1689), Annex XI, section 1, point 2(e):",
        "energy consumption of training",
        "",
        f"Run               {s.run_id}, started {started}, {s.state}, {duration(s.run_time_s)}",
        f"Energy            {_energy(s)}",
        f"With the building {_building(s)}",
        f"How obtained      {_how(s)}",
    ]
    lines += [f"                  {line}" for line in _instruments(telemetry)]
    lines += [
        f"Stage calls       {share(covered)} of them have an energy figure of their own",
        "Scope             the devices named above, idle draw, waits and superseded work of this",
        "                  run included; other parts of the machines (fans, power supplies,",
        "                  network, storage, and memory where it is not named) are not read",
        "Not in it         other runs for the same model: pretraining, earlier attempts under",
        "                  other names, searches, evaluations elsewhere",
        "Missing",
    ]
    lines += [f"  - {sentence}" for sentence in s.missing] or ["  nothing that the record knows of"]
    return "\n".join(lines) + "\n"


def _energy(s: RunSummary) -> str:
    e = s.energy
    if e is None:
        return "unknown: no energy figure was recorded; the Act then lets it be based on the"\
               " computational resources used"  # fmt: skip
    least = "at least " if e.at_least else ""
    kwh = kwh_from_joules(e.energy_j)
    return f"{least}{figure(kwh)} kWh ({figure(kwh / 1000.0)} MWh), {e.provenance}"


def _building(s: RunSummary) -> str:
    e, pue = s.energy, s.pue.mean
    if e is None or pue is None:
        return "unknown"
    least = "at least " if e.at_least else ""
    kwh = kwh_from_joules(e.energy_j) * pue
    return f"{least}{figure(kwh)} kWh at a mean PUE of {figure(pue)} as stated by the config"


def _how(s: RunSummary) -> str:
    return "no instrument answered" if s.energy is None else _OBTAINED[s.energy.provenance]


def _instruments(telemetry: tuple[DeviceTelemetry, ...]) -> list[str]:
    return [
        f"{t.device_id} ({t.profile}): {t.source}, {t.provenance}, {t.n_readings:,} readings"
        for t in telemetry
        if t.n_readings
    ]
