from __future__ import annotations

import pytest
from config_values import JARGON

from ecorl.config import load_config
from ecorl.errors import ConfigError


@pytest.fixture
def write(tmp_path):
    def write(text, name="c.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture(scope="session")
def refusal():
    """The one line that a mistake ends with."""

    def refusal(path, *overrides):
        with pytest.raises(ConfigError) as caught:
            load_config(str(path), overrides)
        message = str(caught.value)
        assert "\n" not in message
        assert not JARGON.search(message), message
        return message

    return refusal
