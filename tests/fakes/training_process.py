"""A stand-in for a training process: it speaks the supervisor's protocol and counts steps.

The run's folder holds ``steps.jsonl``, a line a step. What a process does wrong, and when, stands
in the variable `FAULTS`; each fault befalls one process only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from ecorl.child_process import die_with_parent, hear_keyboard
from roll_adapters.trl.launch.handover import WidthHandover
from roll_adapters.trl.launch.messages import (
    Begin,
    Begun,
    Channel,
    Ended,
    Failed,
    FilesPrepared,
    Go,
    Left,
    StandbyReady,
)

MODULE = "tests.fakes.training_process"
PLAN = "STAND_IN_PLAN"
"""From which step on which width is wanted, as JSON."""
FAULTS = "STAND_IN_FAULTS"
"""List of ``{width, rank, when, how}`` as JSON."""
TRIES = "STAND_IN_TRIES"
"""How many times a width may fail before rank 0 waits for it no more."""
CLUSTER = "STAND_IN_CLUSTER"
"""The cluster that the processes join."""
LOST = "cluster-is-lost"
"""File in the run's folder that is there while that cluster is lost."""
N_STEPS = 12
STEP_S = 0.02

RANK, WIDTH = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class StandIn:
    def __init__(self, channel: Channel, begin: Begin) -> None:
        self.channel, self.begin, self.folder = channel, begin, Path(begin.run_dir)
        # The ranks of a group find one another by the port that was chosen for it.
        self.group = os.environ.get("MASTER_PORT", str(os.getpid()))
        self.stops = False
        self.n_dropped = 0

    def fault(self, when: str) -> None:
        for number, fault in enumerate(json.loads(os.environ.get(FAULTS, "[]"))):
            if (fault["width"], fault["rank"], fault["when"]) != (WIDTH, RANK, when):
                continue
            try:
                (self.folder / f"fault-{number}").touch(exist_ok=fault.get("always", False))
            except FileExistsError:
                continue
            self.befall(fault["how"])

    def befall(self, how: str) -> None:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            print("something went wrong here", file=sys.stderr, flush=True)
            os._exit(3)
        if how == "abort":
            print("terminate called without an active exception", file=sys.stderr, flush=True)
            os.abort()
        if how == "vanish":
            os._exit(0)
        if how == "child":
            child = subprocess.Popen(["sleep", "60"])
            (self.folder / "child").write_text(str(child.pid))
        if how == "await stop":
            while not self.stops:
                time.sleep(0.002)
        if how == "dawdle":
            time.sleep(0.3)
        if how == "hang":
            time.sleep(600)
        if how == "raise":
            self.channel.send(Failed("RuntimeError", "no good", "Traceback: no good\n"))
            os._exit(1)
        if how == "memory":
            # Not before others load beside this one: that is the fault after this one in the list.
            limit_s = time.monotonic() + 240
            while not (self.folder / "fault-1").exists() and time.monotonic() < limit_s:
                time.sleep(0.005)
            self.channel.send(Failed("OutOfMemoryError", "CUDA out of memory", "Traceback: no\n"))
            os._exit(1)
        if how == "broken":
            self.channel.send(Failed("RuntimeError", "connection closed by peer", "Traceback\n"))
            os._exit(1)
        if how == "user":
            self.channel.send(Failed("CheckpointError", "/there: is no checkpoint"))
            os._exit(2)
        if how in ("cluster", "cluster and this"):
            (self.folder / LOST).touch()
            if how == "cluster and this":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        if how == "supervisor":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)
        if how == "terminated":
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(600)
        if how == "garbage":
            self.channel._connection.sendall(b'{"message": "Left"}\nnonsense\n\xff\n[]\n{"a": 1}\n')

    # ------------------------------------------------------------ the course of a run

    def done(self) -> int:
        file = self.folder / "steps.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return json.loads(lines[-1])["step"] if lines else 0

    def meet(self, name: object) -> None:
        """Wait until all ranks have come by here, as a collective call does."""
        (self.folder / f"{self.group}-{name}-{RANK}").touch()
        for rank in range(WIDTH):
            while not (self.folder / f"{self.group}-{name}-{rank}").exists():
                time.sleep(0.002)

    def go(self) -> None:
        begin = self.begin
        self.fault("loading")
        if begin.how != "by" and RANK:
            assert isinstance(self.channel.wait(), FilesPrepared)
        elif begin.how != "by":
            self.channel.send(FilesPrepared())
        self.meet("loaded")
        if begin.how == "by" and not RANK:
            self.channel.send(StandbyReady(0))
            self.fault("ready")
            go = self.channel.wait()
            if not isinstance(go, Go):
                os._exit(4)
            assert go.left.step == self.done()
            reason = go.dropped.reason if go.dropped else None
            self.n_dropped = int(go.dropped is not None)
            (self.folder / f"go-{go.left.step}-{WIDTH}.json").write_text(json.dumps(reason))
            self.fault("go")
        self.meet("gone")
        if RANK:
            self.follow()
        self.train()

    def follow(self) -> None:
        """Make rank 0's steps with it."""
        while not (self.folder / f"{self.group}-over-0").exists():
            nearest = self.done() + 1
            if (self.folder / f"{self.group}-{nearest}-0").exists():
                self.fault("step")
                self.meet(nearest)
            time.sleep(0.002)
        self.fault("over")
        self.channel.send(Ended("complete"))
        self.fault("exit")
        os._exit(0)

    def train(self) -> None:
        plan = {int(step): width for step, width in json.loads(os.environ[PLAN]).items()}
        handover = WidthHandover(self.channel, WIDTH, (1, 2, 3))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        step = self.done()
        first = step + 1
        while step < N_STEPS and not self.stops:
            step += 1
            wanted = next((w for s, w in sorted(plan.items(), reverse=True) if s <= step), None)
            leaves = handover.wanted(wanted)
            dropped = handover.dropped()
            self.n_dropped += len(dropped)
            limit_s = time.monotonic() + 240
            # Until it may leave, or that is given up as often as it may be.
            while (
                wanted not in (None, WIDTH)
                and not leaves
                and self.n_dropped < int(os.environ[TRIES])
                and time.monotonic() < limit_s
            ):
                time.sleep(0.005)
                leaves, more = handover.wanted(wanted), handover.dropped()
                dropped += more
                self.n_dropped += len(more)
            self.fault("step")
            self.meet(step)
            self.note(step, [d.reason for d in dropped])
            if step == first:
                self.channel.send(Begun(step))
            if step == first + 1:
                self.fault("later")
            if leaves and step < N_STEPS and not self.stops:
                self.fault("leaving")
                self.channel.send(Left(handover.target, step, time.monotonic(), STEP_S))
                self.fault("left")
                break
        else:
            (self.folder / f"{self.group}-over-0").touch()
            self.fault("closing")
            self.channel.send(Ended("complete" if step >= N_STEPS else "stopped"))
        (self.folder / f"{self.group}-over-0").touch()
        os._exit(0)

    def stop(self, number: int, frame: object) -> None:
        self.stops = True
        print("stopping after this step", flush=True)

    def note(self, step: int, dropped: list[str]) -> None:
        time.sleep(STEP_S)
        line = {
            "step": step, "width": WIDTH, "pid": os.getpid(), "dropped": dropped,
            "how": self.begin.how, "lost": self.begin.lost, "cluster": os.environ.get(CLUSTER),
        }  # fmt: skip
        with (self.folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    fd, parent = (int(word) for word in sys.argv[1:3])
    die_with_parent(parent)
    channel = Channel(socket.socket(fileno=fd))
    hear_keyboard()
    begin = channel.wait()
    assert isinstance(begin, Begin)
    StandIn(channel, begin).go()


if __name__ == "__main__":
    main()
