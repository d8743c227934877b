"""How many examples hypothesis tries: few in `make test`, all in `make test-all`."""

from __future__ import annotations

import os

from hypothesis import settings

FEW = 20


def load_profile() -> None:
    """Take the profile that ``HYPOTHESIS_PROFILE`` names, ``few`` or ``all``."""
    # No example has a time of its own: a machine may be slow, or do other things as well.
    settings.register_profile("few", deadline=None, derandomize=True, max_examples=FEW)
    settings.register_profile("all", deadline=None)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))


def examples(number: int) -> int:
    """The examples of a test that does not take hypothesis' own number.

    Args:
        number: in `make test-all`.
    """
    return number if settings.get_current_profile_name() == "all" else min(number, FEW)
