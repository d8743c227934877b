"""What the pipeline knows between two steps, as it stands in a checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class WorkerState:
    step: int = -1
    log_history: list[dict[str, Any]] = field(default_factory=list)
    kv: dict[str, Any] = field(default_factory=dict)

    def save_to_json(self, save_dir: str, tag: str) -> None:
        Path(save_dir).mkdir(parents=True, exist_ok=True)
        file = Path(save_dir) / f"worker_state_{tag}.json"
        file.write_text(json.dumps(asdict(self), indent=1), "utf-8")

    @classmethod
    def load_from_json(cls, load_dir: str, tag: str) -> WorkerState:
        return cls(**json.loads((Path(load_dir) / f"worker_state_{tag}.json").read_text("utf-8")))
