"""INT8 on variants of a model with planted outlier channels, with equalisation and without."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.outliers import PLACES, plant, write_checkpoint
from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.validation.scoring import PairTexts, TokenPair, decoder_scores, exact_scores
from ecorl.engines.fpga.verdict import PrecisionFigures, study_of
from ecorl.engines.models.checkpoint import DecoderCheckpoint, load_decoder
from ecorl.engines.models.equalise import equalised
from ecorl.engines.protocol import Float32

ALL = "all"
EQUALISED, RAW = "equalised", "raw"


@dataclass(frozen=True, slots=True)
class Variant:
    """A model with outlier channels in one place, or in all.

    Attributes:
        place: one of `benchmarks.harness.outliers.PLACES`, or ``all``.
        function_shift: largest difference of its float32 score to the model's own.
        equalised: INT8 as the engine runs it.
        raw: INT8 without equalisation.
    """

    place: str
    function_shift: float
    equalised: PrecisionFigures
    raw: PrecisionFigures


def variants(checkpoint: Path, pairs: Sequence[TokenPair], size: float = 50.0) -> list[Variant]:
    """Run INT8 on a variant for each place and one for all, against each variant's own float32.

    Args:
        checkpoint: folder of a reward model.
        pairs: held-out pairs, which the engine can run.
        size: by how much an outlier is larger than the channel was.

    Raises:
        CheckpointError: when the model cannot be loaded.
    """
    texts, model = PairTexts.of(pairs), load_decoder(checkpoint)
    plain = exact_scores(checkpoint, texts, 1, _silent)
    return [
        _variant(plant(model, places, size), name, texts, plain)
        for name, places in [*((place, (place,)) for place in PLACES), (ALL, PLACES)]
    ]


def _variant(planted: DecoderCheckpoint, name: str, texts: PairTexts, plain: Float32) -> Variant:
    with tempfile.TemporaryDirectory(prefix="ecorl-outliers-") as folder:
        write_checkpoint(planted, Path(folder))
        exact = exact_scores(Path(folder), texts, 1, _silent)
        stored = load_decoder(folder)
        scores = {EQUALISED: _int8(equalised(stored), texts), RAW: _int8(stored, texts)}
    study = study_of(exact[texts.index], {k: v[texts.index] for k, v in scores.items()})
    shift = float(np.abs(exact - plain).max())
    return Variant(name, shift, study.of(EQUALISED), study.of(RAW))


def _int8(checkpoint: DecoderCheckpoint, texts: PairTexts) -> Float32:
    decoder = Int8Decoder(checkpoint, CsimLibrary.load("fast"))
    return decoder_scores(decoder, texts, np.ones(len(texts.rows), bool), _silent, "")


def _silent(_n: int, _what: str) -> None:
    """Show no progress."""
