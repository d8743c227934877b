"""The FPGA engine: scores rows with INT8 kernels, as C-simulation or on cards.

The C-simulation computes rewards and log-probs bit-true on this host. The card's time and energy
come from the cycle model then and are labelled as modelled; the host's wall-clock is measured and
never reported as a card's. Time on real cards is measured.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from ecorl.devices import DeviceProfile, load_profile
from ecorl.engines.fpga.card.backend import KernelBackend
from ecorl.engines.fpga.card.card import CardStatus
from ecorl.engines.fpga.card.decoder import CardDecoder
from ecorl.engines.fpga.card.health import CardState
from ecorl.engines.fpga.card.opening import open_cards
from ecorl.engines.fpga.csim.build import Build
from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.cycles.model import CardTime, CycleModel
from ecorl.engines.fpga.int8_decoder import MAX_ROW, Decoder, Segments, segments_of
from ecorl.engines.fpga.kernels.interfaces import check_widths
from ecorl.engines.fpga.verdict import obey
from ecorl.engines.models.checkpoint import expected_tensors, load_decoder
from ecorl.engines.models.decoder_config import DecoderConfig, read_config
from ecorl.engines.models.equalise import equalised
from ecorl.engines.models.gating import FOLDED
from ecorl.engines.protocol import (
    CardLoad,
    EngineReport,
    Float32,
    Int64,
    LogprobResult,
    ScoreBatch,
    ScoreResult,
    StepResult,
)
from ecorl.engines.validate import check_batch
from ecorl.errors import CheckpointError, ConfigError, EngineError, UnsupportedModel
from ecorl.records import ModelShape, Provenance, Stage

logger = logging.getLogger(__name__)


class FpgaEngine:
    """Scores rows with a frozen Llama-family decoder in INT8.

    Outlier channels are equalised first (`ecorl.engines.models.equalise`), which does not change
    the function that the model computes.

    A row that cannot be run (too long, or with a token id that the model does not know) and one
    with a number beyond its fixed-point format are NaN in the result, all other rows unaffected: a
    row's result does not depend on the rest of its batch. The caller computes such rows on the
    exact path (`ecorl.engines.validate` finds them). Time and energy are those of the rows that
    were run, and None for a batch of which none could be run.

    Args:
        checkpoint: Hugging Face checkpoint folder.
        stage: `Stage.REWARD` (scalar head) or `Stage.REFERENCE` (language-model head).
        device: profile of the card, by name or path.
        build: ``fast`` (native integers) or ``strict`` (bit-true ap_int, slow).
        threads: host threads of the C-simulation; results do not depend on it.
        backend: which backend runs the kernels; by default the C-simulation, called directly.
        obey_verdict: whether to raise for a model that ``ecorl fpga validate`` refused (the verdict
            lies beside the checkpoint); only a new validation passes False.

    Raises:
        ConfigError: for an unknown stage or build, or an incomplete profile.
        CheckpointError: when the checkpoint cannot be used, lacks the head that the stage needs,
            does not fit the card's memory, or was refused by a validation.
        MissingToolError: without a C++ compiler, ap_int headers for ``strict``, or XRT where it is
            asked for.
        BitstreamError: for a bitstream that may not be loaded.
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
        backend: KernelBackend | None = None,
        obey_verdict: bool = True,
    ) -> None:
        if stage not in (Stage.REWARD, Stage.REFERENCE):
            raise ConfigError("stage", str(stage), "reward or reference: frozen models only")
        if build not in get_args(Build):
            raise ConfigError("engine.offload.build", build, f"one of {get_args(Build)}")
        profile = load_profile(device)
        opened = load_decoder(checkpoint)
        config = opened.config  # config.json and the tensors, which may untie the head
        check_widths(config, opened.path / "config.json")
        _check_head(checkpoint, config, stage)
        _check_memory(checkpoint, config, profile)
        if obey_verdict:
            obey(opened)
        if config.gating is not None and not config.gating.token_pattern:
            logger.warning(
                "%s: config.json has no gating_token_pattern: the gate is read at the last token "
                "of each prompt", checkpoint,
            )  # fmt: skip
        self.name = "fpga"
        self.device = profile.name
        self.stage: Stage = stage
        self.model: ModelShape = config.shape
        self.card_bytes = card_bytes(config)
        self._config = config
        self._cycles = CycleModel(config.shape, profile)
        self._obey_verdict = obey_verdict
        opening = open_cards(backend or KernelBackend(), build, config)
        # Time on real cards is measured, not modelled.
        self.on_card = opening is not None and not opening.is_emulated
        self._run_s: dict[int, float] = {}
        self.card_banks: Mapping[str, int] | None = None
        self._decoder: Decoder | None
        if opening is None:
            self.host = "csim"
            self._decoder = Int8Decoder(equalised(opened), CsimLibrary.load(build), threads)
        else:
            self.host = "xrt" if self.on_card else "xrt (noop)"
            library = CsimLibrary.load(build)  # packs the weights
            on_cards = CardDecoder(equalised(opened), library, opening.setups)
            self._decoder, self.card_banks = on_cards, on_cards.banks

    def score(self, batch: ScoreBatch) -> ScoreResult:
        """Scalar reward of each row, read at `ScoreBatch.reward_positions`.

        It is NaN for a row that cannot be run.

        Raises:
            EngineError: for a closed engine, a reference engine, or a batch that cannot be run.
        """
        read = batch.reward_positions(self._config.pad_token_id)
        steps = self.score_steps(batch, [(position,) for position in read])
        values = np.array([value for values in steps.values for value in values], np.float32)
        return ScoreResult(batch.sample_ids, values, steps.report)

    def logprobs(self, batch: ScoreBatch) -> LogprobResult:
        """Log-probability of each completion token given all tokens before it, in nats.

        A row that cannot be run has NaN for each of its tokens.

        Raises:
            EngineError: for a closed engine, a reward engine, or a batch that cannot be run.
        """
        decoder = self._ready(Stage.REFERENCE, batch)
        start, runnable = time.perf_counter(), self._runnable(batch)
        run = batch.rows(runnable)
        answers = decoder.logprobs(run.token_ids, run.n_completion, run.temperature)
        values = _placed(answers, runnable, batch.n_completion)
        report = self._report(batch, runnable, time.perf_counter() - start)
        return LogprobResult(batch.sample_ids, values, report)

    def score_steps(self, batch: ScoreBatch, positions: Sequence[Sequence[int]]) -> StepResult:
        """Process rewards: the reward at several positions of each row, as if it ended there.

        A row that cannot be run has NaN at each position, and a result before the place where a
        gate is read is NaN.

        Args:
            batch: the rows.
            positions: for each row token positions from 0, in any order.

        Raises:
            EngineError: as `score`, and for positions that are not within their row.
        """
        decoder = self._ready(Stage.REWARD, batch)
        asked = _checked_positions(batch, positions)
        start, runnable = time.perf_counter(), self._runnable(batch)
        run, chosen = batch.rows(runnable), [asked[i] for i in runnable]
        answers = decoder.score_at(run.token_ids, chosen, run.n_completion)
        values = _placed(answers, runnable, [len(p) for p in asked])
        report = self._report(batch, runnable, time.perf_counter() - start, asked)
        return StepResult(batch.sample_ids, values, report)

    def modelled(self, batch: ScoreBatch, positions: Sequence[Int64] | None = None) -> CardTime:
        """The cycle model's breakdown for a batch of runnable rows, without running it.

        Tokens at which a gate is read count as wanted. The layers of the gate and all rewards but
        the first are left out: they are one row of a few small products for each of these tokens,
        less than a thousandth of a token's forward in a model of 8 B parameters.

        Args:
            batch: the rows.
            positions: of each row's rewards; None: the one that `score` reads.

        Returns:
            Modelled time and energy with each term.
        """
        segments = segments_of(batch.token_ids, batch.n_completion)
        if self.stage is Stage.REWARD:
            if positions is None:
                read = batch.reward_positions(self._config.pad_token_id)
                positions = [np.asarray([position], np.int64) for position in read]
            return self._cycles.batch(self._reward_shape(batch, positions, segments))
        return self._cycles.batch(segments.shape(batch.n_completion, self.model.vocab_size))

    def cards(self) -> tuple[CardStatus, ...]:
        """State and load of each card; empty where XRT does not run the kernels."""
        decoder = self._decoder
        return decoder.status() if isinstance(decoder, CardDecoder) else ()

    def load_weights(self, checkpoint: Path) -> str:
        """Load the weights of a refreshed model of the same shape, between two batches.

        Returns:
            SHA-256 of the weights in the kernels' formats; a card's have been read back and
            compared.

        Raises:
            CheckpointError: when the checkpoint cannot be used or is of another shape.
            EngineError: for a closed engine, or when no card loaded the weights.
        """
        if self._decoder is None:
            raise EngineError("the FPGA engine is closed")
        opened = load_decoder(checkpoint)
        _check_head(checkpoint, opened.config, self.stage)
        if opened.config != self._config:
            raise CheckpointError(f"{checkpoint}: another model than the one that is loaded")
        if self._obey_verdict:
            obey(opened)
        digest = self._decoder.load(equalised(opened))
        self._config = opened.config  # its pad token may be another
        return digest

    def close(self) -> None:
        """Release the weights; further calls raise `EngineError`."""
        if isinstance(self._decoder, CardDecoder):
            self._decoder.close()
        self._decoder = None

    def _ready(self, asked: Stage, batch: ScoreBatch) -> Decoder:
        if self._decoder is None:
            raise EngineError("the FPGA engine is closed")
        if asked is not self.stage:
            what = "rewards" if asked is Stage.REWARD else "log-probs"
            raise EngineError(f"an engine for the {self.stage} stage does not answer {what}")
        check_batch(batch, asked)
        return self._decoder

    def _reward_shape(
        self, batch: ScoreBatch, positions: Sequence[Int64], segments: Segments
    ) -> BatchShape:
        tokens, n_results = [], 0
        for i, (row, n) in enumerate(zip(batch.token_ids, batch.n_completion, strict=True)):
            scored = positions[i]
            if self._config.gating is not None:
                gates = self._config.gating.positions(row, scored, n)
                tokens.append(segments.tokens(i, gates[gates >= 0]))
                scored = scored[gates >= 0]
            tokens.append(segments.tokens(i, scored))
            n_results += len(scored)
        return segments.shape_at(tokens, n_results)

    def _ran_s(self) -> float:
        """Time that the busiest card was running since the last batch, s."""
        now = {card.index: card.run_s for card in self.cards()}
        before, self._run_s = self._run_s, now
        return max(run_s - before.get(index, 0.0) for index, run_s in now.items())

    def _runnable(self, batch: ScoreBatch) -> list[int]:
        """Indices of the rows that can be run; logs how many cannot, and why the first of them."""
        rows = zip(batch.token_ids, batch.n_completion, strict=True)
        objections = [self._objection(row, n) for row, n in rows]
        refused = [i for i, objection in enumerate(objections) if objection]
        if refused:
            first = refused[0]
            logger.warning(
                "%d of %d rows cannot be run on the card; row %s %s",
                len(refused), len(batch), batch.sample_ids[first], objections[first],
            )  # fmt: skip
        return [i for i, objection in enumerate(objections) if not objection]

    def _objection(self, row: Int64, n_completion: int) -> str:
        """Why a row cannot be run; empty when it can."""
        if len(row) > MAX_ROW:
            return f"has {len(row)} tokens: INT32 sums of the attention hold at most {MAX_ROW} keys"
        if len(row) > self._config.max_positions:
            return f"has {len(row)} tokens, the model knows {self._config.max_positions} positions"
        low, high = int(np.min(row)), int(np.max(row))
        if low < 0 or high >= self.model.vocab_size:
            wrong = low if low < 0 else high
            return f"has token id {wrong}, outside the vocabulary of {self.model.vocab_size}"
        gating, last = self._config.gating, np.asarray([len(row) - 1], np.int64)
        if gating is not None and gating.positions(row, last, n_completion)[0] < 0:
            return "holds no gating_token_pattern, and no completion after a prompt is named"
        return ""

    def _report(
        self,
        batch: ScoreBatch,
        run: list[int],
        host_time_s: float,
        positions: Sequence[Int64] | None = None,
    ) -> EngineReport:
        if len(batch) and not run:
            # Not 0 s: the batch is recorded with all of its rows, and none of them took 0 s.
            silent = Provenance.MEASURED if self.on_card else Provenance.MODELLED
            return EngineReport(None, None, silent, host_time_s)
        chosen = None if positions is None else [positions[i] for i in run]
        if self.on_card:
            # A real card's energy comes from its power readings alone, never from the model.
            cards = tuple(
                CardLoad(c.index, c.state is CardState.READY, c.occupancy) for c in self.cards()
            )
            return EngineReport(self._ran_s(), None, Provenance.MEASURED, host_time_s, cards)
        card = self.modelled(batch.rows(run), chosen)
        return EngineReport(card.time_s, card.energy_j, Provenance.MODELLED, host_time_s)


def _placed(
    answers: Sequence[Float32], runnable: Sequence[int], sizes: Sequence[int]
) -> tuple[Float32, ...]:
    """Answers in the places of their rows; NaN for rows that were not run."""
    values = [np.full(n, np.nan, np.float32) for n in sizes]
    for index, answer in zip(runnable, answers, strict=True):
        values[index] = answer
    return tuple(values)


def _checked_positions(batch: ScoreBatch, positions: Sequence[Sequence[int]]) -> tuple[Int64, ...]:
    if len(positions) != len(batch):
        raise EngineError(f"positions of {len(positions)} rows for a batch of {len(batch)}")
    checked = []
    for name, row, asked in zip(batch.sample_ids, batch.token_ids, positions, strict=True):
        try:
            places = np.asarray(asked)
        except ValueError:  # lists in it, of different lengths
            places = np.empty((0, 0))
        if places.ndim != 1 or (places.size and places.dtype.kind not in "iu"):
            raise EngineError(f"row {name}: positions are no list of whole numbers")
        outside = places[(places < 0) | (places >= len(row))]
        if outside.size:
            raise EngineError(
                f"row {name}: position {outside[0]} is not within its {len(row)} tokens"
            )
        checked.append(places.astype(np.int64))
    return tuple(checked)


def card_bytes(config: DecoderConfig) -> int:
    """Bytes that the model occupies in the card's memory.

    Matrices of products are INT8 with a mantissa (32 bits) and a shift (8 bits) a row; the input
    embedding is INT16 with an exponent (8 bits) a token; norms and biases have 32 bits. Tensors
    that are multiplied into other weights beforehand are not stored.
    """
    total = 0
    for name, shape in expected_tensors(config).items():
        if name in FOLDED:
            continue
        size = int(np.prod(shape, dtype=np.int64))
        if len(shape) == 1:
            total += 4 * size
        elif name == "model.embed_tokens.weight":
            total += 2 * size + shape[0]
        else:
            total += size + 5 * shape[0]
    if config.tied and not config.is_reward:
        total += config.shape.vocab_size * (config.shape.hidden_size + 5)
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


def refusal(checkpoint: Path, stage: Stage, device: str) -> str | None:
    """Tell from its config.json alone why the card cannot run a model; None where it can.

    Args:
        checkpoint: Hugging Face checkpoint folder.
        stage: that the model serves.
        device: profile of the card.
    """
    try:
        config = read_config(checkpoint)
        check_widths(config, checkpoint / "config.json")
        _check_head(checkpoint, config, stage)
        _check_memory(checkpoint, config, load_profile(device))
    except UnsupportedModel as error:
        return error.reason
    except CheckpointError as error:
        return str(error)
    return None
