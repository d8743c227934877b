"""The FPGA engine: INT8 kernels as C-simulation, the card's time and energy from the cycle model.

Rewards and log-probs are computed bit-true by the kernels on this host. What a card would take is
modelled and labelled so; the host's wall-clock is measured and never stands in for it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import get_args

import numpy as np

from ecorl.devices import DeviceProfile, load_profile
from ecorl.engines.checkpoint import DecoderConfig, expected_tensors, load_decoder
from ecorl.engines.fpga.build import Build
from ecorl.engines.fpga.cycles import BatchShape, CardTime, CycleModel
from ecorl.engines.fpga.forward import MAX_ROW, Int8Decoder
from ecorl.engines.fpga.gemm import CsimLibrary
from ecorl.engines.protocol import EngineReport, LogprobResult, ScoreBatch, ScoreResult
from ecorl.engines.validate import check_batch
from ecorl.errors import CheckpointError, ConfigError, EngineError
from ecorl.records import ModelShape, Provenance, Stage


class FpgaEngine:
    """Scores rows with a frozen Llama-family decoder in INT8.

    A row whose activations overflow float32 comes back as NaN, all other rows as they are; the
    caller answers it on the exact path (`ecorl.engines.validate` finds it).

    Args:
        checkpoint: Hugging Face checkpoint folder.
        stage: `Stage.REWARD` (scalar head) or `Stage.REFERENCE` (language-model head).
        device: profile of the card, by name or path.
        build: ``fast`` (native integers) or ``strict`` (bit-true ap_int, slow).
        threads: host threads of the C-simulation; results do not depend on it.

    Raises:
        ConfigError: for a stage or build that there is not, or an incomplete profile.
        CheckpointError: when the checkpoint cannot be used, lacks the head that the stage needs,
            or does not fit the card's memory.
        MissingToolError: without a C++ compiler, or without ap_int headers for ``strict``.
        BuildError: when the kernels do not compile.
    """

    row_invariant = True

    def __init__(
        self,
        checkpoint: Path,
        stage: Stage,
        device: str = "u55c",
        build: Build = "fast",
        threads: int = 1,
    ) -> None:
        if stage not in (Stage.REWARD, Stage.REFERENCE):
            raise ConfigError("stage", str(stage), "reward or reference: frozen models only")
        if build not in get_args(Build):
            raise ConfigError("engine.offload.build", build, f"one of {get_args(Build)}")
        profile = load_profile(device)
        opened = load_decoder(checkpoint)
        config = opened.config  # not config.json's word alone: the tensors may untie the head
        _check_head(checkpoint, config, stage)
        _check_memory(checkpoint, config, profile)
        self.name = "fpga"
        self.device = profile.name
        self.stage: Stage = stage
        self.model: ModelShape = config.shape
        self.card_bytes = card_bytes(config)
        self._config = config
        self._cycles = CycleModel(config.shape, profile)
        self._decoder: Int8Decoder | None = Int8Decoder(opened, CsimLibrary.load(build), threads)

    def score(self, batch: ScoreBatch) -> ScoreResult:
        """Scalar reward of each row, read at its last token.

        Raises:
            EngineError: for a closed engine, a reference engine, or a batch that cannot be run.
        """
        decoder = self._ready(Stage.REWARD, batch)
        start = time.perf_counter()
        values = decoder.score(batch.token_ids)
        host_time_s = time.perf_counter() - start
        return ScoreResult(batch.sample_ids, values, _report(self.modelled(batch), host_time_s))

    def logprobs(self, batch: ScoreBatch) -> LogprobResult:
        """Log-probability of each completion token given all tokens before it, in nats.

        Raises:
            EngineError: for a closed engine, a reward engine, or a batch that cannot be run.
        """
        decoder = self._ready(Stage.REFERENCE, batch)
        start = time.perf_counter()
        values = decoder.logprobs(batch.token_ids, batch.n_completion, batch.temperature)
        host_time_s = time.perf_counter() - start
        return LogprobResult(batch.sample_ids, values, _report(self.modelled(batch), host_time_s))

    def modelled(self, batch: ScoreBatch) -> CardTime:
        """The cycle model's breakdown for a batch, without running it."""
        lengths = tuple(len(row) for row in batch.token_ids)
        if self.stage is Stage.REWARD:
            return self._cycles.batch(BatchShape(lengths, (1,) * len(batch), 1))
        wanted = tuple(batch.n_completion)
        return self._cycles.batch(BatchShape(lengths, wanted, self.model.vocab_size))

    def close(self) -> None:
        """Release the weights; further calls raise `EngineError`."""
        self._decoder = None

    def _ready(self, asked: Stage, batch: ScoreBatch) -> Int8Decoder:
        if self._decoder is None:
            raise EngineError("the FPGA engine is closed")
        if asked is not self.stage:
            what = "rewards" if asked is Stage.REWARD else "log-probs"
            raise EngineError(f"an engine for the {self.stage} stage does not answer {what}")
        check_batch(batch, asked)
        for sample_id, row in zip(batch.sample_ids, batch.token_ids, strict=True):
            if len(row) > MAX_ROW:
                raise EngineError(
                    f"row {sample_id} has {len(row)} tokens: INT32 sums of the attention hold at "
                    f"most {MAX_ROW} keys"
                )
            if len(row) > self._config.max_positions:
                raise EngineError(
                    f"row {sample_id} has {len(row)} tokens, the model knows "
                    f"{self._config.max_positions} positions"
                )
            low, high = int(np.min(row)), int(np.max(row))
            if low < 0 or high >= self.model.vocab_size:
                raise EngineError(
                    f"row {sample_id}: token id {low if low < 0 else high} is outside the "
                    f"vocabulary of {self.model.vocab_size}"
                )
        return self._decoder


def card_bytes(config: DecoderConfig) -> int:
    """Bytes that the model occupies in the card's memory.

    Matrices of products are INT8 with a float32 scale a row; the input embedding, norms and biases
    stay float32, as the forward reads them.
    """
    total = 0
    for name, shape in expected_tensors(config).items():
        is_product = len(shape) == 2 and name != "model.embed_tokens.weight"
        size = int(np.prod(shape, dtype=np.int64))
        total += size + 4 * shape[0] if is_product else 4 * size
    if config.tied and not config.is_reward:
        total += config.shape.vocab_size * (config.shape.hidden_size + 4)
    return total


def _check_head(checkpoint: Path, config: DecoderConfig, stage: Stage) -> None:
    if (stage is Stage.REWARD) != config.is_reward:
        want = "ForSequenceClassification" if stage is Stage.REWARD else "ForCausalLM"
        raise CheckpointError(
            f"{checkpoint}: the {stage} stage needs a ...{want} model, this is a "
            f"{config.architecture}"
        )


def _check_memory(checkpoint: Path, config: DecoderConfig, profile: DeviceProfile) -> None:
    needed, has = card_bytes(config), profile.value("memory_bytes")
    if needed > has:
        raise CheckpointError(
            f"{checkpoint}: needs {needed / 1e9:.1f} GB in INT8, {profile.name} has "
            f"{has / 1e9:.1f} GB"
        )


def _report(card: CardTime, host_time_s: float) -> EngineReport:
    return EngineReport(card.time_s, card.energy_j, Provenance.MODELLED, host_time_s)
