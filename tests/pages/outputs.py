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
        keep: regular expressions of the lines that are shown; none: all.
        until: for some of these, the expression of the line before which the part ends.
    """

    command: str
    keep: tuple[str, ...] = ()
    until: str = ""

    def cut(self, printed: str) -> str:
        """Cut an output to what is shown."""
        lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
        if not self.keep:
            return "\n".join(lines) + "\n"
        shown: list[str] = []
        inside = False
        for line in lines:
            inside = inside and not re.search(self.until or r"^$", line)
            starts = any(re.search(pattern, line) for pattern in self.keep)
            inside = inside or starts
            if inside:
                shown.append(line)
            elif shown and shown[-1] != CUT:
                shown.append(CUT)
        return "\n".join(shown).rstrip(f"\n{CUT}") + "\n"


OUTPUTS = {
    "demo": Output(
        "make demo",
        (
            r"^held-out",
            r"^GRPO training: 200/200",
            r"^- This machine spent",
            r"^- On the calls that it took",
            r"^Stages",
            r"^Decisions",
            r"^report:",
        ),
    ),
    "validate": Output("ecorl fpga validate --model demo/reward --pairs demo/pairs.jsonl"),
    "estimate": Output(
        "ecorl fpga estimate --model demo/reward --tokens 512 --reference demo/policy"
    ),
    "serve": Output(
        "curl -s http://127.0.0.1:8642/v1/logprobs -H 'Content-Type: application/json' "
        '-d \'{"rows":[{"id":"a","token_ids":[5,9,2,7],"n_completion":2}],"temperature":1.0}\''
    ),
}
"""By the name in the comment ``<!-- printed: NAME -->`` before the block."""
