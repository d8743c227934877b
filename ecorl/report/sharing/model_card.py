"""The block of a model card that says what training a model took."""

from __future__ import annotations

from ecorl.grid import Scope, provenance_label
from ecorl.report.energy.carbon_model import FeedFacts
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.render.numbers import MISSING, duration, figure
from ecorl.report.sharing.summary import EmissionFigure, RunSummary
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
        lines.append(f"  emissions: {emission.carbon_g:.6g}  # g{_bound(emission.at_least)}")
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


def _bound(at_least: bool) -> str:
    return ", at least" if at_least else ""


def _section(s: RunSummary) -> str:
    rows = [
        *_energy_rows(s),
        *_emission_rows(s),
        ("Power usage effectiveness (PUE)", _pue(s)),
        *_waiting_rows(s),
        ("Run time", duration(s.run_time_s)),
        ("Hardware", ", ".join(s.devices) or MISSING),
        *_memory_rows(s),
        ("Effective batch size", _count(s.work.effective_batch_size)),
        ("Gradient accumulation steps", _count(s.work.accumulation_steps)),
        *_precision_rows(s),
        ("Work", f"{s.work.n_steps:,} steps, {_count(s.work.n_samples)} samples, "
                 f"{_count(s.work.n_tokens)} tokens"),
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


def _memory_rows(s: RunSummary) -> list[tuple[str, str]]:
    return [
        ("Peak memory of the devices", _bytes(s.peak_memory_device_bytes)),
        ("Peak memory of the training process", _bytes(s.peak_memory_host_bytes)),
    ]


def _bytes(value: int | None) -> str:
    return MISSING if value is None else f"{value / 2**20:,.0f} MiB"


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"
