"""Groups the attempts of a device by how they were read.

An attempt counts for a device only where the run held it there. Attempts in which a device was
read by instruments of another provenance stand apart, so that a measured rest never holds what a
model said, nor the other way round.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ecorl.ledger import ExecutionRow
from ecorl.records import Provenance, weakest
from ecorl.report.energy.evidence import Evidence, Meter, free_time_s, paused_time_s
from ecorl.report.energy.readings import DeviceReadings
from ecorl.report.energy.spans import Span, length


@dataclass(frozen=True, slots=True)
class Stretch:
    """Attempts in which a meter was read with the same provenances.

    Attributes:
        spans: begin and end of the meter's time, by attempt.
        readings: by provenance; none where the meter was never read.
        executions: of the meter in these attempts.
        paused: when the run was paused meanwhile, by attempt.
        name: which attempts, for a reader.
    """

    spans: dict[int, Span]
    readings: dict[Provenance, list[DeviceReadings]]
    executions: tuple[ExecutionRow, ...]
    paused: dict[int, list[Span]]
    name: str

    @property
    def rest_s(self) -> float:
        """Time in which the meter ran nothing and the run was not paused, s."""
        return free_time_s(self.spans, self.executions, self.paused)

    @property
    def paused_s(self) -> float:
        """Time in which the run was paused and the meter ran nothing, s."""
        return paused_time_s(self.paused)

    def coverage(self, device_id: str, evidence: Evidence) -> float:
        """Share of the time of its attempts over which a device was read.

        Args:
            device_id: a device of the meter.
            evidence: what the ledger holds of the run.
        """
        rows = [r for own in self.readings.values() for r in own if r.device_id == device_id]
        time_s = length(s for a, s in evidence.held([device_id]).items() if a in self.spans)
        # A device that none of these attempts had is not missing from them.
        return min(1.0, math.fsum(r.covered_s for r in rows) / time_s) if time_s else 1.0

    def read_executions(self, provenance: Provenance) -> list[ExecutionRow]:
        """Executions whose energy the readings of one provenance hold.

        An attempt that was not read holds none. Where no readings have the provenance of an
        execution's energy, those of the weakest hold it.

        Args:
            provenance: of the readings.
        """
        read = {r.attempt for own in self.readings.values() for r in own}
        found = []
        for e in self.executions:
            energy = e.result.energy
            if energy is None or e.attempt not in read:
                continue
            own = energy.provenance in self.readings
            if provenance is (energy.provenance if own else weakest(*self.readings)):
                found.append(e)
        return found


def stretches(meter: Meter, evidence: Evidence) -> list[Stretch]:
    """Group a meter's attempts by the provenances that it was read with.

    An attempt without readings joins the group of the one before it, where its gap shows as missing
    coverage.

    Args:
        meter: one device, or several that were read together.
        evidence: what the ledger holds of the run.
    """
    held = evidence.held(meter.members)
    paused = evidence.paused(held, meter.executions)
    read = meter.readings(evidence)
    classes = {a: _by_class([r for r in read if r.attempt == a]) for a in held}
    # An attempt without readings at the very beginning joins the first that has some.
    last: frozenset[Provenance] = next((frozenset(c) for c in classes.values() if c), frozenset())
    groups: dict[frozenset[Provenance], list[int]] = defaultdict(list)
    for attempt, found in classes.items():
        last = frozenset(found) or last
        groups[last].append(attempt)
    made = []
    for attempts in groups.values():
        readings: dict[Provenance, list[DeviceReadings]] = defaultdict(list)
        for attempt in attempts:
            for provenance, rows in classes[attempt].items():
                readings[provenance] += rows
        made.append(
            Stretch(
                spans={a: held[a] for a in attempts},
                readings=dict(readings),
                executions=tuple(e for e in meter.executions if e.attempt in attempts),
                paused={a: paused[a] for a in attempts if a in paused},
                name=_name(attempts, held, evidence),
            )
        )
    return made


def _name(attempts: Sequence[int], held: Mapping[int, Span], evidence: Evidence) -> str:
    """Name the time for which a meter was in some attempts."""
    if len(attempts) < len(evidence.spans):
        return f"attempt{'s' * (len(attempts) > 1)} {', '.join(map(str, attempts))}"
    whole = all(held[a] == evidence.spans[a] for a in attempts)
    return "the run time" if whole else "its machine's time in the run"


def _by_class(readings: Sequence[DeviceReadings]) -> dict[Provenance, list[DeviceReadings]]:
    """Sort the readings of one attempt by provenance.

    Joules of several devices were read as one sum: where the devices differ in provenance, all
    that was read is as good as the weakest.
    """
    of_device: dict[str, set[Provenance]] = defaultdict(set)
    for r in readings:
        of_device[r.device_id].add(r.provenance)
    kinds = set().union(*of_device.values())
    alike = all(own == kinds for own in of_device.values())
    found: dict[Provenance, list[DeviceReadings]] = defaultdict(list)
    for r in readings:
        found[r.provenance if alike else weakest(*kinds)].append(r)
    return found
