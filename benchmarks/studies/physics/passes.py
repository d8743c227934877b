"""One scoring pass on an H100, and on a U55C at three levels.

The pass is a reward model's: a batch of equal rows goes through the decoder once, and each row has
one scalar; there is no language-model head. Three levels of the card stay apart everywhere, and
apart from what the EcoRL-Sched paper prints (`benchmarks.studies.physics.paper`):

- *ours*: the cycle model of our kernels (`card_pass`);
- *ideal*, the ideal HLS design: every DSP at 300 MHz, two INT8 products each (10.8 TOPS), 65 W:
  what HLS reaches at best (`ideal_pass`). A design placed by hand can be faster;
- *bound*, the bound of the silicon: every DSP at its data sheet's clock, 28.0 TOPS, and the whole
  bandwidth of the HBM (`bound_pass`). No design that makes its products in DSPs takes less time.
  Its joules are at an assumed 65 W, which flatters the card.

All three are modelled; nothing here is measured.

The H100 is a roofline (`gpu_pass`): compute at a stated MFU or memory traffic at the profile's
share of the bandwidth, whichever is longer, and the profile's launch time of each layer. Power is
the profile's: ``active_w`` where compute rules, that of reading memory where memory does
(`ecorl.devices.gpu_pass.streaming_w`), ``idle_w`` above the launches. A stated MFU is so an upper
limit: a pass that memory rules reaches less.

There are four ways to charge idle power for a pass (`ChargingRule`):

- *there anyway* (without the GPU's idle power): the GPU is there for training, which pays its idle
  power either way. The GPU path pays what the pass draws above idle; the card path pays the card's
  whole board while it works.
- *dedicated* at a duty d (with the GPU's idle power): the GPU is there for these passes alone and
  works the share d of the time, so a pass comes every ``period = GPU time / d``. The GPU path pays
  the pass and the idle power of the rest of the period; the card path pays the card's pass and the
  card's idle power for what its pass leaves of the period. A card that takes longer than a period
  shares the passes with others: as many as it takes, none of them ever idle.

The host's power is in neither path, nor are switches, cooling and the buying of either device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ecorl.devices import DeviceProfile, card_peak_ops
from ecorl.devices.gpu_pass import streaming_w
from ecorl.devices.llama import decoder_shape, model_shape
from ecorl.devices.work import forward_phase, least_ops, link_bytes
from ecorl.engines.fpga.cycles.hbm_layout import Resident, place
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.cycles.model import CycleModel
from ecorl.engines.models.decoder_config import DecoderConfig, Rope
from ecorl.errors import CheckpointError
from ecorl.records import ModelShape, Provenance, Stage, StageWork

IDEAL_CLOCK_HZ = 3.0e8
"""Clock of the ideal HLS design, Hz; assumed: the upper end of the 200 to 300 MHz at which HLS
designs close. No bound: a design placed by hand may clock its DSPs faster than the logic around
them. AMD's PG367 (1.0) lists DPUCAHX8H at 17.2 TOPS of INT8 on a U280, which has as many DSPs."""

ASSUMED_POWER_W = 65.0
"""Board power of the ideal HLS design and of the silicon's bound, W; assumed: what the paper
prints at peak inference (73 W at full load), and that for 3,136 DSPs at 245 MHz. All 9,024 at 300
or 775 MHz for the same watts flatter the card."""

LINK_BYTES_PER_S = 3.15e10
"""Link of both, B/s: two PCIe 4.0 x8, the most that the card's connector has; the platform that the
kernels are built for uses one 3.0 x16, half of that."""

IDLE_HIGH_W = 120.0
"""Idle power of an H100 at the upper end of the 60 to 120 W that its profile names, W; assumed. The
profile's own 70 W lies near the lower end."""

MAX_POSITIONS = 4096


@dataclass(frozen=True, slots=True)
class Precision:
    """A number format of a GPU: name, key of the peak in its profile, bytes a number."""

    name: str
    peak_key: str
    n_bytes: int


BF16 = Precision("BF16", "peak_bf16_flops", 2)
FP8 = Precision("FP8", "peak_fp8_flops", 1)
"""FP8 throughout, attention and cache as well: as much as the GPU can gain by it."""

PRECISIONS = (BF16, FP8)


@dataclass(frozen=True, slots=True)
class Pass:
    """One scoring pass on one device.

    Attributes:
        time_s: from start to end, s.
        above_idle_j: energy beyond the idle power over that time, J.
        idle_w: idle power of the board, W.
        rules: the longest term: compute, memory, link or launch; of our card, whose kernels follow
            one another, the kernel that takes longest, launch or link.
        n_parts: parts of the batch that ran one after the other, since all do not fit.
    """

    time_s: float
    above_idle_j: float
    idle_w: float
    rules: str
    n_parts: int = 1

    @property
    def energy_j(self) -> float:
        """Energy of the whole board over the pass, J."""
        return self.above_idle_j + self.idle_w * self.time_s


@dataclass(frozen=True, slots=True)
class ChargingRule:
    """One way to charge a pass.

    Attributes:
        key: in JSON.
        title: in tables.
        duty: share of the time that the GPU works; None where it is there anyway.
    """

    key: str
    title: str
    duty: float | None

    def energies(self, gpu: Pass, card: Pass) -> tuple[float, float]:
        """Charge one pass to the GPU path and to the card path.

        Args:
            gpu: the GPU's pass.
            card: the card's pass.

        Returns:
            Joules of both.
        """
        if self.duty is None:
            return gpu.above_idle_j, card.energy_j
        return dedicated(gpu, card, gpu.time_s / self.duty)


def dedicated(gpu: Pass, card: Pass, period_s: float) -> tuple[float, float]:
    """Charge a period to a GPU, and to a card, that are there for one pass a period alone.

    Args:
        gpu: the GPU's pass.
        card: the card's pass.
        period_s: time from one pass to the next, s.

    Returns:
        Joules of both.
    """
    gpu_j = gpu.above_idle_j + gpu.idle_w * period_s
    card_j = card.above_idle_j + card.idle_w * max(period_s, card.time_s)
    return gpu_j, card_j


def break_even_duty(gpu: Pass, card: Pass) -> float | None:
    """Find the largest duty of a dedicated GPU at which the card takes no more joules than it.

    The longer the period, the better the card, where its idle power is the smaller. None where it
    is not and the card never gets there; at most 1.

    Args:
        gpu: the GPU's pass.
        card: the card's pass.
    """
    if _wins(gpu, card, gpu.time_s):
        return 1.0
    if card.time_s > gpu.time_s and _wins(gpu, card, card.time_s):  # it never idles till then
        period_s = (card.energy_j - gpu.above_idle_j) / gpu.idle_w
    elif gpu.idle_w > card.idle_w:
        period_s = (card.above_idle_j - gpu.above_idle_j) / (gpu.idle_w - card.idle_w)
    else:
        return None
    return gpu.time_s / period_s


def _wins(gpu: Pass, card: Pass, period_s: float) -> bool:
    gpu_j, card_j = dedicated(gpu, card, period_s)
    return card_j <= gpu_j


ANYWAY = ChargingRule("gpu_there_anyway", "GPU there anyway", None)
ALWAYS = ChargingRule("dedicated_duty_1", "dedicated, duty 1", 1.0)
TENTH = ChargingRule("dedicated_duty_0.1", "dedicated, duty 0.1", 0.1)
HUNDREDTH = ChargingRule("dedicated_duty_0.01", "dedicated, duty 0.01", 0.01)
ACCOUNTINGS = (ANYWAY, ALWAYS, TENTH, HUNDREDTH)
BUSY_ENOUGH = (ANYWAY, ALWAYS, TENTH)
"""Those in which the GPU works at least a tenth of the time; a duty of 0.01 is a quarter of an hour
a day, which nobody keeps an H100 for."""


def scoring(shape: ModelShape, n_rows: int, n_tokens: int) -> StageWork:
    """Make the work of one scoring pass.

    Args:
        shape: shape of the model.
        n_rows: rows of the batch.
        n_tokens: tokens of each row.
    """
    total = n_rows * n_tokens
    return StageWork(Stage.REWARD, n_rows, total, total, n_tokens, shape)


# ---- shapes -------------------------------------------------------------------------------------


SHAPES: dict[str, ModelShape] = {
    "20m": decoder_shape(6, 512, 1376, 8, 8, 64, 32_000, scalar_head=True),
    "50m": decoder_shape(10, 640, 1728, 10, 10, 64, 32_000, scalar_head=True),
    **{
        size: model_shape(size, scalar_head=True)
        for size in ("135m", "360m", "1b", "3b", "7b", "13b")
    },
}
"""Reward models of the map by name, the smallest first; the first two are assumed shapes."""


# ---- passes -------------------------------------------------------------------------------------


def gpu_pass(
    work: StageWork,
    profile: DeviceProfile,
    precision: Precision,
    mfu: float,
    memory_w: float | None = None,
) -> Pass:
    """Compute the pass on a GPU.

    Args:
        work: a scoring pass.
        profile: with peaks, ``memory_bytes_per_s``, ``mbu_decode``, ``launch_s`` and powers.
        precision: one of `PRECISIONS`.
        mfu: share of the peak that dense work reaches.
        memory_w: power where memory rules, W; that of `streaming_w` when None.
    """
    shape = _shape(work)
    phase = forward_phase(work, shape, precision.n_bytes)
    compute_s = phase.ops / (profile.value(precision.peak_key) * mfu)
    share = profile.value("mbu_decode")
    memory_s = phase.memory_bytes / (profile.value("memory_bytes_per_s") * share)
    launch_s = shape.n_layers * profile.value("launch_s")
    idle_w, load_w = profile.value("idle_w"), profile.value("active_w")
    if memory_s > compute_s:
        load_w = memory_w or streaming_w(profile)
    busy_s = max(compute_s, memory_s)
    rules = _longest({"compute": compute_s, "memory": memory_s, "launch": launch_s})
    return Pass(busy_s + launch_s, (load_w - idle_w) * busy_s, idle_w, rules)


def with_idle_w(profile: DeviceProfile, idle_w: float) -> DeviceProfile:
    """Copy a profile with another idle power, which has no interval then.

    Args:
        profile: the device.
        idle_w: idle power, W; assumed.
    """
    figure = replace(
        profile.figure("idle_w"),
        value=idle_w,
        low=None,
        high=None,
        provenance=Provenance.MODELLED,
        source="assumed: another idle power, to see how much hangs on it",
    )
    return replace(profile, figures={**profile.figures, "idle_w": figure})


def ideal_ops_per_s(profile: DeviceProfile) -> float:
    """Peak of the ideal HLS design: every DSP, ``macs_per_dsp`` each at `IDEAL_CLOCK_HZ`."""
    return _all_dsps(profile, IDEAL_CLOCK_HZ)


def silicon_ops_per_s(profile: DeviceProfile) -> float:
    """Peak of the silicon: the same at the data sheet's ``clock_max_hz``.

    Multipliers made of logic instead of DSPs would come on top and are not counted.
    """
    return _all_dsps(profile, profile.value("clock_max_hz"))


def _all_dsps(profile: DeviceProfile, clock_hz: float) -> float:
    return card_peak_ops(profile.value("n_dsp"), clock_hz, profile.value("macs_per_dsp"))


def ideal_pass(work: StageWork, profile: DeviceProfile) -> Pass:
    """Compute the pass of an ideal HLS design: `bound_pass` with all DSPs at `IDEAL_CLOCK_HZ`.

    Args:
        work: a scoring pass.
        profile: of the card.
    """
    return _overlapped(work, profile, ideal_ops_per_s(profile))


def bound_pass(work: StageWork, profile: DeviceProfile) -> Pass:
    """Compute the bound of the silicon: the longest of three terms, all of them overlapped.

    Products that no implementation can spare on all DSPs; the INT8 weights, less what may stay on
    the chip, once at the data sheet's bandwidth; token ids and results over the link. No launch, no
    latency, no activation leaves the chip. Its joules are at `ASSUMED_POWER_W`.

    Args:
        work: a scoring pass.
        profile: of the card.
    """
    return _overlapped(work, profile, silicon_ops_per_s(profile))


def _overlapped(work: StageWork, profile: DeviceProfile, ops_per_s: float) -> Pass:
    shape = _shape(work)
    streamed = max(0.0, shape.n_params_active - profile.value("onchip_bytes"))
    terms = {
        "compute": least_ops(work, shape) / ops_per_s,
        "memory": streamed / profile.value("memory_bytes_per_s"),
        "link": link_bytes(work) / LINK_BYTES_PER_S,
    }
    time_s, idle_w = max(terms.values()), profile.value("idle_w")
    return Pass(time_s, (ASSUMED_POWER_W - idle_w) * time_s, idle_w, _longest(terms))


def card_pass(work: StageWork, profile: DeviceProfile) -> Pass | None:
    """Compute the pass by the cycle model of our kernels, launches and link included.

    A batch whose buffers do not fit beside the model is halved until they do; its parts run one
    after the other. None where a single row does not fit.

    Args:
        work: a scoring pass.
        profile: of the card.
    """
    shape, rows = _shape(work), work.n_sequences
    while not _fits(shape, rows, work.max_length, profile):
        if rows == 1:
            return None
        rows = -(-rows // 2)
    n_parts = -(-work.n_sequences // rows)
    batch = BatchShape((work.max_length,) * rows, (1,) * rows, 1)
    one = CycleModel(shape, profile).batch(batch)
    terms = {kernel.kernel: kernel.time_s for kernel in one.kernels}
    terms |= {"launch": one.launch_s, "link": one.link_s}
    time_s, idle_w = n_parts * one.time_s, profile.value("idle_w")
    above_j = n_parts * one.energy_j - idle_w * time_s
    return Pass(time_s, above_j, idle_w, _longest(terms), n_parts)


def _fits(shape: ModelShape, rows: int, n_tokens: int, profile: DeviceProfile) -> bool:
    batch = BatchShape((n_tokens,) * rows, (1,) * rows, 1)
    config = DecoderConfig(
        "LlamaForSequenceClassification", shape, 1e-5, Rope("default", 1e4), is_reward=True,
        tied=False, qkv_bias=False, output_bias=False, max_positions=MAX_POSITIONS,
    )  # fmt: skip
    try:
        place([Resident("model", config, batch)], profile)
    except CheckpointError:
        return False
    return True


def _shape(work: StageWork) -> ModelShape:
    assert work.model is not None  # made by `scoring`
    return work.model


def _longest(terms: dict[str, float]) -> str:
    return max(terms.items(), key=lambda term: term[1])[0]
