"""The verdict of a validation: whether a model may be offloaded in INT8.

``ecorl fpga validate`` writes it beside the checkpoint, `FpgaEngine` enforces it: a refusal of the
same weights is an error; one of other weights or kernels is stale and only logged.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ecorl.engines.fpga.csim.build import kernels_digest
from ecorl.engines.fpga.validation.rank_flips import PrecisionStudy
from ecorl.engines.models.checkpoint import DecoderCheckpoint
from ecorl.errors import CheckpointError
from ecorl.files import write_whole
from ecorl.records import Provenance

logger = logging.getLogger(__name__)

VERDICT_FILE = "ecorl_int8.json"
LAST_NO_PAD = "last_no_pad"
"""Where rewards are read; see `reward_position`. A verdict of another place is none."""

DEFAULT_BUDGET = 0.03
"""Largest share of flipped pairs: the paper's budget for training noise (section 3.3)."""


@dataclass(frozen=True, slots=True)
class OffloadVerdict:
    """Result of a validation.

    Attributes:
        checkpoint_digest: of the weights and config.json; see `checkpoint_digest`.
        kernels_digest: of the kernels' sources, which computed the scores.
        n_pairs: held-out pairs.
        rank_flip_share: of INT8, or None when it scored no pair.
        budget: largest share that was allowed.
        accepted: whether there is a share, and it is within the budget.
        figures: the whole study as plain data.
        provenance: of the figures.
        read_at: where rewards were read.
    """

    checkpoint_digest: str
    kernels_digest: str
    n_pairs: int
    rank_flip_share: float | None
    budget: float
    accepted: bool
    figures: Mapping[str, object]
    provenance: str = str(Provenance.EMULATED)
    read_at: str = LAST_NO_PAD


def judge(study: PrecisionStudy, precision: str, budget: float, digest: str) -> OffloadVerdict:
    """Compare the share of flips of a precision with the budget.

    Args:
        study: of the model.
        precision: the one that would be offloaded with.
        budget: largest share of flipped pairs, 0 to 1.
        digest: of the checkpoint.
    """
    share = study.of(precision).flips.share
    return OffloadVerdict(
        checkpoint_digest=digest,
        kernels_digest=kernels_digest(),
        n_pairs=study.n_pairs,
        rank_flip_share=share,
        budget=budget,
        accepted=share is not None and share <= budget,
        figures=asdict(study),
    )


def checkpoint_digest(checkpoint: DecoderCheckpoint) -> str:
    """SHA-256 over config.json and the files with the weights, as ``sha256:...``.

    Raises:
        CheckpointError: when one cannot be read.
    """
    files = {stored.path for stored in checkpoint.tensors.values()}
    whole = hashlib.sha256()
    for path in (checkpoint.path / "config.json", *sorted(files)):
        try:
            with path.open("rb") as file:
                part = hashlib.file_digest(file, "sha256")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
        whole.update(path.name.encode() + b"\0" + part.digest())
    return f"sha256:{whole.hexdigest()}"


def write_verdict(verdict: OffloadVerdict, path: Path) -> None:
    """Write a verdict as JSON; the file is complete or absent.

    Args:
        verdict: what to write.
        path: where; its folder is made if need be.

    Raises:
        OSError: when the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(verdict), indent=1, allow_nan=False) + "\n")


def obey(checkpoint: DecoderCheckpoint) -> None:
    """Raise for a model that a validation of the same weights refused.

    Raises:
        CheckpointError: naming the file and the share of flips.
    """
    path = checkpoint.path / VERDICT_FILE
    try:
        found = json.loads(path.read_text("utf-8"))
        digest, accepted = found["checkpoint_digest"], found["accepted"]
        kernels = found["kernels_digest"]
        if found["read_at"] != LAST_NO_PAD:
            raise ValueError(f"read_at = {found['read_at']!r}, this ecorl reads {LAST_NO_PAD!r}")
        share, budget = found["rank_flip_share"], float(found["budget"])
        what = "INT8 answered no held-out pair"
        if share is not None:
            what = f"INT8 flips {100 * float(share):.3g} % of the held-out pairs"
    except FileNotFoundError:
        logger.info("%s: INT8 was not validated (ecorl fpga validate)", checkpoint.path)
        return
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("%s is no verdict and is passed over (%s)", path, error)
        return
    if digest != checkpoint_digest(checkpoint):
        logger.warning("%s is stale: it is of other weights; run ecorl fpga validate again", path)
    elif kernels != kernels_digest():
        logger.warning("%s is stale: it is of other kernels; run ecorl fpga validate again", path)
    elif accepted is not True:
        raise CheckpointError(
            f"{path}: {what}, allowed is at most {100 * budget:g} %: offload refused; "
            "ecorl fpga validate judges anew, also by another --budget"
        )
