"""Decisions of a run: what they go by, what of them is recorded, and how long a run may wait."""

from __future__ import annotations

import math
import threading
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from ecorl.config import validate_config
from ecorl.control import Command, Why
from ecorl.controllers.waiting import paused_spans
from ecorl.errors import ConfigError
from ecorl.grid import AverageIntensity, MarginalIntensity
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.records import EventKind, FaultKind
from ecorl.runtime.control.governor import Governor, check_budget, governs
from ecorl.runtime.control.grid_watch import GridWatch
from ecorl.runtime.handles import RunTotals
from tests.fakes.recordings import two, write

LIMIT_S = 240.0
SPEED = 36_000.0  # ten hours a second


class Wall:
    """A wall clock that the test moves; feeds of an hour stand still with it."""

    def __init__(self):
        self.now_s = time.time()

    def __call__(self):
        return self.now_s

    def move(self, hours):
        self.now_s += hours * 3600.0 / SPEED


@pytest.fixture
def wall():
    return Wall()


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """The clock that never jumps, as the control path sees it: it goes on where a test moves it.

    Feeds that a busy machine asks late are not silent.
    """
    monkeypatch.setattr("ecorl.carbon.listener.SILENT_FOR", 10_000)
    clock = SimpleNamespace(now_s=time.monotonic())
    for module in ("governor", "grid_watch"):
        looks = SimpleNamespace(monotonic=lambda: clock.now_s)
        monkeypatch.setattr(f"ecorl.runtime.control.{module}.time", looks)
    return clock


class Run:
    """A governor over a fresh record and a replayed trace."""

    def __init__(self, folder, wall, values, carbon=None, accounting=None, before=None):
        folder.mkdir(exist_ok=True)
        trace = write(folder, two(values))
        feed = {"type": "replay", "path": str(trace), "speed": SPEED}
        carbon = {"recheck_s": 0.1, "stale_after_s": 0.5, "feeds": [feed], **(carbon or {})}
        self.config = validate_config({"carbon": carbon, "accounting": accounting or {}})
        path = folder / LEDGER_FILE
        if path.exists():
            self.ledger = Ledger.open_for_resume(path, from_step=0)
        else:
            self.ledger = Ledger.create(path, run_id="r", config_toml="", meta={})
            # What is replayed begins with the run: at its speed a twentieth of a second, in which a
            # busy machine does nothing, would be half an hour.
            self.ledger.flush()
            with LedgerReader(folder) as reader:
                wall.now_s = reader.attempts()[0].unix_anchor_s
        self.faults: list[tuple[FaultKind, str, str]] = []
        self.governor = Governor(
            self.config, self.ledger, lambda *fault: self.faults.append(fault), before, wall=wall
        )
        self.folder, self.wall = folder, wall

    def start(self):
        self.governor.start()
        return self

    def until(self, *whys, **options):
        """Tick until a decision is of one of these kinds; the listener answers in its own time."""
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            choice = self.governor.tick(**options)
            if choice.why in whys:
                return choice
            time.sleep(0.02)
        raise AssertionError(f"{choice} and never {whys}")

    def close(self):
        self.governor.close()
        self.ledger.close()

    def reader(self):
        self.ledger.flush()
        return LedgerReader(self.folder)

    def read(self, what):
        with self.reader() as reader:
            return getattr(reader, what)()


@pytest.fixture
def make(tmp_path, wall):
    made = []

    def run(values, name="run", **options):
        made.append(Run(tmp_path / name, wall, values, **options).start())
        return made[-1]

    yield run
    for one in made:
        one.close()


WAITS = {"threshold_g_per_kwh": 250.0, "pause": "steps", "max_wait_s": 1000.0}
DAY = [400.0] * 3 + [200.0] * 3 + [450.0] * 3 + [210.0] * 9


def test_replayed_time_begins_with_the_run_and_goes_on_in_its_next_attempt(tmp_path, wall):
    # Loading engines takes ten of its intervals, and the attempt begins behind that.
    values = [100.0 + number for number in range(60)]
    first = Run(tmp_path / "run", wall, values, carbon=WAITS)
    time.sleep(10 * 3600.0 / SPEED)
    first.ledger.begin_now()
    first.start()
    began_s = first.read("attempts")[0].unix_anchor_s
    wall.now_s = began_s
    wall.move(0.5)
    assert first.until(Why.CLEAN).g_per_kwh == 100.0
    first.close()
    wall.move(20)
    second = Run(tmp_path / "run", wall, values, carbon=WAITS).start()
    assert second.until(Why.CLEAN).g_per_kwh == 120.0
    second.close()


def test_a_run_waits_and_pauses_and_the_record_says_why(make, wall):
    run = make(DAY, carbon=WAITS)
    dirty = run.until(Why.DIRTY)
    assert (dirty.command, dirty.g_per_kwh, dirty.feed) == (Command.PAUSE, 400.0, "replay")
    wall.move(3.5)
    assert run.until(Why.CLEAN).command is Command.RUN
    wall.move(3)
    assert run.until(Why.DIRTY).g_per_kwh == 450.0
    wall.move(3)
    assert run.until(Why.CLEAN).g_per_kwh == 210.0
    told = [row.choice for row in run.read("choices") if row.choice.why is not Why.ASKING]
    assert [(c.why, c.g_per_kwh, c.threshold_g_per_kwh) for c in told] == [
        (Why.DIRTY, 400.0, 250.0), (Why.CLEAN, 200.0, 250.0),
        (Why.DIRTY, 450.0, 250.0), (Why.CLEAN, 210.0, 250.0),
    ]  # fmt: skip
    assert {c.controller for c in told} == {"threshold"}
    values = [row.value for row in run.read("intensities")]
    assert [v.g_per_kwh for v in values] == [400.0, 200.0, 450.0, 210.0]
    assert {type(v) for v in values} == {AverageIntensity}
    assert run.faults == []


def test_a_run_that_waits_at_the_start_alone_is_not_paused_later(make, wall):
    run = make(DAY, carbon={**WAITS, "pause": "start"})
    run.until(Why.DIRTY)
    wall.move(3.5)
    run.until(Why.CLEAN)
    wall.move(3)
    assert run.until(Why.BEGUN).command is Command.RUN


def test_what_earlier_attempts_have_waited_counts(make, steady):
    first = make(DAY, carbon=WAITS)
    first.until(Why.DIRTY)
    time.sleep(0.3)
    first.until(Why.DIRTY)
    # The end of what is recorded is the end of the wait that is known.
    first.ledger.event(EventKind.STOP, "cut off")
    with first.reader() as reader:
        spans = paused_spans(reader.choices(), reader.last_times())
    first.close()
    ((begin_s, end_s),) = [span for of_attempt in spans.values() for span in of_attempt]
    assert end_s - begin_s >= 0.3
    again = make(DAY, carbon=WAITS)
    again.until(Why.DIRTY)
    left_s = WAITS["max_wait_s"] - (end_s - begin_s)
    steady.now_s += left_s - 0.05
    assert again.governor.tick().why is Why.DIRTY
    steady.now_s += 0.1
    assert again.governor.tick().why is Why.WAITED


def test_an_unknown_intensity_is_recorded_once_and_keeps_nobody_waiting(make, wall):
    run = make(["", "", 400.0, 400.0], carbon=WAITS)
    run.until(Why.UNKNOWN)
    assert run.governor.g_per_kwh is None
    wall.move(2.5)
    run.until(Why.DIRTY)
    assert run.governor.g_per_kwh == 400.0
    wall.move(9)
    run.until(Why.UNKNOWN)
    wait_for(lambda: len(run.faults) == 5)
    kinds = [kind for kind, _, _ in run.faults]
    assert kinds[:3] == [
        FaultKind.FEED_PASSED_OVER, FaultKind.INTENSITY_UNKNOWN, FaultKind.INTENSITY_KNOWN,
    ]  # fmt: skip
    assert set(kinds[3:]) == {FaultKind.FEED_PASSED_OVER, FaultKind.INTENSITY_UNKNOWN}
    assert [row.value is None for row in run.read("intensities")] == [True, False, True]


def test_the_deadline_leaves_time_for_the_steps_that_are_left(make, wall, steady):
    deadline = datetime.fromtimestamp(wall() + 60.0, UTC)
    run = make(DAY, carbon={**WAITS, "soft_deadline": deadline})
    run.until(Why.DIRTY)
    wall.move(3.5)
    run.until(Why.CLEAN)  # a step begins
    steady.now_s += 0.1
    run.until(Why.CLEAN)
    wall.move(3)
    # At 0.1 s a step, and some 59 s before the deadline.
    assert run.until(Why.DIRTY, steps_left=580).command is Command.PAUSE
    assert run.until(Why.DEADLINE, steps_left=600).command is Command.RUN


def test_a_training_that_is_asked_to_stop_is_not_kept(make):
    run = make(DAY, carbon=WAITS)
    run.until(Why.DIRTY)
    choice = run.governor.tick(is_stopping=True)
    assert (choice.command, choice.why) == (Command.RUN, Why.STOPPING)
    assert run.read("choices")[-1].choice.why is Why.STOPPING


def test_the_percentile_is_of_the_forecast(make, wall):
    # Two weeks of the same day, dirtiest at its begin: the pool knows the next one.
    carbon = {"threshold_percentile": 30.0, "horizon_s": 86_400.0, "pause": "steps"}
    day = [round(300 + 100 * math.cos(math.pi * hour / 12), 1) for hour in range(24)]
    run = make(day * 20, carbon=carbon)
    wall.move(14 * 24 + 0.5)
    dirty = run.until(Why.DIRTY)
    assert 200.0 < dirty.threshold_g_per_kwh < 300.0
    wall.move(12)
    assert run.until(Why.CLEAN).g_per_kwh == 200.0


# ------------------------------------------------------------ budget


def test_emissions_add_up_at_the_intensity_of_their_time(make, wall):
    run = make([400.0, 100.0, "", ""], carbon={"stale_after_s": 0.0}, accounting={"pue": 1.5})
    assert not governs(run.config)
    assert run.governor.tick().why is Why.UNGOVERNED
    kwh = 3.6e6
    wait_for(lambda: run.governor.g_per_kwh == 400.0)
    assert run.governor.emitted(kwh).carbon_g == pytest.approx(600.0)
    wall.move(1.1)
    wait_for(lambda: run.governor.g_per_kwh == 100.0)
    assert run.governor.emitted(3 * kwh).carbon_g == pytest.approx(600.0 + 300.0)
    wall.move(1.1)
    wait_for(lambda: run.governor.g_per_kwh is None)
    so_far = run.governor.emitted(4 * kwh)
    assert (so_far.carbon_g, so_far.unknown_j) == (pytest.approx(900.0), pytest.approx(kwh))
    # Nothing is known of energy that is not.
    assert run.governor.emitted(None).carbon_g is None
    assert run.read("choices") == []


def test_the_budget_warns_and_then_asks_to_stop(make):
    accounting = {"pue": 1.0, "budget_g": 100.0, "over_budget": "stop"}
    run = make([100.0] * 9, accounting=accounting)
    wait_for(lambda: run.governor.g_per_kwh == 100.0)
    run.governor.emitted(0.5 * 3.6e6)
    assert run.governor.tick().command is Command.RUN
    run.governor.emitted(0.85 * 3.6e6)
    run.governor.emitted(0.9 * 3.6e6)
    assert run.governor.tick().command is Command.RUN
    run.governor.emitted(1.1 * 3.6e6)
    choice = run.governor.tick()
    assert (choice.command, choice.why) == (Command.STOP, Why.BUDGET)
    told = [e.detail for e in run.read("events") if e.kind is EventKind.CARBON_BUDGET]
    assert [detail.split(" %")[0] for detail in told] == ["85", "110"]


def test_a_budget_that_only_warns_stops_nothing(make):
    run = make([100.0] * 9, accounting={"pue": 1.0, "budget_g": 100.0})
    wait_for(lambda: run.governor.g_per_kwh == 100.0)
    run.governor.emitted(2 * 3.6e6)
    assert run.governor.tick().command is Command.RUN
    check_budget(run.config)


def test_what_earlier_attempts_have_emitted_counts(make):
    before = RunTotals(drawn_j=3.6e6, carbon_g=90.0)
    run = make([100.0] * 9, accounting={"pue": 1.0, "budget_g": 100.0}, before=before)
    wait_for(lambda: run.governor.g_per_kwh == 100.0)
    assert run.governor.emitted(3.6e6).carbon_g == pytest.approx(90.0)
    assert run.governor.emitted(1.05 * 3.6e6).carbon_g == pytest.approx(95.0)


def test_a_framework_that_cannot_be_stopped_refuses_the_budget_that_stops():
    config = validate_config({"accounting": {"budget_g": 1.0, "over_budget": "stop"}})
    with pytest.raises(ConfigError, match="over_budget"):
        check_budget(config)


# ------------------------------------------------------------ PUE, clock, refusals


def test_the_pue_follows_its_file_and_is_recorded(make, tmp_path, wall):
    now_s = wall()
    rows = f"time,pue\n{now_s + 3600},1.8\n{now_s - 60},1.5\n"
    path = tmp_path / "pue.csv"
    path.write_text(rows)
    run = make([100.0] * 9, accounting={"pue": 1.0, "pue_csv": str(path)})
    wait_for(lambda: run.governor.g_per_kwh == 100.0)
    assert run.governor.emitted(3.6e6).carbon_g == pytest.approx(150.0)
    assert [(row.start_s, row.pue) for row in run.read("pues")] == [
        (pytest.approx(now_s - 60), 1.5), (pytest.approx(now_s + 3600), 1.8),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["time,pue\n2022-01-01T00:00Z,0.7\n", "time,pue\n", "?"])
def test_a_pue_file_that_cannot_be_used_is_refused(tmp_path, wall, text):
    path = tmp_path / "pue.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"accounting\.pue_csv"):
        Run(tmp_path / "run", wall, [1.0], accounting={"pue_csv": str(path)})


def test_a_jump_of_the_wall_clock_is_noted(make, wall):
    run = make([100.0] * 9, carbon={"feeds": []})
    wait_for(lambda: run.governor.g_per_kwh == 450.0)
    wall.now_s += 7200.0
    wait_for(lambda: run.faults)
    assert len(run.faults) == 1
    kind, where, detail = run.faults[0]
    assert (kind, where) == (FaultKind.CLOCK_JUMPED, "wall clock")
    assert "+7200 s" in detail


def wait_for(holds):
    end_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_no_thread_is_left(make):
    make(DAY, carbon=WAITS).close()
    wait_for(lambda: all(t.name != "ecorl-carbon" for t in threading.enumerate()))


def test_a_provider_that_cannot_be_reached_keeps_nobody_waiting(make):
    pytest.importorskip("requests")
    # Nobody listens at this port of the loopback device.
    feed = {"type": "uk", "base_url": "http://127.0.0.1:9"}
    run = make(DAY, carbon={**WAITS, "feeds": [feed]})
    choice = run.until(Why.UNKNOWN)
    assert (choice.command, choice.g_per_kwh) == (Command.RUN, None)
    wait_for(lambda: len(run.faults) >= 2)
    kinds = {kind: (where, detail) for kind, where, detail in run.faults}
    where, detail = kinds[FaultKind.FEED_PASSED_OVER]
    assert where == "uk_carbon_intensity"
    assert detail.startswith("FeedUnreachable: ")
    assert FaultKind.INTENSITY_UNKNOWN in kinds


def test_a_mistake_of_the_control_path_neither_ends_nor_holds_a_training(make, monkeypatch):
    run = make(DAY, carbon=WAITS)
    run.until(Why.DIRTY)

    def broken(*args):
        raise ArithmeticError("a mistake in a rule")

    monkeypatch.setattr("ecorl.runtime.control.governor.decide", broken)
    for _ in range(3):
        choice = run.governor.tick()
        assert (choice.command, choice.why) == (Command.RUN, Why.UNKNOWN)
    assert [kind for kind, _, _ in run.faults] == [FaultKind.CONTROL_FAILED]
    assert run.faults[0][2] == "ArithmeticError: a mistake in a rule"
    # The pause ends in the record too.
    assert run.read("choices")[-1].choice.command is Command.RUN


def test_an_average_that_is_still_asked_for_is_not_yet_unknown(make, monkeypatch):
    pytest.importorskip("watttime")
    monkeypatch.setenv("WATTTIME_USER", "somebody")
    monkeypatch.setenv("WATTTIME_PASSWORD", "a word")
    marginal = {"type": "watttime", "region": "CAISO_NORTH", "base_url": "http://127.0.0.1:9"}
    average = {"type": "constant", "g_per_kwh": 100.0, "source": "stated"}
    monkeypatch.setattr(GridWatch, "start", lambda self: None)
    run = make(DAY, carbon={**WAITS, "feeds": [average, marginal], "waits_for": "marginal"})
    run.governor._watch._count(MarginalIntensity, None, "unknown")
    assert run.governor.g_per_kwh is None
    assert [row.kind for row in run.read("intensities")] == [MarginalIntensity]
    assert [where for _, where, _ in run.faults] == ["marginal"]
