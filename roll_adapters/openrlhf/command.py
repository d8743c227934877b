"""The command ``ecorl-openrlhf``: OpenRLHF's PPO trainer, measured and placed by ecorl.

It takes the place of ``python -m openrlhf.cli.train_ppo_ray`` and passes all flags on to it but its
own, which begin with ``--ecorl.``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NoReturn

from ecorl.cli.exits import run_words_to_exit
from ecorl.errors import ConfigError, MissingToolError
from ecorl.ledger import LedgerReader
from ecorl.runtime.runs.folder import in_new_folder, in_newest_folder
from roll_adapters.openrlhf.flags import VERSION, check_names
from roll_adapters.openrlhf.widths import LOAD, flags_for, width_of
from roll_adapters.ray_jobs.widths.handover import Handover, WidthLeft, handover_file
from roll_adapters.ray_jobs.widths.supervisor import JobSupervisor

if TYPE_CHECKING:
    from ecorl.config import Config

MODULE = "openrlhf.cli.train_ppo_ray"

_ABOUT = f"""Train with OpenRLHF, measured and placed by ecorl.

Use it in place of `python -m {MODULE}`, with the same flags and with those below. The config
says where stages may run (placement), by which engine (engine), and where power is read
(telemetry); its tables task and trainer are not used. `ecorl report` shows the run."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit.

    Args:
        argv: the command line; None: that of this process.
    """
    run_words_to_exit(_run, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ecorl-openrlhf",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
        usage="ecorl-openrlhf --ecorl.config ecorl.toml <flags of OpenRLHF>",
    )
    own = parser.add_argument_group("ecorl's flags")
    own.add_argument(
        "--ecorl.config", dest="config", metavar="FILE", help="config of ecorl: a TOML file"
    )
    own.add_argument(
        "--ecorl.set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one setting of the config in place of the file's, e.g. placement.q_max=4",
    )
    own.add_argument("-h", "--help", dest="help", action="store_true", help="show both helps")
    return parser


def _run(given: list[str]) -> int:
    parser = _parser()
    own, flags = parser.parse_known_args(given)
    if own.help:
        return _help(parser)
    for flag in flags:
        if flag.startswith("--ecorl."):
            name, _, value = flag.partition("=")
            raise ConfigError(name, value or None, "--ecorl.config or --ecorl.set")
    if own.config is None:
        raise ConfigError("--ecorl.config", None, "a TOML file with ecorl's settings")
    check_names(flags)
    _check_installed()
    config = _loaded(own.config, own.overrides)
    if len(config.trainer.widths) > 1 and handover_file() is None:
        return _supervised(config, given)
    return _train(config, flags)


def _supervised(config: Config, given: Sequence[str]) -> int:
    """Run one job after the other, each with as many GPUs for the actor as the last one left for.

    Args:
        config: the run's.
        given: this command's arguments.
    """
    if config.names_time:
        # One folder for all of its jobs.
        config = _in_folder(config, given)
        given = [*given, "--ecorl.set", f"run_dir={json.dumps(str(config.run_dir))}"]

    def command(width: int | None) -> list[str]:
        words = list(given) if width is None else flags_for(given, width)
        return [sys.executable, "-m", "roll_adapters.openrlhf", *words]

    def has_stepped(step: int) -> bool:
        with contextlib.closing(LedgerReader(config.resolved_run_dir())) as reader:
            return any(row.iteration > step for row in reader.metrics())

    return JobSupervisor(command, width_of(given), has_stepped).run()


def _in_folder(config: Config, flags: Sequence[str]) -> Config:
    """Fill in the time of the run's folder: that of the newest run where the job goes on."""
    if any(flag.partition("=")[0] == f"--{LOAD}" for flag in flags):
        with contextlib.suppress(ConfigError):  # there is none yet: the job begins afresh
            return in_newest_folder(config)
    return in_new_folder(config)


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    if importlib.util.find_spec("openrlhf") is None:
        sys.stdout.write("\nOpenRLHF is not installed here: its flags cannot be shown.\n")
        return 0
    sys.stdout.write("\nOpenRLHF's flags follow.\n\n")
    sys.stdout.flush()
    with _complete_installation():
        _run_openrlhf(["--help"])
    return 0


@contextlib.contextmanager
def _complete_installation() -> Iterator[None]:
    """Turn a package that OpenRLHF needs and that is missing into one line.

    Raises:
        MissingToolError: in place of the import's error.
    """
    try:
        yield
    except ImportError as error:
        raise MissingToolError(f"OpenRLHF cannot be imported: {error}") from error


def _check_installed() -> None:
    """Check that OpenRLHF is here, in a release that this adapter knows.

    Raises:
        MissingToolError: when it is not.
    """
    try:
        found = version("openrlhf")
    except PackageNotFoundError as error:
        raise MissingToolError(
            f"ecorl-openrlhf needs OpenRLHF {VERSION}: pip install openrlhf (it is not installed)"
        ) from error
    if not found.startswith(f"{VERSION}."):
        raise MissingToolError(f"ecorl-openrlhf needs OpenRLHF {VERSION}.x; this is {found}")


def _train(own: Config, flags: Sequence[str]) -> int:
    from roll_adapters.openrlhf import driver
    from roll_adapters.ray_jobs.run import on_ray

    config = on_ray(own, "OpenRLHF")
    run = driver.current = driver.Driver(config)
    ended: BaseException | None = None
    try:
        run.connect()
        # Imported here, with OpenRLHF itself: what is wrong in the config is told before.
        with _complete_installation():
            from roll_adapters.openrlhf.groups import WatchedActorGroup

            run.replace_names(WatchedActorGroup)
        _run_openrlhf(flags)
    except SystemExit as error:
        ended = error if error.code else None
        raise
    except BaseException as error:
        # Ray's own error of a task holds what the task raised.
        cause = getattr(error, "cause", None)
        if not isinstance(cause, WidthLeft):
            ended = error
            raise
        ended = cause
    finally:
        run.end(ended)
    if isinstance(ended, WidthLeft):
        _hand_over(ended)
        return 0
    folder = run.folder or config.run_dir_at("{time}")
    sys.stdout.write(f"ecorl: the run's record is in {folder}: ecorl report {folder}\n")
    return 0


def _hand_over(left: WidthLeft) -> None:
    """Tell the process that started this one with which width the training goes on."""
    file = handover_file()
    if file is not None:
        Handover(left.width, left.step, left.ended_s, left.usual_s).write(file)
    told = f"ecorl: training goes on from step {left.step} with {left.width} processes\n"
    sys.stdout.write(told)


def _loaded(source: str, overrides: Sequence[str]) -> Config:
    from ecorl.config import load_config

    return load_config(source, overrides, "--ecorl.config")


def _run_openrlhf(flags: Sequence[str]) -> None:
    """Run OpenRLHF's own command in this process, as ``python -m`` does."""
    before = sys.argv
    sys.argv = [MODULE, *flags]
    try:
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    finally:
        sys.argv = before


if __name__ == "__main__":
    main()
