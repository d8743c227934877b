"""How the kernels use a card: whole arrays, blocks of rows, and the bound that follows.

The program's kernel for matrix products multiplies ``[64, 4] x [16, 4]`` a cycle and reads a
product's weights once for each 64 rows. DSPs that do not make up a whole array do nothing.
"""

from __future__ import annotations

from ecorl.devices.profile import DeviceProfile
from ecorl.devices.work import Phase, least_ops, least_products
from ecorl.errors import ConfigError
from ecorl.records import ModelShape, StageWork

ARRAY_MACS = 4096
"""Multiply-accumulates a cycle of one array; two to a DSP, so 2,048 DSPs."""

ARRAY_ROWS = 64
"""Rows of activations for which a product's weights are read once."""

CARD_FIGURES = (
    "clock_hz",
    "n_dsp_used",
    "macs_per_dsp",
    "memory_bytes",
    "memory_bytes_per_s",
    "link_bytes_per_s",
    "link_latency_s",
    "active_w",
)
"""Figures without which no engine can stand for a card: its cycle model and its memory check."""


def missing_card_figures(profile: DeviceProfile) -> list[str]:
    """List the figures of `CARD_FIGURES` that a profile does not hold."""
    return [key for key in CARD_FIGURES if profile.get(key) is None]


def n_arrays(profile: DeviceProfile) -> int:
    """Whole arrays that the profile's DSP budget (``n_dsp_used`` x ``macs_per_dsp``) holds.

    Raises:
        ConfigError: when it holds none, or a figure is missing.
    """
    budget = profile.value("n_dsp_used") * profile.value("macs_per_dsp")
    if budget < ARRAY_MACS:
        allowed = f"at least {ARRAY_MACS} multiply-accumulates a cycle, the size of one array"
        raise ConfigError(f"{profile.name}.n_dsp_used", budget, allowed, profile.path)
    return int(budget) // ARRAY_MACS


def card_phase(work: StageWork, model: ModelShape) -> Phase:
    """Count the least work of a forward pass on a card: no operation or byte that it can spare.

    Memory traffic is the weights' alone, INT8, once for each block of rows.

    Args:
        work: the stage's batch: stage, rows, tokens.
        model: shape of the model.
    """
    least = least_products(work, model)
    weights = -(-least.tokens // ARRAY_ROWS) * least.earlier
    weights += -(-least.wanted // ARRAY_ROWS) * least.last
    return Phase(least_ops(work, model), weights, 1.0, work.n_tokens)
