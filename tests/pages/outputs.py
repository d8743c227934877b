"""Outputs that stand on the pages: which command prints each, and which of its lines are shown."""

from __future__ import annotations

import re
from dataclasses import dataclass

CUT = "…"
"""Stands where lines are left out."""


@dataclass(frozen=True)
class Output:
    """An output that a page shows.

    Attributes:
        command: of a page, as it stands there.
        keep: what is shown: regular expressions of lines, each with the number of lines from there
            on; none: all.
    """

    command: str
    keep: tuple[tuple[str, int], ...] = ()

    def cut(self, printed: str) -> str:
        """Cut an output to what is shown."""
        lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
        if not self.keep:
            return "\n".join(lines) + "\n"
        shown: list[str] = []
        left = 0
        for line in lines:
            left = max([left, *(n for pattern, n in self.keep if re.search(pattern, line))])
            if left:
                shown.append(line)
            elif shown and shown[-1] != CUT:
                shown.append(CUT)
            left = max(left - 1, 0)
        return "\n".join(shown).rstrip(f"\n{CUT}") + "\n"


OUTPUTS = {
    "demo": Output(
        "make demo",
        (
            (r"^held-out before", 1),
            (r"^GRPO training: 200/200", 2),
            (r"^- On the calls that it took", 3),
            (r"^  # time measured, energy", 5),
            (r"^  # time modelled, energy", 4),
            (r"^  reward +\d+ x host: e.g.", 3),
        ),
    ),
    "demo-all": Output(
        "ecorl run --config demo-all",
        (
            (r"^What was saved, and against what", 5),
            (r"^Decisions over the run", 11),
        ),
    ),
    "validate": Output("ecorl fpga validate --model demo/reward --pairs demo/pairs.jsonl"),
    "estimate": Output(
        "ecorl fpga estimate --model demo/reward --tokens 512 --reference demo/policy",
        (
            (r"^reward as reward", 3),
            (r"^AMD Alveo U55C .*: reward", 17),
            (r"^HBM placement on u", 4),
        ),
    ),
    "serve": Output(
        "curl -s http://127.0.0.1:8642/v1/logprobs -H 'Content-Type: application/json' "
        '-d \'{"rows":[{"id":"a","token_ids":[5,9,2,7],"n_completion":2}],"temperature":1.0}\''
    ),
}
"""By the name in the comment ``<!-- printed: NAME -->`` before the block."""
