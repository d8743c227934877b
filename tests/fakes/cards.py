"""Small models, and cards that run them: XRT's noop driver, pure Python, or real ones."""

from __future__ import annotations

import copy
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from ecorl.drivers.xrt.card import OpenCard
from ecorl.engines.fpga.bitstream.xclbin import write_container
from ecorl.engines.fpga.card.decoder import CardDecoder
from ecorl.engines.fpga.card.health import CardLimits, CardSetup
from ecorl.engines.fpga.csim.build import csim_library
from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.kernels.banks import card_memory
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces
from ecorl.engines.models.checkpoint import load_decoder
from tests.fakes.pyxrt_faults import Fault, Script
from tests.fakes.pyxrt_python import Machine, module

# The engines' own test models; their folders are no packages.
for _folder in ("unit/engines", "kernels"):
    _path = str(Path(__file__).parents[1] / _folder)
    if _path not in sys.path:
        sys.path.append(_path)

import decoder_models  # noqa: E402
import int8_models  # noqa: E402

BITSTREAM = "ECORL_FPGA_BITSTREAM"
REWARDS, LMS = ("llama_reward", "qwen_reward", "llama96"), ("llama_lm", "qwen_lm_tied")
MODELS = (*REWARDS, *LMS)
MARKED = 7
"""Token whose embedding is far beyond the residual stream's format in models "outlier..."."""


@functools.cache
def checkpoint(root: Path, name: str) -> Path:
    """Folder of a small model: of `MODELS`, ``outlier``, ``outlier_lm`` or ``<model>_other``."""
    if name.endswith("_other"):
        return _changed(root, name.removesuffix("_other"))
    if name == "outlier_lm":
        return _with_outlier(root)
    if name in int8_models.MODELS:
        return int8_models.saved_model(root, name)[0]
    return decoder_models.saved_decoder(root, name)


def _changed(root: Path, name: str) -> Path:
    """A model of the same shape with other weights."""
    import torch

    model = copy.deepcopy(int8_models.saved_model(root, name)[1])
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.1 * torch.rand_like(parameter))
    model.save_pretrained(root / f"{name}_other")
    return root / f"{name}_other"


def _with_outlier(root: Path) -> Path:
    import torch

    model = copy.deepcopy(int8_models.saved_model(root, "llama_lm")[1])
    with torch.no_grad():
        model.model.embed_tokens.weight[MARKED, 3] = 1e6
    model.save_pretrained(root / "outlier_lm")
    return root / "outlier_lm"


def tensors(root: Path, name: str):
    return load_decoder(checkpoint(root, name))


def is_reward(decoder) -> bool:
    return decoder.config.is_reward


@functools.cache
def csim_answers(root: Path, name: str) -> Int8Decoder:
    """The C-simulation of a model, whose results are the expected ones."""
    return Int8Decoder(tensors(root, name), int8_models.library("fast"))


def answers(decoder, rows, n_completion=None, temperature=0.7):
    """Rewards or log-probs of each row, one float32 array for each."""
    if is_reward(decoder):
        return tuple(np.split(decoder.score(rows, n_completion), len(rows)))
    counts = n_completion or [max(0, len(row) - 4) for row in rows]
    return decoder.logprobs(rows, counts, temperature)


rows_of, same_bits = int8_models.rows_of, int8_models.same_bits


def group(n_prompt: int, lengths: Sequence[int], seed: int = 0):
    """Rows that share a prompt, and their completion tokens."""
    prompt = rows_of(n_prompt, seed=1000 + seed)[0]
    return [np.concatenate([prompt, r]) for r in rows_of(*lengths, seed=seed)], list(lengths)


def same_rows(got, wanted) -> bool:
    return all(same_bits(a, b) for a, b in zip(got, wanted, strict=True))


def lost_rows(got, wanted) -> list[int]:
    """Rows that are wrongly NaN; all other rows must have the expected bits."""
    lost = [i for i, a in enumerate(got) if np.isnan(a).any() and not same_bits(a, wanted[i])]
    for i in lost:
        assert np.isnan(got[i]).all(), f"row {i} is half lost"
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert i in lost or same_bits(a, b), f"row {i} has other bits"
    return lost


# ---- devices -----------------------------------------------------------------------------------


def container_in(folder: Path) -> Path:
    path = folder / "ecorl.csim.xclbin"
    if not path.exists():
        library = csim_library("fast").read_bytes()
        write_container(path, kernel_interfaces(), library, card_memory())
    return path


class Cards:
    """Cards in pure Python, and decoders on them; a context that closes both."""

    def __init__(
        self,
        container: Path,
        *faults: Fault,
        generation: str = "2022.1",
        n_cards: int = 1,
        clock: Callable[[], float] = time.monotonic,
        **limits: float,
    ) -> None:
        self.script = Script(*faults)
        self.machine = Machine(int8_models.library("fast").handle, self.script, n_cards)
        self.module = module(self.machine, generation)
        self._container, self._clock = container, clock
        self._limits = CardLimits(**({"start_s": 10.0} | limits))
        self._made: list[CardDecoder] = []

    @property
    def setups(self) -> list[CardSetup]:
        return [self.setup(i) for i in range(self.machine.n_cards)]

    def setup(self, index: int) -> CardSetup:
        interfaces = kernel_interfaces()
        tops = [k.top for k in interfaces]

        def opener() -> OpenCard:
            return OpenCard(self.module, index, self._container, tops)

        def reset(address: str) -> None:
            assert address == f"0000:{0x3B + index:02x}:00.1"
            self.machine.reset(index)

        return CardSetup(index, opener, reset, interfaces, self._limits, self._clock)

    def decoder(self, root: Path, name: str) -> CardDecoder:
        made = CardDecoder(tensors(root, name), int8_models.library("fast"), self.setups)
        self._made.append(made)
        return made

    def __enter__(self) -> Cards:
        return self

    def __exit__(self, *_: object) -> None:
        for made in self._made:
            made.close()
        self.machine.close()


def noop_setups(n_cards: int) -> Sequence[CardSetup]:
    from ecorl.engines.fpga.card.opening import csim_container, emulated

    return emulated(csim_container("fast"), range(n_cards)).setups


def real_setups(n_cards: int) -> Sequence[CardSetup]:
    """Cards of this machine, by the bitstream that the environment names."""
    from ecorl.engines.fpga.bitstream.manifest import check_bitstream
    from ecorl.engines.fpga.card.backend import KernelBackend
    from ecorl.engines.fpga.card.opening import on_cards

    path = Path(os.environ[BITSTREAM])
    manifest = check_bitstream(path, platform=None, model=None, emulated=False)
    return on_cards(path, manifest, KernelBackend("xrt", path, tuple(range(n_cards)))).setups


def on_setups(root: Path, name: str, setups: Sequence[CardSetup]) -> closing[CardDecoder]:
    return closing(CardDecoder(tensors(root, name), int8_models.library("fast"), setups))
