"""Stage orders of the frameworks, and the list scheduler that evaluates them."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.studies.frameworks import stage_orders
from benchmarks.studies.frameworks.list_scheduler import (
    Cluster,
    generation_profile,
    piece_s,
    run_schedule,
)
from benchmarks.studies.frameworks.stage_orders import (
    CARDS,
    DEEPSPEED_CHAT,
    FILE,
    HYBRIDFLOW,
    INFERENCE,
    LLAMARL,
    OPENRLHF,
    RLHFUSE,
    TRAINING,
    Group,
    Need,
    Piece,
    Schedule,
    ScheduledTask,
    ecorl_schedule,
)
from ecorl.errors import ConfigError
from ecorl.records import Stage
from ecorl.sim.scenario import Scenario
from ecorl.sim.trace import draw_trace, work_at
from ecorl.stages.figures import CONCURRENT, FPGA, GPU, idle_work
from ecorl.stages.guards import gpu_only
from tests.examples import examples

CLUSTER = Cluster(n_rows=256.0, n_copies=16.0, pipeline_bubble=3 / 11)
STREAMED = (CONCURRENT, CONCURRENT, CONCURRENT, GPU, GPU, GPU)
EARLY = (GPU, CONCURRENT, CONCURRENT, GPU, CONCURRENT, GPU)
BLOCKING = (GPU, FPGA, FPGA, GPU, GPU, GPU)
FRAMEWORKS = (DEEPSPEED_CHAT, OPENRLHF, LLAMARL, HYBRIDFLOW, RLHFUSE)
ALL = (*FRAMEWORKS, ecorl_schedule(STREAMED), ecorl_schedule(EARLY), ecorl_schedule(BLOCKING))
NAMES = [f"{s.name}-{i}" for i, s in enumerate(ALL)]
IDLE_W = 100.0


def in_sequence(schedule):
    """The same pieces on the same groups without any overlap: each waits for the one before."""
    tasks = []
    for i, task in enumerate(schedule.tasks):
        before = schedule.tasks[i - 1].piece
        tasks.append(replace(task, needs=(Need(before, 0 if i else 1),), shares=False))
    return replace(schedule, tasks=tuple(tasks))


times = st.floats(0.01, 50.0)


@st.composite
def works(draw):
    n = draw(st.integers(1, 6))
    generation_s = draw(times)
    handed = sorted(draw(st.lists(st.floats(0.0, 1.0), min_size=n - 1, max_size=n - 1)))
    inference = tuple(draw(times) for _ in range(3))
    forward_s, backward_s, critic_s = draw(times), draw(times), draw(times)
    watts = IDLE_W + draw(st.floats(0.0, 1000.0))
    return idle_work()._replace(
        generation_s=generation_s,
        generation_j=watts * generation_s,
        handover_s=tuple(generation_s * (j + 1) / n for j in range(n)),
        tail=(1.0, *(1.0 - h for h in handed)),
        gpu_s=inference,
        gpu_j=tuple(watts * s for s in inference),
        card_s=tuple(draw(st.floats(0.01, 100.0)) for _ in range(3)),
        forward_s=forward_s,
        backward_s=backward_s,
        actor_j=watts * (forward_s + backward_s),
        early_s=0.1 * forward_s,
        early_j=0.1 * watts * forward_s,
        critic_s=critic_s,
        critic_j=watts * critic_s,
        gpu_idle_w=IDLE_W,
        card_active_w=50.0,
        card_idle_w=5.0,
    )


clusters = st.builds(
    Cluster,
    n_rows=st.sampled_from([16.0, 256.0]),
    n_copies=st.sampled_from([1.0, 4.0, 16.0]),
    pipeline_bubble=st.floats(0.0, 0.6),
    reshard_s=st.floats(0.0, 3.0),
)


def spans_of(timeline):
    found = defaultdict(list)
    for span in timeline.spans:
        found[span.iteration, span.piece].append(span)
    return found


def edges(timeline):
    return {key: (s[0].start_s, s[-1].end_s) for key, s in spans_of(timeline).items()}


def bubble(timeline):
    """Share of GPU time in which GPUs had nothing to do."""
    return 1.0 - timeline.busy_s / timeline.time_s


def real_works(calibration, n=12):
    sizes = MappingProxyType({Stage.GENERATION: "70b"})
    scenario = Scenario("70b", calibration, sizes=sizes, n_iterations=n)
    trace = draw_trace([scenario], np.random.default_rng(5))
    return [work_at(trace.actual, (k, 0)) for k in range(n)]


@pytest.mark.parametrize("schedule", ALL, ids=NAMES)
@settings(max_examples=15, deadline=None)
@given(some=st.lists(works(), min_size=1, max_size=4), cluster=clusters)
def test_no_task_starts_before_its_needs(schedule, some, cluster):
    timeline = run_schedule(schedule, some, cluster)
    when = edges(timeline)
    spans = spans_of(timeline)
    slack = 1e-6 * timeline.time_s
    for (k, piece), (start_s, _) in when.items():
        task = next(t for t in schedule.tasks if t.piece is piece)
        for need in task.needs:
            if (before := (k - need.ago, need.piece)) not in when:
                continue
            if not need.by_rows:
                assert start_s >= when[before][1] - slack, (piece, need)
                continue
            # By rows: what was answered at a time had been handed over by then.
            total_s = piece_s(task, some[k], cluster, schedule.reshard)
            share = 1.0 if task.group == CARDS else timeline.shares[task.group]
            done_s = 0.0
            for span in spans[k, piece]:
                handed = handed_at(timeline, some[k], cluster, schedule, k, span.end_s)
                done_s += (span.end_s - span.start_s) * span.used * share
                assert done_s <= handed * total_s + 1e-6 * (total_s + timeline.time_s)


def handed_at(timeline, work, cluster, schedule, k, at_s):
    """Share of the tokens handed over at a time; no schedule that streams splits the GPUs."""
    start_s = edges(timeline)[k, Piece.GENERATION][0]
    profile = generation_profile(work, cluster, schedule.migrates)
    return profile.handed_at((at_s - start_s) * (1.0 + 1e-7) + 1e-7)


@pytest.mark.parametrize("schedule", ALL, ids=NAMES)
@settings(max_examples=15, deadline=None)
@given(some=st.lists(works(), min_size=2, max_size=4), cluster=clusters)
def test_training_has_all_rows_and_generation_the_weights_of_its_step(schedule, some, cluster):
    when = edges(run_schedule(schedule, some, cluster))
    late = 2 if schedule is LLAMARL else 1
    slack = 1e-6 * max(end_s for _, end_s in when.values())
    for k in range(len(some)):
        generated_s = when[k, Piece.GENERATION][1]
        assert all(when[k, p][0] >= generated_s - slack for p in TRAINING)
        if k >= late:
            assert when[k, Piece.GENERATION][0] >= when[k - late, Piece.BACKWARD][1] - slack


@pytest.mark.parametrize("schedule", ALL, ids=NAMES)
@settings(max_examples=15, deadline=None)
@given(some=st.lists(works(), min_size=1, max_size=4), cluster=clusters)
def test_no_group_is_overbooked(schedule, some, cluster):
    timeline = run_schedule(schedule, some, cluster)
    at = defaultdict(float)
    for span in timeline.spans:
        assert -1e-12 <= span.busy <= span.used + 1e-9
        assert span.used <= span.held + 1e-9
        at[span.group, span.start_s, span.end_s] += span.held
    # All spans of a step begin and end together, so their sums are all that is held then; a step
    # of no length may begin with the next one.
    assert max(at.values()) <= 1.0 + 1e-9
    starts = sorted({(s.start_s, s.end_s) for s in timeline.spans})
    assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(starts))


@pytest.mark.parametrize("schedule", ALL, ids=NAMES)
@settings(max_examples=15, deadline=None)
@given(some=st.lists(works(), min_size=1, max_size=4), cluster=clusters)
def test_work_is_conserved(schedule, some, cluster):
    timeline = run_schedule(schedule, some, cluster)
    done_s = defaultdict(float)
    for s in timeline.spans:
        share = 1.0 if s.group == CARDS else timeline.shares[s.group]
        done_s[s.iteration, s.piece] += (s.end_s - s.start_s) * s.busy * share
    for k, work in enumerate(some):
        for task in schedule.tasks:
            total_s = piece_s(task, work, cluster, schedule.reshard)
            expected_s = total_s
            if task.piece is Piece.RESHARD:
                expected_s = 0.0
            elif task.piece is Piece.GENERATION:
                profile = generation_profile(work, cluster, migrates=False)
                widths = np.diff([0.0, *profile.ends_s])
                expected_s = float(widths @ np.array(profile.busy))
            elif task.piece in TRAINING:
                expected_s *= 1.0 - cluster.pipeline_bubble
            assert done_s[k, task.piece] == pytest.approx(expected_s, rel=1e-6, abs=1e-9)


@settings(max_examples=examples(25), deadline=None)
@given(some=st.lists(works(), min_size=1, max_size=4), cluster=clusters)
def test_all_frameworks_do_the_same_work(some, cluster):
    done_s = [run_schedule(f, some, cluster).busy_s for f in FRAMEWORKS]
    assert done_s == pytest.approx([done_s[0]] * len(done_s), rel=1e-6)


@settings(max_examples=examples(25), deadline=None)
@given(some=st.lists(works(), min_size=1, max_size=4), cluster=clusters)
def test_deepspeed_chat_takes_the_sum_of_its_stages(some, cluster):
    timeline = run_schedule(DEEPSPEED_CHAT, some, cluster)
    alone_s = sum(gpu_only(w)[0] for w in some)
    moved_s = len(some) * cluster.reshard_s
    assert timeline.time_s == pytest.approx(alone_s + moved_s, rel=1e-9)
    # The GPU-only iteration of the simulator has idle cards in its energy, DeepSpeed-Chat none.
    joules = sum(gpu_only(w)[1] - w.card_idle_w * gpu_only(w)[0] for w in some)
    assert timeline.energy_j == pytest.approx(joules + IDLE_W * moved_s, rel=1e-9)


@pytest.mark.parametrize("schedule", ALL, ids=NAMES)
@settings(max_examples=15, deadline=None)
@given(some=st.lists(works(), min_size=1, max_size=5), cluster=clusters)
def test_overlap_is_never_slower_than_the_same_groups_in_sequence(schedule, some, cluster):
    # A group's share that follows from the work is taken as it came out.
    overlapped = run_schedule(schedule, some, cluster)
    groups = tuple(Group(g.name, overlapped.shares[g.name]) for g in schedule.groups)
    sequential = run_schedule(in_sequence(replace(schedule, groups=groups)), some, cluster)
    assert overlapped.time_s <= sequential.time_s * (1.0 + 1e-9)
    assert overlapped.energy_j <= sequential.energy_j * (1.0 + 1e-9)


@pytest.mark.parametrize("schedule", ALL, ids=NAMES)
@settings(max_examples=15, deadline=None)
@given(some=st.lists(works(), min_size=1, max_size=4), cluster=clusters)
def test_energy_is_at_least_that_of_idle_devices(schedule, some, cluster):
    timeline = run_schedule(schedule, some, cluster)
    assert timeline.gpu_j >= IDLE_W * timeline.time_s * (1.0 - 1e-9)
    has_cards = any(g.name == CARDS for g in schedule.groups)
    assert timeline.card_j >= 5.0 * timeline.time_s * has_cards * (1.0 - 1e-9)
    assert has_cards or timeline.card_j == 0.0
    assert -1e-9 <= bubble(timeline) < 1.0


@pytest.mark.parametrize("calibration", ["paper", "roofline"])
def test_the_frameworks_on_the_paper_setting(calibration):
    some = real_works(calibration)
    found = {f.name: run_schedule(f, some, CLUSTER) for f in FRAMEWORKS}
    sequential = found["DeepSpeed-Chat"]
    assert found["HybridFlow"].time_s == pytest.approx(sequential.time_s)
    assert found["RLHFuse"].time_s < sequential.time_s
    assert bubble(found["RLHFuse"]) < bubble(sequential)
    assert bubble(found["OpenRLHF"]) == max(map(bubble, found.values()))
    again = run_schedule(RLHFUSE, some, CLUSTER)
    assert again == found["RLHFuse"]


def test_hybridflow_moves_fewer_weights_than_deepspeed_chat():
    some, cluster = real_works("paper", 3), CLUSTER._replace(reshard_s=4.0)
    saved_s = run_schedule(DEEPSPEED_CHAT, some, cluster).time_s - (
        run_schedule(HYBRIDFLOW, some, cluster).time_s
    )
    assert saved_s == pytest.approx(3 * 4.0 * (DEEPSPEED_CHAT.reshard - HYBRIDFLOW.reshard))


def test_llamarl_trains_one_step_off_policy():
    timeline = run_schedule(LLAMARL, real_works("paper"), CLUSTER)
    when = edges(timeline)
    for k in range(2, 12):
        starts_s = when[k, Piece.GENERATION][0]
        assert starts_s < when[k - 1, Piece.BACKWARD][1]
        assert starts_s >= when[k - 2, Piece.BACKWARD][1] - 1e-9
    assert sum(timeline.shares.values()) == pytest.approx(1.0)
    assert min(timeline.shares.values()) > 0.05


def test_openrlhf_runs_reward_beside_reference_and_actor_beside_critic():
    when = edges(run_schedule(OPENRLHF, real_works("paper", 2), CLUSTER))
    for one, other in (
        (Piece.REWARD, Piece.REFERENCE),
        (Piece.FORWARD, Piece.CRITIC_TRAIN),
    ):
        assert when[0, one][0] == pytest.approx(when[0, other][0])
    assert when[1, Piece.GENERATION][0] >= when[0, Piece.BACKWARD][1] - 1e-9


def test_rlhfuse_fills_the_tail_of_generation_and_fuses_training():
    when = edges(run_schedule(RLHFUSE, real_works("paper", 1), CLUSTER))
    assert when[0, Piece.REWARD][0] < when[0, Piece.GENERATION][1]
    assert when[0, Piece.CRITIC_TRAIN][0] < when[0, Piece.BACKWARD][1]
    no_tail = idle_work()._replace(
        generation_s=4.0, handover_s=(2.0, 4.0), tail=(1.0, 1.0), gpu_s=(1.0, 1.0, 1.0)
    )
    when = edges(run_schedule(RLHFUSE, [no_tail], Cluster(n_rows=64.0, n_copies=4.0)))
    assert when[0, Piece.REWARD][0] == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("codes", "reward_s", "answered_s", "forward_s", "backward_s"),
    [
        (BLOCKING, 4.0, 10.0, 10.0, 12.0),
        (STREAMED, 2.0, 8.0, 8.0, 10.0),
        (EARLY, 4.0, 10.0, 4.0, 10.0),
    ],
    ids=["blocking", "streamed", "early"],
)
def test_cards_answer_beside_the_gpus(codes, reward_s, answered_s, forward_s, backward_s):
    # Half of the rows come at 2 s, the rest at 4 s; reward and reference take 3 s each.
    work = idle_work()._replace(
        generation_s=4.0, handover_s=(2.0, 4.0), tail=(1.0, 0.5), card_s=(3.0, 3.0, 3.0),
        gpu_s=(9.0, 9.0, 0.0), forward_s=2.0, backward_s=4.0, early_s=0.5,
    )  # fmt: skip
    when = edges(run_schedule(ecorl_schedule(codes), [work], Cluster(n_rows=8.0)))
    assert when[0, Piece.REWARD][0] == pytest.approx(reward_s)
    assert when[0, Piece.REFERENCE][1] == pytest.approx(answered_s)
    assert when[0, Piece.FORWARD][0] == pytest.approx(forward_s)
    assert when[0, Piece.BACKWARD][0] == pytest.approx(backward_s)


def test_training_waits_for_rows_that_come_without_tokens():
    # All tokens are handed over at 2 s and answered at once; generation ends at 4 s.
    work = idle_work()._replace(
        generation_s=4.0, handover_s=(2.0, 4.0), tail=(1.0, 0.0), gpu_s=(0.1, 0.1, 0.1),
        card_s=(0.1, 0.1, 0.1), forward_s=1.0, backward_s=1.0, critic_s=1.0,
    )  # fmt: skip
    for schedule in (RLHFUSE, ecorl_schedule(STREAMED), ecorl_schedule(EARLY)):
        when = edges(run_schedule(schedule, [work], Cluster(n_rows=64.0, n_copies=4.0)))
        assert when[0, Piece.CRITIC][1] < 4.0
        assert min(when[0, p][0] for p in TRAINING) == pytest.approx(4.0)


def test_generation_on_some_gpus_is_slowed_only_while_it_needs_more():
    some = real_works("paper", 1)
    profile = generation_profile(some[0], CLUSTER, migrates=False)
    when = edges(run_schedule(OPENRLHF, some, CLUSTER))
    start_s, end_s = when[0, Piece.GENERATION]
    assert end_s - start_s == pytest.approx(profile.on_share_s(1 / 3))
    assert some[0].generation_s * 1.1 < end_s - start_s < some[0].generation_s * 2.9


def free_tasks(*shares):
    pieces = (Piece.REWARD, Piece.REFERENCE, Piece.CRITIC)
    tasks = tuple(ScheduledTask(p, "all", (), s) for p, s in zip(pieces, shares, strict=True))
    return Schedule("x", (Group("all", 1.0),), tasks)


@pytest.mark.parametrize(
    ("shares", "starts_s"),
    [
        ((False, False, False), (0.0, 1.0, 3.0)),
        ((True, False, True), (0.0, 4.0, 1.0)),
        ((False, True, True), (0.0, 1.0, 3.0)),
    ],
)
def test_a_task_that_does_not_share_has_its_group_alone(shares, starts_s):
    work = idle_work()._replace(gpu_s=(1.0, 2.0, 3.0))
    timeline = run_schedule(free_tasks(*shares), [work], Cluster())
    spans = spans_of(timeline)
    alone = [s for s in timeline.spans if not shares[INFERENCE.index(s.piece)]]
    for span in alone:
        overlap = [
            s for s in timeline.spans
            if s.piece is not span.piece and s.start_s < span.end_s and span.start_s < s.end_s
        ]  # fmt: skip
        assert not overlap
    # One that shares runs once those before it in order leave it something.
    for piece, start_s in zip(INFERENCE, starts_s, strict=True):
        assert spans[0, piece][0].start_s == pytest.approx(start_s)
    assert timeline.time_s == pytest.approx(6.0)


def test_rows_left_need_fewer_gpus():
    work = idle_work()._replace(
        generation_s=10.0, handover_s=(5.0, 10.0), tail=(1.0, 0.1), gpu_idle_w=1.0
    )
    plain = generation_profile(work, Cluster(n_rows=64.0, n_copies=4.0), migrates=False)
    moved = generation_profile(work, Cluster(n_rows=64.0, n_copies=4.0), migrates=True)
    assert plain.busy == moved.busy == moved.used
    assert plain.used[1] > moved.used[1]
    assert plain.used[0] == pytest.approx(1.0, abs=1e-3)
    # 0.9 and 0.1 of the tokens in rows of 2.5 and 7.5 s: 1 row in 28 lives to the last interval.
    left = 0.5 * (0.1 / 7.5) / (0.9 / 2.5 + 0.1 / 7.5)
    assert plain.used[1] == pytest.approx(1.0 - (1.0 - left) ** 16)
    assert moved.used[1] == pytest.approx(0.25)
    even = idle_work()._replace(generation_s=1.0, handover_s=(1.0,), tail=(1.0,))
    assert generation_profile(even, CLUSTER, migrates=True).busy[0] == pytest.approx(1.0, abs=1e-3)


def test_every_schedule_says_what_is_documented_and_what_is_assumed():
    documented = tomllib.loads((Path(stage_orders.__file__).parent / FILE).read_text("utf-8"))
    assert {schedule.name for schedule in ALL} == set(documented)
    for entry in documented.values():
        assert len(entry["source"]) > 40
        assert len(entry["assumed"]) > 20


@pytest.mark.parametrize("schedule", ALL, ids=NAMES)
def test_schedules_have_each_piece_once_on_groups_that_there_are(schedule):
    assert sorted(task.piece for task in schedule.tasks) == sorted(Piece)
    assert {task.group for task in schedule.tasks} <= {group.name for group in schedule.groups}
    assert sum(group.share or 0.0 for group in schedule.groups) <= 1.0 + 1e-9
    assert sum(group.share is None for group in schedule.groups) in (0, 2)


def test_an_order_that_cannot_be_run_is_refused():
    task = ScheduledTask(Piece.REWARD, "all", (Need(Piece.REWARD),))
    with pytest.raises(ConfigError, match="order"):
        run_schedule(Schedule("x", (Group("all", 1.0),), (task,)), [idle_work()], Cluster())
