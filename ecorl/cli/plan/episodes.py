"""Plays a planned job in the simulator and prints what each policy came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ecorl.cli.exits import needs_policy_extra
from ecorl.cli.output import make_console, say
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


@dataclass(frozen=True, slots=True)
class EpisodeTerms:
    """How episodes are played.

    Attributes:
        n_iterations: of an episode.
        n_seeds: number of episodes.
        path: policy file of the learned scheduler; None: the shipped one.
    """

    n_iterations: int
    n_seeds: int
    path: Path | None

    def check(self) -> None:
        """Read the policy file, so that a mistake is told before anything is printed.

        Raises:
            ConfigError: for a file that is no policy.
        """
        with needs_policy_extra():
            from ecorl.scheduler.policy_file import PolicyFile

            PolicyFile(self.path)


def play_episodes(scenario: Scenario, terms: EpisodeTerms) -> None:
    """Play a job under several policies, and print the table.

    Args:
        scenario: the job.
        terms: how.
    """
    with needs_policy_extra():
        from ecorl.cli.policy.training import telling
        from ecorl.policy import job_plan as planning
        from ecorl.scheduler.policy_file import PolicyFile

        n_iterations, n_seeds, path = terms.n_iterations, terms.n_seeds, terms.path
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
