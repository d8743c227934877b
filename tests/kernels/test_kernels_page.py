"""The figures on the kernels' page are those of the sources and of the cycle model."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from ecorl.devices import load_profile
from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.estimate import declared_brams, declared_dsps
from tests.kernels.kernel_designs import designs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (kernel_root() / "README.md").read_text(encoding="utf-8")


def rows_under(heading):
    """Cells of the first table under a heading."""
    text = PAGE.split(f"## {heading}\n")[1]
    lines = re.search(r"\n(\|.*?\n)\n", text, re.DOTALL)[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_dsps_are_those_that_the_kernels_declare():
    shown = {row[0].strip("`"): int(row[-1].replace(",", "")) for row in rows_under("The five")}
    assert shown == declared_dsps()
    total, profile = sum(shown.values()), load_profile("u55c")
    assert f"Together {total:,}: {total / profile.value('n_dsp'):.1%}".replace("%", " %") in PAGE
    assert f"{total / profile.value('n_dsp_usable'):.1%}".replace("%", " %") in PAGE


def test_block_ram_is_what_the_kernels_declare():
    assert f"{100 * sum(declared_brams().values()) / 4032:.1f} %" in PAGE


def test_designs_are_those_of_the_cycle_model(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    kernels = importlib.import_module("benchmarks.kernels")
    profile = load_profile("u55c")
    found = designs(kernels.LLAMA_2_7B, profile, kernels.N_TOKENS)
    usable = profile.value("n_dsp_usable")
    shown = rows_under("How long a 7 B model takes, and what could come after")
    assert [row[1:] for row in shown] == [
        [
            f"{d.time_s:.2f} s",
            f"{d.n_dsp:,}",
            f"{100 * d.n_dsp / usable:.0f} %",
            f"{d.power_w:.0f} W",
            f"{d.tokens_per_j:.2f}",
            f"{d.tokens_per_j * 0.73:.2f}",
        ]
        for d in found
    ]
    third = found[-1].n_dsp + 2048
    assert f"{third:,} of {usable:,.0f}" in PAGE
    assert third > usable


def test_the_table_of_rules_has_the_lints(require_tool):
    require_tool("libclang")
    from hls_kernels.lint.hardware import HARDWARE_RULES

    shown = re.findall(r"^\| `([a-z-]+)` \|", PAGE.split("| rule |")[1], re.MULTILINE)
    assert shown == list(HARDWARE_RULES)


@pytest.mark.parametrize("name", re.findall(r"`((?:sim|rtl|tests)/[\w/.]*)`", PAGE))
def test_files_that_the_page_names_exist(name):
    assert (ROOT / name).exists() or (kernel_root() / name).exists()
