"""What the user of a loop says of the run, for the head of its record."""

from __future__ import annotations

from collections.abc import Mapping

from ecorl.errors import ConfigError
from ecorl.ledger.nodes import NODE
from ecorl.runtime.runs.found import GO_ON, ORIGIN
from ecorl.runtime.runs.record import run_facts

_KEPT_AS = {
    "accumulation_steps": "gradient_accumulation_steps",
    "batch_size": "per_device_train_batch_size",
    "effective_batch": "effective_batch_size",
}
"""Facts that count, by the names under which the record keeps them."""

_RESERVED = (ORIGIN, GO_ON, NODE)
_PACKAGES = ("torch", "transformers", "numpy", "jax")


def told_facts(facts: Mapping[str, object]) -> dict[str, str]:
    """Check the facts that a user gives, and write them as the record keeps them.

    ``accumulation_steps``, ``batch_size`` (rows of one backward pass) and ``effective_batch`` (rows
    of one optimizer step) are kept as ``gradient_accumulation_steps``,
    ``per_device_train_batch_size`` and ``effective_batch_size``; the last is the product of the
    others where it is not given. All others keep their names.

    Args:
        facts: by name; a value of None is left out.

    Raises:
        ConfigError: for a count that is none, counts that contradict each other, or a name that
            the record uses itself.
    """
    given = {name: value for name, value in facts.items() if value is not None}
    for name in _RESERVED:
        if name in given:
            raise ConfigError(
                f"facts.{name}", given[name], "another name: the record uses this one"
            )
    counted = {name for pair in _KEPT_AS.items() for name in pair}
    for name in given.keys() & counted:
        given[name] = count(f"facts.{name}", given[name])
    known = {_KEPT_AS.get(name, name): value for name, value in given.items()}
    steps, rows, both = (known.get(name) for name in _KEPT_AS.values())
    if isinstance(steps, int) and isinstance(rows, int):
        if both is not None and both != steps * rows:
            allowed = f"{steps * rows}, accumulation_steps {steps} times batch_size {rows}"
            raise ConfigError("facts.effective_batch", both, allowed)
        known["effective_batch_size"] = steps * rows
    return {name: str(value) for name, value in known.items()}


def loop_facts(trainer: str, go_on: str, facts: Mapping[str, str]) -> dict[str, str]:
    """Put together what the head of a loop's record says.

    Args:
        trainer: what trains, in words.
        go_on: how a run that was cut off is gone on with, in words.
        facts: what the user says, from `told_facts`.
    """
    own = run_facts("", "", _PACKAGES)
    own = {name: value for name, value in own.items() if value}
    return {"trainer": trainer, **own, **facts, GO_ON: go_on}


def count(key: str, value: object, least: int = 1) -> int:
    """Check a count.

    Args:
        key: what it is given as, for the error.
        value: what was given; NumPy's whole numbers serve as well.
        least: the smallest that is allowed.

    Raises:
        ConfigError: when it is no whole number, or too small.
    """
    allowed = f"a whole number, {least} or more"
    if isinstance(value, bool | str) or not hasattr(value, "__index__"):
        raise ConfigError(key, value, allowed)
    number = int(value.__index__())
    if number < least:
        raise ConfigError(key, value, allowed)
    return number
