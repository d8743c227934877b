"""What a run has emitted so far, for the trainer's log and for the budget."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CarbonSoFar:
    """Emissions of a run up to now.

    Attributes:
        carbon_g: of the energy for which the intensity was known, gCO2e; None where none was.
        unknown_j: energy whose emissions are missing, J.
    """

    carbon_g: float | None = None
    unknown_j: float = 0.0


class CarbonMeter:
    """Adds up emissions as the energy of a run grows; each part at the intensity of its time.

    Args:
        before: what earlier attempts of the run have emitted.
        drawn_j: what they have drawn, J; None where that is not known.
    """

    def __init__(self, before: CarbonSoFar | None = None, drawn_j: float | None = 0.0) -> None:
        self._before = self._so_far = before or CarbonSoFar()
        self._began_j = drawn_j or 0.0
        self._drawn_j = drawn_j

    def add(self, drawn_j: float | None, grams_per_joule: float | None) -> CarbonSoFar:
        """Take over what the machines have drawn until now.

        Args:
            drawn_j: since the run began, J; None where readings are missing.
            grams_per_joule: of what was drawn since the last call, gCO2e/J; None: unknown.
        """
        if drawn_j is None:
            return CarbonSoFar(None, self._so_far.unknown_j)
        more_j, self._drawn_j = drawn_j - (self._drawn_j or 0.0), drawn_j
        now = self._so_far
        added_j = drawn_j - more_j - self._began_j
        if more_j < 0 < added_j:
            # A counter does not count its device alone: what it added in this attempt is scaled.
            now = self._scaled((added_j + more_j) / added_j)
        elif grams_per_joule is None:
            now = CarbonSoFar(now.carbon_g, now.unknown_j + more_j)
        else:
            now = CarbonSoFar((now.carbon_g or 0.0) + more_j * grams_per_joule, now.unknown_j)
        self._so_far = now
        return now

    def _scaled(self, share: float) -> CarbonSoFar:
        """Scale what this attempt has added to the emissions of earlier ones."""
        now, before = self._so_far, self._before
        grams = before.carbon_g
        if now.carbon_g is not None:
            grams = (grams or 0.0) + (now.carbon_g - (grams or 0.0)) * share
        unknown_j = before.unknown_j + (now.unknown_j - before.unknown_j) * share
        return CarbonSoFar(grams, unknown_j)
