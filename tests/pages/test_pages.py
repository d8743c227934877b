"""The pages: each says for whom it is, its links lead somewhere, its commands do what it says."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest
import typer

from ecorl.cli.commands import app
from ecorl.config import validate_config
from tests.pages.markdown import ROOT, blocks, commands, pages
from tests.pages.outputs import OUTPUTS
from tests.pages.reader import Reader
from tests.pages.treatment import COMMANDS, PAGES, Pass

AT_ONCE = (Pass.QUICK, Pass.BOTH)
SHELLS = {"bash", "sh", "shell"}


def told(page):
    return (ROOT / page).read_text("utf-8")


# ---------------------------------------------------------------- what is written


@pytest.mark.parametrize("page", sorted(set(pages()) - {"README.md", "hls_kernels/NUMERICS.md"}))
def test_a_page_begins_with_whom_it_is_for(page):
    first = told(page).split("\n\n", 2)[1]
    assert first.startswith("For those who"), first


def test_the_first_page_fits_two_screens():
    assert len(told("README.md").splitlines()) <= 124


@pytest.mark.parametrize("page", pages())
def test_links_of_a_page_lead_somewhere(page):
    text = re.sub(r"```.*?^```", "", told(page), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#\s]+)\)", text)
    broken = [
        link
        for link in links
        if not link.startswith("http") and not ((ROOT / page).parent / link).exists()
    ]
    assert not broken


@pytest.mark.parametrize("page", pages())
def test_blocks_of_a_page_are_what_they_say(page):
    for block in blocks(page):
        assert block.language not in SHELLS, f"{page}:{block.line}: commands stand in ```console"
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec")
        elif block.language == "toml":
            validate_config(tomllib.loads(block.text), f"{page}:{block.line}")
        elif block.language == "text":
            assert block.printed in OUTPUTS, f"{page}:{block.line}: who prints this?"


def test_every_printed_output_stands_on_a_page():
    found = {block.printed for page in pages() for block in blocks(page)} - {""}
    assert found == set(OUTPUTS)


def test_every_page_with_commands_is_read():
    assert {page for page in pages() if list(commands(page))} <= set(PAGES)


def test_every_command_has_a_treatment_and_stands_on_a_page():
    found = {command.text: str(command) for page in PAGES for command in commands(page)}
    exported = {text for text in found if text.startswith("export ")}
    assert [found[text] for text in found.keys() - COMMANDS.keys() - exported] == []
    assert COMMANDS.keys() - found.keys() == set()


def options_of(words):
    """Go through a command's words as it would, without doing anything."""
    command, name = typer.main.get_command(app), "ecorl"
    while isinstance(command, typer.core.TyperGroup):
        context = command.make_context(name, list(words), resilient_parsing=False)
        name, command, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
    command.make_context(name, list(words))


@pytest.mark.parametrize("text", sorted(text for text in COMMANDS if text.startswith("ecorl ")))
def test_a_command_has_the_options_that_its_page_gives_it(text):
    options_of(shlex.split(text)[1:])


# ---------------------------------------------------------------- what it does


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quick_commands_of_the_pages_do_as_they_stand(tmp_path):
    reader = Reader(tmp_path, forks=True)
    wrong, typed = [], set()
    for page in PAGES:
        for command in commands(page):
            treatment = COMMANDS.get(command.text)
            shorter = "" if treatment is None else treatment.shorter
            is_quick = treatment is None or treatment.when in AT_ONCE or bool(shorter)
            if is_quick and command.text not in typed:
                typed.add(command.text)
                found = reader.type(command, treatment, shorter)
                wrong += [f"{command}: {found}"] if found else []
        wrong += reader.end_page()
    assert not wrong, "\n\n".join(wrong)
    assert len(reader.outputs) > 15
