"""``ecorl config`` as its user meets it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ecorl.cli.commands import app
from ecorl.config import config_changes_toml, config_toml, load_config, parse_config, preset_names
from ecorl.errors import UserError

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "ecorl" / "config" / "REFERENCE.md"
RENEWED_BY = "ecorl config reference --markdown > ecorl/config/REFERENCE.md"


def ecorl(*args, **env):
    """Run the command in this process, off a terminal."""
    result = CliRunner(env={"NO_COLOR": "1", **env}).invoke(app, [*map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_page_in_the_repository_is_what_the_models_say():
    assert PAGE.read_text("utf-8") == ecorl("config", "reference", "--markdown").output, (
        f"the page is older than the models: {RENEWED_BY}"
    )
    assert RENEWED_BY in PAGE.read_text("utf-8")


def test_every_row_of_the_page_has_five_cells():
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    assert len(rows) > 150
    for row in rows:
        assert row.replace(r"\|", "").count("|") == 6, row


def test_a_link_of_the_page_leads_to_one_of_its_headings():
    lines = PAGE.read_text("utf-8").splitlines()
    headings = [line.lstrip("# ") for line in lines if line.startswith("## ")]
    anchors = {
        "".join(c for c in h.lower() if c.isalnum() or c in "_- ").replace(" ", "-")
        for h in headings
    }
    links = [line.partition("](#")[2].rstrip(")") for line in lines if line.startswith("- [")]
    assert set(links) == anchors
    assert len(links) == len(headings) > 15


@pytest.mark.parametrize("columns", ["80", "60", "200"])
def test_a_terminal_of_80_columns_is_enough_for_the_whole_reference(columns):
    result = ecorl("config", "reference", COLUMNS=columns)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= min(80, int(columns))
    assert '[engine.offload] with type = "fpga"' in lines
    assert "  placement.deadline_s = 60.0" in lines
    assert "  task.policy   (required)" in lines
    assert "  carbon.threshold_g_per_kwh   (not set)" in lines


def test_a_part_of_the_reference(snapshot):
    snapshot(ecorl("config", "reference", "trainer.steps").output)


def test_an_unknown_part_is_refused_by_name():
    with pytest.raises(UserError, match=r"'engine\.ofload'.* engine\.offload"):
        ecorl("config", "reference", "engine.ofload")


@pytest.mark.parametrize("name", preset_names())
def test_a_config_is_shown_as_a_run_would_use_it(name):
    shown = ecorl("config", "show", name, "--set", "seed=7").output
    assert shown == config_toml(load_config(name, ["seed=7"]))
    run = ecorl("run", "--config", name, "--set", "seed=7", "--show-config").output
    assert run.rstrip("\n") == shown.rstrip("\n")


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", {}),
        ('name = "mine"\nseed = 42\n', {"name": "mine"}),
        (
            '[placement.policy]\ntype = "static"\nreward = "fpga"\n',
            {"placement": {"policy": {"type": "static", "reward": "fpga"}}},
        ),
        ('[engine.offload]\ntype = "torch"\n', {"engine": {"offload": {"type": "torch"}}}),
        ('[engine.offload]\ntype = "fpga"\nbuild = "fast"\n', {}),
        (
            '[[carbon.feeds]]\ntype = "uk"\nname = "uk_carbon_intensity"\n',
            {"carbon": {"feeds": [{"type": "uk"}]}},
        ),
        ('[places."reward:math"]\nnode = "a"\n', {"places": {"reward:math": {"node": "a"}}}),
    ],
)  # fmt: skip
def test_what_differs_from_the_defaults(tmp_path, text, changes):
    file = tmp_path / "c.toml"
    file.write_text(text, "utf-8")
    shown = ecorl("config", "show", file, "--changed").output
    assert tomllib.loads(shown) == changes
    assert parse_config(shown, "shown") == load_config(str(file))


@pytest.mark.parametrize("name", preset_names())
def test_changes_of_a_preset_read_back_as_the_preset(name):
    config = load_config(name)
    changes = config_changes_toml(config)
    assert parse_config(changes, name) == config
    assert len(changes) < len(config_toml(config))


def test_a_mistake_in_the_file_is_refused_with_its_line(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("[trainer]\nsteps = 0\n", "utf-8")
    with pytest.raises(UserError, match=r"c\.toml:2: trainer\.steps = 0: "):
        ecorl("config", "show", file)
    with pytest.raises(UserError, match=r"^FILE = 'nope': "):
        ecorl("config", "show", "nope")
    assert ecorl("config", "show").exit_code == 2
    assert ecorl("config").exit_code == 2
