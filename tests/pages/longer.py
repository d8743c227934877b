"""Runs the longer commands of the pages as a reader would: ``python -m tests.pages.longer``.

With ``--deep`` all run in their order, but for those of the tests and benchmarks themselves, and
what `tests.pages.treatment` says is never run. With ``--write`` they do too, and the outputs that
stand on the pages are renewed. Exit code 1 where a command does not do what its page says.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from tests.pages.markdown import ROOT, commands, pages
from tests.pages.outputs import OUTPUTS
from tests.pages.reader import Reader
from tests.pages.treatment import COMMANDS, PAGES, Pass


def main() -> int:
    """Run the commands; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.pages.longer", description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the outputs on the pages")
    parser.add_argument("--deep", action="store_true", help="run all of them")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ecorl-pages-") as folder:
        reader = Reader(Path(folder))
        wrong = _read(reader, deep=chosen.deep or chosen.write)
    if chosen.write:
        write(reader.outputs)
    for line in wrong:
        print(f"WRONG {line}", file=sys.stderr)
    print(f"{len(reader.outputs)} commands, {len(wrong)} of them not as their page says")
    return 1 if wrong else 0


def _read(reader: Reader, *, deep: bool) -> list[str]:
    wrong, typed = [], set()
    run = set(Pass) - {Pass.NEVER} if deep else {Pass.LONG, Pass.BOTH}
    for page in PAGES:
        for command in commands(page):
            treatment = COMMANDS.get(command.text)
            # Variables that a page exports are its reader's from there on.
            if treatment is not None and (treatment.when not in run or command.text in typed):
                continue
            typed.add(command.text)
            found = reader.type(command, treatment)
            took_s = reader.times_s.get(command.text)
            print(f"{'' if took_s is None else f'{took_s:.1f} s'} {command}", flush=True)
            wrong += [f"{command}: {found}"] if found else []
        wrong += reader.end_page()
    return wrong


def write(outputs: dict[str, str]) -> None:
    """Put outputs of commands into the blocks of the pages that show them.

    Args:
        outputs: by the text of the command; blocks of others stay as they are.
    """
    for page in pages():
        path = ROOT / page
        text = path.read_text("utf-8")
        for name, output in OUTPUTS.items():
            if output.command in outputs:
                block = rf"(<!-- printed: {name} -->\n```text\n).*?^(```)$"
                shown = output.cut(outputs[output.command])
                text = re.sub(
                    block, lambda m, s=shown: m[1] + s + m[2], text, flags=re.DOTALL | re.MULTILINE
                )
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
