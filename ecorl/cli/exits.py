"""Exit codes of the ``ecorl`` command, and the errors that lead to them.

A user's mistake ends with one line on standard error and exit code 2, a fault with one line and
exit code 1, Ctrl-C with one line and exit code 130. This module imports no library, so that
`ecorl.cli` can handle Ctrl-C from the first moment.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ecorl.errors import EcorlError, LedgerError, MissingToolError, RunError, UserError
from ecorl.plain_text import line_at, plain_streams, text_refusal

if TYPE_CHECKING:
    import typer

FAULT = 1
"""Exit code of a fault that is no mistake of the user's."""
USER_ERROR = 2
"""Exit code of a user's mistake."""
STOPPED = 130
"""Exit code of a run that a signal stopped; it can be resumed."""
STOPPED_TEXT = "stopped from the keyboard"
NOTHING_RECORDED = "nothing was recorded: start it again"

_POLICY_PACKAGES = ("gymnasium", "onnx", "scipy", "stable_baselines3", "tensorboard")
"""Packages that the extra ``policy`` brings."""


class Stopped(Exception):
    """Ctrl-C; the message says how to go on, where that is possible."""


def stopped_text(words: Sequence[str]) -> str:
    """Say that Ctrl-C ended a command of which no more is known than its words.

    Args:
        words: of the command line, without the program.
    """
    if list(words[:1]) != ["run"]:
        return STOPPED_TEXT
    if any(word.partition("=")[0] == "--resume" for word in words):
        return f"{STOPPED_TEXT}; go on with: {shlex.join(['ecorl', *words])}"
    return f"{STOPPED_TEXT}; {NOTHING_RECORDED}"


def end_stopped() -> NoReturn:
    """Exit with `STOPPED`, wherever Ctrl-C has come.

    CPython notes when a KeyboardInterrupt passes through code that it compiles from a text, as
    dataclasses are made when a library is imported, and then ends by the signal whatever exit code
    is asked for. Compiling another text clears that note.
    """
    exec("")
    sys.exit(STOPPED)


@contextlib.contextmanager
def needs_policy_extra() -> Iterator[None]:
    """Turn a missing package of the extra ``policy`` into one line.

    Raises:
        MissingToolError: when a package of the extra is not installed.
    """
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        # Stable-baselines3 says so without a name where only its TensorBoard is missing.
        if missing not in _POLICY_PACKAGES and "tensorboard" not in str(error).lower():
            raise
        text = f'this command needs pip install "ecorl[policy]" ({error})'
        raise MissingToolError(text) from error


@contextlib.contextmanager
def reading_named_ledger() -> Iterator[None]:
    """Turn a ledger that the user named and that cannot be read into the user's mistake.

    Raises:
        RunError: in place of a `LedgerError`.
    """
    try:
        yield
    except LedgerError as error:
        raise RunError(str(error)) from error


def help_without_command(context: typer.Context) -> None:
    """Print the help of a command group and exit with `USER_ERROR` when no command is given."""
    if context.invoked_subcommand is None:
        import typer

        typer.echo(context.get_help())
        raise typer.Exit(USER_ERROR)


def run_words_to_exit(run: Callable[[list[str]], int], words: Sequence[str] | None) -> NoReturn:
    """Run a command that reads its own words, and exit; see `run_to_exit`.

    Args:
        run: takes the words and gives the exit code.
        words: of the command line; None: those of this process.
    """
    given = list(sys.argv[1:] if words is None else words)

    def app(*, standalone_mode: bool) -> int:
        try:
            return run(given)
        except KeyboardInterrupt as error:
            raise Stopped(STOPPED_TEXT) from error

    run_to_exit(app)


def run_to_exit(app: Callable[..., Any]) -> NoReturn:
    """Run the commands and exit; every error that ecorl raises on purpose becomes one line.

    Args:
        app: the typer application.
    """
    import typer

    plain_streams()
    # Some releases of typer bring a parser of their own, others build on click.
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error), USER_ERROR)
    except EcorlError as error:
        _fail(str(error), FAULT)
    except usage_error as error:
        _fail(_usage(error), USER_ERROR)
    except Stopped as error:
        _fail(str(error), STOPPED)
    except typer.Abort:
        _fail(stopped_text(sys.argv[1:]), STOPPED)
    except UnicodeEncodeError as error:
        refusal = text_refusal(error.object, "text")
        if refusal is None:
            raise
        _fail(f"{line_at(error)!r}: allowed is {refusal}", USER_ERROR)
    except OSError as error:
        if not _lost_output():
            raise
        _fail(f"the output cannot be written ({error.strerror or error})", FAULT)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    from ecorl.cli.output import make_console

    line = " ".join(part.strip() for part in message.splitlines())
    make_console(stderr=True, soft_wrap=True).print(
        f"ecorl: {line}", style="red", markup=False, highlight=False
    )
    if code == STOPPED:
        end_stopped()
    sys.exit(code)


def _lost_output() -> bool:
    """Tell whether standard output cannot be written, and point it at the null device if so.

    What is left in its buffer would else fail once more when the process ends.
    """
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "ecorl"
    return f"{error.format_message().rstrip('.')}; see {command} --help"
