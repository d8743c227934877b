"""Processor time of a tree of processes, against a kernel's table whose truth is known."""

import errno
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.child_process import SIMULATOR
from ecorl.errors import DeviceLost
from ecorl.records import DeviceKind
from ecorl.telemetry.sources import modelled
from ecorl.telemetry.sources.modelled import ModelledSource, ProcessStat, ProcessTree, tick_s
from ecorl.telemetry.sources.specs import MeteredDevice, PowerModel

INIT, ROOT = 1, 100


@dataclass
class Process:
    pid: int
    parent: int
    started: int
    name: str = "python"
    own: int = 0
    waited: int = 0
    is_zombie: bool = False
    ignores_children: bool = False
    is_of_tree: bool = True


class Kernel:
    """A table of processes as Linux keeps it; `meanwhile` happens one by one between two looks."""

    def __init__(self):
        self.table = {INIT: Process(INIT, 0, 0, is_of_tree=False)}
        self.table[ROOT] = Process(ROOT, INIT, 1, own=50, waited=70)
        self.worked = self.n_born = 0
        self.meanwhile = []

    def fork(self, parent, pid=None):
        self.n_born += 1
        pid = pid or ROOT + self.n_born
        is_of_tree = self.table[parent].is_of_tree
        self.table[pid] = Process(pid, parent, 1 + self.n_born, is_of_tree=is_of_tree)
        return pid

    def work(self, pid, ticks):
        self.table[pid].own += ticks
        self.worked += ticks if self.table[pid].is_of_tree else 0

    def exit(self, pid):
        process = self.table[pid]
        process.is_zombie = True
        for child in self.children(pid):
            self.table[child].parent = INIT
            self._let_go(child)
        self._let_go(pid)

    def wait(self, pid):
        process = self.table.pop(pid)
        self.table[process.parent].waited += process.own + process.waited

    def _let_go(self, pid):
        """Init waits at once; a parent that ignores its children's signal gets none of it."""
        process = self.table[pid]
        parent = self.table[process.parent]
        if process.is_zombie and (parent.pid == INIT or parent.ignores_children):
            del self.table[pid]

    def children(self, pid):
        return [p.pid for p in self.table.values() if p.parent == pid]

    # ------------------------------------------------------------ what the tree looks at

    def list_pids(self):
        found = []
        while later := [pid for pid in self.table if pid > max(found, default=0)]:
            found.append(min(later))
            self._happen()
        return found

    def read_stat(self, pid):
        self._happen()
        p = self.table.get(pid)
        return p and ProcessStat(p.name, p.parent, p.own, p.waited, p.started)

    def _happen(self):
        if self.meanwhile:
            self.meanwhile.pop(0)()


@pytest.fixture
def kernel(monkeypatch):
    return installed(Kernel(), monkeypatch)


def installed(kernel, monkeypatch):
    monkeypatch.setattr(modelled, "list_pids", kernel.list_pids)
    monkeypatch.setattr(modelled, "read_stat", kernel.read_stat)
    monkeypatch.setattr(modelled, "cgroup_folders", lambda pid: iter(()))
    return kernel


class Meter:
    """Ticks of a tree since it was opened."""

    def __init__(self, *pids):
        self.tree = ProcessTree(pids or (ROOT,))
        self.tree.open()
        self.zero_s = self.tree.cpu_time_s()

    def ticks(self):
        return round((self.tree.cpu_time_s() - self.zero_s) / tick_s())


# ---------------------------------------------------------------- any tree

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fork", "fork", "work", "work", "exit", "wait", "scan"]),
        st.integers(0, 30),
        st.integers(1, 9),
    ),
    max_size=60,
)


class Life:
    """Takes steps in a kernel: births, work, ends and waits of processes that a number chooses."""

    def __init__(self, kernel, orphans):
        self.kernel, self.orphans = kernel, orphans

    def step(self, kind, which, ticks):
        alive = [p for p in self.kernel.table.values() if not p.is_zombie]
        process = alive[which % len(alive)]
        if kind == "fork":
            pid = self.kernel.fork(process.pid)
            self.kernel.table[pid].ignores_children = self.orphans and ticks == 1
        elif kind == "work":
            self.kernel.work(process.pid, ticks)
        elif kind == "exit" and process.pid not in (INIT, ROOT):
            if self.orphans or not self.kernel.children(process.pid):
                self.kernel.exit(process.pid)
        elif kind == "wait":
            zombies = [p.pid for p in self.kernel.table.values() if p.is_zombie]
            if zombies:
                self.kernel.wait(zombies[which % len(zombies)])

    def run(self, steps, meter):
        """Take steps, those behind a scan during it; the ticks that each scan told."""
        told, rest = [0], list(steps)
        while rest:
            kind, which, ticks = rest.pop(0)
            if kind != "scan":
                self.step(kind, which, ticks)
                continue
            n = which % 5
            during, rest = rest[:n], rest[n:]
            for step in during:
                # Not at each look, so that steps fall on the late ones too.
                self.kernel.meanwhile += [lambda: None] * step[2]
                self.kernel.meanwhile.append(lambda s=step: self.step(*s))
            told.append(meter.ticks())
            while self.kernel.meanwhile:
                self.kernel.meanwhile.pop(0)()
            assert told[-2] <= told[-1] <= self.kernel.worked
        return told


@given(STEPS)
def test_a_tree_whose_children_are_waited_for_is_counted_to_the_tick(steps):
    with pytest.MonkeyPatch.context() as monkeypatch:
        kernel = installed(Kernel(), monkeypatch)
        meter = Meter()
        Life(kernel, orphans=False).run(steps, meter)
        meter.ticks()
        assert meter.ticks() == kernel.worked
        assert meter.tree.n_processes == sum(p.is_of_tree for p in kernel.table.values())


@given(STEPS)
def test_no_second_counts_twice_and_none_is_taken_back_whoever_waits(steps):
    with pytest.MonkeyPatch.context() as monkeypatch:
        kernel = installed(Kernel(), monkeypatch)
        meter = Meter()
        last = Life(kernel, orphans=True).run(steps, meter)[-1]
        for _ in range(3):
            assert last <= (last := meter.ticks()) <= kernel.worked


# ---------------------------------------------------------------- single cases


def test_a_child_that_ends_while_it_is_looked_for_counts_once(kernel):
    """Its parent's line is read before it goes, and has its time at the next look only."""
    meter = Meter()
    child = kernel.fork(ROOT)
    kernel.work(child, 40)
    assert meter.ticks() == 40

    def end():
        kernel.work(child, 3)
        kernel.exit(child)
        kernel.wait(child)

    n_listed = len(kernel.table)
    kernel.meanwhile = [lambda: None] * (n_listed + 1) + [end]  # behind the look at the root
    assert meter.ticks() == 40
    assert meter.ticks() == meter.ticks() == 43


def test_a_child_of_a_parent_that_was_born_behind_the_listing_is_not_taken_for_a_stranger(kernel):
    kernel.n_born = 50
    later = kernel.fork(INIT)  # so that the listing is not yet at its end
    meter = Meter()

    def bear():
        kernel.fork(ROOT, pid=ROOT + 10)
        kernel.fork(ROOT + 10, pid=later + 10)
        kernel.work(later + 10, 7)

    # Init, the root and the stranger are listed; then parent and child are born.
    kernel.meanwhile = [lambda: None, lambda: None, bear]
    meter.ticks()
    assert meter.ticks() == 7


def test_a_short_child_that_was_never_seen_counts_by_its_parents_wait(kernel):
    meter = Meter()
    child = kernel.fork(ROOT)
    grandchild = kernel.fork(child)
    kernel.work(child, 20)
    kernel.work(grandchild, 3)
    for pid in (grandchild, child):
        kernel.exit(pid)
        kernel.wait(pid)
    assert meter.ticks() == 23


def test_an_orphan_that_was_seen_is_followed_and_its_end_takes_nothing_from_others(kernel):
    meter = Meter()
    child = kernel.fork(ROOT)
    server = kernel.fork(child)
    kernel.work(server, 5)
    assert meter.ticks() == 5
    kernel.exit(child)
    kernel.wait(child)
    kernel.work(server, 100)
    assert (kernel.table[server].parent, meter.ticks()) == (INIT, 105)
    kernel.exit(server)
    # A child that was never seen, in the scan in which the orphan's line is gone.
    short = kernel.fork(ROOT)
    kernel.work(short, 30)
    kernel.exit(short)
    kernel.wait(short)
    assert meter.ticks() == 135


def test_children_for_which_no_parent_waits_count_as_far_as_they_were_read(kernel):
    meter = Meter()
    kernel.table[ROOT].ignores_children = True
    child = kernel.fork(ROOT)
    kernel.work(child, 40)
    assert meter.ticks() == 40
    kernel.work(child, 7)
    kernel.exit(child)
    kernel.work(ROOT, 1)
    assert meter.ticks() == 41
    meter.ticks()
    # Nothing is held against children that end later.
    kernel.table[ROOT].ignores_children = False
    short = kernel.fork(ROOT)
    kernel.work(short, 60)
    kernel.exit(short)
    kernel.wait(short)
    assert meter.ticks() == 101


def test_an_id_that_is_given_anew_is_another_process(kernel):
    meter = Meter()
    child = kernel.fork(ROOT)
    kernel.work(child, 40)
    meter.ticks()
    kernel.exit(child)
    kernel.wait(child)
    kernel.fork(INIT, pid=child)
    kernel.work(child, 1000)
    assert meter.ticks() == meter.ticks() == 40


def test_what_cannot_be_read_now_is_no_process_that_has_gone(monkeypatch):
    """Too many open files: no reading, where a second one would count the process anew."""

    def refuse(*args):
        raise OSError(errno.EMFILE, "Too many open files")

    tree = ProcessTree((os.getpid(),))
    tree.open()
    for name in ("open", "listdir"):
        with monkeypatch.context() as broken:
            broken.setattr(modelled.os, name, refuse)
            with pytest.raises(DeviceLost, match="Too many open files"):
                tree.cpu_time_s()
    assert tree.cpu_time_s() > 0


def test_processes_that_are_hidden_are_looked_at_once(kernel):
    hidden, look, asked = kernel.fork(INIT), kernel.read_stat, []

    def seen(pid):
        asked.append(pid)
        return None if pid == hidden else look(pid)

    modelled.read_stat = seen  # the fixture sets it back
    meter = Meter()
    meter.ticks()
    assert asked.count(hidden) == 1
    assert meter.ticks() == 0


def test_a_root_that_descends_from_another_counts_once(kernel):
    rank = kernel.fork(ROOT)
    meter = Meter(ROOT, rank)
    kernel.work(kernel.fork(rank), 8)
    assert meter.ticks() == 8
    kernel.exit(rank)
    for _ in range(2):
        kernel.table.pop(rank, None)
        with pytest.raises(DeviceLost, match=f"process {rank} "):
            meter.ticks()


def test_the_simulation_of_a_card_is_left_out_with_what_it_starts(kernel):
    meter = Meter()
    engine = kernel.fork(ROOT)
    kernel.work(engine, 2)  # before it has its name
    assert meter.ticks() == 2
    kernel.table[engine].name = SIMULATOR
    kernel.work(engine, 500)
    compiler = kernel.fork(engine)
    kernel.work(compiler, 300)
    kernel.work(ROOT, 10)
    assert meter.ticks() == 12
    # What it waits for is no part of what others wait for.
    short = kernel.fork(ROOT)
    kernel.work(short, 100)
    for pid in (compiler, short):
        kernel.exit(pid)
        kernel.wait(pid)
    assert meter.ticks() == 112
    kernel.table[engine].name = "ray::IDLE"
    kernel.work(engine, 1)
    kernel.exit(engine)
    kernel.wait(engine)
    # Its last tick, which came behind the last look at it, is in its parent's line.
    meter.ticks()
    assert meter.ticks() == 113
    assert len(SIMULATOR) <= 15


# ---------------------------------------------------------------- a control group


@pytest.fixture
def group(kernel, tmp_path, monkeypatch):
    """A control group with the root in it; sets its processes and its time in ticks."""
    (tmp_path / "below").mkdir()
    monkeypatch.setattr(modelled, "cgroup_folders", lambda pid: iter([tmp_path]))

    def write(usage, *pids, below=()):
        (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        (tmp_path / "below/cgroup.procs").write_text("".join(f"{pid}\n" for pid in below))
        usage_us = round(usage * tick_s() * 1e6)
        (tmp_path / "cpu.stat").write_text(f"usage_usec {usage_us}\nuser_usec 1\n")

    write(1000, ROOT)
    return write


def test_a_group_of_the_trees_own_tells_what_no_line_does(kernel, group):
    meter = Meter()
    kernel.table[ROOT].ignores_children = True
    child = kernel.fork(ROOT)
    kernel.work(child, 40)
    kernel.exit(child)
    group(1040, ROOT)
    assert meter.ticks() == 40
    # From here on lines and group agree, but for ticks that a line has not yet.
    kernel.work(ROOT, 5)
    group(1046, ROOT)
    assert meter.ticks() == 46
    kernel.work(ROOT, 5)
    group(1050, ROOT)
    assert meter.ticks() == 51


def test_a_step_with_a_stranger_in_the_group_counts_by_the_lines_alone(kernel, group):
    meter = Meter()
    stranger = kernel.fork(INIT)
    kernel.work(ROOT, 5)
    group(1300, ROOT, below=[stranger])
    assert meter.ticks() == 5
    group(1600, ROOT)
    assert meter.ticks() == 5  # it was there when the step began
    group(1610, ROOT)
    assert meter.ticks() == 15


@pytest.mark.parametrize("pids", [(ROOT, INIT), (ROOT, 0), ()])
def test_a_group_that_holds_others_is_not_used(kernel, group, pids):
    group(1000, *pids)
    meter = Meter()
    group(2000, ROOT)
    assert (meter.ticks(), meter.tree.cgroup) == (0, None)


def test_a_group_of_the_first_version(kernel, group, tmp_path):
    (tmp_path / "cpu.stat").write_text("nr_periods 0\n")
    assert Meter().tree.cgroup is None  # it tells no time
    (tmp_path / "cpuacct.usage").write_text("1000000000\n")
    meter = Meter()
    (tmp_path / "cpuacct.usage").write_text("3000000000\n")
    assert meter.ticks() == round(2 / tick_s())


# ---------------------------------------------------------------- modelled power from it


@pytest.mark.parametrize(
    ("kind", "busy", "source"),
    [(DeviceKind.CPU, 0.75, "modelled:cpu_time:tree"), (DeviceKind.GPU, 0.25, "modelled:cpu_time")],
)
def test_children_use_a_processor_and_feed_no_gpu(kernel, monkeypatch, kind, busy, source):
    monkeypatch.setattr(modelled, "read_stat", kernel.read_stat)
    meter = ModelledSource(MeteredDevice("d0", kind, model=PowerModel(20.0, 70.0, (ROOT,), 2)))
    clock_s = [0.0]
    meter._clock = lambda: clock_s[0]
    meter.open()
    child = kernel.fork(ROOT)
    kernel.work(ROOT, round(0.5 / tick_s()))
    kernel.work(child, round(1.0 / tick_s()))
    clock_s[0] = 1.0
    (sample,) = meter.read()
    assert sample.utilisation == pytest.approx(busy)
    assert sample.energy_j == pytest.approx(20.0 + 50.0 * busy)
    assert (sample.source, meter.describe()[0].source) == (source, source)
    # What a wait brings at once, of a child that was never seen, is no more than all cores.
    other = kernel.fork(ROOT)
    kernel.work(other, round(90.0 / tick_s()))
    kernel.exit(other)
    kernel.wait(other)
    clock_s[0] = 2.0
    assert meter.read()[0].utilisation == (1.0 if kind is DeviceKind.CPU else 0.0)


def test_a_control_group_is_named_as_a_source(kernel, group):
    model = PowerModel(20.0, 70.0, (ROOT,), 2)
    source = ModelledSource(MeteredDevice("cpu0", DeviceKind.CPU, model=model))
    source.open()
    assert source.describe()[0].source == "modelled:cpu_time:tree+cgroup"


def test_many_processes_are_read_more_seldom_and_no_energy_is_lost(kernel, monkeypatch):
    """A look that takes 1 ms is asked for every 200 ms; one of a second still once in a second."""
    took_s, now_s, cpu_s = [0.001], [0.0], [0.0]
    look = kernel.read_stat

    def slow_look(pid):
        cpu_s[0] += took_s[0]
        return look(pid)

    monkeypatch.setattr(modelled, "read_stat", slow_look)
    monkeypatch.setattr(modelled.time, "thread_time", lambda: cpu_s[0])
    model = PowerModel(20.0, 70.0, (ROOT,), 1)
    source = ModelledSource(MeteredDevice("cpu0", DeviceKind.CPU, model=model))
    source._clock = lambda: now_s[0]
    source.open()
    stepped = []
    for i in range(1, 300):
        now_s[0] = i / 128
        if i % 2 == 0:
            kernel.work(ROOT, 1)
        took_s[0] = 0.001 if i < 80 else 1.0
        (sample,) = source.read()
        if sample.energy_j is not None:
            stepped.append(i)
            assert sample.energy_j == pytest.approx(20 * now_s[0] + 50 * (i // 2) * tick_s())
        assert source.interval_s in (0.1, pytest.approx(0.2), pytest.approx(0.4), 1.0)
    # Polls of 0.2 s jitter down to 0.1 s, those of 1 s down to 0.5 s.
    assert stepped == [4, 17, 30, 43, 56, 69, 82, 146, 210, 274]


# ---------------------------------------------------------------- this kernel

BURN = """
import os, resource, subprocess, sys, time
def burn(s):
    until_s = time.process_time() + s
    while time.process_time() < until_s:
        sum(range(2000))
def told(pid, status, usage):
    return usage.ru_utime + usage.ru_stime
def child(s, *then):
    pid = os.fork()
    if pid == 0:
        burn(s)
        for one in then:
            one()
        os._exit(0)
    return pid
def seen():
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(own.ru_utime + own.ru_stime, flush=True)
    sys.stdin.readline()
seen()
burn(0.1)
pid = child(0.2, lambda: os.wait4(child(0.3), 0))
worker = child(0.2, seen)
total = told(*os.wait4(pid, 0))
total += told(*os.wait4(worker, 0))
own = resource.getrusage(resource.RUSAGE_SELF)
print(own.ru_utime + own.ru_stime + total, flush=True)
sys.stdin.readline()
"""


def test_real_children_count_as_much_as_the_kernel_tells_of_them():
    """A child with a child, neither ever looked at, and a worker that is looked at in its life."""

    def go_on():
        process.stdin.write("\n")
        process.stdin.flush()

    def own_s():
        return modelled.read_stat(os.getpid()).own * tick_s()

    talk = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", BURN], **talk) as process:
        start_s = float(process.stdout.readline())
        tree = ProcessTree((os.getpid(),))
        tree.open()
        before_s, own_before_s = tree.cpu_time_s(), own_s()
        go_on()
        process.stdout.readline()
        during_s = tree.cpu_time_s()
        go_on()
        told_s = float(process.stdout.readline()) - start_s
        gained_s = tree.cpu_time_s() - before_s - (own_s() - own_before_s)
        go_on()
    assert before_s < during_s
    assert told_s >= 0.8
    # Each process's line leaves out up to a tick of its user and one of its system time.
    assert gained_s == pytest.approx(told_s, abs=12 * tick_s())
