"""Shapes that the kernels take, as their headers say them."""

from __future__ import annotations

import json
import re

import pytest
from checkpoint_files import CONFIG, write_checkpoint

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.csim.library import MAX_DIM, MAX_K
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.kernels.interfaces import (
    MAX_INTERMEDIATE,
    ShapeLimits,
    check_widths,
    shape_limits,
)
from ecorl.engines.models.decoder_config import read_config
from ecorl.errors import BuildError, CheckpointError
from ecorl.records import Stage


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
    for name in ("include/ecorl_lanes.hpp", "include/ecorl_rows.hpp", "include/ecorl_words.hpp",
                 "include/kv_pages.hpp", "gemm_int8/gemm_int8.hpp", "vector_ops/vector_ops.hpp",
                 "score_aggregator/score_aggregator.hpp"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (kernel_root() / name).read_text()
        text = re.sub(r"MAX_COLUMNS = 8192", "MAX_COLUMNS = 2 * (1024 + 1024)", text)
        (tmp_path / name).write_text(text)
    assert shape_limits(tmp_path).hidden == 4096
    header = tmp_path / "vector_ops" / "vector_ops.hpp"
    header.write_text(header.read_text().replace("2 * (1024 + 1024)", "size_of(word_t)"))
    with pytest.raises(BuildError, match=r"size_of\(word_t\)"):
        shape_limits(tmp_path)
    header.write_text(header.read_text().replace(" MAX_COLUMNS = ", " MOST_COLUMNS = "))
    with pytest.raises(BuildError, match="constexpr MAX_COLUMNS"):
        shape_limits(tmp_path)
    header.unlink()
    with pytest.raises(BuildError, match=r"vector_ops\.hpp"):
        shape_limits(tmp_path)


GATED = {"architectures": ["LlamaForRewardModelWithGating"], "tie_word_embeddings": None}


def read(folder, changes):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return read_config(folder)


def test_a_model_wider_than_the_buffers_is_refused(tmp_path, snapshot):
    lines = []
    for changes in (
        {"intermediate_size": 32_769},
        {"hidden_size": 16_385},
        {"num_attention_heads": 2050},
        {**GATED, "gating_hidden_dim": 16_385},
    ):
        with pytest.raises(CheckpointError) as caught:
            check_widths(read(tmp_path, changes), tmp_path / "config.json")
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_the_widest_products_that_the_kernel_computes_are_accepted(tmp_path):
    inner = MAX_INTERMEDIATE
    widest = {"intermediate_size": inner, "hidden_size": MAX_K, "num_attention_heads": MAX_K // 8}
    check_widths(read(tmp_path, widest), tmp_path / "config.json")
    check_widths(read(tmp_path, {**GATED, "gating_hidden_dim": MAX_K}), tmp_path / "config.json")
    assert max(3 * MAX_K, 2 * inner) <= MAX_DIM  # so no number of outputs needs a check


def test_the_engine_refuses_a_model_that_is_too_wide(tmp_path):
    write_checkpoint(tmp_path, {"intermediate_size": 32_769})
    with pytest.raises(CheckpointError, match="intermediate_size = 32769"):
        FpgaEngine(tmp_path, Stage.REFERENCE)
