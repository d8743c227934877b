"""Which gear the training stage is in, which it may be shifted to, and what limits that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ecorl.config.training.gears import GearsConfig
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


@dataclass(slots=True)
class _GearState:
    """What is known of one gear."""

    gamma: float = 1.0
    excess: float | None = None
    mismatch: float | None = None
    overflows_in_a_row: int = 0
    n_overflows: int = 0
    is_retired: bool = False
    tokens: float = 0.0


class Gearbox:
    """Keeps what a run knows of its gears; knows no framework and no tensor.

    Args:
        config: the run's ``[gears]``.
        support: what the device has of them.
        low_share: largest share of the tokens in low precision, 0 to 1.

    Attributes:
        gear: in which the training stage is.
    """

    def __init__(self, config: GearsConfig, support: GearSupport, low_share: float = 1.0) -> None:
        self._config, self._support, self._low_share = config, support, low_share
        self._states = {gear: _GearState() for gear in support.gears}
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

    def gamma(self, gear: Gear) -> float:
        """By how much the optimizer decelerates in a gear: its gradient's noise over BF16's.

        Args:
            gear: of the config.
        """
        return self._states[gear].gamma

    def measured_gears(self) -> tuple[Gear, ...]:
        """Gears whose noise and mismatch are to be measured: those that may lose accuracy."""
        return tuple(
            gear
            for gear, state in self._states.items()
            if gear in (Gear.FP8, Gear.FP16) and not state.is_retired
        )

    def note_noise(self, gear: Gear, ratio: float | None) -> None:
        """Take over a measurement of the gradient's noise.

        Args:
            gear: that was measured.
            ratio: standard deviation of the gradient in it over that in BF16; None: unknown.
        """
        if ratio is not None and math.isfinite(ratio):
            state = self._states[gear]
            state.gamma = max(1.0, ratio)
            state.excess = max(0.0, ratio * ratio - 1.0)

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
        worst = max((s.excess or 0.0 for g, s in self._states.items() if g.is_low), default=0.0)
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
        done, low, n = self.tokens, self.low_tokens, self._n_steps
        if not n:
            return share * steps_left
        a_step = done / n
        return max(0.0, (share * (done + a_step * steps_left) - low) / a_step)

    # ------------------------------------------------------------ what was done

    _n_steps: int = 0

    def count(self, gear: Gear, tokens: float) -> None:
        """Count a step.

        Args:
            gear: in which it was computed in the end.
            tokens: that it trained on, of all processes.
        """
        self._states[gear].tokens += tokens
        self._n_steps += 1

    @property
    def tokens(self) -> float:
        """Tokens that were trained on so far."""
        return sum(state.tokens for state in self._states.values())

    @property
    def low_tokens(self) -> float:
        """How many of them were in low precision."""
        return sum(state.tokens for gear, state in self._states.items() if gear.is_low)

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
            "gears": {
                str(gear): {
                    "gamma": state.gamma,
                    "excess": state.excess,
                    "mismatch": None if state.mismatch == math.inf else state.mismatch,
                    "overflows_in_a_row": state.overflows_in_a_row,
                    "n_overflows": state.n_overflows,
                    "is_retired": state.is_retired,
                    "tokens": state.tokens,
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
        n_steps = memory.get("n_steps")
        self._n_steps = n_steps if isinstance(n_steps, int) else 0
        names: Sequence[str] = [str(gear) for gear in self._states]
        if memory.get("gear") in names:
            self.gear = Gear(str(memory["gear"]))


def _recalled(state: _GearState, own: Mapping[str, Any]) -> None:
    for name in ("gamma", "excess", "mismatch", "tokens"):
        value = own.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            setattr(state, name, float(value))
    for name in ("overflows_in_a_row", "n_overflows"):
        if isinstance(own.get(name), int):
            setattr(state, name, own[name])
    state.is_retired = own.get("is_retired") is True
