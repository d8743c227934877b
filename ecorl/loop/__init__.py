"""Measures a training loop that its user wrote: `measure` around it, `MeasuredLoop.step` inside.

    with measure("ecorl.toml", total_steps=1000) as run:
        for batch in batches:
            loss = train(batch)
            run.step(n_samples=len(batch), loss=loss.item())

`opening` makes the record and the runtime, `measured_loop` says where a step begins and ends,
`processors` which devices it trains on.
"""

from __future__ import annotations

from ecorl.loop.measured_loop import MeasuredLoop
from ecorl.loop.measurement import measure
from ecorl.loop.opening import LoopPlan

__all__ = ["LoopPlan", "MeasuredLoop", "measure"]
