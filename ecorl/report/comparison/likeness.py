"""Whether two runs did the same work under the same instruments, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ecorl.records import DeviceKind
from ecorl.report.render.numbers import share
from ecorl.report.sharing.summary import (
    BETA,
    COMPLETION_LENGTH,
    GENERATIONS,
    Conditions,
    RunSummary,
    WorkDone,
)
from ecorl.report.training_stage.model import is_simulated
from ecorl.report.training_stage.words import shares_words

_SAME_WORK = 0.02
"""Relative difference of counts below which two runs did the same work. Invented: sampled answers
are a little longer or shorter from run to run."""

_SETTING_WORDS: Mapping[str, str] = {
    COMPLETION_LENGTH: "completions of at most {} tokens",
    GENERATIONS: "{} completions a prompt",
}


@dataclass(frozen=True, slots=True)
class Likeness:
    """How two runs differ, one sentence each without a full stop; empty where they do not.

    Attributes:
        amounts: in how much they did of the same work.
        kinds: in what they worked on, or how a step is made.
        methods: in what one compares runs for: placement, numeric formats, workers.
        instruments: in what explains a difference of their energies: devices and what reads them.
        remarks: in instruments that explain little of it.
        unknown: what the records do not tell of one run or of both.
        seeds: seeds of both; None where one is not known.
    """

    amounts: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    instruments: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    seeds: tuple[int, int] | None = None

    @property
    def same_work(self) -> bool:
        """Whether both did as much of the same work, as far as the records tell."""
        return not (self.amounts or self.kinds)

    @property
    def same_instruments(self) -> bool:
        """Whether the same devices were read by the same instruments."""
        return not (self.instruments or self.remarks)

    @property
    def no_rates(self) -> str | None:
        """Why figures per token cannot be compared, or None."""
        if self.kinds:
            return "the two runs did different work"
        return "the instruments are not the same" if self.instruments else None

    @property
    def no_totals(self) -> str | None:
        """Why totals cannot be compared, or None."""
        return self.no_rates or ("the runs did not do as much work" if self.amounts else None)


def likeness(a: RunSummary, b: RunSummary) -> Likeness:
    """Find how two runs differ.

    Args:
        a: the first run.
        b: the other one.
    """
    one, two = a.conditions, b.conditions
    seeds = None if one.seed is None or two.seed is None else (one.seed, two.seed)
    instruments, remarks = _instruments(one, two)
    return Likeness(
        amounts=_known(
            _of_counts("steps", a.work.n_steps, b.work.n_steps, exact=True),
            _of_counts("samples", a.work.n_samples, b.work.n_samples),
            _of_counts("tokens", a.work.n_tokens, b.work.n_tokens),
            _of_states(a.state, b.state),
        ),
        kinds=_known(
            _of_batches(a.work, b.work),
            _of_models(a, b),
            _of_words("the algorithm is {}", one.algorithm, two.algorithm),
            _of_words("the prompts are those of {}", one.prompts, two.prompts),
            *(_of_words(words, *(_number(c, name) for c in (one, two)))
              for name, words in _SETTING_WORDS.items()),
            _of_words("a step is made {}", _reference(one), _reference(two)),
        ),
        methods=_known(
            _of_gears(a.work, b.work),
            _of_widths(a.work, b.work),
            _of_words("placement is by the policy {}", one.placement, two.placement),
        ),
        instruments=instruments,
        remarks=remarks,
        unknown=_unknown(one, two),
        seeds=seeds,
    )  # fmt: skip


def _known(*found: str | None) -> tuple[str, ...]:
    return tuple(told for told in found if told is not None)


def _unknown(one: Conditions, two: Conditions) -> tuple[str, ...]:
    facts = {
        "the algorithm": (one.algorithm, two.algorithm),
        "the prompts": (one.prompts, two.prompts),
        "the seed": (one.seed, two.seed),
        "the host": (one.host, two.host),
        "the instruments": (one.instruments or None, two.instruments or None),
    }
    return tuple(name for name, values in facts.items() if None in values)


# ---------------------------------------------------------------- the work


def _of_counts(
    what: str, first: int | None, second: int | None, *, exact: bool = False
) -> str | None:
    if first is None or second is None:
        return None
    largest = max(first, second)
    if first == second or (not exact and largest and abs(first - second) / largest <= _SAME_WORK):
        return None
    more = f" ({share((second - first) / first, 0)} more)" if first and second > first else ""
    less = f" ({share((first - second) / first, 0)} less)" if first and second < first else ""
    return f"{first:,} {what} in the first run, {second:,} in the other one{more}{less}"


def _of_states(first: str, second: str) -> str | None:
    return f"the first run is {first}, the other one {second}" if first != second else None


def _of_batches(one: WorkDone, two: WorkDone) -> str | None:
    first, second = one.effective_batch_size, two.effective_batch_size
    if first is None or second is None or first == second:
        return None
    return f"effective batches of {first} in the first run, of {second} in the other one"


def _of_models(a: RunSummary, b: RunSummary) -> str | None:
    def named(s: RunSummary) -> dict[str, str]:
        # The models of the demo's task are made from the run's seed, and named after it.
        seed = f"-seed{s.conditions.seed}"
        return {key: name.replace(seed, "") for key, name in s.work.models.items()}

    first, second = named(a), named(b)
    other = [k for k in {**first, **second} if first.get(k) != second.get(k)]
    if not other:
        return None
    told = ", ".join(f"{k} {a.work.models.get(k)} and {b.work.models.get(k)}" for k in other)
    return f"they trained other models or tasks: {told}"


def _of_words(words: str, first: str | None, second: str | None) -> str | None:
    if first is None or second is None or first == second:
        return None
    return f"{words.format(first)} in the first run, {second} in the other one"


def _number(c: Conditions, name: str) -> str | None:
    value = c.settings.get(name)
    return None if value is None else f"{value:g}"


def _reference(c: Conditions) -> str | None:
    beta = c.settings.get(BETA)
    return None if beta is None else f"with{'' if beta else 'out'} a reference model"


def _of_gears(one: WorkDone, two: WorkDone) -> str | None:
    """Another mix of numeric formats: it changes joules, time and the learned model itself."""
    names = {**one.gears, **two.gears}
    apart = max((abs(one.gears.get(g, 0.0) - two.gears.get(g, 0.0)) for g in names), default=0.0)
    if apart <= _SAME_WORK:
        return None
    first, second = (
        shares_words(work.gears) if work.gears else "the framework's own precision"
        for work in (one, two)
    )
    told = f"the first run trained its tokens in {first}, the other one in {second}"
    if any(map(is_simulated, names)):
        told += " (a simulated format saves nothing and takes longer than a real one)"
    return told


def _of_widths(one: WorkDone, two: WorkDone) -> str | None:
    if one.widths == two.widths or not (one.widths and two.widths):
        return None
    first, second = (" and ".join(map(str, work.widths)) for work in (one, two))
    return f"training workers: {first} in the first run, {second} in the other one"


# ---------------------------------------------------------------- the instruments


def _instruments(one: Conditions, two: Conditions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Differences of instruments: those that explain a difference of energy, and others."""
    explaining: list[str] = []
    others: list[str] = []
    if one.instruments and two.instruments:
        for device_id in sorted({**one.instruments, **two.instruments}):
            told = _of_instrument(device_id, one, two)
            if told is not None:
                explaining.append(told)
    if _cards_differ(one, two):
        explaining.append(
            f"a simulated card answered {one.n_card_calls:,} calls in the first run and "
            f"{two.n_card_calls:,} in the other one, and its energy is no part of what the "
            "machines drew"
        )
    host = _of_words("it ran on the host {}", one.host, two.host)
    if host is not None:
        kinds = {i.kind for c in (one, two) for i in c.instruments.values()}
        # Profiles tell GPUs and cards apart, but not one host's processor from another's.
        (explaining if DeviceKind.CPU in kinds else others).append(host)
    intervals = [None if c.interval_s is None else f"{c.interval_s:g} s" for c in (one, two)]
    every = _of_words("power was read every {}", *intervals)
    if every is not None:
        others.append(every)
    return tuple(explaining), tuple(others)


def _of_instrument(device_id: str, one: Conditions, two: Conditions) -> str | None:
    first, second = one.instruments.get(device_id), two.instruments.get(device_id)
    if first is None or second is None:
        there = first or second
        which = "other" if first is None else "first"
        # Whether a simulated card is there changes nothing as long as it answers nothing, and a
        # real one may be what the runs are compared for: its energy is among the machine's.
        if there is None or there.kind is DeviceKind.FPGA:
            return None
        return f"only the {which} run has {device_id} ({there.profile})"
    if first.profile != second.profile:
        return f"{device_id} is {first.profile} in the first run, {second.profile} in the other one"
    if (first.source, first.provenance) != (second.source, second.provenance):
        return (
            f"power of {device_id}: {first.provenance} by {first.source} in the first run, "
            f"{second.provenance} by {second.source} in the other one"
        )
    return None


def _cards_differ(one: Conditions, two: Conditions) -> bool:
    most = max(one.n_card_calls, two.n_card_calls)
    if not most:
        return False
    # As many calls a step differ little between runs of one policy.
    other_policy = one.placement != two.placement
    return other_policy or not min(one.n_card_calls, two.n_card_calls)
