"""What is read of a run: against sums by hand and by SQL, and what stays unknown."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from ecorl.bench.tokens_per_joule.reading.quality import (
    QualityTarget,
    common_target,
    first_reached,
)
from ecorl.bench.tokens_per_joule.reading.runs import read_run, read_supervised
from ecorl.ledger import LEDGER_FILE, DeviceRecord
from ecorl.records import (
    Action,
    BarrierWait,
    EventKind,
    PowerSample,
    Provenance,
    Stage,
)
from tests.unit.bench.tokens_per_joule.conftest import figures

MEASURED, MODELLED = Provenance.MEASURED, Provenance.MODELLED
STEPS, WARM_UP = 6, 2
IDLE_W, BUSY_W = 50.0, 250.0
STEP_S, BUSY_S, EVALUATION_S = 2.0, 1.6, 1.0
SETTINGS = f"[trainer]\nsteps = {STEPS}\n[accounting]\npue = 1.0\nintensity_g_per_kwh = 400.0\n"


class Course:
    """Power over time: 250 W in stages and evaluations, 50 W beside them."""

    def __init__(self):
        self.busy = []

    def energy_j(self, t_s):
        busy_s = sum(max(0.0, min(t_s, b) - a) for a, b in self.busy if t_s > a)
        return IDLE_W * (t_s - 1000.0) + (BUSY_W - IDLE_W) * busy_s


def write(run, *, evaluations=(0, 3, STEPS), is_read=True, finish=True, rewards=None):
    """Steps from 1001 s on: a generation of 1 s, a training of 0.6 s, 0.4 s beside them."""
    run.recorded_config(SETTINGS)
    run.stated(pue=1.0, intensity_g_per_kwh=400.0)
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", IDLE_W))
    course, at, stages = Course(), 1001.0, []
    for step in range(STEPS + 1):
        if step == STEPS:
            run.clock(at)
            run.ledger.event(EventKind.TRAINING_END, "")
        if step in evaluations:
            course.busy.append((at, at + EVALUATION_S))
            stages.append((Stage.GENERATION, (at, at + EVALUATION_S), step, 777, "evaluation"))
            at += EVALUATION_S
        if step == STEPS:
            break
        course.busy.append((at, at + BUSY_S))
        stages.append((Stage.GENERATION, (at, at + 1.0), step + 1, 300 + step, ""))
        stages.append((Stage.ACTOR_TRAIN, (at + 1.0, at + BUSY_S), step + 1, 300 + step, ""))
        at += STEP_S
    for stage, span, iteration, tokens, role_name in stages:
        drawn_j = course.energy_j(span[1]) - course.energy_j(span[0]) if is_read else None
        run.ran(stage, span, drawn_j, iteration=iteration, tokens=tokens, role_name=role_name)
    means = rewards or {0: 0.1, 3: 0.5, STEPS: 0.9}
    phases = {0: "before", STEPS: "after"}
    for step in evaluations:
        end = next(s[1][1] for s in stages if s[4] and s[2] == step)
        run.clock(end + 0.01)
        phase = phases.get(step, f"step {step}")
        run.ledger.evaluation("reward", phase, [means[step] - 0.1, means[step] + 0.1])
        run.ledger.evaluation("correct", phase, [0.0, 1.0])
    if is_read:
        run.ledger.samples(
            PowerSample(
                "gpu0", 1000.0 + 0.1 * i, None, course.energy_j(1000.0 + 0.1 * i), None, MEASURED,
                "nvml",
            )
            for i in range(round((at + 1.0 - 1000.0) / 0.1))
        )  # fmt: skip
    run.clock(at + 0.5)
    if finish:
        run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()
    return course


def test_the_known_tokens_per_joule_come_out(run):
    course = write(run)
    found = read_run(run.folder, "gpu_only", 7, WARM_UP)
    assert (found.arm, found.seed, found.missing) == ("gpu_only", 7, "")
    # Begins of steps 3 and 4: an evaluation of 1 s comes before the first step and the fourth.
    a, b = 1001.0 + EVALUATION_S + 2 * STEP_S, 1001.0 + EVALUATION_S + 3 * STEP_S
    c = b + EVALUATION_S
    d = c + 3 * STEP_S
    drawn_j = course.energy_j(b) - course.energy_j(a) + course.energy_j(d) - course.energy_j(c)
    tokens = sum(300 + step for step in range(2, STEPS))
    assert found.n_tokens == tokens
    assert found.tokens_per_j == pytest.approx(tokens / drawn_j, rel=0.002)
    assert found.n_samples == 4 * 10
    assert found.j_per_sample == pytest.approx(drawn_j / 40, rel=0.002)
    assert found.time_s == pytest.approx(4 * STEP_S)
    assert found.samples_per_s == pytest.approx(40 / (4 * STEP_S))
    assert found.bubble == pytest.approx(1 - BUSY_S / STEP_S)
    m = found.machine
    assert (m.provenance, m.at_least) == (MEASURED, False)
    assert m.useful_j == pytest.approx(4 * BUSY_S * BUSY_W, rel=0.002)
    assert m.beside_j == pytest.approx(4 * (STEP_S - BUSY_S) * IDLE_W, rel=0.02)
    assert found.idle_share == pytest.approx(m.beside_j / m.energy_j)
    assert m.carbon_g == pytest.approx(m.energy_j / 3.6e6 * 400.0)
    assert found.card is None
    assert found.gaps == ()


def test_tokens_and_joules_straight_from_sqlite(run):
    """The same by another road: the counter of the raw readings, and rows of executions."""
    write(run)
    found = read_run(run.folder, "gpu_only", 7, WARM_UP)
    run.ledger.close()
    with contextlib.closing(sqlite3.connect(run.folder / LEDGER_FILE)) as db:
        tokens, samples = db.execute(
            "SELECT sum(n_output_tokens), sum(n_sequences) FROM execution "
            "WHERE stage = 'generation' AND role_name IS NULL AND iteration > ?",
            (WARM_UP,),
        ).fetchone()
        begin, end = db.execute(
            "SELECT (SELECT min(start_t_s) FROM execution WHERE iteration > ? AND role_name IS "
            "NULL), (SELECT t_s FROM event WHERE kind = 'training_end')",
            (WARM_UP,),
        ).fetchone()
        holes = db.execute(
            "SELECT start_t_s, end_t_s FROM execution WHERE role_name = 'evaluation' AND "
            "start_t_s BETWEEN ? AND ? - 1e-6",
            (begin, end),
        ).fetchall()
        line = (
            "WITH pair AS (SELECT t_s AS t, energy_j AS j, lead(t_s) OVER w AS t1, "
            "lead(energy_j) OVER w AS j1 FROM raw_sample WINDOW w AS (ORDER BY t_s)) "
            "SELECT j + (j1 - j) * (?1 - t) / (t1 - t) FROM pair WHERE t <= ?1 AND ?1 < t1"
        )

        def at(t_s):
            return db.execute(line, (t_s,)).fetchone()[0]

        drawn_j = at(end) - at(begin) - sum(at(b) - at(a) for a, b in holes)
    assert len(holes) == 1
    assert (found.n_tokens, found.n_samples) == (tokens, samples)
    assert found.machine.energy_j == pytest.approx(drawn_j, rel=1e-5)
    assert found.tokens_per_j == pytest.approx(tokens / drawn_j, rel=1e-5)


def test_a_missing_instrument_gives_missing_figures(run):
    write(run, is_read=False)
    found = read_run(run.folder, "gpu_only", 7, WARM_UP)
    # Without any reading the profile's idle power stands for the rest, and the stages lack theirs.
    assert found.machine is None or found.machine.at_least
    assert found.n_tokens > 0
    assert found.samples_per_s is not None
    for stage in found.stages:
        assert stage.energy_j is None
    for point in found.quality[1:]:
        assert point.energy_j is None or point.at_least


def test_without_idle_power_either_nothing_is_known_of_the_joules(run):
    run.recorded_config(SETTINGS)
    run.ran(Stage.GENERATION, (1001, 1002), None, iteration=1)
    run.ran(Stage.GENERATION, (1002, 1003), None, iteration=3)
    run.clock(1004.0)
    run.ledger.event(EventKind.TRAINING_END, "")
    run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()
    found = read_run(run.folder, "gpu_only", 7, WARM_UP)
    assert found.machine is None
    for name in ("tokens_per_j", "j_per_sample", "idle_share", "tokens_per_j_with_card"):
        assert getattr(found, name) is None


@pytest.mark.parametrize("what", ["unfinished", "resumed", "too short", "nothing"])
def test_a_record_that_is_of_no_use_says_why(run, tmp_path, what):
    if what == "nothing":
        found = read_run(tmp_path / "absent", "learned", 3, WARM_UP)
        assert "absent" in found.missing
        return
    write(run, finish=what != "unfinished")
    if what == "resumed":
        run.resume(2000.0, from_step=2)
        run.ledger.event(EventKind.FINISH, "")
        assert run.ledger.flush()
    found = read_run(run.folder, "learned", 3, 99 if what == "too short" else WARM_UP)
    words = {"unfinished": "did not finish", "resumed": "resumed", "too short": "warm-up of 99"}
    assert words[what] in found.missing
    assert (found.machine, found.time_s, found.tokens_per_j) == (None, None, None)


# ---------------------------------------------------------------- a simulated card


def write_with_card(run, card_s=0.01, waited_s=0.5):
    """One iteration a second: generation, then the card's simulation that the host waits for."""
    run.recorded_config(SETTINGS)
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", IDLE_W))
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", 20.0))
    card = {"device": "fpga0:u55c", "provenance": MODELLED, "time_s": card_s}
    for step in range(STEPS):
        at = 1001.0 + 2.0 * step
        run.ran(Stage.GENERATION, (at, at + 1.0), 200.0, iteration=step + 1, tokens=100)
        run.ran(
            Stage.REWARD, (at + 1.0, at + 1.0 + waited_s), 3.0, iteration=step + 1,
            action=Action.FPGA, **card,
        )  # fmt: skip
        run.clock(at + 1.0 + waited_s)
        run.ledger.barrier(BarrierWait(step + 1, Stage.REWARD, waited_s, 10, 0, 0))
        run.ran(Stage.ACTOR_TRAIN, (at + 1.5, at + 2.0), 100.0, iteration=step + 1, tokens=100)
    end_s = 1001.0 + 2.0 * STEPS
    run.ledger.samples(
        PowerSample("gpu0", 1000.0 + 0.1 * i, 200.0, 20.0 * i, None, MEASURED, "nvml")
        for i in range(round((end_s + 1.0 - 1000.0) / 0.1))
    )
    run.clock(end_s)
    run.ledger.event(EventKind.TRAINING_END, "")
    run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()


def test_a_simulated_card_stands_apart_and_in_its_modelled_time(run):
    write_with_card(run)
    found = read_run(run.folder, "fpga_sequential", 7, WARM_UP)
    n = STEPS - WARM_UP
    m, c = found.machine, found.card
    assert (m.provenance, m.energy_j) == (MEASURED, pytest.approx(400.0 * n))
    assert found.tokens_per_j == pytest.approx(100 * n / (400.0 * n))
    assert m.by_cause["barrier wait"] == pytest.approx(100.0 * n)
    # The simulation took 0.5 s a step, the card would have taken 0.01 s.
    assert c.measured_waits_s == pytest.approx(0.5 * n)
    assert c.waits_s == pytest.approx(0.01 * n)
    assert c.time_s == pytest.approx((2.0 - 0.49) * n)
    assert c.work_j == pytest.approx(3.0 * n)
    assert c.idle_j == pytest.approx(20.0 * (1.51 - 0.01) * n)
    assert c.machine_j == pytest.approx((400.0 - 100.0 * 0.49 / 0.5) * n)
    both_j = c.work_j + c.idle_j + c.machine_j
    assert c.both_j == pytest.approx(both_j)
    assert found.tokens_per_j_with_card == pytest.approx(100 * n / both_j)
    assert found.samples_per_s == pytest.approx(10 / 2.0)
    assert found.samples_per_s_with_card == pytest.approx(10 / 1.51)
    assert found.bubble == pytest.approx(0.25)
    assert found.bubble_with_card == pytest.approx(1 - 1.5 / 1.51)
    assert found.offloaded == {"reward": 1.0}
    assert [s.is_simulated for s in found.stages] == [False, True, False]
    # Its joules are in none of the machine's.
    assert sum(m.by_cause.values()) == pytest.approx(m.energy_j)


def test_a_card_that_got_no_work_idles_all_the_time(run):
    course = write(run)
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", 20.0))
    assert run.ledger.flush()
    found = read_run(run.folder, "learned", 7, WARM_UP)
    c = found.card
    assert (c.work_j, c.time_s) == (0.0, found.time_s)
    assert c.idle_j == pytest.approx(20.0 * 4 * STEP_S)
    assert c.both_j == pytest.approx(found.machine.energy_j + c.idle_j)
    assert course.energy_j(1001.0) == pytest.approx(IDLE_W)


def test_a_card_of_unknown_idle_power_gives_no_figure_with_it(run):
    write(run)
    run.ledger.device(DeviceRecord("fpga0", "u55c", MODELLED, "cycle model", None))
    assert run.ledger.flush()
    found = read_run(run.folder, "learned", 7, WARM_UP)
    assert (found.card.idle_j, found.card.both_j) == (None, None)
    assert found.tokens_per_j_with_card is None
    assert found.tokens_per_j is not None


# ---------------------------------------------------------------- quality


def test_quality_has_what_the_training_up_to_it_took(run):
    course = write(run)
    points = read_run(run.folder, "gpu_only", 7, WARM_UP).quality
    assert [p.step for p in points] == [0, 3, STEPS]
    assert [p.reward for p in points] == pytest.approx([0.1, 0.5, 0.9])
    assert [p.correct for p in points] == [0.5, 0.5, 0.5]
    # From the first step on, warm-up included, evaluations left out.
    first = 1001.0 + EVALUATION_S
    middle = first + 3 * STEP_S
    assert points[1].time_s == pytest.approx(3 * STEP_S)
    assert points[1].energy_j == pytest.approx(
        course.energy_j(middle) - course.energy_j(first), rel=0.002
    )
    assert points[2].time_s == pytest.approx(STEPS * STEP_S)
    later = middle + EVALUATION_S
    assert points[2].energy_j == pytest.approx(
        points[1].energy_j + course.energy_j(later + 3 * STEP_S) - course.energy_j(later),
        rel=0.002,
    )
    assert (points[0].time_s, points[0].energy_j) == (0.0, 0.0)


def test_a_target_is_reached_at_an_evaluation_and_never_between(run):
    write(run)
    found = read_run(run.folder, "gpu_only", 7, WARM_UP)

    def reached(value):
        point = first_reached(found, QualityTarget("reward", value, ""))
        return None if point is None else point.step

    assert [reached(v) for v in (0.1, 0.11, 0.5, 0.51, 0.9, 0.91)] == [0, 3, 3, 6, 6, None]
    assert first_reached(found, QualityTarget("reward", None, "none")) is None


def test_the_common_target_is_what_the_worst_run_reached():
    runs = [figures("a", seed) for seed in (1, 2, 3)]
    target = common_target(runs, "reward")
    assert target.value == pytest.approx(1.001)
    assert all(first_reached(run, target) is not None for run in runs)
    assert common_target(runs, "correct").value == pytest.approx(0.4)


def test_there_is_no_common_target_where_a_run_never_rose_or_was_not_evaluated():
    good, flat = figures("a", 1), figures("b", 1)
    sunk = tuple(
        type(p)(p.step, -float(p.step), p.correct, p.time_s, p.energy_j, p.provenance)
        for p in flat.quality
    )
    fallen = figures("b", 1, quality=sunk)
    assert common_target([good, fallen], "reward").value is None
    assert common_target([good, figures("b", 1, quality=())], "reward").value is None
    assert common_target([], "reward").value is None


# ---------------------------------------------------------------- supervised


def test_supervised_training_ends_with_its_last_step(run):
    run.recorded_config(SETTINGS)
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", IDLE_W))
    run.ledger.evaluation("reward", "before", [0.0, 0.2])
    for step in range(STEPS):
        at = 1001.0 + step
        run.ran(Stage.ACTOR_TRAIN, (at, at + 1.0), 100.0, iteration=step + 1, tokens=50)
        run.ledger.metric(step + 1, "n_all_tokens", 160.0)
    run.ledger.samples(
        PowerSample("gpu0", 1000.0 + 0.1 * i, 100.0, 10.0 * i, None, MEASURED, "nvml")
        for i in range(200)
    )
    run.clock(1015.0)  # an evaluation lies between
    run.ledger.evaluation("reward", "after", [0.9, 1.1])
    run.ledger.event(EventKind.TRAINING_END, "")
    run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()
    found = read_supervised(run.folder, 7, WARM_UP)
    n = STEPS - WARM_UP
    assert (found.n_steps, found.n_tokens, found.n_all_tokens) == (n, 50 * n, 160 * n)
    assert found.tokens_per_j == pytest.approx(50 * n / (100.0 * n), rel=1e-6)
    assert found.time_s == pytest.approx(n)
    assert [p.reward for p in found.quality] == pytest.approx([0.1, 1.0])
    assert found.quality[1].time_s == pytest.approx(STEPS)
    assert found.quality[1].energy_j == pytest.approx(100.0 * STEPS)
