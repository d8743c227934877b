"""CodeCarbon beside a run: as a table for the page, and as lines for the terminal."""

from __future__ import annotations

from ecorl.report.beside import BesideFigures
from ecorl.report.render.layout import Section, table
from ecorl.report.render.lines import wrapped
from ecorl.report.render.numbers import MISSING, duration, figure, grams, joules, share

TITLE = "CodeCarbon beside"


def lead(b: BesideFigures) -> str:
    """What is compared with what.

    Args:
        b: the figures of both.
    """
    found = b.found
    return (
        f"CodeCarbon {found.version} measured this machine for {duration(found.duration_s)} of the "
        f"run's {duration(b.run_time_s)}: {joules(found.energy_j)}, and by its own factor "
        f"{grams(found.carbon_g, 'CO2e')}. Where it reads no sensor it estimates, and it counts "
        "all of the machine. Nothing of ecorl's figures goes by it."
    )


def beside_section(b: BesideFigures) -> Section:
    """The section of the page.

    Args:
        b: the figures of both.
    """
    rows = [
        (
            p.name,
            figure(p.theirs_j),
            f"{figure(p.ours_j)} ({p.provenance})" if p.ours_j is not None else MISSING,
            MISSING if p.difference is None else f"{100 * p.difference:+.1f} %",
        )
        for p in b.parts
    ]
    heads = ("part of the machine", "CodeCarbon, J", "ecorl, J", "difference")
    return Section("beside", TITLE, lead(b), "", (table(heads, rows, 1),))


def beside_lines(b: BesideFigures | None, width: int) -> list[str]:
    """The block of the terminal; nothing where CodeCarbon did not run.

    Args:
        b: the figures of both.
        width: columns.
    """
    if b is None:
        return []
    lines = wrapped(lead(b), width)
    for p in b.parts:
        if p.ours_j is not None and p.difference is not None:
            told = (
                f"{p.name}: {joules(p.theirs_j)} by CodeCarbon, {joules(p.ours_j)} here "
                f"({p.provenance}), {share(abs(p.difference))} "
                f"{'more' if p.difference > 0 else 'less'}"
            )
            lines += wrapped(told, width)
    return lines
