"""The key: what the words of a report mean, for a reader who has not met them before."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ecorl.records import GPU_NAME, HOST_NAME

TITLE = "What the words mean"

_PLACES = {
    HOST_NAME: "this machine's processor, on which your framework computes",
    GPU_NAME: "the graphics processors on which your framework computes",
}


class Term(NamedTuple):
    """A word of the report.

    Attributes:
        name: the word.
        pattern: how it shows in a text.
        meaning: one clause; ``{place}`` stands for where the framework computes.
    """

    name: str
    pattern: str
    meaning: str


_TERMS = (
    Term("card", r"\bcards?\b|\boffload", "the accelerator board that stages can be moved to"),
    Term(
        "simulated card",
        r"\bsimulated card\b|\b(?!FP)\w+ \(simulated\)|\bcard was simulated\b",
        "its answers and figures are computed on this machine; there is no board",
    ),
    Term("offloading", r"\boffload", "moving a stage of the training from the {place} to the card"),
    Term(
        "card beside {place}",
        r"\bcard beside ",
        "on the card while the {place} goes on; 'card' alone: the {place} waits for it",
    ),
    Term(
        "profiling",
        r"\bprofiling\b",
        "the first batches of a run, which the {place} and the card take in turn so that the costs "
        "of both get known",
    ),
    Term(
        "barrier",
        r"\bbarrier\b",
        "where the training waits for answers of the card, until all are there or a deadline is "
        "over",
    ),
    Term(
        "computed by the trainer itself",
        r"\bby the trainer itself\b|\bfallback\b",
        "rows whose answer from the card was late, wrong or missing; the training got the "
        "framework's own numbers for them (fallback)",
    ),
    Term(
        "superseded",
        r"\bsuperseded\b",
        "done after the checkpoint, or the start, from which the run went on, and therefore done "
        "again",
    ),
    Term(
        "beside stages",
        r"\bbeside stages\b",
        "drawn between the calls of stages: saving, the framework's own work, idle draw, and "
        "evaluations that are no row of their own",
    ),
    Term(
        "EDI",
        r"\bEDI\b|J/token|J a token",
        "energy density index: joules for each output token of a stage on a device",
    ),
    Term("PUE", r"\bPUE\b", "energy of the whole data centre over that of its machines"),
    Term("CUE", r"\bCUE\b", "emissions for each kilowatt-hour of the machines"),
    Term("SCI", r"\bSCI\b", "software carbon intensity: emissions for each unit of work"),
    Term(
        "p50, p95",
        r"\bp(?:50|95)\b",
        "half of them, and 95 of 100, were no longer than that",
    ),
    Term(
        "rank flips",
        r"\b[Rr]ank flips\b",
        "pairs of answers that INT8, the numbers of 8 bits in which the card computes, puts in "
        "another order than the model itself",
    ),
    Term(
        "SD, SE",
        r"\bS[DE]\b",
        "standard deviation of single figures, standard error of a mean",
    ),
    Term(
        "provenance",
        r"\b(?:provenance|measured|replayed|emulated|modelled|published)\b",
        "where a figure comes from",
    ),
    Term("measured", r"\bmeasured\b", "read from an instrument or a clock in this run"),
    Term("replayed", r"\breplayed\b", "from a recording"),
    Term("emulated", r"\bemulated\b", "from a simulation of the card's kernels"),
    Term(
        "modelled",
        r"\bmodelled\b",
        "computed from what is known of the device, and read from no instrument",
    ),
    Term("published", r"\bpublished\b", "as printed in a paper or data sheet"),
)


def key(texts: Iterable[str], place: str) -> list[tuple[str, str]]:
    """Explain the words that occur in a report.

    Args:
        texts: what it says.
        place: where the framework computes, ``GPU`` or ``host``.

    Returns:
        Words with what they mean.
    """
    text = "\n".join(texts)
    named = Term(place, rf"\b{place}\b", _PLACES[place])
    return [
        (term.name.format(place=place), term.meaning.format(place=place))
        for term in (named, *_TERMS)
        if re.search(term.pattern, text)
    ]
