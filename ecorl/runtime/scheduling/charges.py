"""Which machine's devices an execution of the GPU path is charged to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ecorl.records import Role
from ecorl.runtime.equipment.hardware import GpuPath
from ecorl.runtime.handles import Span
from ecorl.runtime.monitor import Monitor, NodePower


class DeviceCharges:
    """Finds the devices that executions of the GPU path held, each on its machine.

    Args:
        gpu: the trainer's devices, and those of roles elsewhere.
        monitors: of each machine, by its name; they may come later.
        home: name of the trainer's machine.
    """

    def __init__(self, gpu: GpuPath, monitors: Mapping[str, Monitor], home: str) -> None:
        self._gpu, self._monitors, self._home = gpu, monitors, home

    def device(self, role: Role) -> str:
        """Profile name of the devices that serve a role.

        Args:
            role: the role.
        """
        return self._gpu.roles.profile_names.get(role, self._gpu.profile.name)

    def monitor(self, role: Role) -> Monitor:
        """The monitor of the machine that serves a role.

        Args:
            role: the role.
        """
        return self._monitors[self._gpu.roles.node_of(role) or self._home]

    def charged(
        self, role: Role, spans: Sequence[Span], node: str | None = None
    ) -> tuple[str, Sequence[Span]]:
        """Find the devices that an execution is charged to.

        Args:
            role: of the execution.
            spans: when it ran, on a machine of the trainer and in its clock.
            node: that machine; None: where the run was started.

        Returns:
            The machine of the role's devices, and when these were held, in its clock.
        """
        told = node or self._home
        if role not in self._gpu.roles.by_role:
            return told, spans
        # Where its devices are, whoever waited for them.
        there = self.monitor(role)
        later_s = there.ahead_s - self._monitors[told].ahead_s
        return there.node, [
            replace(s, t_start_s=s.t_start_s + later_s, t_end_s=s.t_end_s + later_s)
            for s in self._gpu.roles.charged(role, spans)
        ]

    def own_power(self) -> NodePower:
        """What the trainer's own devices and cards draw; not those of roles elsewhere."""
        home = self._monitors.get(self._home)
        power = home.power() if home is not None else NodePower()
        return power.without(self._gpu.roles.others)
