"""What one placement costs, from the costs of the stage on GPUs and card.

With ``g`` and ``f`` the costs on GPU and card, ``b`` the backlog before the card gets to this
stage, ``o`` the other work that the GPU has meanwhile, and ``s = b + f.time``:

    action       critical path    GPU energy           card energy
    a1 gpu       g.time           g.energy             f.idle (g.time + o)
    a2 fpga      s                g.idle s             f.energy + f.idle o
    a3 both      max(0, s - o)    g.idle max(0, s-o)   f.energy + f.idle max(0, o - s)

All three account for the same window, this stage and the other work ``o``, so they may be
compared; the other work's own energy is the same in each and left out. While the card works off
its backlog, its energy is charged to the stages in that backlog. The times are those of
`ecorl.stages.iteration.advance`, the function that the simulator runs on.

That is what a meter on a machine with the card would show. The scheduler decides by
`StageOutcome.own_energy_j`, which leaves the card's idle power out: a card that idles is no
reason to use it, and a machine without one would not pay for it. So the decision errs against
offloading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ecorl.devices import StageCost
from ecorl.records import Action, Provenance, Stage, weakest
from ecorl.stages.figures import ACTIONS, Between, idle_work
from ecorl.stages.iteration import advance, begin


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What one placement costs, modelled.

    Attributes:
        action: the placement.
        critical_s: time that the stage adds to the iteration, s.
        barrier_wait_s: time that the GPU stands still for it, s; 0 on the GPU.
        gpu_energy_j: energy of the GPUs for the stage or for waiting, J.
        fpga_energy_j: energy of the cards over the window, idle power included, J; 0.0 where
            there is no card.
        own_energy_j: energy of the devices that run the stage, and of GPUs that wait for it, J;
            the card's idle power is left out.
        window_s: the stage and the other work together, s.
        provenance: the weakest of the costs that it was made from.
    """

    action: Action
    critical_s: float
    barrier_wait_s: float
    gpu_energy_j: float
    fpga_energy_j: float
    own_energy_j: float
    window_s: float
    provenance: Provenance

    @property
    def energy_j(self) -> float:
        """Energy of GPUs and cards together, without the other work's own, J."""
        return self.gpu_energy_j + self.fpga_energy_j

    @property
    def power_w(self) -> float:
        """`energy_j` over the window, W; 0.0 for an empty window."""
        return self.energy_j / self.window_s if self.window_s > 0 else 0.0


def stage(
    action: Action,
    gpu: StageCost,
    fpga: StageCost | None,
    backlog_s: float = 0.0,
    overlap_s: float = 0.0,
) -> StageOutcome | None:
    """What a stage costs under one placement; see the module's table for the formulas.

    Args:
        action: where it runs.
        gpu: its cost on the GPUs.
        fpga: its cost on the cards, or None where there is no card.
        backlog_s: time until the cards get to it, s.
        overlap_s: other work that the GPUs have meanwhile, s; used by a3 alone.

    Returns:
        The outcome, or None when a figure that it needs is not known.

    Raises:
        ValueError: when a duration is negative or not finite.
    """
    for name, seconds in (("backlog_s", backlog_s), ("overlap_s", overlap_s)):
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"{name} = {seconds}: a finite duration of 0 s or more is needed")
    if action is Action.GPU:
        return _on_gpu(gpu, fpga, overlap_s)
    if fpga is None or fpga.time_s is None or fpga.energy_j is None:
        return None
    if gpu.idle_power_w is None or fpga.idle_power_w is None:
        return None
    span_s = backlog_s + fpga.time_s
    wait_s = _wait_s(action, fpga.time_s, backlog_s, overlap_s)
    card_idle_s = max(0.0, overlap_s - span_s) if action is Action.CONCURRENT else overlap_s
    return StageOutcome(
        action=action,
        critical_s=wait_s,
        barrier_wait_s=wait_s,
        gpu_energy_j=gpu.idle_power_w * wait_s,
        fpga_energy_j=fpga.energy_j + fpga.idle_power_w * card_idle_s,
        own_energy_j=gpu.idle_power_w * wait_s + fpga.energy_j,
        window_s=wait_s + overlap_s,
        provenance=weakest(gpu.provenance, fpga.provenance),
    )


def _on_gpu(gpu: StageCost, fpga: StageCost | None, overlap_s: float) -> StageOutcome | None:
    if gpu.time_s is None or gpu.energy_j is None:
        return None
    window_s = gpu.time_s + overlap_s
    card_j, provenance = 0.0, gpu.provenance
    if fpga is not None:
        if fpga.idle_power_w is None:
            return None
        card_j = fpga.idle_power_w * window_s
        provenance = weakest(provenance, fpga.provenance)
    return StageOutcome(
        action=Action.GPU,
        critical_s=gpu.time_s,
        barrier_wait_s=0.0,
        gpu_energy_j=gpu.energy_j,
        fpga_energy_j=card_j,
        own_energy_j=gpu.energy_j,
        window_s=window_s,
        provenance=provenance,
    )


def _wait_s(action: Action, card_s: float, backlog_s: float, overlap_s: float) -> float:
    """How long the GPUs stand still for a stage on the card, by the stage function, s."""
    work = idle_work()._replace(card_s=(card_s, 0.0, 0.0))
    carry = begin(work, Between(backlog_s, 0.0, 0.0, 0.0))
    carry = advance(Stage.REWARD, carry, work, ACTIONS.index(action))
    return float(carry.bubble_s + max(0.0, carry.pending_s - carry.t_s - overlap_s))
