"""What could come after the kernels as they are: designs on paper, timed by the cycle model.

With two groups of rows in flight, one group's products are multiplied while the vector unit and
attention work on the other's, so that a forward lasts as long as the products alone, of half as
many rows a call. A second array of gemm_int8 takes half of the columns. The hidden work must fit
beside the products, and does.

Power is that of a card with one array at work, for each array: the EcoRL-Sched paper gives 73 W for
3,136 DSPs, and nobody has measured this design.
"""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.devices import DeviceProfile
from ecorl.devices.card import ARRAY_MACS
from ecorl.engines.fpga.cycles.hbm import memory_of
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape, forward_calls
from ecorl.engines.fpga.cycles.kernels import GemmCall, call_cost
from ecorl.engines.fpga.cycles.model import CycleModel
from ecorl.engines.fpga.estimate import declared_dsps
from ecorl.engines.fpga.kernels.sequence import LAYER_STARTS
from ecorl.records import ModelShape

GROUPS = 2


@dataclass(frozen=True, slots=True)
class KernelDesign:
    """A forward on one design of the kernels.

    Attributes:
        name: of the design.
        arrays: of gemm_int8.
        n_dsp: DSPs of all kernels.
        time_s: of the forward, s.
        power_w: of the card, W.
        n_tokens: of the forward.
    """

    name: str
    arrays: int
    n_dsp: int
    time_s: float
    power_w: float
    n_tokens: int

    @property
    def tokens_per_j(self) -> float:
        """Tokens over the energy of the forward."""
        return self.n_tokens / (self.time_s * self.power_w)


def designs(model: ModelShape, profile: DeviceProfile, n_tokens: int) -> list[KernelDesign]:
    """The kernels as they are, and the two designs that could come after them.

    Args:
        model: the decoder.
        profile: the card.
        n_tokens: of the one row of a reward.
    """
    batch = BatchShape((n_tokens,), (1,), 1)
    now = CycleModel(model, profile).batch(batch)
    n_dsp = sum(n for n in declared_dsps().values() if n is not None)
    more = ARRAY_MACS // int(profile.value("macs_per_dsp"))
    power = profile.value("active_w")
    gemm = now.of("gemm_int8")
    assert gemm is not None
    hidden_s = now.time_s - gemm.time_s
    found = [KernelDesign("as they are", 1, n_dsp, now.time_s, power, n_tokens)]
    for arrays, name in ((1, "two groups of rows in flight"), (2, "and a second array in SLR2")):
        time_s = max(_products_s(model, profile, batch, arrays), hidden_s)
        dsps = n_dsp + (arrays - 1) * more
        found.append(KernelDesign(name, arrays, dsps, time_s, arrays * power, n_tokens))
    return found


def _products_s(model: ModelShape, profile: DeviceProfile, batch: BatchShape, arrays: int) -> float:
    """Time of all products of a forward in `GROUPS` groups of rows, with their starts, s."""
    memory, cycles, starts = memory_of(profile), 0.0, 0
    for call, times in forward_calls(model, batch):
        if not isinstance(call, GemmCall):
            continue
        n_groups = min(GROUPS, call.m)
        part = GemmCall(-(-call.m // n_groups), call.n, call.k)
        cycles += times * n_groups * call_cost(part, memory, 1, arrays).cycles
        starts += times * n_groups
    launch_s = (profile.get("launch_s") or 0.0) / LAYER_STARTS
    return cycles / profile.value("clock_hz") + starts * launch_s
