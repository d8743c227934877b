from __future__ import annotations

import logging
import sys


def get_logger() -> logging.Logger:
    """The logger of this process, which tells of the role that runs in it."""
    logger = logging.getLogger("roll")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("[%(levelname)s] [%(module)s] %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger
