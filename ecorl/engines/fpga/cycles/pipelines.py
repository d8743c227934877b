"""Depths of the pipelines in the kernels' loops, from RTL that was simulated.

`hls_kernels/rtl` holds the arithmetic of a lane, the row scalars and the moves of words as
SystemVerilog. Verilator runs it against the functions of the C-simulation, bit by bit, and measures
the cycles from an operand to its result; its tests hold these to what ``rtl/qor.json`` declares,
and this module reads them from there. No kernel was synthesised, so what a tool would schedule from
the C++ sources is not known: cycles that rest on these depths are modelled, and the simulated RTL
is the source of the depths alone.
"""

from __future__ import annotations

import json
from functools import lru_cache

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.errors import SynthesisReportError


@lru_cache(maxsize=1)
def _latencies() -> dict[str, int]:
    """Cycles from operand to result of each pipeline in ``rtl/qor.json``."""
    path = kernel_root() / "rtl" / "qor.json"
    try:
        pipelines = json.loads(path.read_text("utf-8"))["pipelines"]
        return {pipeline["name"]: int(pipeline["latency"]) for pipeline in pipelines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SynthesisReportError(f"{path} cannot be used: {error}") from error


def depth(*names: str) -> int:
    """Cycles from operand to result through pipelines that follow one another.

    All of them start a new operand every cycle, so a loop of ``n`` trips over them lasts
    ``n + depth(...)`` cycles.

    Args:
        names: pipelines of ``hls_kernels/rtl/qor.json``, such as ``"dequantise"``.

    Raises:
        SynthesisReportError: when ``qor.json`` cannot be read.
        KeyError: when it has no such pipeline.
    """
    latencies = _latencies()
    return sum(latencies[name] for name in names)
