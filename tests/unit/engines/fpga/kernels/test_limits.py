"""Shapes that the kernels take, as their headers say them."""

from __future__ import annotations

import re

import pytest

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.kernels.limits import ShapeLimits, shape_limits
from ecorl.errors import BuildError


def test_limits_are_those_of_the_headers():
    assert shape_limits() == ShapeLimits(
        hidden=8192,
        intermediate=32768,
        intermediate_unit=16,
        heads=256,
        head_dim=128,
        head_unit=16,
        vocabulary=262144,
        positions=65536,
        rows=1 << 20,
    )


def test_limits_follow_the_headers(tmp_path):
    for name in ("include/ecorl_rows.hpp", "include/ecorl_words.hpp", "include/kv_pages.hpp",
                 "gemm_int8/gemm_int8.hpp", "vector_ops/vector_ops.hpp",
                 "score_aggregator/score_aggregator.hpp"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (kernel_root() / name).read_text()
        text = re.sub(r"MAX_COLUMNS = 8192", "MAX_COLUMNS = 2 * (1024 + 1024)", text)
        (tmp_path / name).write_text(text)
    assert shape_limits(tmp_path).hidden == 4096
    header = tmp_path / "vector_ops" / "vector_ops.hpp"
    header.write_text(header.read_text().replace("2 * (1024 + 1024)", "size_of(word_t)"))
    with pytest.raises(BuildError, match=r"size_of\(word_t\): allowed are sums and products"):
        shape_limits(tmp_path)
    header.write_text(header.read_text().replace(" MAX_COLUMNS = ", " MOST_COLUMNS = "))
    with pytest.raises(BuildError, match="no constexpr MAX_COLUMNS"):
        shape_limits(tmp_path)
    header.unlink()
    with pytest.raises(BuildError, match="cannot be read"):
        shape_limits(tmp_path)
