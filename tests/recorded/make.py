"""Train the runs whose records lie in `sets`, and keep each ledger as text.

    python -m tests.recorded.make [NAME ...]

The runs take some minutes. Each goes by a preset that is shortened, with the demo's models:

    plain        trained on the host alone; power and counter read from the tests' NVML
    demo         rewards and reference from the kernels and from the host in turn
    demo-carbon  numbers of processes, gears and pauses by the grid
    demo-all     all of it in one run, over a Ray cluster that the run starts
    demo-ray     the demo over a Ray cluster of two nodes
    resumed      killed behind a checkpoint and gone on with, so that work was thrown away
    killed       killed and left as it was

A run's machine is called `HOST` by the kernel itself, in a namespace of its own (``unshare``). The
paths of this machine are replaced in what was recorded, by `neutral`, and nothing else is edited: a
record that is too large comes from a run that is too long.

What the product makes of the records is written by ``pytest tests/recorded --renew``.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ecorl.errors import EcorlError
from ecorl.ledger import LEDGER_FILE, LedgerReader
from tests.fakes.nvml.fake_nvml import FakeNvml, build
from tests.recorded.dump import dump

ROOT = Path(__file__).parents[2]
SETS = Path(__file__).with_name("sets")
TABLES = ROOT / "ecorl" / "config" / "presets" / "tables"
TABLES_PATH = "/tables"
"""Stands for the folder of the tables by which the presets' controllers go."""
HOST = "host"
PATIENCE_S = 600.0
MOST_BYTES = 500_000
"""Of the text of one ledger."""

ECORL = ("ecorl.cli", "run")
ON_A_GPU = ("tests.recorded.as_on_a_gpu", "run")
TWO_NODES = ("roll_adapters.demo.two_machines",)

HOST_ALONE = 'placement.policy={type="static", reward="gpu", reference="gpu"}'
BOTH_PATHS = ("trainer.steps=24", "trainer.save_every=8", "placement.n_profiling=12")


@dataclass(frozen=True)
class Recipe:
    """How a run is made.

    Attributes:
        preset: by which it is made.
        settings: keys that differ, as ``--set`` takes them.
        module: that is run, with what stands before its options.
        killed_at: step behind which it is killed; None: it ends by itself.
        resumed: whether it goes on after that.
    """

    preset: str
    settings: tuple[str, ...] = ()
    module: tuple[str, ...] = ECORL
    killed_at: int | None = None
    resumed: bool = False


RECIPES = {
    "plain": Recipe(
        "demo",
        (
            "trainer.steps=24", HOST_ALONE, "placement.profile_both_paths=false",
            'telemetry.gpu={type="nvml", interval_s=0.05}', "devices.gpu=h100_sxm",
        ),
        ON_A_GPU,
    ),
    "demo": Recipe("demo", BOTH_PATHS),
    "demo-carbon": Recipe(
        "demo-carbon",
        ("trainer.steps=60", "gears.measure_every=10", "carbon.control.deadline_in_s=60"),
    ),
    "demo-all": Recipe(
        "demo-all",
        (
            "trainer.steps=60", "gears.measure_every=10", "placement.n_profiling=20",
            "carbon.control.deadline_in_s=90",
        ),
    ),
    "demo-ray": Recipe("demo", BOTH_PATHS, TWO_NODES),
    "resumed": Recipe("demo", BOTH_PATHS, killed_at=12, resumed=True),
    "killed": Recipe("demo", BOTH_PATHS, killed_at=12),
}  # fmt: skip


def make(name: str, recipe: Recipe, work: Path) -> None:
    """Train one run and write its set."""
    folder = work / name
    settings = [
        f"run_dir={folder}", f"name={name}", f"task.cache_dir={work / 'tasks'}", "task.n_eval=32",
        *recipe.settings,
    ]  # fmt: skip
    # What starts two nodes names the preset itself.
    options = [] if recipe.module == TWO_NODES else ["--config", recipe.preset]
    options += [word for setting in settings for word in ("--set", setting)]
    environment = {}
    if recipe.module == ON_A_GPU:
        fake = FakeNvml(build(work / "nvml"), work / "nvml" / "control")
        fake.set("devices 1")
        environment = fake.child_environment()
    run([*recipe.module, *options], environment, killed_behind(folder, recipe.killed_at))
    if recipe.resumed:
        run([*ECORL, "--resume", str(folder)], environment)
    write_set(name, folder, work)


def run(words: list[str], environment: dict[str, str], ends: Callable[[], bool] | None = None):
    """Run a module in a namespace of its own; where `ends` is given, kill it once that holds."""
    command = ["unshare", "--user", "--map-root-user", "--uts", "sh", "-c",
               'hostname "$0" && exec "$@"', HOST, sys.executable, "-m", *words]  # fmt: skip
    told = {**os.environ, **environment, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, env=told) as process:
        limit_s = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            if time.monotonic() > limit_s:
                process.kill()
                raise SystemExit(f"{' '.join(words)}: not over after {PATIENCE_S:g} s")
            if ends is not None and ends():
                process.send_signal(signal.SIGKILL)
                process.wait()
                time.sleep(2.0)  # its own processes notice that it is gone
                return
            time.sleep(0.02)
    if process.returncode or ends is not None:
        raise SystemExit(f"{' '.join(words)}: exit code {process.returncode}")


def killed_behind(folder: Path, step: int | None) -> Callable[[], bool] | None:
    """Whether a run's record holds a step."""
    if step is None:
        return None

    def reached() -> bool:
        with contextlib.suppress(EcorlError), LedgerReader(folder) as reader:
            return any(m.iteration >= step for m in reader.metrics("loss"))
        return False

    return reached


def write_set(name: str, folder: Path, work: Path) -> None:
    """Keep a run's records: its ledgers as text, and its config."""
    kept = SETS / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    texts = {"config.toml": (folder / "config.toml").read_text("utf-8")}
    for ledger in (folder / LEDGER_FILE, *sorted(folder.glob("nodes/*.sqlite"))):
        texts[str(ledger.relative_to(folder).with_suffix(".sql"))] = dump(ledger)
    for table in TABLES.glob("*.toml"):  # a report reads the one that its config names
        if str(table) in texts["config.toml"]:
            texts[f"tables/{table.name}"] = table.read_text("utf-8")
    for path, text in texts.items():
        text = neutral(text, work)
        if len(text.encode()) > MOST_BYTES:
            raise SystemExit(f"{name}/{path}: {len(text.encode()):,} bytes; make a shorter run")
        (kept / path).parent.mkdir(exist_ok=True)
        (kept / path).write_text(text, "utf-8")


def neutral(text: str, work: Path) -> str:
    """A text without paths of this machine.

    Raises:
        SystemExit: where one is left, or this machine's name.
    """
    for path, stands_for in {TABLES: TABLES_PATH, work: "/recorded", ROOT: "/source"}.items():
        text = text.replace(str(path), stands_for)
    own = [str(Path.home()) + "/", str(ROOT.parent), sys.prefix, tempfile.gettempdir() + "/"]
    names = rf"\b{re.escape(platform.node())}\b"
    left = [line for line in text.splitlines() if any(o in line for o in own)]
    left += [line for line in text.splitlines() if re.search(names, line)]
    if left:
        raise SystemExit("this machine is named in the record:\n" + "\n".join(left)[:2000])
    return text


def main(names: list[str]) -> None:
    """Make the sets that are named, or all."""
    with tempfile.TemporaryDirectory(prefix="recorded-") as work:
        for name in names or RECIPES:
            print(f"== {name}", flush=True)
            make(name, RECIPES[name], Path(work))


if __name__ == "__main__":
    main(sys.argv[1:])
