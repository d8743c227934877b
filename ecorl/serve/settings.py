"""Settings of the service: its limits, and the model that it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ecorl.devices import DeviceFigure
from ecorl.engines.models.text_tokenizer import TextTokenizer
from ecorl.records import Provenance, Stage


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Limits of the service. The defaults are assumed: none rests on a measurement.

    Attributes:
        batch_delay_s: longest time that a row waits for batch-mates while the engine is free, s.
            A few milliseconds: about what a small model takes for one row.
        max_batch_rows: rows of a micro-batch at most.
        max_batch_tokens: tokens of a micro-batch at most; a longer row goes alone.
        queue_rows: requests are refused while so many rows wait. A request is accepted whole as
            long as one place is free, whatever its size, so that large requests do not starve
            beside small ones: at most `request_rows` - 1 rows wait beyond this limit.
        waiting_rows: rows that wait beyond `queue_rows`, of the endpoint for texts alone, whose
            clients do not know a 429: four rollouts of 1,024 samples.
        waiting_tokens: requests for texts are refused while so many tokens wait: 256 MiB, at 8
            bytes each.
        wait_s: longest time from a request for texts to its answer, s: below the 180 s after which
            OpenRLHF's client gives up.
        max_body_bytes: largest body of a request, bytes: 256 rows of 2,048 tokens of 6 digits need
            4 MiB; ids and white space may take the rest.
        max_reading_bytes: bodies that are being read or parsed, all together, bytes.
        read_timeout_s: longest time for a request to come in, and for a client to read nothing of
            its answer, s. While the service ends, a client may read nothing for a quarter of
            drain_s at most.
        engine_timeout_s: longest time for a micro-batch in the engine, s.
        drain_s: longest time to answer what was accepted after a signal to stop, s.
    """

    batch_delay_s: float = 0.003
    max_batch_rows: int = 64
    max_batch_tokens: int = 16_384
    queue_rows: int = 1024
    waiting_rows: int = 4096
    waiting_tokens: int = 32 << 20
    wait_s: float = 170.0
    max_body_bytes: int = 16 << 20
    max_reading_bytes: int = 256 << 20
    read_timeout_s: float = 30.0
    engine_timeout_s: float = 300.0
    drain_s: float = 30.0

    @property
    def request_rows(self) -> int:
        """Rows of a request at most: a quarter of the queue (assumed), at least a micro-batch."""
        return min(self.queue_rows, max(self.max_batch_rows, self.queue_rows // 4))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that is served.

    Attributes:
        name: name of the model.
        stage: `Stage.REWARD` answers rewards, `Stage.REFERENCE` log-probs.
        vocab_size: token ids are smaller than it.
        max_row_tokens: longest row, tokens.
        provenance: provenance of the rewards or log-probs themselves: emulated when the kernels
            run as C-simulation.
        device_figures: the figures on which the modelled time and energy of the device rest, by
            name.
        tokenizer: the model's own, for rewards of texts; None where they are not offered.
        why_no_texts: why they are not.
        begin: the token that begins a text, for a warning of texts that begin twice; empty: none.
    """

    name: str
    stage: Stage
    vocab_size: int
    max_row_tokens: int
    provenance: Provenance
    device_figures: Mapping[str, DeviceFigure]
    tokenizer: TextTokenizer | None = None
    why_no_texts: str = "the service was started without a tokenizer"
    begin: tuple[int, ...] = ()
