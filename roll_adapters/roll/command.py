"""The command ``ecorl-roll``: ROLL's pipelines, measured and placed by ecorl.

start    takes the place of ROLL's start scripts
check    says before anything starts what will be measured, and what can move
convert  writes a config with ecorl's block
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ecorl.cli.exits import run_words_to_exit
from ecorl.errors import ConfigError, MissingToolError, UserError
from ecorl.files import write_whole

_ABOUT = """Train with ROLL, measured and placed by ecorl.

The config is ROLL's YAML with a block `ecorl:`, which says where stages may run (placement), by
which engine (engine), and where power is read (telemetry). `ecorl report` shows the run."""

_START = """Start a pipeline, in place of ROLL's script:
  ecorl-roll start --config_path configs --config_name rlvr

Settings of ROLL's may be changed behind it, as Hydra takes them: max_steps=10."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit.

    Args:
        argv: the command line; None: that of this process.
    """
    run_words_to_exit(_run, argv)


class _OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, as all of ecorl's commands do."""

    def error(self, message: str) -> NoReturn:
        """Raise a `UserError`. See `argparse`."""
        raise UserError(f"{message}; {self.prog} --help tells more")


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="ecorl-roll",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    start = commands.add_parser(
        "start",
        help="start a pipeline in place of ROLL's script",
        description=_START,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    start.add_argument("--config_path", default=".", metavar="DIR", help="folder of the YAML file")
    start.add_argument("--config_name", required=True, metavar="NAME", help="name of the file")
    check = commands.add_parser(
        "check",
        help="say what will be measured, and what can move",
        description="Say of each role what will be measured, what can be moved and what not, and "
        "why. Nothing is started.",
        allow_abbrev=False,
    )
    check.add_argument("config", metavar="FILE", help="ROLL's YAML with the block `ecorl:`")
    for each in (start, check):
        each.add_argument(
            "--set",
            dest="settings",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="one setting of the block `ecorl:` in place of the file's, e.g. placement.q_max=4",
        )
        each.add_argument(
            "overrides", nargs="*", metavar="OVERRIDE", help="settings of ROLL's, key=value"
        )
    convert = commands.add_parser(
        "convert",
        help="write a config with ecorl's block",
        description="Write a copy of a ROLL config with ecorl's block in it, and print the "
        "difference. Comments and order stay.",
        allow_abbrev=False,
    )
    convert.add_argument("config", metavar="FILE", help="ROLL's YAML")
    convert.add_argument(
        "-o", "--output", metavar="FILE", help="where to write it; by default <name>_ecorl.yaml"
    )
    return parser


def _run(given: list[str]) -> int:
    parser = _parser()
    asked, more = parser.parse_known_args(given)
    if more:
        # argparse takes no further words of a list behind another flag.
        strange = [word for word in more if word.startswith("-")]
        if strange or not hasattr(asked, "overrides"):
            parser.error(f"unrecognized arguments: {' '.join(strange or more)}")
        asked.overrides += more
    if asked.command == "convert":
        return _convert(Path(asked.config), asked.output)
    _check_readers()
    if asked.command == "check":
        file = Path(asked.config)
        return _check(file, asked.overrides, asked.settings)
    return _start(asked)


def _check_readers() -> None:
    """Check that ROLL's configs can be read here.

    Raises:
        MissingToolError: when a package for it is missing.
    """
    try:
        import dacite  # noqa: F401
        import hydra  # noqa: F401
        import ray  # noqa: F401
        import yaml  # noqa: F401
    except ImportError as error:
        raise MissingToolError(f"ecorl-roll needs ROLL's packages: {error}") from error


def _start(asked: argparse.Namespace) -> int:
    from roll_adapters.roll.driver import AutoDeviceMapping

    mapping = AutoDeviceMapping(
        asked.config_path, asked.config_name, asked.overrides, asked.settings
    )
    with mapping:
        mapping.build().run()
    folder = mapping.config.resolved_run_dir()
    sys.stdout.write(f"ecorl: the run's record is in {folder}: ecorl report {folder}\n")
    return 0


def _check(file: Path, overrides: Sequence[str], settings: Sequence[str]) -> int:
    from roll_adapters.roll.driver import AutoDeviceMapping

    mapping = AutoDeviceMapping(file.parent, file.name, overrides, settings)
    mapping.prepare()
    told = mapping.what_happens()
    width = max((len(role) for role, _ in told), default=0)
    for role, what in told:
        sys.stdout.write(f"{role:<{width}}  {what}\n")
    return 0


def _convert(file: Path, output: str | None) -> int:
    from roll_adapters.roll.config.convert import convert, difference

    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError("FILE", str(file), f"a readable file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError("FILE", str(file), "a YAML file in UTF-8") from error
    target = Path(output) if output else file.with_name(f"{file.stem}_ecorl{file.suffix}")
    if target.exists():
        raise ConfigError("--output", str(target), "a file that is not there yet")
    done = convert(text, str(file))
    try:
        write_whole(target, done.text)
    except OSError as error:
        raise ConfigError("--output", str(target), f"a file here ({error.strerror})") from error
    sys.stdout.write(difference(text, done.text, str(file), str(target)))
    for line in done.changes:
        sys.stdout.write(f"changed: {line}\n")
    for line in done.left:
        sys.stdout.write(f"left: {line}\n")
    sys.stdout.write(f"written: {target}\n")
    return 0


if __name__ == "__main__":
    main()
