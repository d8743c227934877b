"""What is counted as something to read, and what passes a budget."""

from __future__ import annotations

import pytest

from tests import size

SOURCE = '''"""Three words here."""

# A comment.
import dataclasses
from typing import NamedTuple

LIMIT = 3
"""Why it is three."""


@dataclasses.dataclass(frozen=True)
class Held:
    """One."""

    text: str = """
of two lines"""


class Pair(NamedTuple):
    first: int


class Table(BaseModel):
    key: int


Point = collections.namedtuple("Point", "x y")
'''


def test_a_file_is_counted_without_comments_and_docstrings():
    found = size.size_of_source(SOURCE)
    assert found == {"code": 12, "files": 1, "records": 4, "words": 8}
    assert size.size_of_source(SOURCE, is_config=True)["records"] == 3
    assert size.size_of_source('"""Nothing else."""\n') == {
        "code": 0, "files": 0, "records": 0, "words": 2
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    files = {
        "top.py": "x = 1\n",
        "config/tables.py": "class T(BaseModel):\n    x = 1\n",
        "pages/page.jinja": "<p>\n\n</p>\n",
        "pages/.cache/left.py": "x = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_rooms_and_their_sum(folder):
    rooms = size.sizes(folder)
    assert set(rooms) == {".", "config", "pages"}
    assert rooms["pages"]["templates"] == 2
    found = size.total(rooms)
    assert (found["code"], found["files"], found["records"]) == (3, 2, 0)


def test_a_budget_that_is_passed_is_told_in_one_line(folder, monkeypatch, capsys, snapshot):
    budget = '[tool.ecorl.size]\n"." = { code = 3, files = %d }\n'
    monkeypatch.setattr(size, "ROOT", folder)
    (folder / "pyproject.toml").write_text(budget % 2)
    assert size.main([]) == 0
    assert capsys.readouterr().err == ""
    (folder / "pyproject.toml").write_text(budget % 1)
    assert size.main([]) == 1
    snapshot(capsys.readouterr().err)
    with pytest.raises(KeyError, match="letters"):
        size.passed("ecorl", size.total(size.sizes(folder)), {"letters": 1})
