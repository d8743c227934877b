"""Output that is lost does not end what prints it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ecorl.cli.output import LastingOutput
from ecorl.runtime.progress import progress


class Closing(io.StringIO):
    """A terminal or pipe that goes away after some writes."""

    def __init__(self, n_writes: int, terminal: bool) -> None:
        super().__init__()
        self.left, self.terminal = n_writes, terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        if self.left == 0:
            raise OSError(5, "Input/output error")
        self.left -= 1
        return super().write(text)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("n_writes", [0, 1, 3])
def test_work_goes_on_when_its_terminal_is_gone(terminal, n_writes):
    stream = Closing(n_writes, terminal)
    console = Console(file=LastingOutput(stream), force_terminal=terminal)
    with progress("training", 4, console) as bar:
        for _ in range(4):
            bar.advance()
            console.print("a line")
    assert stream.left == 0


def test_the_text_arrives_as_long_as_it_can():
    stream = io.StringIO()
    output = LastingOutput(stream)
    assert output.write("one") == 3
    stream.close()
    assert output.write("two") == 3
    output.flush()


def test_the_console_sees_the_stream_as_it_is():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    output = LastingOutput(stream)
    assert output.encoding == "latin-1"
    assert not output.isatty()
