"""What `ecorl report RUN --model-card` and `--annex-xi` print."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ecorl.grid import Scope, provenance_label
from ecorl.ledger import LedgerReader
from ecorl.records import Provenance
from ecorl.report.aggregate import build_report
from ecorl.report.energy.carbon_model import FeedFacts
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.model import DeviceTelemetry
from ecorl.report.render.numbers import MISSING, count, duration, figure, share
from ecorl.report.run_config import read_config
from ecorl.report.sharing.summary import EmissionFigure, RunSummary, summarise
from ecorl.report.training_stage.model import is_simulated
from ecorl.report.training_stage.words import shares_words
from ecorl.units import kwh_from_joules

_SCOPES = {Scope.LIFE_CYCLE: "life-cycle", Scope.DIRECT: "direct"}


def model_card(s: RunSummary) -> str:
    """Markdown for a model card: the metadata that model hubs read, then a section for people.

    The metadata goes between the ``---`` lines at the head of the card, the section into its text.
    A figure that is missing stands there as missing.

    Args:
        s: the run's figures.
    """
    return f"{_metadata(s)}\n{_section(s)}"


def _metadata(s: RunSummary) -> str:
    emission = s.emission()
    lines = ["---", "co2_eq_emissions:"]
    if emission is None or emission.carbon_g is None:
        lines.append("  # emissions: missing, no carbon intensity or no energy is known")
    else:
        lines.append(f"  emissions: {emission.carbon_g:.6g}  # g{', at least' * emission.at_least}")
    lines.append(f"  source: {_quoted(_source(s, emission))}")
    lines.append(f"  hardware_used: {_quoted(', '.join(s.devices) or 'not recorded')}")
    lines += ["---", ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _source(s: RunSummary, emission: EmissionFigure | None) -> str:
    if s.energy is None or emission is None:
        return "ecorl: no energy figure was recorded"
    feeds = "; ".join(_feed_words(feed) for feed in emission.feeds) or "no intensity known"
    return f"ecorl: energy {s.energy.provenance}, average intensity: {feeds}; PUE {_pue(s)}"


def _feed_words(feed: FeedFacts) -> str:
    told = [
        provenance_label(feed.provenance, feed.is_estimated),
        f"{feed.basis}-based",
        _SCOPES[feed.scope],
        feed.factors,
    ]
    told += ["not estimated"] if feed.is_estimated is False else []
    return f"{feed.feed} ({', '.join(told)})"


def _pue(s: RunSummary) -> str:
    pue = s.pue
    if pue.mean is None:
        return "unknown"
    if pue.lowest == pue.highest:
        return f"{pue.mean:g}"
    return f"{pue.lowest:g} to {pue.highest:g}, mean {pue.mean:.3g}"


def _section(s: RunSummary) -> str:
    rows = [
        *_energy_rows(s),
        *_emission_rows(s),
        ("Power usage effectiveness (PUE)", _pue(s)),
        *_waiting_rows(s),
        ("Run time", duration(s.run_time_s)),
        ("Hardware", ", ".join(s.devices) or MISSING),
        ("Peak memory of the devices", _bytes(s.peak_memory_device_bytes)),
        ("Peak memory of the training process", _bytes(s.peak_memory_host_bytes)),
        ("Effective batch size", count(s.work.effective_batch_size)),
        ("Gradient accumulation steps", count(s.work.accumulation_steps)),
        *_precision_rows(s),
        ("Work", f"{s.work.n_steps:,} steps, {count(s.work.n_samples)} samples, "
                 f"{count(s.work.n_tokens)} tokens"),
    ]  # fmt: skip
    lines = ["## Environmental impact of training", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    lines += ["", f"One run, {s.run_id} ({s.state}): what came before it, such as pretraining of "
              "its models, and other runs are not in these figures. Operational emissions only, "
              "without those of making the hardware."]  # fmt: skip
    if s.missing:
        lines += ["", "Missing or doubtful:", "", *(f"- {sentence}" for sentence in s.missing)]
    return "\n".join(lines) + "\n"


def _energy_rows(s: RunSummary) -> list[tuple[str, str]]:
    e = s.energy
    if e is None:
        return [("Energy", "missing")]
    least = "at least " if e.at_least else ""
    kwh = f"{least}{figure(kwh_from_joules(e.energy_j))} kWh ({e.provenance})"
    return [("Energy", kwh), ("Mean power", f"{least}{figure(e.mean_power_w)} W ({e.provenance})")]


def _emission_rows(s: RunSummary) -> list[tuple[str, str]]:
    rows = []
    for e in s.emissions:
        least = "at least " if e.at_least else ""
        told = "missing" if e.carbon_g is None else f"{least}{figure(e.carbon_g)} g{e.gas}"
        name = f"Emissions by the {e.kind} intensity"
        rows.append((name, f"{told} ({e.provenance})" if e.carbon_g is not None else told))
        mean = f"{figure(e.mean_g_per_kwh)} g/kWh; " if e.mean_g_per_kwh is not None else ""
        feeds = "; ".join(_feed_words(feed) for feed in e.feeds) or "none known"
        rows.append((f"Carbon intensity ({e.kind})", f"{mean}{feeds}"))
    if s.emission(IntensityKind.AVERAGE) is None:
        rows.insert(0, ("Emissions", "missing"))
    return rows


def _waiting_rows(s: RunSummary) -> list[tuple[str, str]]:
    w = s.waiting
    if w is None:
        return []
    first, trained = figure(w.first_g_per_kwh), figure(w.training_g_per_kwh)
    return [
        ("Waited for cleaner electricity", f"{duration(w.wait_s)} in {w.n_pauses} pauses"),
        ("Intensity at the begin and while training", f"{first} and {trained} g/kWh"),
    ]


def _precision_rows(s: RunSummary) -> list[tuple[str, str]]:
    """Formats of the training stage, where the record names any, and its workers."""
    rows = []
    if s.work.gears:
        told = f"{shares_words(s.work.gears)} of the tokens"
        if any(map(is_simulated, s.work.gears)):
            told += "; simulated: rounded like that format, on units of another one"
        rows.append(("Numeric format of training", told))
    if s.work.widths and max(s.work.widths) > 1:
        rows.append(("Training workers", ", ".join(map(str, s.work.widths))))
    return rows


def _bytes(value: int | None) -> str:
    return MISSING if value is None else f"{value / 2**20:,.0f} MiB"


_OBTAINED = {
    Provenance.MEASURED: "measured with instruments of the devices",
    Provenance.REPLAYED: "replayed from a recording: no energy of this run",
    Provenance.EMULATED: "taken from emulated devices: no energy of real ones",
    Provenance.MODELLED: "estimated: modelled from device profiles and utilisation",
    Provenance.PUBLISHED: "estimated from published figures",
}


def annex_xi(s: RunSummary, telemetry: tuple[DeviceTelemetry, ...], covered: float | None) -> str:
    """Plain text for point 2(e): the energy part of the EU AI Act's technical documentation.

    Regulation (EU) 2024/1689 asks providers of general-purpose AI models for the known or estimated
    energy consumption of the model. What a run's record has of it is said here, with how it was
    obtained and what is missing; it is one run's, and a provider adds up those of its model.

    Args:
        s: the run's figures.
        telemetry: how each device was read.
        covered: share of the stage calls that have an energy figure; None without any call.
    """
    started = datetime.fromtimestamp(s.started_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    how = "no instrument answered" if s.energy is None else _OBTAINED[s.energy.provenance]
    lines = [
        "EU AI Act (Regulation (EU) 2024/1689), Annex XI, section 1, point 2(e):",
        "energy consumption of training",
        "",
        f"Run               {s.run_id}, started {started}, {s.state}, {duration(s.run_time_s)}",
        f"Energy            {_energy(s)}",
        f"With the building {_building(s)}",
        f"How obtained      {how}",
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


def _instruments(telemetry: tuple[DeviceTelemetry, ...]) -> list[str]:
    return [
        f"{t.device_id} ({t.profile}): {t.source}, {t.provenance}, {t.n_readings:,} readings"
        for t in telemetry
        if t.n_readings
    ]


def printed(run_dir: Path, *, as_card: bool) -> str:
    """The text about a run.

    Args:
        run_dir: its folder, or the ledger in it.
        as_card: the block of a model card; else the energy part of Annex XI.

    Raises:
        RunError: when there is no ledger.
        LedgerError: when it is damaged.
    """
    with LedgerReader(run_dir) as reader:
        known = read_config(reader.run(), run_dir.parent if run_dir.is_file() else run_dir)
        report = build_report(reader, known)
        summary = summarise(report, reader, known)
    if as_card:
        return model_card(summary)
    return annex_xi(summary, report.telemetry, report.spending.covered_share)
