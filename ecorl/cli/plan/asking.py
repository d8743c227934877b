"""Asks for plans as the command line says, and prints the answers."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecorl.cli.exits import needs_policy_extra
from ecorl.cli.output import make_console, say, writable, writing
from ecorl.cli.plan.app import PlanOptions
from ecorl.cli.plan.table import answer_table, used, what_if_table
from ecorl.cli.plan.words import sentences
from ecorl.errors import ConfigError
from ecorl.operate.levers.choice import LeverLimits, LeverSetting
from ecorl.operate.levers.clocks import natural_clocks
from ecorl.operate.levers.study import LeverStudy, SavedShare
from ecorl.operate.plan.answer import (
    PlanAnswer,
    PlanTerms,
    WhatIf,
    plan_answer,
    what_if_grid,
    what_ifs,
)
from ecorl.operate.plan.job import PlannedJob, plan_values
from ecorl.operate.plan.offload import OffloadAnswer
from ecorl.operate.plan.own_stages import (
    OwnStages,
    stages_of_calibration,
    stages_of_run,
    told_shares,
)
from ecorl.report.render.lines import aligned, readable_width, wrapped
from ecorl.report.render.numbers import duration, figure, joules
from ecorl.sim.scenario import Scenario

if TYPE_CHECKING:
    from ecorl.policy.job_plan import PlanRange, PlanRow


_LEGEND = (
    "score: what an iteration gains in time and energy together over leaving the cards idle; "
    "above 0 is better (Eq. 7 of the EcoRL-Sched paper)",
    "bubble: time in which the GPUs wait; tokens/J: completion tokens over the energy of GPUs and "
    "cards",
    "best static: each stage always on the same device; look-ahead: what the next iteration costs "
    "decides; causal planner: the best policy that can be computed without knowing the future",
)


def _play_episodes(scenario: Scenario, asked: PlanOptions) -> None:
    """Play a job under several policies, and print the table."""
    with needs_policy_extra():
        from ecorl.cli.policy.training import telling
        from ecorl.policy import job_plan as planning
        from ecorl.scheduler.policy_file import PolicyFile

        n_iterations, n_seeds = scenario.n_iterations, asked.seeds or _N_SEEDS
        path = asked.policy
        with telling("planning", make_console(stderr=True)) as tell:
            found = planning.planned(scenario, PolicyFile(path), n_seeds=n_seeds, tell=tell)
            ends = planning.plan_range(scenario, n_seeds=n_seeds)
        which = "the shipped policy" if path is None else f"policy file {path}"
        say(f"Played in the simulator: {n_seeds} of {n_iterations} iterations, {which}.")
        for line in [*_table(found), ""]:
            say(line)
        _sentences(
            planning.verdict(found, scenario),
            *([] if ends is None else [_range_words(ends, any(scenario.table.card_usable))]),
        )


def _table(found: Sequence[PlanRow]) -> list[str]:
    heads = ("an iteration", "score", "time", "energy", "bubble", "tokens/J")
    cells = [
        (r.policy, f"{r.score:+.4f}", duration(r.time_s), joules(r.energy_j),
         duration(r.bubble_s), figure(r.tokens_per_j))
        for r in found
    ]  # fmt: skip
    return aligned([heads, *cells])


def _range_words(ends: PlanRange, possible: bool) -> str:
    """What the intervals of the figures leave open; `possible`: the cards can be used."""
    least, most = (
        f"{duration(row.time_s)} and {joules(row.energy_j)}" for row in (ends.cheap, ends.dear)
    )
    if not possible:
        said = ""
    elif ends.pays[0] == ends.pays[1]:
        said = f" Offloading {'pays' if ends.pays[0] else 'does not pay'} at either end."
    else:
        gains = (
            f"{100 * ends.cheap_gain:.2f} % at the one, {100 * ends.dear_gain:.2f} % at the other"
        )
        said = f" Whether offloading pays hangs on them: its gain by the score is {gains}."
    return (
        "Some of the devices' figures are assumed or fitted and have intervals. With all of them "
        "at the ends where work costs least on the GPUs and most on the cards, an iteration "
        f"without cards takes {least}; at the others, {most}.{said}"
    )


def _sentences(*said: str) -> None:
    console = make_console()
    width = readable_width(console.width)
    for sentence in said:
        for line in [*wrapped(sentence, width, ""), ""]:
            say(line, console)
    for line in [line for sentence in _LEGEND for line in wrapped(sentence, width, "- ")]:
        say(line, console)


def answer_data(answer: PlanAnswer, job: PlannedJob, terms: PlanTerms) -> dict[str, Any]:
    """Return an answer as plain data; times in s, energies in J.

    Args:
        answer: to a job.
        job: as it was asked about.
        terms: prices, intensity and use.
    """
    step = answer.step
    told = answer.own
    return {
        "job": asdict(job),
        "terms": asdict(terms),
        "provenance": str(step.provenance),
        "stages_from": None if told is None else told.told,
        "step": {
            "time_s": step.time_s,
            "energy_j": step.energy_j,
            "tokens_per_joule": answer.tokens_per_joule,
            "stages": {
                str(d.stage): {"time_s": d.time_s, "energy_j": d.energy_j} for d in step.draws
            },
        },
        "offload": _offload(answer.offload),
        "levers": _levers(answer.study),
        "narrower": None if answer.narrower is None else asdict(answer.narrower),
        "timing": [asdict(one) for one in answer.timings],
        "devices_per_year": None if answer.bought is None else asdict(answer.bought),
        "levers_per_year": asdict(answer.changed),
    }


def _offload(offload: OffloadAnswer) -> dict[str, Any]:
    return {
        "device": offload.device,
        "n": offload.n,
        "pays": offload.pays,
        "saved_share": offload.saved_share,
        "interval": None if offload.low is None else [offload.low, offload.high],
        "slowdown": offload.slowdown,
        "why_not": offload.why_not or None,
        "best_number": offload.best_number,
        "by_number": {str(n): value for n, value in offload.by_number.items()},
        "placements": [
            {
                "actions": {str(s): str(a) for s, a in row.actions.items()},
                "time_s": row.time_s,
                "energy_j": row.energy_j,
                "bubble_s": row.bubble_s,
            }
            for row in offload.placements
        ],
        "scans": {
            scan.what: {str(value): share for value, share in scan.saved.items()}
            for scan in offload.scans
        },
    }


def _levers(study: LeverStudy) -> dict[str, Any]:
    return {
        "alone": {str(k): _share(v) for k, v in study.alone.items()},
        "together": _share(study.together),
        "beyond": {name: _share(v) for name, v in study.beyond.items()},
        "missing": {str(k): why for k, why in study.missing.items()},
        "order": [{"lever": str(k), "adds": added} for k, added in study.order],
        "interactions": [
            {"levers": [str(one), str(other)], "beyond_sum": beyond}
            for one, other, beyond in study.between
        ],
        "setting": _setting(study.all),
        "natural_clocks": {str(k): v for k, v in natural_clocks(study.step).items()},
    }


def _share(saved: SavedShare) -> dict[str, float]:
    return {"saved_share": saved.value, "low": saved.low, "high": saved.high}


def _setting(found: LeverSetting) -> dict[str, Any]:
    generation, scoring, training = found.clocks
    return {
        "time_s": found.time_s,
        "energy_j": found.energy_j,
        "slowdown": found.slowdown,
        "clocks": {"generation": generation, "scoring": scoring, "training": training},
        "fp8_training": found.fp8,
        "overlapped_s": found.overlapped_s,
        "accelerator": found.accelerator,
        "actions": {str(s): str(a) for s, a in found.actions.items()},
    }


def what_if_data(row: WhatIf) -> dict[str, Any]:
    """Return a row of a grid as plain data.

    Args:
        row: of the grid.
    """
    return asdict(row) | {"values": dict(row.values), "why": row.why or None}


def write_csv(rows: Sequence[WhatIf], path: Path) -> None:
    """Write the rows of a grid; a missing figure is an empty cell.

    Args:
        rows: of the grid.
        path: the file.

    Raises:
        OSError: when it cannot be written.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    names = ["algorithm", "time_s", "energy_j", "tokens_per_joule", "offload_saved_share",
             "levers_saved_share", "why"]  # fmt: skip
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*keys, *names])
        for row in rows:
            figures = [getattr(row, name) for name in names]
            writer.writerow(
                [*(row.values.get(key, "") for key in keys),
                 *("" if value is None else value for value in figures)]
            )  # fmt: skip


def read(asked: PlanOptions) -> tuple[PlannedJob, PlanTerms]:
    """Read file and options.

    Args:
        asked: what is asked.

    Raises:
        ConfigError: for a value that cannot be.
    """
    given = _given(asked, PlannedJob) | _given(asked, PlanTerms)
    job, terms = plan_values(asked.config, given, (PlannedJob, PlanTerms))
    return PlannedJob(**job), PlanTerms(**terms)


def _given(asked: PlanOptions, kind: type[PlannedJob | PlanTerms]) -> dict[str, Any]:
    """The options by the keys of a part of the config; None where one was not given."""
    return {f.name: getattr(asked, f.name) for f in fields(kind)}


def _own(asked: PlanOptions, length: float) -> OwnStages | None:
    """What the user has measured or told of the stages; `length`: mean completion, tokens."""
    shares = tuple(asked.share or ())
    given = {"--run": asked.run, "--fitted": asked.fitted, "--share": " ".join(shares) or None}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(named[1], str(given[named[1]]), f"nothing beside {named[0]}")
    if asked.run is not None:
        return stages_of_run(asked.run)
    if asked.fitted is not None:
        from ecorl.policy.calibration.stages import load_calibration

        return stages_of_calibration(load_calibration(asked.fitted), length)
    return told_shares(shares)


def _plays_episodes(asked: PlanOptions, job: PlannedJob) -> bool:
    """Whether episodes are played; under the paper's costs they are all there is."""
    if asked.thorough or job.calibration == "paper":
        if asked.as_json:
            raise ConfigError("--json", True, "nothing beside --thorough")
        return True
    for option, value in (
        ("--policy", None if asked.policy is None else str(asked.policy)),
        ("--iterations", asked.iterations),
        ("--seeds", asked.seeds),
    ):
        if value is not None:
            raise ConfigError(option, value, "nothing without --thorough")
    return False


_N_ITERATIONS, _N_SEEDS = 40, 4


def answer(asked: PlanOptions) -> None:
    """Answer a question, about one job or about a grid of them.

    Args:
        asked: what is asked, and how the answer is given.

    Raises:
        ConfigError: for a value that cannot be, or options that do not go together.
        RunError: for a run that cannot be used.
    """
    plot, csv = writable(asked.plot, "--plot"), writable(asked.csv, "--csv")
    if asked.what_ifs is None:
        if csv is not None:
            raise ConfigError("--csv", str(csv), "nothing without --what-ifs")
        _answer_job(asked, plot)
        return
    for option, value in (
        ("--plot", plot),
        ("--thorough", asked.thorough or None),
        ("--run", asked.run),
        ("--fitted", asked.fitted),
        ("--share", " ".join(asked.share or ()) or None),
        ("--config", asked.config),
    ):
        if value is not None:
            raise ConfigError(option, str(value), "nothing beside --what-ifs")
    _answer_grid(asked, asked.what_ifs, csv)


def _answer_job(asked: PlanOptions, plot: Path | None) -> None:
    """Answer for one job, each of its algorithms by itself."""
    job, terms = read(asked)
    own, is_played = _own(asked, job.length), _plays_episodes(asked, job)
    if job.calibration == "paper":
        _only_by_episodes(plot, own)
    if is_played:
        with needs_policy_extra():
            from ecorl.scheduler.policy_file import PolicyFile

            PolicyFile(asked.policy)  # a mistake is told before anything is printed
    scenarios = job.scenarios(asked.iterations or _N_ITERATIONS if is_played else 1)
    found: dict[str, PlanAnswer] = {}
    for i, (names, scenario) in enumerate(scenarios.items()):
        if job.calibration != "paper":
            found[names] = plan_answer(job, scenario, terms, own)
        if not asked.as_json:
            _tell(job, names, scenario, found.get(names), terms, first=not i)
            if is_played:
                _play_episodes(scenario, asked)
    if asked.as_json:
        data = {names: answer_data(one, job, terms) for names, one in found.items()}
        say(json.dumps(data, indent=2, allow_nan=False))
    if plot is not None:
        from ecorl.cli.plan.table import draw_answer

        with writing(plot, "--plot"):
            draw_answer(next(iter(found.values())), job, plot)
        if not asked.as_json:
            say(f"picture: {plot}")


def _only_by_episodes(plot: Path | None, own: OwnStages | None) -> None:
    """Refuse what the paper's costs have no answer for: they say nothing of what joules are for."""
    if plot is not None or own is not None:
        allowed = "roofline with --plot, --run, --fitted and --share"
        raise ConfigError("--calibration", "paper", allowed)


def _tell(
    job: PlannedJob,
    names: str,
    scenario: Scenario,
    answer: PlanAnswer | None,
    terms: PlanTerms,
    *,
    first: bool,
) -> None:
    console = make_console()
    width = readable_width(console.width)
    lines = [*([] if first else [""]), *used(job, names, scenario, answer), ""]
    if answer is not None:
        lines += [*answer_table(answer), ""]
    for line in lines:
        say(line, console)
    if answer is None:
        return
    for sentence in sentences(answer, terms):
        for line in [*wrapped(sentence, width, ""), ""]:
            say(line, console)


def _answer_grid(asked: PlanOptions, path: Path, csv: Path | None) -> None:
    """Answer for each job of a file; the options go before the file's values."""
    told = {key: value for key, value in _given(asked, PlanTerms).items() if value is not None}
    terms = PlanTerms(**told)
    grid = what_if_grid(path, _given(asked, PlannedJob))
    found = list(what_ifs(grid, LeverLimits(slowdown=terms.slowdown)))
    if csv is not None:
        with writing(csv, "--csv"):
            write_csv(found, csv)
    if asked.as_json:
        say(json.dumps([what_if_data(row) for row in found], indent=2, allow_nan=False))
        return
    for line in what_if_table(found):
        say(line)
