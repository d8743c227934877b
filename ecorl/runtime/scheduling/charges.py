"""Which machines' devices an execution of the GPU path is charged to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ecorl.records import Action, Role, StageResult, StageWork
from ecorl.runtime.equipment.hardware import GpuPath
from ecorl.runtime.equipment.role_places import RolePlace
from ecorl.runtime.handles import Span
from ecorl.runtime.monitor import Monitor, NodePower


@dataclass(frozen=True, slots=True)
class Charge:
    """One machine's part of an execution.

    Attributes:
        node: name of the machine.
        spans: when the execution held which of its devices, in its clock.
        device: profile name of these.
        work: the machine's share of the work.
    """

    node: str
    spans: Sequence[Span]
    device: str
    work: StageWork


class DeviceCharges:
    """Finds the devices that executions of the GPU path held, each on its machine.

    Args:
        gpu: the trainer's devices, and those of roles elsewhere.
        monitors: of each machine, by its name; they may come later.
        home: name of the trainer's machine.
    """

    def __init__(self, gpu: GpuPath, monitors: Mapping[str, Monitor], home: str) -> None:
        self._gpu, self._monitors, self._home = gpu, monitors, home

    def nodes(self, role: Role) -> list[str]:
        """Names of the machines that serve a role.

        Args:
            role: the role.
        """
        return [self._node(place) for place in self._places(role)] or [self._home]

    def charged(
        self, work: StageWork, spans: Sequence[Span], node: str | None = None
    ) -> list[Charge]:
        """Find the devices that an execution is charged to.

        Args:
            work: of the execution.
            spans: when it ran, on a machine of the trainer and in its clock.
            node: that machine; None: where the run was started.

        Returns:
            A part for each machine of the role's devices, which add up to the work.
        """
        told, places = node or self._home, self._places(work.role)
        if not places:
            return [Charge(told, spans, self._gpu.profile.name, work)]
        parts = split_work(work, [place.n_gpus for place in places])
        # Where its devices are, whoever waited for them.
        return [
            Charge(self._node(place), self._moved(place, spans, told), place.profile.name, part)
            for place, part in zip(places, parts, strict=True)
        ]

    def share(self, result: StageResult) -> float:
        """Which share of its stage's work an execution is, by the devices that did it.

        Args:
            result: the execution.
        """
        places = self._gpu.roles.by_role.get(result.role, ())
        own = [place.n_gpus for place in places if self._node(place) == result.node]
        if result.action is not Action.GPU or len(places) < 2 or not own:
            return 1.0
        return sum(own) / sum(place.n_gpus for place in places)

    def own_power(self) -> NodePower:
        """What the trainer's own devices and cards draw; not those of roles elsewhere."""
        home = self._monitors.get(self._home)
        power = home.power() if home is not None else NodePower()
        return power.without(self._gpu.others)

    def _places(self, role: Role) -> tuple[RolePlace, ...]:
        """A role's devices, each machine once; none where the trainer's own serve it."""
        places = self._gpu.roles.by_role.get(role, ())
        if all(self._node(place) in self._monitors for place in places):
            return places
        # Of a machine that is not of the run nothing can be recorded. Joules of some of a stage's
        # devices over all of its tokens would be wrong: its energy is missing as a whole.
        n_gpus = sum(place.n_gpus for place in places)
        return (replace(places[0], device_ids=(), n_gpus=n_gpus, node=""),)

    def _node(self, place: RolePlace) -> str:
        return place.node or self._home

    def _moved(self, place: RolePlace, spans: Sequence[Span], told: str) -> list[Span]:
        """When an execution held a machine's devices, in the clock of that machine."""
        later_s = self._monitors[self._node(place)].ahead_s - self._monitors[told].ahead_s
        return [
            replace(s, t_start_s=s.t_start_s + later_s, t_end_s=s.t_end_s + later_s)
            for s in place.held(spans)
        ]


def split_work(work: StageWork, n_gpus: Sequence[int]) -> list[StageWork]:
    """Split the work of an execution among machines, in proportion to their GPUs.

    Nobody tells which machine worked on which rows. A machine whose share is no row, or no token,
    still has its part: its devices were held, and their energy is the stage's.

    Args:
        work: of the execution.
        n_gpus: number of the role's GPUs on each machine, at least one machine.

    Returns:
        A part a machine, in their order; they add up to the whole.
    """
    columns = (
        portions(work.n_sequences, n_gpus),
        portions(work.n_tokens, n_gpus),
        portions(work.n_output_tokens, n_gpus),
    )
    return [
        replace(work, n_sequences=n_rows, n_tokens=n_tokens, n_output_tokens=n_output)
        for n_rows, n_tokens, n_output in zip(*columns, strict=True)
    ]


def portions(n: int, weights: Sequence[int]) -> list[int]:
    """Split a number in proportion to weights; the largest remainders get what is left over.

    Args:
        n: what is split, 0 or more.
        weights: above 0, at least one.
    """
    total = sum(weights)
    found = [n * weight // total for weight in weights]
    # The first of equal remainders comes first: the same number is always split alike.
    order = sorted(range(len(weights)), key=lambda i: -(n * weights[i] % total))
    for i in order[: n - sum(found)]:
        found[i] += 1
    return found
