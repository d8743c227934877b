"""The demo over a Ray cluster of two nodes on this machine: ``make demo-ray``.

    head     the trainer, the scheduler, a monitor
    cards    two cards, {"FPGA": 2}: a worker for rewards and one for the reference, a monitor

Both nodes are started as a user would start them on two machines, with ``ray start``, on the
loopback device, and ended when the run is over.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

LOOPBACK = "127.0.0.2"
"""An address of the loopback device. Not 127.0.0.1, which Ray takes for another name of the
machine's address on the network."""

PATIENCE_S = 60.0
_OBJECT_STORE_BYTES = 200_000_000


@contextlib.contextmanager
def two_nodes() -> Iterator[dict[str, str]]:
    """Start the two nodes; yields the variables with which a process joins them.

    They have a token of their own: Ray's nodes would take that of its user, and what joins them by
    an address would not.

    Raises:
        TimeoutError: when they do not come up.
    """
    address = f"{LOOPBACK}:{_free_port()}"
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    own = {**os.environ, **token}
    own.pop("RAY_ADDRESS", None)
    joining = {"RAY_ADDRESS": address, **token}
    common = [f"--node-ip-address={LOOPBACK}", f"--object-store-memory={_OBJECT_STORE_BYTES}"]
    head = ["--head", f"--port={address.rpartition(':')[2]}", "--node-name=head", "--num-cpus=2",
            "--include-dashboard=false"]  # fmt: skip
    cards = [f"--address={address}", "--node-name=cards", "--num-cpus=2",
             '--resources={"FPGA": 2}']  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.enter_context(_node([*head, *common], own))
        _wait_for(1, own | joining)
        stack.enter_context(_node([*cards, *common], own))
        _wait_for(2, own | joining)
        yield joining


@contextlib.contextmanager
def _node(options: Sequence[str], env: Mapping[str, str]) -> Iterator[None]:
    """Run one node until the block ends."""
    ray = str(Path(sys.executable).with_name("ray"))
    node = subprocess.Popen(
        [ray, "start", "--block", "--disable-usage-stats", *options],
        env=dict(env),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        # The whole group: the node's processes are children of the command.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(10.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def _wait_for(n_nodes: int, env: Mapping[str, str]) -> None:
    """Wait until the cluster has so many nodes."""
    probe = (
        "import ray; ray.init(log_to_driver=False); "
        "raise SystemExit(sum(n['Alive'] for n in ray.nodes()) < "
        f"{n_nodes})"
    )
    limit_s = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(subprocess.SubprocessError):  # Ray itself tries for ever
            subprocess.run(
                [sys.executable, "-c", probe],
                env=dict(env),
                capture_output=True,
                timeout=PATIENCE_S,
                check=True,
            )
            return
        if time.monotonic() > limit_s:
            raise TimeoutError(
                f"the Ray cluster at {env['RAY_ADDRESS']} has not {n_nodes} nodes in time"
            )
        time.sleep(0.5)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def main(arguments: Sequence[str]) -> int:
    """Run the demo over two nodes; further arguments go to ``ecorl run``.

    Args:
        arguments: of the command line.

    Returns:
        Exit code of the run.
    """
    print("starting a Ray cluster of two nodes on this machine", flush=True)
    with two_nodes() as joining:
        command = ["run", "--config", "demo", "--set", 'runtime.type="ray"', *arguments]
        return subprocess.run(
            [sys.executable, "-m", "ecorl.cli", *command],
            env={**os.environ, **joining},
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
