"""Does a training that waits and pauses end with the weights of one that does not?"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ecorl.config import Config, validate_config
from ecorl.control import Command
from ecorl.ledger import LedgerReader
from ecorl.loop import measure

N_STEPS = 12
N_ROWS, N_INPUTS, N_CLASSES = 32, 64, 10
_HOUR_S = 0.2
"""Length of a replayed hour, s."""


def train_paused() -> dict[str, int]:
    """Train the same small network twice, once under a replayed grid that makes it wait.

    Returns:
        ``weights_equal``, whether all weights of both are the same, bit for bit; ``n_pauses``, how
        often the one stood still; ``n_weights``, the numbers that were compared.
    """
    # Where the records lie is of no use to who reads figures: they are gone at the end.
    quiet = contextlib.redirect_stderr(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, quiet:
        plain = _train(validate_config({"run_dir": f"{folder}/plain", **_MODELLED}))
        waits = validate_config(
            {"run_dir": f"{folder}/paused", "carbon": _blinking(Path(folder)), **_MODELLED}
        )
        paused = _train(waits)
        with LedgerReader(Path(folder) / "paused") as reader:
            commands = [row.choice.command for row in reader.choices()]
    starts = [c for i, c in enumerate(commands) if c is Command.PAUSE and commands[i - 1] is not c]
    first = commands[:1] == [Command.PAUSE] and commands[-1] is Command.PAUSE
    equal = [torch.equal(a, b) for a, b in zip(plain, paused, strict=True)]
    return {
        "weights_equal": all(equal),
        "n_pauses": len(starts) + first,
        "n_weights": sum(w.numel() for w in plain),
    }


_MODELLED = {"telemetry": {"gpu": {"type": "modelled"}}}


def _blinking(folder: Path) -> dict[str, object]:
    """A grid that is clean for one of ten replayed hours."""
    path = folder / "blinking_grid.csv"
    values = ([400] * 9 + [100]) * 200
    lines = [f"{1_600_000_000 + 3600 * hour},{g_per_kwh}" for hour, g_per_kwh in enumerate(values)]
    path.write_text("\n".join(["time,g_per_kwh", *lines, ""]), encoding="utf-8")
    feed = {"type": "replay", "path": str(path), "speed": 3600.0 / _HOUR_S}
    return {
        "feeds": [feed], "threshold_g_per_kwh": 250.0, "pause": "steps", "max_wait_s": 5.0,
        "recheck_s": 0.1, "stale_after_s": 1.0,
    }  # fmt: skip


def _train(config: Config) -> list[torch.Tensor]:
    """Train with dropout and AdamW, both of which have a state that a pause could upset."""
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Linear(N_INPUTS, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, N_CLASSES)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(7)
    with measure(config, total_steps=N_STEPS) as run:
        for _ in range(N_STEPS):
            rows = torch.from_numpy(rng.normal(size=(N_ROWS, N_INPUTS)).astype(np.float32))
            classes = torch.from_numpy(rng.integers(0, N_CLASSES, N_ROWS))
            loss = nn.functional.cross_entropy(model(rows), classes)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.step(n_samples=N_ROWS, loss=loss.item())
    return [w.detach().clone() for w in model.state_dict().values()]
