"""Files that are whole or not there."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file in one go: whoever reads it finds the old content or the new, never a part.

    That holds when the program is killed and when the power goes. The permissions are those of any
    new file.

    Args:
        path: the file; its folder is there.
        content: text is written as UTF-8, with its line ends as they are.

    Raises:
        OSError: when it cannot be written; what was there before stays, and nothing else does.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    # In the same folder, since a file can be replaced within one file system only.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # what went wrong first is what counts
            temporary.unlink()
        raise
