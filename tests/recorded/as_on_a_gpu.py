"""The command, with a trainer that computes on the CPU and is to the runtime one on a GPU.

    python -m tests.recorded.as_on_a_gpu run --config ...

What the tests' NVML then tells of the GPU is read, counted and reported as that of a real one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ecorl import cli
from roll_adapters.trl import attach as attaching


def main() -> None:
    """Run the command and exit."""
    described = attaching.training_side

    def training_side(trainer: Any, config: Any, run_dir: Any) -> Any:
        return replace(described(trainer, config, run_dir), device="cuda")

    attaching.training_side = training_side
    cli.main()


if __name__ == "__main__":
    main()
