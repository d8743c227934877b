"""The newest checkpoint is that of the largest step whose state is written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ecorl.runtime.checkpoints import STATE_FILE, newest_checkpoint, remove_checkpoints_after


def folder_of(root, steps):
    """Checkpoints by step: complete ones, and those that were cut off."""
    for step, is_complete in steps.items():
        folder = root / f"checkpoint-{step}"
        folder.mkdir()
        if is_complete:
            (folder / STATE_FILE).write_text("{}")
    (root / "checkpoint-of-mine").mkdir()
    return root


@given(st.dictionaries(st.integers(1, 2000), st.booleans(), max_size=6))
def test_the_newest_is_the_one_of_the_largest_step_that_is_complete(steps):
    with tempfile.TemporaryDirectory() as root:
        found = newest_checkpoint(folder_of(Path(root), steps))
    complete = [step for step, is_complete in steps.items() if is_complete]
    assert (found and found.name) == (f"checkpoint-{max(complete)}" if complete else None)


def test_what_came_after_a_step_is_removed(tmp_path):
    folder_of(tmp_path, {9: True, 80: True, 100: True, 101: False})
    remove_checkpoints_after(tmp_path, 80)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"checkpoint-9", "checkpoint-80", "checkpoint-of-mine"}
