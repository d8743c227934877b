"""`Calibration`: costs, lengths and other jobs as they were fitted to a run's ledger.

It is saved as TOML that a person can read and change: a table with one column a line, and every
figure of the workload by name.

It holds for the devices, models and batches that its run had, and for no others (`holds_for`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tomlkit

from ecorl.config import read_toml
from ecorl.devices import load_profile
from ecorl.errors import ConfigError
from ecorl.policy.calibration.fit import Lengths
from ecorl.policy.calibration.queue import OtherJobs
from ecorl.records import Abilities, Algorithm, Provenance
from ecorl.scheduler.tables import COLUMNS, CostTable
from ecorl.sim.scenario import Limits, Scenario


@dataclass(frozen=True, slots=True)
class Reach:
    """The batches that a calibration was fitted to: least and greatest of each figure.

    Attributes:
        n_batches: how many.
        rows_least, rows_most: completions of a batch.
        prompt_least, prompt_most: mean prompt of a batch, tokens.
        completion_least, completion_most: mean completion of a batch, tokens.
        models: that ran, by name, as far as the record tells.
    """

    n_batches: int
    rows_least: int
    rows_most: int
    prompt_least: float
    prompt_most: float
    completion_least: float
    completion_most: float
    models: Mapping[str, str] = field(default_factory=dict)


FORMAT = "ecorl.calibration/1"
"""Name and version of the file's form."""

_HEAD = """# The fitted calibration of a run, made by `ecorl policy calibrate`.
# Times in s, energies in J, powers in W, lengths in tokens; [table] has a value a length, on all
# GPUs, or on all cards where it says card. [readings] counts what each fit was made from, [spreads]
# is the standard deviation of a reading about it, over its value. [holds_for] has the batches that
# it was fitted to: it holds for their models and rows on these devices, and for mean completions
# within the lengths of [table]; outside of those that were seen it is extrapolated.
"""

_POWERS = ("gpu_idle_w", "card_active_w", "card_idle_w")
_OVERLAP = ("resync_s", "forward_share", "early_share", "swap_share", "contention")
_WORKLOAD = ("n_rows", "prompt_length", "max_length", "slow", "n_gpus", "n_cards")

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Calibration:
    """The ``fitted`` calibration of one run.

    Attributes:
        run_id: name of the run.
        table: the fitted costs, with their provenance and notes.
        algorithm: of the trainer.
        with_reference: whether a reference model ran.
        n_rows: completions of a batch.
        prompt_length: mean prompt, tokens.
        max_length: limit of a completion, tokens.
        gpu, n_gpus, card, n_cards: names of the device profiles, and how many ran.
        lengths: distribution of lengths.
        others: other jobs on the cards.
        slow: factor by which the cards slow while the GPUs work.
        abilities: what the run did: what it never did counts as not possible.
        limits: the run's guards.
        counts: readings behind each fit, by its name.
        spreads: robust standard deviation of a reading about each fit, over its value.
        reach: the batches that it was fitted to.
    """

    run_id: str
    table: CostTable
    algorithm: Algorithm
    with_reference: bool
    n_rows: int
    prompt_length: float
    max_length: float
    gpu: str
    n_gpus: int
    card: str
    n_cards: int
    lengths: Lengths
    others: OtherJobs
    slow: float
    abilities: Abilities
    limits: Limits
    counts: Mapping[str, int]
    spreads: Mapping[str, float]
    reach: Reach

    @property
    def provenance(self) -> Provenance:
        """That of the weakest reading that was used."""
        return self.table.provenance

    @property
    def notes(self) -> tuple[str, ...]:
        """What is assumed, and what to know of the fits."""
        return self.table.notes

    def scenario(self, name: str = "fitted", **changes: Any) -> Scenario:
        """The run as a scenario of the simulator.

        Args:
            name: for tables.
            changes: fields of `Scenario` to set otherwise, e.g. ``n_iterations``.
        """
        made = Scenario(
            name=name,
            calibration="fitted",
            algorithm=self.algorithm,
            n_rows=self.n_rows,
            prompt_length=self.prompt_length,
            gpu=_known_profile(self.gpu, "h100_sxm"),
            n_gpus=self.n_gpus,
            card=_known_profile(self.card, "u55c"),
            n_cards=self.n_cards,
            with_reference=self.with_reference,
            max_length=self.max_length,
            slow=self.slow,
            abilities=self.abilities,
            limits=self.limits,
            fitted=self.table,
            **asdict(self.lengths),
            **asdict(self.others),
        )
        return replace(made, **changes) if changes else made

    def save(self, path: Path) -> None:
        """Write it as TOML, with nine digits.

        Raises:
            ConfigError: when the file cannot be written.
        """
        try:
            Path(path).write_text(_HEAD + tomlkit.dumps(_rounded(_plain(self))), encoding="utf-8")
        except OSError as error:
            allowed = f"a file that can be written ({error.strerror})"
            raise ConfigError("calibration", str(path), allowed) from error

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read what `save` wrote.

        Raises:
            ConfigError: when the file cannot be read, or a value in it is not acceptable.
        """
        path = Path(path)
        made = _from_plain(_Given(read_toml(path, "calibration"), path))
        made.scenario()  # whatever else a scenario refuses
        return made


def _known_profile(name: str, stand_in: str) -> str:
    """A profile that can be loaded: a fitted table needs none of its figures."""
    try:
        load_profile(name)
    except ConfigError:
        return stand_in
    return name


def _plain(c: Calibration) -> dict[str, Any]:
    table = c.table
    return {
        "format": FORMAT,
        "run_id": c.run_id,
        "provenance": str(table.provenance),
        "notes": list(table.notes),
        "holds_for": asdict(c.reach),
        "workload": {
            "algorithm": str(c.algorithm),
            "with_reference": c.with_reference,
            "gpu": c.gpu,
            "card": c.card,
            **{name: getattr(c, name) for name in _WORKLOAD},
        },
        "lengths": {
            k: list(v) if isinstance(v, tuple) else v for k, v in asdict(c.lengths).items()
        },
        "others": asdict(c.others),
        "abilities": asdict(c.abilities),
        "limits": {k: v for k, v in asdict(c.limits).items() if v is not None},
        "powers": {name: getattr(table, name) for name in _POWERS},
        "overlap": {name: getattr(table, name) for name in _OVERLAP},
        "readings": dict(c.counts),
        "spreads": dict(c.spreads),
        "table": {
            "card_usable": list(table.card_usable),
            "lengths": table.lengths.tolist(),
            **{name: table.values[:, i].tolist() for i, name in enumerate(COLUMNS)},
        },
    }


def _rounded(value: Any) -> Any:
    """Nine digits are a thousand times finer than any reading, and can be read."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _from_plain(data: _Given) -> Calibration:
    if data.text("format") != FORMAT:
        raise data.refused("format", repr(FORMAT))
    others = data.part("others")
    return Calibration(
        run_id=data.text("run_id"),
        table=_table(data),
        algorithm=data.choice("workload.algorithm", Algorithm),
        with_reference=data.flag("workload.with_reference"),
        gpu=data.text("workload.gpu"),
        card=data.text("workload.card"),
        n_rows=data.count("workload.n_rows"),
        n_gpus=data.count("workload.n_gpus"),
        n_cards=data.count("workload.n_cards"),
        prompt_length=data.number("workload.prompt_length"),
        max_length=data.number("workload.max_length"),
        slow=data.number("workload.slow"),
        lengths=Lengths(
            mix=tuple(data.numbers("lengths.mix")),
            **{
                f.name: data.number(f"lengths.{f.name}") for f in fields(Lengths) if f.name != "mix"
            },
        ),
        others=OtherJobs(**{name: data.number(f"others.{name}") for name in others}),
        abilities=Abilities(
            **{f.name: data.flag(f"abilities.{f.name}") for f in fields(Abilities)}
        ),
        limits=Limits(**{name: data.number(f"limits.{name}") for name in data.part("limits")}),
        counts={name: data.count(f"readings.{name}") for name in data.part("readings")},
        spreads={name: data.number(f"spreads.{name}") for name in data.part("spreads")},
        reach=_reach(data),
    )


def _reach(data: _Given) -> Reach:
    """What the file says of the batches that it was fitted to."""
    models = data.part("holds_for.models")
    return Reach(
        n_batches=data.count("holds_for.n_batches"),
        rows_least=data.count("holds_for.rows_least"),
        rows_most=data.count("holds_for.rows_most"),
        prompt_least=data.number("holds_for.prompt_least"),
        prompt_most=data.number("holds_for.prompt_most"),
        completion_least=data.number("holds_for.completion_least"),
        completion_most=data.number("holds_for.completion_most"),
        models={key: data.text(f"holds_for.models.{key}") for key in models},
    )


def _table(data: _Given) -> CostTable:
    lengths = np.array(data.numbers("table.lengths"))
    if len(lengths) < 2 or lengths[0] <= 0 or np.any(np.diff(lengths) <= 0):
        raise data.refused("table.lengths", "2 lengths or more, above 0 and rising")
    columns = []
    for name in COLUMNS:
        column = data.numbers(f"table.{name}")
        if len(column) != len(lengths):
            raise data.refused(f"table.{name}", f"{len(lengths)} numbers, one a length")
        columns.append(column)
    usable = [data.flag(f"table.card_usable.{i}") for i in range(3)]
    return CostTable(
        lengths=lengths,
        values=np.array(columns).T.copy(),
        card_usable=(usable[0], usable[1], usable[2]),
        provenance=data.choice("provenance", Provenance),
        notes=tuple(str(note) for note in data.items("notes")),
        **{name: data.number(f"powers.{name}") for name in _POWERS},
        **{name: data.number(f"overlap.{name}") for name in _OVERLAP},
    )


class _Given:
    """The values of a file by dotted key; a wrong one is refused with key, value and file."""

    def __init__(self, data: Mapping[str, Any], path: Path) -> None:
        self.data, self.path = data, path

    def get(self, key: str) -> Any:
        value: Any = self.data
        for part in key.split("."):
            if isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def refused(self, key: str, allowed: str) -> ConfigError:
        return ConfigError(key, self.get(key), allowed, self.path)

    def _checked(self, key: str, allowed: str, fine: Callable[[Any], bool]) -> Any:
        value = self.get(key)
        if not fine(value):
            raise self.refused(key, allowed)
        return value

    def text(self, key: str) -> str:
        return str(self._checked(key, "a text", lambda v: isinstance(v, str)))

    def flag(self, key: str) -> bool:
        return bool(self._checked(key, "true or false", lambda v: isinstance(v, bool)))

    def number(self, key: str) -> float:
        return float(self._checked(key, "a finite number of 0 or more", _is_number))

    def count(self, key: str) -> int:
        def fine(value: Any) -> bool:
            return isinstance(value, int) and _is_number(value)

        return int(self._checked(key, "a whole number of 0 or more", fine))

    def items(self, key: str) -> list[Any]:
        return list(self._checked(key, "a list", lambda v: isinstance(v, list)))

    def numbers(self, key: str) -> list[float]:
        def fine(value: Any) -> bool:
            return isinstance(value, list) and all(map(_is_number, value))

        return [float(v) for v in self._checked(key, "a list of numbers of 0 or more", fine)]

    def part(self, key: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._checked(key, "a table", lambda v: isinstance(v, Mapping))
        return found

    def choice(self, key: str, kind: type[_T]) -> _T:
        names = [str(one) for one in kind]  # type: ignore[attr-defined]  # kind is an enum
        value = self._checked(key, f"one of {names}", lambda v: v in names)
        return kind(value)  # type: ignore[call-arg]


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value < math.inf


def holds_for(made: Calibration) -> list[str]:
    """Say what a calibration holds for, and what it does not, one sentence a line.

    Args:
        made: the calibration.
    """
    devices = f"{made.n_gpus} x {made.gpu} and {made.n_cards} x {made.card}"
    told = [f"holds for {devices}, {made.algorithm}; its figures are {made.provenance}"]
    reach = made.reach
    if reach.models:
        told.append("; ".join(f"{key} {name}" for key, name in reach.models.items()))
    told.append(
        f"fitted to {reach.n_batches} batches of {_range(reach.rows_least, reach.rows_most)} rows, "
        f"mean prompts of {_range(reach.prompt_least, reach.prompt_most)} and mean completions of "
        f"{_range(reach.completion_least, reach.completion_most)} tokens"
    )
    told.append(f"calls behind the fits: {_calls(made)}")
    lengths = made.table.lengths
    told.append(
        "does not hold for other models or devices, other numbers of rows, or mean completions "
        f"outside {_range(float(lengths[0]), float(lengths[-1]))} tokens; within these, but "
        "outside what was seen, it is extrapolated"
    )
    return told


def _range(least: float, most: float) -> str:
    first, last = f"{least:.3g}", f"{most:.3g}"
    if most >= 1000:
        first, last = f"{least:,.0f}", f"{most:,.0f}"
    return first if first == last else f"{first} to {last}"


def _calls(made: Calibration) -> str:
    """Readings behind the times of each stage, and where they ran."""
    told = []
    for name, n in made.counts.items():
        if name.endswith("_s"):
            stage, card = name.removesuffix("_s"), name.endswith("_card_s")
            told.append(f"{stage.removesuffix('_card')}{' on the card' if card else ''} {n}")
    return ", ".join(told)
