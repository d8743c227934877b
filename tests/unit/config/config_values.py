"""Values that TOML can hold, and words that no user should read in a refusal."""

from __future__ import annotations

import re

from hypothesis import strategies as st

JARGON = re.compile(r"Input should|unable to parse|dictionary|instance of|pydantic|String should")

TOML_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
TOML_VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        TOML_TEXT,
        st.datetimes().map(lambda t: t.replace(microsecond=0)),
        st.dates(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TOML_TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)
