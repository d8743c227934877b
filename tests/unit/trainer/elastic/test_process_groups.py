from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

from ecorl.errors import ConfigError, MissingToolError
from ecorl.trainer.elastic.groups import (
    CollectiveFailed,
    GroupCache,
    GroupOptions,
    MeetingPlace,
    ProcessGroup,
)
from tests.toy_task import together

HOST = "127.0.0.1"


@pytest.fixture
def place():
    return MeetingPlace(HOST)


def meet(place, members="ab", options=None):
    """The ends of a group in one process."""
    spec, options = place.spec(members), options or GroupOptions(timeout_s=120.0)
    return together(
        *(lambda i=i: ProcessGroup(spec, i, options, HOST) for i in range(len(members)))
    )


def test_groups_lie_beside_each_other_in_one_process(place):
    first, second = meet(place), meet(place, "abc")
    pair = [torch.full((5,), float(i)) for i in (1, 2)]
    three = [torch.full((5,), float(i)) for i in (1, 2, 4)]
    together(
        *(lambda g=g, t=t: g.all_reduce(t) for g, t in zip(first, pair, strict=True)),
        *(lambda g=g, t=t: g.all_reduce(t) for g, t in zip(second, three, strict=True)),
    )
    assert all(torch.equal(t, torch.full((5,), 3.0)) for t in pair)
    assert all(torch.equal(t, torch.full((5,), 7.0)) for t in three)
    together(*(lambda g=g, t=t: g.broadcast(t, 1) for g, t in zip(first, pair, strict=True)))
    assert all(g.is_usable and g.is_idle for g in (*first, *second))


class Work:
    """A collective that is over after some looks; a wait with a time-out would end its group."""

    def __init__(self, n_looks):
        self.n_looks, self.n_waits = n_looks, 0

    def is_completed(self):
        self.n_looks -= 1
        return self.n_looks <= 0

    def wait(self):
        self.n_waits += 1


class Made:
    """What torch would make for a group."""

    def __init__(self, work):
        self.work, self.is_aborted = work, False

    def allreduce(self, tensors):
        return self.work

    def abort(self):
        self.is_aborted = True


@pytest.fixture
def group_of(place, monkeypatch):
    """Make a group whose collectives are a given one."""

    def make(work, backend="nccl"):
        made = Made(work)
        monkeypatch.setattr("ecorl.trainer.elastic.groups._make", lambda *_: made)
        return ProcessGroup(place.spec("ab"), 0, GroupOptions(backend=backend), HOST), made

    return make


def test_a_collective_of_nccl_is_never_waited_for_with_a_time_out(group_of):
    work = Work(n_looks=5)
    group, _ = group_of(work)
    group.all_reduce(torch.ones(3))
    assert work.n_waits == 1
    assert group.is_usable


class Gloo:
    """A collective that is not over after a turn, and is over when somebody looks after it."""

    def __init__(self, ends_with=None):
        self.ends_with, self.is_over = ends_with, False

    def is_completed(self):
        return self.is_over

    def wait(self, turn=None):
        if turn is not None:
            self.is_over = True
            raise RuntimeError("Operation timed out!")
        if self.ends_with is not None:
            raise RuntimeError(self.ends_with)


def test_a_collective_that_completes_at_the_end_of_a_turn_has_not_failed(group_of):
    group, _ = group_of(Gloo(), backend="gloo")
    group.all_reduce(torch.ones(3))
    assert group.is_usable


def test_a_collective_that_fails_at_the_end_of_a_turn_says_what_failed(group_of):
    group, _ = group_of(Gloo("the peer is gone"), backend="gloo")
    with pytest.raises(CollectiveFailed, match="the peer is gone"):
        group.all_reduce(torch.ones(3))
    assert not group.is_usable


def abort_under_way(group):
    """Abort a group in a thread of its own, once a collective is under way in it."""

    def abort():
        limit_s = time.monotonic() + 240
        while group.is_idle and time.monotonic() < limit_s:
            time.sleep(0.01)
        group.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    return thread


def test_who_waits_for_nccl_leaves_when_the_group_is_aborted(group_of):
    group, made = group_of(Work(n_looks=10**9))
    aborts = abort_under_way(group)
    with pytest.raises(CollectiveFailed, match="aborted"):
        group.all_reduce(torch.ones(3))
    aborts.join()
    assert made.is_aborted
    assert not group.is_usable


PEER = """
import os, signal, sys, torch
from ecorl.trainer.elastic.groups import GroupOptions, GroupSpec, ProcessGroup
spec = GroupSpec(("a", "b"), 1, "127.0.0.1", int(sys.argv[1]))
group = ProcessGroup(spec, 1, GroupOptions(timeout_s=240.0), "127.0.0.1")
group.all_reduce(torch.ones(3))
os.kill(os.getpid(), signal.SIGKILL if sys.argv[2] == "killed" else signal.SIGSTOP)
"""


@pytest.fixture
def peer(place):
    started, groups = [], []

    def start(end):
        spec = place.spec("ab")
        command = [sys.executable, "-c", PEER, str(spec.port), end]
        started.append(subprocess.Popen(command))
        group = ProcessGroup(spec, 0, GroupOptions(timeout_s=240.0), HOST)
        group.all_reduce(torch.ones(3))
        groups.append(group)  # to delete it would wait for what is under way in it
        return group

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_killed_peer_is_noticed_and_the_group_not_used_again(peer):
    group = peer("killed")
    with pytest.raises(CollectiveFailed):
        group.all_reduce(torch.ones(3))
    assert not group.is_usable
    with pytest.raises(CollectiveFailed, match="given up"):
        group.all_reduce(torch.ones(3))


def test_who_waits_for_a_silent_peer_leaves_when_the_group_is_aborted(peer):
    group = peer("stopped")
    aborts = abort_under_way(group)
    # Else it would leave for the group's own time-out.
    with pytest.raises(CollectiveFailed, match="aborted"):
        group.all_reduce(torch.ones(3))
    aborts.join()
    assert not group.is_usable
    assert not group.is_idle  # so that nobody deletes it, which would wait


def test_a_silent_peer_is_given_up_after_the_time_out(place):
    groups = meet(place, options=GroupOptions(timeout_s=0.5))
    with pytest.raises(CollectiveFailed):
        groups[0].all_reduce(torch.ones(3))


def test_a_group_whose_members_do_not_come_is_not_made(place):
    with pytest.raises(CollectiveFailed, match="not made"):
        ProcessGroup(place.spec("ab"), 0, GroupOptions(timeout_s=0.5), HOST)


def caches(place, members="ab"):
    return [GroupCache(one, GroupOptions(timeout_s=120.0), HOST) for one in members]


def join(place, caches, members="ab", spec=None):
    spec = spec or place.spec(members)
    assert together(*(lambda c=c: c.join(spec) for c in caches)) == [None] * len(caches)
    return spec


def test_a_group_is_kept_under_its_members_until_one_is_gone(place):
    a, b, c = caches(place, "abc")
    join(place, (a, b))
    join(place, (a, b, c), "abc")
    kept = a.get("ab")
    assert a.get("ab") is kept
    assert b.get("abc").rank == 1
    a.forget("c")
    assert a.get("ab") is kept
    with pytest.raises(CollectiveFailed, match=r"\ba, b, c\b"):
        a.get("abc")
    a.abort("ab")
    with pytest.raises(CollectiveFailed, match=r"\ba, b\b"):
        a.get("ab")
    assert not kept.is_usable


def test_a_meeting_that_ends_late_does_not_replace_a_newer_group(place):
    both = caches(place)
    older, newer = place.spec("ab"), place.spec("ab")
    join(place, both, spec=newer)
    kept = both[0].get("ab")
    # Who has met gives the older group up at once, and the other may find it gone while it meets.
    together(*(lambda c=c: c.join(older) for c in both))
    assert both[0].get("ab") is kept
    join(place, both, spec=replace(older, serial=newer.serial + 1))
    assert both[0].get("ab") is not kept


def test_an_abort_that_comes_late_leaves_a_newer_group(place):
    both = caches(place)
    join(place, both)
    n_groups = place.n_groups
    newer = join(place, both)
    kept = both[0].get("ab")
    both[0].abort("ab", n_groups)
    assert both[0].get("ab") is kept
    both[0].abort("ab", newer.serial)
    assert not kept.is_usable


def test_back_ends_that_cannot_be_are_refused(place):
    with pytest.raises(ConfigError, match=r"gloo .*nccl"):
        GroupOptions(backend="mpi")
    if not torch.distributed.is_nccl_available():
        with pytest.raises(MissingToolError, match="NCCL"):
            ProcessGroup(place.spec("a"), 0, GroupOptions(backend="nccl"), HOST)
