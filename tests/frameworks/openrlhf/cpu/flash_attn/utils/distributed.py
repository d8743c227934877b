"""Ring attention, which needs flash-attn's kernels."""

from flash_attn.bert_padding import _absent as all_gather

__all__ = ["all_gather"]
