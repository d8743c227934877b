"""The buffers of a forward on a card, and the kernel arguments that each is passed to."""

from __future__ import annotations

from collections.abc import Mapping

PORTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "low": (("gemm_int8", "w_low"),),
    "high": (("gemm_int8", "w_high"),),
    "sides": (("vector_ops", "side"), ("score_aggregator", "side")),
    "tables": (("vector_ops", "table"),),
    "rows": (
        ("vector_ops", "rows"),
        ("vector_ops", "rows_out"),
        ("score_aggregator", "rows"),
        ("score_aggregator", "rows_out"),
    ),
    "tasks": (("vector_ops", "task"), ("score_aggregator", "task")),
    "x": (("vector_ops", "x"), ("vector_ops", "y")),
    "values": (("vector_ops", "y"),),
    "codes": (("vector_ops", "codes"), ("gemm_int8", "a")),
    "acc": (("gemm_int8", "c"), ("vector_ops", "acc"), ("score_aggregator", "acc")),
    "heads": (
        ("vector_ops", "codes"),
        ("kv_cache_router", "keys"),
        ("kv_cache_router", "values"),
        ("mha_int8", "queries"),
    ),
    "scales": (
        ("vector_ops", "scales"),
        ("kv_cache_router", "key_rows"),
        ("kv_cache_router", "value_rows"),
        ("mha_int8", "rows"),
    ),
    "jobs": (("kv_cache_router", "jobs"),),
    "pages": (
        ("kv_cache_router", "sources"),
        ("kv_cache_router", "pages"),
        ("mha_int8", "pages"),
    ),
    "table": (("kv_cache_router", "table"), ("mha_int8", "table")),
    "blocks": (("mha_int8", "blocks"),),
    "context": (("mha_int8", "context"), ("vector_ops", "acc")),
    "results": (("mha_int8", "results"), ("vector_ops", "side")),
    "outputs": (("score_aggregator", "outputs"), ("score_aggregator", "outputs_out")),
    "partials": (("score_aggregator", "partials"), ("score_aggregator", "partials_out")),
}
"""By buffer: pairs of kernel and argument. All of them are wired to the same memory bank
(`ecorl.engines.fpga.kernels.banks`), or there would be no place for the buffer."""

INPUTS = ("rows", "jobs", "blocks", "tasks", "outputs")
"""Buffers that the host writes for each group of rows; only kernels write the others."""

SLOTS = 2
SLOTTED = frozenset((*INPUTS, "values"))
"""Buffers with `SLOTS` copies: while the card computes one group, the host writes the next group's
inputs and reads the last one's results in the other copy."""
