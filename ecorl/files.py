"""Atomic writing of files."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file atomically: readers find the old content or the new, never a part.

    That holds when the program is killed and when the power fails. The permissions are those of
    any new file.

    Args:
        path: the file, in an existing folder.
        content: the content; text is written as UTF-8, with its line ends unchanged.

    Raises:
        OSError: when it cannot be written; the old content stays, and no temporary file is left.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    # In the same folder, since a rename is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink()
        raise
