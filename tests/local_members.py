"""Members of an elastic training as threads of this process, in the place of Ray's actors.

A member dies where its drill says so (`dies`), falls silent (`falls_silent`), or naps there
(`naps`). It has no process of its own whose end would close its connections: the others learn of
it by the time-out of their group, or from the driver. However busy the machine is, the answer to
a ping of one that has not fallen silent comes in time: it is waited for.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import suppress

from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError

from ecorl.trainer.elastic.crew import MemberHandle
from ecorl.trainer.elastic.member import Member

HOST = "127.0.0.1"

_here = threading.local()


class Died(BaseException):
    """Ends whatever a member does."""


def dies():
    _here.actor.kill()
    raise Died


def falls_silent():
    _here.actor.is_silent = True
    _here.actor.ended.wait(600.0)
    raise Died


def naps(time_s):
    """Answers pings meanwhile; an end of the member ends the nap."""
    if _here.actor.ended.wait(time_s):
        raise Died


class LocalActor:
    def __init__(self, name, task, options):
        self.ended, self.is_silent = threading.Event(), False
        self._member = Member(name, task, options, HOST)
        self._pools = {
            group: ThreadPoolExecutor(n) for group, n in {"train": 1, "side": 2, "meet": 4}.items()
        }
        self._open = set()

    def __getattr__(self, method):
        return LocalMethod(self, method)

    def call(self, group, method, args):
        answer = Future()
        answer.pinged = self if method == "ping" else None
        if self.ended.is_set():
            answer.set_exception(ActorDiedError())
        else:
            self._open.add(answer)
            self._pools[group].submit(self._run, answer, method, args)
        return answer

    def kill(self):
        self.ended.set()
        for answer in list(self._open):
            with suppress(InvalidStateError):
                answer.set_exception(ActorDiedError())
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, answer, method, args):
        _here.actor = self
        if self.is_silent:
            self.ended.wait(600.0)
        with suppress(InvalidStateError, Died):
            try:
                answer.set_result(getattr(self._member, method)(*args))
            except Exception as error:  # noqa: BLE001 - as Ray does with whatever a task raises
                task_error = RayTaskError(method, f"Traceback\n{error!r}", error)
                answer.set_exception(task_error.as_instanceof_cause())
        self._open.discard(answer)


class LocalMethod:
    def __init__(self, actor, method):
        self._actor, self._method, self._group = actor, method, "train"

    def options(self, concurrency_group):
        self._group = concurrency_group
        return self

    def remote(self, *args):
        return self._actor.call(self._group, self._method, args)


def await_ping(answer):
    actor = answer.pinged
    while actor and not (answer.done() or actor.is_silent or actor.ended.is_set()):
        time.sleep(0.001)


def wait(references, *, num_returns=1, timeout=None, fetch_local=True):
    for one in references:
        await_ping(one)
    end_s = time.monotonic() + (1e9 if timeout is None else timeout)
    while True:
        ready = [one for one in references if one.done()][:num_returns]
        left_s = end_s - time.monotonic()
        if len(ready) == num_returns or left_s <= 0:
            return ready, [one for one in references if one not in ready]
        waiting = [one for one in references if not one.done()]
        wait_for_futures(waiting, left_s, return_when=FIRST_COMPLETED)


def get(reference, timeout=None):
    try:
        return reference.result(timeout)
    except TimeoutError:
        raise GetTimeoutError from None


def use_local_members(monkeypatch):
    """Lets trainers make threads where they would make actors; returns these by name."""
    made = {}

    def make(staff):
        staff._n_hired += 1
        name = f"member-{staff._n_hired}"
        made[name] = LocalActor(name, staff._task, staff.options.member)
        member = MemberHandle(name, made[name], staff.meeting)
        staff._alive[name] = member
        return member

    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: HOST)
    monkeypatch.setattr("ray.put", lambda one: one)
    monkeypatch.setattr("ray.wait", wait)
    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr("ray.kill", lambda actor: actor.kill())
    monkeypatch.setattr("ecorl.trainer.elastic.crew.Staff._make", make)
    return made
