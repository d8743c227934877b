"""Options of commands as fields of dataclasses, those that several share, and their config."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import field, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from ecorl.config import Config, load_config, parse_config, preset_names

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", "-c", help=f"TOML file, or a preset: {', '.join(preset_names())}."),
]
"""The config of a command; None where the defaults are to hold."""

OverridesOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override a value; repeatable."),
]
"""Values that go before those of the config."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def option(
    text: str,
    metavar: str | None = None,
    shown: str | bool = True,
    *,
    names: Sequence[str] = (),
    default: Any = None,
    **limits: Any,
) -> Any:
    """Declare a field of a dataclass as an option; see `with_options`.

    Args:
        text: its help.
        metavar: what stands for its value there.
        shown: the default as its help shows it, or whether it does.
        names: of the option, where they do not follow from the field's.
        default: its value where it is not given.
        limits: what else `typer.Option` takes, such as ``min`` and ``max``.
    """
    told = typer.Option(*names, metavar=metavar, show_default=shown, help=text, **limits)
    return field(default=default, metadata={"option": told})


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that the fields of its dataclass parameters declare.

    Args:
        command: a function; its parameters that are no dataclass stay options or arguments of
            their own.
    """
    hints = get_type_hints(command, include_extras=True)
    kinds: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        kind = kinds.get(parameter.name)
        if kind is None:
            kept = {"annotation": hints[parameter.name], "kind": inspect.Parameter.KEYWORD_ONLY}
            parameters.append(parameter.replace(**kept))
            continue
        types = get_type_hints(kind)
        parameters += [
            inspect.Parameter(
                f.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=f.default,
                annotation=Annotated[types[f.name], f.metadata["option"]],
            )
            for f in fields(kind)
        ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, kind in kinds.items():
            given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
        command(**given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


def chosen_config(config: str | None, overrides: Sequence[str] | None) -> Config:
    """Read the config that the options name; without one the defaults hold.

    Args:
        config: path of a TOML file, or name of a preset.
        overrides: ``dotted.key=value`` each.

    Raises:
        ConfigError: for the first mistake found.
    """
    if config is None:
        return parse_config("", "the defaults", overrides or ())
    return load_config(config, overrides or ())
