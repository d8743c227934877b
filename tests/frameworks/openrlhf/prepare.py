"""Compiles DeepSpeed's optimiser for the CPU, which else happens where it is first used."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(environment: Path) -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["TORCH_EXTENSIONS_DIR"] = str(environment / "torch-extensions")
    from deepspeed.accelerator import get_accelerator

    for name in ("FusedAdamBuilder", "ShareMemCommBuilder"):
        get_accelerator().create_op_builder(name).load()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
