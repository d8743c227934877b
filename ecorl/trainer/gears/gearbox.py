"""Which gear the training stage is in, which it may be shifted to, and what limits that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ecorl.config.trainer import GearsConfig
from ecorl.control import Gear, TrainingStage, gear_label
from ecorl.trainer.gears.formats import GearSupport


class Limit(StrEnum):
    """What bounds the share of tokens in low precision."""

    SHARE = "share"  # the cap on the share itself, carbon.control.low_share
    NOISE = "noise"  # the budget on the gradient's noise, gears.noise_budget


class Barred(StrEnum):
    """Why a gear may not be chosen."""

    RETIRED = "retired"  # too many of its steps in a row had to be redone
    MISMATCH = "mismatch"  # its token probabilities are too far from the rollout's


@dataclass(frozen=True, slots=True)
class LowShare:
    """The bound on low precision that binds.

    Attributes:
        share: largest share of the tokens, 0 to 1.
        limit: what it follows from.
    """

    share: float
    limit: Limit


_FADES = 0.5
"""What a measurement of the noise counts of one that comes after it. Invented."""


@dataclass(slots=True)
class _GearState:
    """What is known of one gear."""

    gear_variance: float = 0.0
    reference_variance: float = 0.0
    mismatch: float | None = None
    overflows_in_a_row: int = 0
    n_overflows: int = 0
    is_retired: bool = False

    @property
    def noise_ratio(self) -> float | None:
        """sigma_gear / sigma_reference over the measurements; None where it is unknown."""
        if not self.reference_variance:
            return None
        ratio = math.sqrt(self.gear_variance / self.reference_variance)
        return ratio if math.isfinite(ratio) else None

    @property
    def excess(self) -> float:
        """By how much the gradient's variance exceeds that of the reference gear, 0 or more."""
        ratio = self.noise_ratio
        return 0.0 if ratio is None else max(0.0, ratio * ratio - 1.0)


class Gearbox:
    """Keeps what a run knows of its gears; knows no framework and no tensor.

    Args:
        config: the run's ``[gears]``.
        support: what the device has of them.
        low_share: largest share of the tokens in low precision, 0 to 1.

    Attributes:
        gear: in which the training stage is.
        tokens: that were trained on so far.
        low_tokens: how many of them in low precision.
    """

    def __init__(self, config: GearsConfig, support: GearSupport, low_share: float = 1.0) -> None:
        self._config, self._support, self._low_share = config, support, low_share
        self._states = {gear: _GearState() for gear in support.gears}
        self._n_steps = 0
        self.tokens = self.low_tokens = 0.0
        self.gear = self.first

    # ------------------------------------------------------------ shifting

    @property
    def first(self) -> Gear:
        """The gear to begin with."""
        return self._support.gears[0]

    @property
    def safe(self) -> Gear:
        """The gear in which a step is redone: BF16, or the first that is not of low precision."""
        gears = self._support.gears
        others = [gear for gear in gears if gear not in (Gear.FP8, Gear.FP16)]
        return Gear.BF16 if Gear.BF16 in gears else others[0]

    @property
    def gears(self) -> tuple[Gear, ...]:
        """Those that may be chosen now, in the order of the config."""
        return tuple(gear for gear in self._support.gears if self.barred(gear) is None)

    def barred(self, gear: Gear) -> Barred | None:
        """Why a gear may not be chosen now, or None.

        Args:
            gear: of the config.
        """
        state = self._states[gear]
        if state.is_retired:
            return Barred.RETIRED
        if state.mismatch is not None and state.mismatch > self._config.mismatch_limit:
            return Barred.MISMATCH
        return None

    def shift(self, wanted: Gear | None, steps_left: int) -> Gear:
        """Shift to a gear for the next step, as far as the limits let it.

        Args:
            wanted: that was chosen; None: the present one is kept.
            steps_left: steps that training has before it, with the next one.

        Returns:
            The gear of the next step.
        """
        gear = self.gear if wanted is None else wanted
        if gear not in self._states or self.barred(gear) is not None:
            gear = self.safe
        left = self.low_steps_left(steps_left)
        if gear.is_low and left is not None and left < 1.0:
            gear = self.safe
        self.gear = gear
        return gear

    def stage(
        self, steps_left: int, last: Gear | None, *, is_redone: bool = False
    ) -> TrainingStage:
        """What the control path is told.

        Args:
            steps_left: steps that training has before it.
            last: in which the last step was computed; None: there was none.
            is_redone: whether the last step, or a part of it, was computed anew.
        """
        return TrainingStage(
            gear=last,
            gears=self.gears or (self.safe,),
            simulated=self._support.simulated,
            low_steps_left=self.low_steps_left(steps_left),
            is_redone=is_redone,
        )

    def label(self, gear: Gear) -> str:
        """The name of a gear in the record.

        Args:
            gear: of the config.
        """
        return gear_label(gear, is_simulated=gear in self._support.simulated)

    def may_overflow(self, gear: Gear) -> bool:
        """Whether a step in a gear has to be looked at before the optimizer takes it.

        Args:
            gear: of the config.
        """
        return gear in (Gear.FP8, Gear.FP16)

    # ------------------------------------------------------------ accuracy

    def noise_ratio(self, gear: Gear) -> float | None:
        """Standard deviation of the gradient in a gear over that in `safe`; None: unknown.

        Args:
            gear: of the config.
        """
        return self._states[gear].noise_ratio

    def gamma(self, gear: Gear) -> float:
        """By how much the optimizer decelerates in a gear: `noise_ratio`, and never below 1.

        Args:
            gear: of the config.
        """
        return max(1.0, self.noise_ratio(gear) or 1.0)

    def measured_gears(self) -> tuple[Gear, ...]:
        """Gears whose noise and mismatch are to be measured: those that may lose accuracy."""
        return tuple(
            gear
            for gear, state in self._states.items()
            if gear in (Gear.FP8, Gear.FP16) and not state.is_retired
        )

    def note_noise(
        self, gear: Gear, gear_variance: float | None, reference_variance: float | None
    ) -> None:
        """Take over a measurement of the gradient's noise.

        Variances are added up over measurements, each counting half as much as the one after it:
        the rows of one step may tell next to nothing, as where all their rewards are about equal,
        and then count for next to nothing.

        Args:
            gear: that was measured.
            gear_variance: of the gradient in it, squared units of the gradient; None: unknown.
            reference_variance: of the same gradient in `safe`; None: unknown.
        """
        if gear_variance is None or reference_variance is None:
            return
        if math.isfinite(gear_variance) and math.isfinite(reference_variance):
            state = self._states[gear]
            state.gear_variance = _FADES * state.gear_variance + gear_variance
            state.reference_variance = _FADES * state.reference_variance + reference_variance

    def note_mismatch(self, gear: Gear, ratio: float | None) -> None:
        """Take over a measurement of how far token probabilities are from the rollout's.

        Args:
            gear: that was measured.
            ratio: mean of the ratio of probabilities, at least 1; None: unknown.
        """
        if ratio is not None:
            self._states[gear].mismatch = ratio if math.isfinite(ratio) else math.inf

    @property
    def low_share(self) -> LowShare:
        """The largest share of the tokens that may be in low precision, and why no more.

        The mean excess variance over all tokens is the share times the gear's own excess, so that a
        budget of the one bounds the other.
        """
        cap = LowShare(self._low_share, Limit.SHARE)
        budget = self._config.noise_budget
        worst = max((s.excess for g, s in self._states.items() if g.is_low), default=0.0)
        if budget is None or worst <= 0.0:
            return cap
        share = min(1.0, budget / worst)
        return LowShare(share, Limit.NOISE) if share < cap.share else cap

    def low_steps_left(self, steps_left: int) -> float | None:
        """How many of the steps that are left may be in low precision; None: no limit.

        Args:
            steps_left: steps that training has before it.
        """
        share = self.low_share.share
        if share >= 1.0:
            return None
        if not self.tokens:
            return share * steps_left
        a_step = self.tokens / self._n_steps
        may_be = share * (self.tokens + a_step * steps_left)
        return max(0.0, (may_be - self.low_tokens) / a_step)

    # ------------------------------------------------------------ what was done

    def count(self, gear: Gear, tokens: float) -> None:
        """Count a step.

        Args:
            gear: in which it was computed in the end.
            tokens: that it trained on, of all processes.
        """
        self.tokens += tokens
        self.low_tokens += tokens if gear.is_low else 0.0
        self._n_steps += 1

    def count_redone(self, gear: Gear, tokens: float) -> None:
        """Count tokens of a counted step to the safe gear, in which they were computed anew.

        Args:
            gear: to which they were counted.
            tokens: of all processes.
        """
        self.low_tokens -= tokens if gear.is_low else 0.0

    def overflowed(self, gear: Gear) -> bool:
        """Take over that a step in a gear had to be redone.

        Args:
            gear: that it was in.

        Returns:
            Whether the gear is retired by it.
        """
        state = self._states[gear]
        state.n_overflows += 1
        state.overflows_in_a_row += 1
        if state.overflows_in_a_row >= self._config.max_overflows and not state.is_retired:
            state.is_retired = True
            return True
        return False

    def went_well(self, gear: Gear) -> None:
        """Take over that a step in a gear did not have to be redone.

        Args:
            gear: that it was in.
        """
        self._states[gear].overflows_in_a_row = 0

    def n_overflows(self, gear: Gear) -> int:
        """How many steps in a gear had to be redone.

        Args:
            gear: of the config.
        """
        return self._states[gear].n_overflows

    # ------------------------------------------------------------ across a resume

    def memory(self) -> dict[str, Any]:
        """What a resumed run has to know, in values that JSON can hold."""
        return {
            "gear": str(self.gear),
            "n_steps": self._n_steps,
            "tokens": self.tokens,
            "low_tokens": self.low_tokens,
            "gears": {
                str(gear): {
                    **asdict(state),
                    # JSON has no infinity.
                    "mismatch": "inf" if state.mismatch == math.inf else state.mismatch,
                }
                for gear, state in self._states.items()
            },
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from a memory; what cannot be read of it is as in a run that begins.

        Args:
            memory: from `memory`.
        """
        found = memory.get("gears")
        if not isinstance(found, Mapping):
            return
        for gear, state in self._states.items():
            own = found.get(str(gear))
            if isinstance(own, Mapping):
                _recalled(state, own)
        values = [memory.get(name) for name in ("n_steps", "tokens", "low_tokens")]
        counts = [one for one in values if isinstance(one, int | float) and math.isfinite(one)]
        if len(counts) == len(values):
            self._n_steps = int(counts[0])
            self.tokens, self.low_tokens = float(counts[1]), float(counts[2])
        names: Sequence[str] = [str(gear) for gear in self._states]
        if memory.get("gear") in names:
            self.gear = Gear(str(memory["gear"]))


def _recalled(state: _GearState, own: Mapping[str, Any]) -> None:
    for name in ("gear_variance", "reference_variance", "mismatch"):
        value = own.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            setattr(state, name, float(value))
    if own.get("mismatch") == "inf":
        state.mismatch = math.inf
    for name in ("overflows_in_a_row", "n_overflows"):
        if isinstance(own.get(name), int):
            setattr(state, name, own[name])
    state.is_retired = own.get("is_retired") is True
