"""Makes the reference of a config's keys as a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ecorl.config.reference import NOT_SET, REQUIRED, ReferenceKey, ReferenceTable

_INTRODUCTION = """\
# Every key of an ecorl.toml

For those who write an `ecorl.toml`: every key that it may hold, with its type, default, unit and
meaning.

A key that is left out has its default, if it has one; *required* means that its table cannot do
without it. The unit of a number is that of its name (`deadline_s` is in seconds); where a name has
none, the meaning says it. A relative path counts from the folder in which you start. A table with a
`type` takes the keys of that type alone.

The *card* is the accelerator, simulated or real, and *offloading* a stage moves it there: `reward`
(the scores of the reward model) or `reference` (the log-probs of the frozen model that the policy
is kept near). All else stays where your framework computes: on a GPU, or on the host.

`ecorl config reference engine.offload` prints one table or key, `ecorl config show FILE` a config
with its defaults filled in. This page is made by
`ecorl config reference --markdown > ecorl/config/REFERENCE.md`.
"""


def reference_page(tables: Sequence[ReferenceTable]) -> str:
    """Make the page of some tables of the reference.

    Args:
        tables: in the order of the page.

    Returns:
        Markdown, as GitHub shows it, with a line feed at its end.
    """
    parts = [_INTRODUCTION, _contents(tables)]
    parts += [_section(table) for table in tables]
    return "\n".join(parts)


def _contents(tables: Sequence[ReferenceTable]) -> str:
    titles = dict.fromkeys(_title(table) for table in tables if table.kind is None)
    return "".join(f"- [{title}](#{_anchor(title)})\n" for title in titles)


def _title(table: ReferenceTable) -> str:
    header = f"`{table.header}`" if table.header else "At the top of the file"
    return header if table.kind is None else f'{header} with `type = "{table.kind}"`'


def _anchor(title: str) -> str:
    """The name that GitHub gives to a heading."""
    return re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")


def _section(table: ReferenceTable) -> str:
    level = "##" if table.kind is None else "###"
    meaning = "\n\n".join(" ".join(paragraph.split()) for paragraph in table.meaning.split("\n\n"))
    section = f"{level} {_title(table)}\n\n{meaning}\n"
    if not table.keys:
        return section
    rows = ["| key | type | default | unit | meaning |", "|---|---|---|---|---|"]
    return "\n".join([section, *rows, *map(_row, table.keys), ""])


def _row(key: ReferenceKey) -> str:
    default = key.default if key.default in (REQUIRED, NOT_SET) else f"`{key.default}`"
    cells = [f"`{key.name}`", _escaped(key.type), default, key.unit, _escaped(key.meaning)]
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text in which no character has a meaning in a table of Markdown, but for back-ticks."""
    return re.sub(r"([|*_<>^])", r"\\\1", text)
