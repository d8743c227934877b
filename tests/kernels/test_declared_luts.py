"""LUTs of the kernels are estimates: sums whose pipelines are those of the simulated RTL."""

from __future__ import annotations

import re

import pytest

from ecorl.engines.fpga.cycles.model import KERNELS
from tests.kernels.kernel_benches import pipelines, qor_of

U55C_LUTS = 1_303_680


@pytest.mark.parametrize("kernel", KERNELS)
def test_luts_are_declared_as_estimates(kernel):
    lut, known = qor_of(kernel)["lut"], pipelines()
    assert lut["provenance"].startswith("estimated")
    assert lut["count"] == sum(part["parts"] * part["each"] for part in lut["of"])
    for part in lut["of"]:
        named = re.match(r"pipeline (\w+),", part["what"])
        if named is not None:
            assert part["each"] == known[named[1]]["lut"], part["what"]
        if part["what"].startswith("lane group"):
            assert part["each"] == qor_of("rtl")["lane_group"]["lut"]


def test_all_kernels_together_fit_the_card():
    assert sum(qor_of(kernel)["lut"]["count"] for kernel in KERNELS) < 0.5 * U55C_LUTS
