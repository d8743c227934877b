from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roll.distributed.scheduler.protocol import DataProto


def dump_rollout_to_specific_path(
    path: str | None, global_step: int, data: DataProto, tokenizer: Any
) -> None:
    """Write a step's samples as lines of JSON, where a folder for them is named."""
    if not path:
        return
    Path(path).mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "prompt": data.non_tensor_batch["prompt"][i],
            "responses": data.batch["responses"][i].tolist(),
            "scores": float(data.batch["scores"][i]),
        }
        for i in range(len(data))
    ]
    file = Path(path) / f"rollout_dump_data.step_{global_step}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
