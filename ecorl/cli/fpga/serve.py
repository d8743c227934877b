"""``ecorl fpga serve``: rewards and reference log-probs over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from ecorl.cli.options import option, with_options
from ecorl.cli.output import say
from ecorl.errors import ConfigError, MissingToolError

if TYPE_CHECKING:
    from ecorl.engines.fpga.engine import FpgaEngine
    from ecorl.serve.server import ServiceEnd
    from ecorl.serve.settings import ServedModel, ServeSettings

ABANDONED = 1
"""Exit code of a service that a second signal, the deadline or a defect ended."""

_BODIES_AT_ONCE = 16
"""Bodies of the largest size that may be read or parsed at once. Assumed: a quarter of 64
clients."""

_OTHER_FILES = 512
"""Open files beside the connections of clients that wait. Assumed."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where the service listens, on what its model runs, and its limits."""

    host: str = option(
        "Address to listen on; beyond this machine a token is needed.", default="127.0.0.1"
    )
    port: int = option("0 takes a free one.", default=8642, min=0, max=65535)
    token_file: Path | None = option(
        "File with the token that clients show; else ECORL_SERVE_TOKEN, else none."
    )
    card: str = option("Profile of the card.", default="u55c")
    via: str | None = option(
        "Who runs the kernels: csim, xrt, or auto for xrt where it is installed; by default "
        "xrt with --bitstream, else csim."
    )
    bitstream: Path | None = option("xclbin for the cards, from make bitstream; takes xrt.")
    devices: list[int] | None = option(
        "XRT's number of a card; may repeat.", names=("--device",), min=0
    )
    threads: int | None = option("Host threads; by default all cores.", min=1, max=256)
    batch_delay_ms: float = option(
        "Longest wait of a row for batch-mates.", default=3.0, min=0, max=1000
    )
    max_batch_rows: int = option("Rows of a micro-batch at most.", default=64, min=1)
    max_batch_tokens: int = option(
        "Tokens of a micro-batch at most; a longer row goes alone.", default=16_384, min=1
    )
    queue_rows: int = option("Requests get a 429 while so many rows wait.", default=1024, min=1)
    waiting_rows: int = option(
        "Rows that wait beyond it at /openrlhf, whose clients know no 429.", default=4096, min=0
    )
    wait_s: float = option(
        "Longest time to an answer at /openrlhf, s.", default=170.0, min=1, max=86400
    )
    max_body_mib: int = option("Largest body of a request, MiB.", default=16, min=1, max=1024)
    read_timeout_s: float = option(
        "Longest time for a request to come in, or an answer unread, s.",
        default=30.0,
        min=0.1,
        max=3600,
    )
    engine_timeout_s: float = option(
        "Longest time of a micro-batch, s.", default=300.0, min=0.1, max=86400
    )
    drain_s: float = option(
        "Longest time to end after a signal, s.", default=30.0, min=1, max=86400
    )


@with_options
def serve(
    *,
    model: Annotated[Path, typer.Option(help="Folder of a checkpoint (Hugging Face).")],
    asked: ServeOptions,
) -> None:
    """Answer rewards or log-probs of a model over HTTP.

    Rewards of a reward model, log-probs of a causal language model. A reward model with a
    tokenizer.json also answers rewards of texts at /openrlhf, for OpenRLHF's --reward.remote_url
    http://127.0.0.1:8642/openrlhf (with a token: /openrlhf/TOKEN), and for the remote rewards of
    ROLL and verl.

    SIGTERM or Ctrl-C answers what was accepted and ends with exit code 0, also while the model is
    still loading; a second one ends at once, with exit code 1, as does a defect.
    """
    _check_libraries()
    from ecorl.serve import access
    from ecorl.serve.settings import ServeSettings

    settings = ServeSettings(
        batch_delay_s=asked.batch_delay_ms / 1000,
        max_batch_rows=asked.max_batch_rows,
        max_batch_tokens=asked.max_batch_tokens,
        queue_rows=asked.queue_rows,
        waiting_rows=asked.waiting_rows,
        wait_s=asked.wait_s,
        max_body_bytes=asked.max_body_mib << 20,
        max_reading_bytes=_BODIES_AT_ONCE * asked.max_body_mib << 20,
        read_timeout_s=asked.read_timeout_s,
        engine_timeout_s=asked.engine_timeout_s,
        drain_s=asked.drain_s,
    )
    token = access.load_token(asked.token_file, os.environ)
    options = _engine_options(asked.via, asked.bitstream, asked.devices, asked.threads)
    ended = None
    with _stopped_while_loading(), access.bind(asked.host, asked.port, token) as bound:
        # Clients connect while the model loads, and wait: those that retry for a few seconds alone
        # survive a restart of the service whatever the size of its model.
        access.listen(bound, asked.host, asked.port)
        _allow_connections(asked.queue_rows + asked.waiting_rows)
        engine, served = _loaded(model.expanduser(), asked.card, options, asked.devices)
        ended = _run(engine, served, settings, token, bound)
    if ended is not None:
        _tell_end(ended)


class _Stopped(KeyboardInterrupt):
    """A signal to stop that came while the model was loading."""


@contextlib.contextmanager
def _stopped_while_loading() -> Iterator[None]:
    """End with one line on a signal to stop, until the running service handles the signals."""
    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)  # a second one ends at once
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except _Stopped:
        say("stopped while the model was loading: nothing was accepted")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _allow_connections(n: int) -> None:
    """Raise this process's limit of open files, where it may: OpenRLHF connects for each sample."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = n + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_libraries() -> None:
    for name in ("h11", "prometheus_client", "starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise MissingToolError(f"ecorl fpga serve needs {name}: pip install 'ecorl[serve]'")


def _engine_options(
    via: str | None, bitstream: Path | None, devices: list[int] | None, threads: int | None
) -> dict[str, Any]:
    """Choose the backend and its host threads, as arguments of the engine.

    Raises:
        ConfigError: for options that exclude each other.
    """
    from ecorl.engines.fpga.card.backend import Host, KernelBackend

    host = via or ("csim" if bitstream is None else "xrt")
    if host not in get_args(Host):
        raise ConfigError("--via", host, f"one of {', '.join(get_args(Host))}")
    if host == "csim" and bitstream is not None:
        raise ConfigError("--bitstream", str(bitstream), "--via xrt; none with --via csim")
    if bitstream is not None:
        _check_bitstream(bitstream)
    if devices and len(set(devices)) < len(devices):
        raise ConfigError("--device", devices, "each card once")
    if devices and host == "csim":
        raise ConfigError("--device", devices, "--via xrt or a bitstream; none with --via csim")
    cards = tuple(devices or (0,))
    backend = KernelBackend(
        cast("Host", host), bitstream, cards, may_reset=True
    )  # no training here
    return {"backend": backend, "threads": threads or len(os.sched_getaffinity(0))}


def _check_bitstream(path: Path) -> None:
    """Refuse a bitstream of which a file is missing, before a model is loaded.

    Raises:
        ConfigError: naming the option, and what is not there.
    """
    from ecorl.engines.fpga.bitstream.manifest import missing_part

    try:
        missing = missing_part(path.expanduser())
    except RuntimeError as error:  # a user's folder, of a user that does not exist
        missing = str(error)
    if missing is not None:
        raise ConfigError("--bitstream", str(path), f"a file from make bitstream ({missing})")


def _loaded(
    folder: Path, card: str, options: Mapping[str, Any], devices: list[int] | None
) -> tuple[FpgaEngine, ServedModel]:
    """Load the engine that fits the checkpoint's head, and describe the model to clients.

    Raises:
        ConfigError: for numbers of cards where the model runs without XRT.
    """
    from ecorl.devices import load_profile
    from ecorl.engines.fpga.engine import FpgaEngine
    from ecorl.engines.fpga.int8_decoder import MAX_ROW
    from ecorl.engines.models.decoder_config import read_config
    from ecorl.engines.models.text_tokenizer import TextTokenizer, begin_of
    from ecorl.errors import CheckpointError
    from ecorl.plain_text import as_read
    from ecorl.records import Provenance, Stage
    from ecorl.serve.settings import ServedModel

    config = read_config(folder)
    stage = Stage.REWARD if config.is_reward else Stage.REFERENCE
    engine = FpgaEngine(folder, stage, device=card, **options)
    if devices and engine.host == "csim":
        engine.close()
        allowed = "a card of XRT, which is not installed or cannot run this model; else none"
        raise ConfigError("--device", devices, allowed)
    tokenizer, why = None, "a causal language model answers log-probs"
    if config.is_reward:
        try:
            tokenizer = TextTokenizer(folder)
        except CheckpointError as error:
            why = str(error)
    served = ServedModel(
        name=as_read(folder.resolve().name),
        stage=stage,
        vocab_size=engine.model.vocab_size,
        max_row_tokens=min(config.max_positions, MAX_ROW),
        provenance=Provenance.MEASURED if engine.on_card else Provenance.EMULATED,
        device_figures=load_profile(card).figures,
        tokenizer=tokenizer,
        why_no_texts=why,
        begin=tuple(begin_of(folder)),
    )
    return engine, served


def _run(
    engine: FpgaEngine,
    served: ServedModel,
    settings: ServeSettings,
    token: str | None,
    listening: socket.socket,
) -> ServiceEnd:
    from ecorl.engines.lanes.threaded import ThreadedEngine
    from ecorl.records import Stage
    from ecorl.serve.access import url_of
    from ecorl.serve.app import OPENRLHF, ScoringService, path_of
    from ecorl.serve.server import Runner

    url = url_of(listening)

    def started() -> None:
        at = url + path_of(engine.stage)
        say(f"serving {served.name}: POST {at}, token {'needed' if token else 'not needed'}")
        figures = "time measured" if engine.on_card else "time and energy modelled"
        say(f"values {served.provenance}, by {engine.host}; {engine.device}: {figures}")
        if served.tokenizer is not None:
            at = url + OPENRLHF + ("/TOKEN" if token else "")
            say(f"rewards of texts: POST {at}; OpenRLHF: --reward.remote_url {at}")
        elif engine.stage is Stage.REWARD:
            say(f"rewards of texts: {OPENRLHF} is not offered: {served.why_no_texts}")
        sys.stdout.flush()

    lane = ThreadedEngine(engine)
    try:
        ended = asyncio.run(
            Runner(ScoringService(lane, served, settings, token), listening).serve(started)
        )
        if ended.forced:
            lane.cancel_and_restart()  # a call that was given up is not waited for
        return ended
    finally:
        lane.close()


def _tell_end(ended: ServiceEnd) -> None:
    counts = (
        f"{ended.n_accepted} requests accepted, {ended.n_withdrawn} withdrawn by their clients, "
        f"{ended.n_failed} failed"
    )
    if ended.n_unread:
        counts += f", {ended.n_unread} answers not read by their clients"
    if ended.failure is None and not ended.forced:
        say(f"stopped: {counts}, all others answered")
        return
    why = "stopped at once" if ended.failure is None else f"the service failed: {ended.failure}"
    if ended.forced:
        counts += f", {ended.n_abandoned} abandoned"
    sys.stdout.flush()
    sys.stderr.write(f"ecorl: {why}: {counts}\n")
    sys.stderr.flush()
    # A thread may still be in a call of the engine; to end in the usual way is not safe then.
    os._exit(ABANDONED)
