"""Micro-batches of even tokens in one TRL trainer: what is packed, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy.typing as npt

from ecorl.config import Config
from ecorl.records import EventKind, FaultEvent
from ecorl.runtime.packed_tokens import PackingTally
from ecorl.runtime.processes.ranks import Ranks
from ecorl.runtime.protocol import RecordWriter, TellPacking
from roll_adapters.trl.packing.forwards import PackedForwards
from roll_adapters.trl.packing.loss import PackedLoss
from roll_adapters.trl.packing.rule import PackingRule
from roll_adapters.trl.reward import RewardModelCall


class TrlPacking:
    """Packs the rows of one TRL trainer.

    Args:
        trainer: the trainer, which `check_packing` has let pass.
        config: the run's.
        ranks: the processes that train together; None: this one alone.

    Attributes:
        tally: what packing made of the rows of the step under way.
        forwards: forward passes without gradients.
        loss: the loss of training.
    """

    def __init__(self, trainer: Any, config: Config, ranks: Ranks | None = None) -> None:
        self._trainer, self._ranks = trainer, ranks
        self._has_told = False
        self._rule = PackingRule.of(trainer, config)
        self.tally = PackingTally()
        self.forwards = PackedForwards(trainer, self._rule, self.tally)
        self.loss = PackedLoss(trainer, self.forwards, self.tally, ranks)

    def budget(self, lengths: npt.ArrayLike, most: int) -> int:
        """Tell how many tokens an engine's forward pass may have.

        Args:
            lengths: of its rows, as for `ecorl.engines.packing.pack`.
            most: padded tokens of the trainer's own forward pass.
        """
        return self._rule.budget(lengths, most)

    def compare_training(self, original: Any, model: Any, inputs: Mapping[str, Any]) -> None:
        """Compare log-probs of a micro-batch of training, packed and not, if it is time to.

        Args:
            original: the trainer's own ``_get_per_token_logps_and_entropies``.
            model: that is trained, in the gear of the step.
            inputs: of the micro-batch.
        """
        if not self.loss.is_off:
            self.forwards.compare_training(original, model, inputs)

    def noting(self, what: str) -> TellPacking:
        """Make what notes how an engine has packed some rows.

        Args:
            what: the record calls what it computed.
        """
        return lambda packed: self.tally.note(what, packed)

    @contextmanager
    def rewards(self) -> Iterator[None]:
        """Have the trainer's reward models compute packed rows inside the block."""
        with ExitStack() as stack:
            for own in RewardModelCall.find_all(self._trainer):
                stack.enter_context(self.forwards.rewards(own.model, own.role))
            yield

    def end_step(self, record: RecordWriter) -> None:
        """Record what packing made of the step that has ended; all processes call it.

        Args:
            record: the run's record.
        """
        step = int(self._trainer.state.global_step)
        self.tally.end_step(record, step, self._ranks)
        faults = self.forwards.take_faults()
        if self._ranks is not None and self._ranks.rank > 0:
            return
        if self.loss.is_off and not self._has_told:
            self._has_told = True
            detail = "rows of training are not packed: its loss takes log-probs from elsewhere"
            record.event(EventKind.ABILITIES, detail)
        for kind, why in faults:
            detail = f"rows were not compared with and without packing: {why}"
            record.fault(FaultEvent(step, kind, "packing", detail))
