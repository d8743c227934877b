"""``ecorl demo`` as its user meets it; `test_demo_folder` has what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ecorl.cli import commands
from ecorl.errors import ConfigError

calls: list[tuple[object, ...]] = []


@pytest.fixture
def demo(monkeypatch):
    """The group with an adapter that answers what it is told to."""

    def call(*args, written=()):
        def find(name, function):
            assert (name, function) == ("trl", "demo_models")

            def make(folder, seed, cache_dir, console):
                calls.append((folder, seed, cache_dir))
                return list(written)

            return make

        monkeypatch.setattr(commands, "_adapter", find)
        group = typer.Typer()
        group.add_typer(commands.demo_app, name="demo")
        return CliRunner(env={"NO_COLOR": "1"}).invoke(group, ["demo", *map(str, args)])

    calls.clear()
    return call


def test_it_says_what_was_written_and_what_to_type_next(demo, snapshot):
    result = demo("models", "my demo", written=["policy/a", "policy/b", "train.py", "ecorl.toml"])
    assert result.exit_code == 0
    snapshot(result.output)
    assert calls == [(Path("my demo"), 42, Path("~/.cache/ecorl/tasks"))]


def test_a_folder_that_has_it_all_is_said_to(demo, tmp_path, snapshot):
    result = demo("models", "d", "--seed", 7, "--cache-dir", tmp_path)
    snapshot(result.output.splitlines()[0])
    assert calls == [(Path("d"), 7, tmp_path)]


def test_without_a_command_or_a_folder_it_is_a_mistake(demo):
    assert demo().exit_code == 2
    assert "models" in demo().output
    assert demo("models").exit_code == 2


def test_the_commands_find_the_adapter(tmp_path):
    (tmp_path / "mine.txt").write_text("")
    pytest.importorskip("trl")
    result = CliRunner().invoke(commands.app, ["demo", "models", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(f"DIR = {str(tmp_path)!r}: ")
