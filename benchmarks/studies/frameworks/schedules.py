"""The schedules of five RLHF frameworks, and of EcoRL-Sched on top of the last, as data.

Every framework gets the same work: `ecorl.stages.figures.Work` prices a stage by what it computes,
not by whose kernels compute it. What separates the frameworks here is the order alone: who waits
for whom, which GPUs stand still, and how much weight moves. Kernels, memory management and
parallelism, which make up much of the differences that their papers report, are left out; the
ratios found here are what the order is worth, and lower than published end-to-end ones.

Each schedule says what its source documents and what was assumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.studies.frameworks.stage_orders import (
    CARDS,
    INFERENCE,
    Group,
    Need,
    Piece,
    Schedule,
    ScheduledTask,
    all_of,
)
from ecorl.records import Stage
from ecorl.stages.figures import CONCURRENT, FPGA, GPU

_ALL = "all"
_LAST = (Piece.BACKWARD, Piece.CRITIC_TRAIN)

FULL_GATHER = 1.0
"""Every GPU fetches all weights of the policy (ZeRO-3 to tensor parallel)."""

PARTIAL_GATHER = 0.25 - 1.0 / 32.0
"""HybridFlow's (t p - t_g p_g) / (t_g p_g t p) at t p = 32 in training and 4 in generation; the
sizes are assumed."""


def _chain(pieces: Sequence[Piece]) -> tuple[ScheduledTask, ...]:
    """Tasks on all GPUs, each after the one before, the first after the last iteration's last."""
    return tuple(
        ScheduledTask(piece, _ALL, (Need(pieces[i - 1], 0 if i else 1),))
        for i, piece in enumerate(pieces)
    )


DEEPSPEED_CHAT = Schedule(
    name="DeepSpeed-Chat",
    groups=(Group(_ALL, 1.0),),
    tasks=_chain(tuple(Piece)),
    reshard=FULL_GATHER,
    source="arXiv 2308.01320: all models on all GPUs, one step after another; the hybrid engine "
    "switches the actor from ZeRO to tensor parallelism for generation and back.",
    assumed="the switch gathers all weights over the slowest link; no overlap of it.",
)

HYBRIDFLOW = Schedule(
    name="HybridFlow",
    groups=(Group(_ALL, 1.0),),
    tasks=_chain(tuple(Piece)),
    reshard=PARTIAL_GATHER,
    source="arXiv 2409.19256: models may share GPUs, and then run one after another; the "
    "3D-HybridEngine moves a part of the weights between training and generation.",
    assumed="everything colocated (its mapper's choice for small clusters), so that only the "
    "weights moved differ from DeepSpeed-Chat.",
)


def _openrlhf() -> Schedule:
    rollout, actor, critic = "rollout", "actor", "critic"
    generated = (Need(Piece.GENERATION),)
    return Schedule(
        name="OpenRLHF",
        groups=(Group(rollout, 1 / 3), Group(actor, 1 / 3), Group(critic, 1 / 3)),
        tasks=(
            ScheduledTask(Piece.RESHARD, rollout, all_of(_LAST, ago=1)),
            ScheduledTask(Piece.GENERATION, rollout, (Need(Piece.RESHARD),)),
            ScheduledTask(Piece.REWARD, critic, generated),
            ScheduledTask(Piece.REFERENCE, actor, generated),
            ScheduledTask(Piece.CRITIC, critic, generated),
            ScheduledTask(Piece.FORWARD, actor, all_of(INFERENCE)),
            ScheduledTask(Piece.BACKWARD, actor, (Need(Piece.FORWARD),)),
            ScheduledTask(Piece.CRITIC_TRAIN, critic, all_of(INFERENCE)),
        ),
        reshard=FULL_GATHER,
        source="arXiv 2405.11143 and its tuning guide: Ray puts vLLM, actor and critic on GPUs of "
        "their own, 1:1:1, the reference beside the actor and the reward beside the critic; "
        "reference and reward run beside each other, and so do the two training steps.",
        assumed="the synchronous mode; the actor's weights are broadcast in full.",
    )


def _llamarl() -> Schedule:
    generator, trainer = "generator", "trainer"
    return Schedule(
        name="LlamaRL",
        groups=(Group(generator, None), Group(trainer, None)),
        tasks=(
            # Generation k has the weights after step k - 2: step k - 1 runs beside it.
            ScheduledTask(
                Piece.RESHARD, generator, (Need(Piece.BACKWARD, 2), Need(Piece.GENERATION, 1))
            ),
            ScheduledTask(Piece.GENERATION, generator, (Need(Piece.RESHARD),)),
            ScheduledTask(Piece.REWARD, trainer, (Need(Piece.GENERATION),)),
            ScheduledTask(Piece.REFERENCE, trainer, (Need(Piece.REWARD),)),
            ScheduledTask(Piece.CRITIC, trainer, (Need(Piece.REFERENCE),)),
            ScheduledTask(Piece.FORWARD, trainer, (Need(Piece.CRITIC),)),
            ScheduledTask(Piece.BACKWARD, trainer, (Need(Piece.FORWARD),)),
            ScheduledTask(Piece.CRITIC_TRAIN, trainer, (Need(Piece.BACKWARD),)),
        ),
        reshard=PARTIAL_GATHER,
        source="arXiv 2505.24034: generator and trainer on GPUs of their own, asynchronous and "
        "off-policy; weights go straight between GPU memories, each GPU fetching its part.",
        assumed="one step off-policy; GPUs divided by work, so that both sides take equally long; "
        "reward, reference and critic on the trainer's side.",
    )


def _fused(places: Sequence[int] | None = None) -> tuple[ScheduledTask, ...]:
    """RLHFuse's tasks; with `places` (codes by stage) reward and reference may be on the cards.

    A frozen stage on the cards starts with the first finished rows where generation has a3, else
    after it. With a2 what comes next on the GPUs waits for it; with a3 the actor's backward pass
    does, and the forward pass too unless actor_train has a3.
    """
    codes = dict(zip(Stage, places, strict=True)) if places is not None else {}
    off = [p for p in (Piece.REWARD, Piece.REFERENCE) if codes.get(Stage(p.value), GPU) != GPU]
    waited = [p for p in off if codes[Stage(p.value)] == FPGA]
    early = codes.get(Stage.ACTOR_TRAIN) == CONCURRENT
    streams = codes.get(Stage.GENERATION) == CONCURRENT
    tasks = [
        ScheduledTask(Piece.RESHARD, _ALL, all_of(_LAST, ago=1), True),
        ScheduledTask(Piece.GENERATION, _ALL, (Need(Piece.RESHARD),), True),
    ]
    for piece in INFERENCE:
        on_cards = piece in off
        first = Need(Piece.GENERATION, by_rows=streams if on_cards else True)
        before = all_of(p for p in waited if INFERENCE.index(p) < INFERENCE.index(piece))
        group = CARDS if on_cards else _ALL
        tasks.append(ScheduledTask(piece, group, (first, *(() if on_cards else before)), True))
    joined = [p for p in INFERENCE if not (early and p in off and p not in waited)]
    generated = Need(Piece.GENERATION)
    tasks += [
        ScheduledTask(Piece.FORWARD, _ALL, (generated, *all_of(joined)), True, early),
        ScheduledTask(Piece.BACKWARD, _ALL, (Need(Piece.FORWARD), *all_of(INFERENCE)), True),
        ScheduledTask(Piece.CRITIC_TRAIN, _ALL, (generated, *all_of(INFERENCE)), True),
    ]
    return tuple(tasks)


OPENRLHF = _openrlhf()
LLAMARL = _llamarl()
RLHFUSE = Schedule(
    name="RLHFuse",
    groups=(Group(_ALL, 1.0),),
    tasks=_fused(),
    reshard=PARTIAL_GATHER,
    migrates=True,
    source="arXiv 2409.13221: inter-stage fusion (when few rows are left they are moved to some of "
    "the GPUs, and the others start inference on the finished rows) and intra-stage fusion (the "
    "actor's and the critic's training pipelines fill each other's bubbles).",
    assumed="freed GPUs need no time to load another model; pipelines fuse without loss; weights "
    "move as in HybridFlow.",
)


def ecorl_schedule(codes: Sequence[int]) -> Schedule:
    """RLHFuse's schedule with reward and reference where a policy puts them.

    The paper builds on RLHFuse (its ablation starts there). The critic's step is fused with the
    actor's as in RLHFuse, so an a3 of critic_train changes nothing here.

    Args:
        codes: one action code a stage, in the order of the enum, as the guards let them through.
    """
    return Schedule(
        name="EcoRL-Sched",
        groups=(Group(_ALL, 1.0), Group(CARDS, 0.0)),
        tasks=_fused(codes),
        reshard=RLHFUSE.reshard,
        migrates=True,
        source="EcoRL-Sched, sections 3.1 and 3.5: frozen inference on the cards beside the GPUs, "
        "joined before the actor's backward pass.",
        assumed="on top of RLHFuse's fusion; the cards take streamed rows in order.",
    )
