"""Writes the demo's models and data into a folder of the user's, with a config and a script.

    policy/  reward/                        Hugging Face folders with tokenizers
    prompts.jsonl  eval.jsonl  pairs.jsonl  see `roll_adapters.demo.prepare`
    ecorl.toml                              a short training of them, for ``ecorl run``
    train.py  attach.toml                   a TRL script that attaches ecorl, and its config

A new folder appears under its name only when it is complete. In one that holds these files already
what is missing is put back, and what is there stays, changed or not.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import tomlkit
from rich.console import Console

from ecorl.config import ArithmeticTask
from ecorl.errors import ConfigError
from roll_adapters.demo import prepare as making

RECORD = "demo.json"
"""Says by which recipe and seed a folder was made, and of which files."""

_UNFINISHED = ".making-"
"""How the names of temporary folders begin."""

_CONFIG = """\
# A short training of the demo's models, as one of your own models would be configured. Every key is
# explained by `ecorl config reference`.
name = "demo-models"
algorithm = "grpo"
seed = {seed}

[task]
type = "files"
policy = {policy}
reward = {reward}
prompts = {prompts}
eval_prompts = {eval_prompts}
pairs = {pairs}

[trainer]
steps = 60
per_device_batch_size = 64
num_generations = 8
max_completion_length = 8
learning_rate = 4e-4
beta = 0.04

[placement]
n_profiling = 30                # the first half of the steps takes both sides in turn, ...
profile_both_paths = true

[placement.policy]
type = "lookahead"              # ... then this decides by what was measured
energy_weight = 1.0             # joules alone; with time_weight above 0 seconds count as well
time_weight = 0.0

[engine.offload]
type = "fpga"                   # a simulated card
"""

_ATTACH = """\
# All that a script needs which makes its own trainer; the time gives each training a folder.
name = "my-run"
run_dir = "runs/{name}-{seed}-{time}"
"""


def make_demo_folder(folder: Path, seed: int, cache_dir: Path, console: Console) -> list[str]:
    """Write the demo's models, data, config and script into a folder.

    Args:
        folder: a new or empty one, or one that this has made before.
        seed: of the models and data.
        cache_dir: folder in which they are kept once they are made.
        console: where the making is shown.

    Returns:
        What was written, relative to the folder: all files, those that were missing, or none.

    Raises:
        ConfigError: when the folder holds something else, or cannot be written.
        DataError: when the cache cannot be written.
    """
    target = folder.expanduser().resolve()
    recipe = making.Recipe(n_eval=ArithmeticTask().n_eval)
    if _is_made(target, folder, {"recipe": asdict(recipe), "seed": seed}):
        return []
    with _ending_on_sigterm(), _unfinished(target, folder) as temporary:
        made = making.prepare(cache_dir, seed, recipe.n_eval, console)
        with _writing(folder):
            _fill(temporary, target, made, {"recipe": asdict(recipe), "seed": seed})
            return _publish(temporary, target)


def _is_made(target: Path, folder: Path, origin: dict[str, Any]) -> bool:
    """Tell whether a folder holds all files of a demo already.

    Args:
        target: the folder.
        folder: the same as the user named it.
        origin: recipe and seed of the demo.

    Raises:
        ConfigError: when it holds anything else.
    """
    try:
        found = [path.name for path in target.iterdir()]
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError("DIR", str(folder), f"a folder ({error.strerror})") from error
    if all(name.startswith(_UNFINISHED) for name in found):
        return False
    try:
        record = json.loads((target / RECORD).read_text("utf-8"))
        seed, files = record["origin"]["seed"], [target / name for name in record["files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        allowed = "a folder that is new, empty or made by this command"
        raise ConfigError("DIR", str(folder), allowed) from error
    if seed != origin["seed"]:
        allowed = f"another folder, or --seed {seed}, of which this one is"
        raise ConfigError("DIR", str(folder), allowed)
    if record["origin"] != origin:
        allowed = "another folder: another release of ecorl has made this one"
        raise ConfigError("DIR", str(folder), allowed)
    return all(path.is_file() for path in files)


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what is unfinished is removed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror or error})"
        raise ConfigError("DIR", str(folder), allowed) from error


@contextlib.contextmanager
def _unfinished(target: Path, folder: Path) -> Iterator[Path]:
    """Make a folder for unfinished files; it is gone after the block, whatever happens.

    It lies in the target where that is there, which may be a file system of its own, else beside
    it. It is made before anything else, so that no work is lost where nothing can be written.
    """
    missing = [path for path in target.parents if not path.exists()]
    with _writing(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        where = target if target.exists() else target.parent
        outer = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=where))
    try:
        inner = outer / "demo"  # of the usual permissions, which the outer one has not
        inner.mkdir()
        yield inner
    finally:
        shutil.rmtree(outer, ignore_errors=True)
        with contextlib.suppress(OSError):  # one that holds something ends it
            for path in missing:
                path.rmdir()


def _fill(temporary: Path, target: Path, made: making.PreparedTask, origin: dict[str, Any]) -> None:
    """Put all files into the temporary folder, as they are to lie in the target."""
    sources = [path for path in sorted(made.folder.rglob("*")) if path.is_file()]
    sources.remove(made.folder / making.RECORD)  # the folder has one of its own
    names = [str(path.relative_to(made.folder)) for path in sources]
    for source, name in zip(sources, names, strict=True):
        (temporary / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source, temporary / name)
    (temporary / "ecorl.toml").write_text(_config(target, made, origin["seed"]), "utf-8")
    script = resources.files("roll_adapters.demo") / "train.py"
    (temporary / "train.py").write_text(script.read_text("utf-8"), "utf-8")
    (temporary / "attach.toml").write_text(_ATTACH, "utf-8")
    own = ["ecorl.toml", "attach.toml", "train.py"]
    record = {"origin": origin, "files": [*names, *own]}
    (temporary / RECORD).write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def _config(target: Path, made: making.PreparedTask, seed: int) -> str:
    """Write the config, with paths that hold from any folder."""
    files = {
        "policy": made.policy,
        "reward": made.reward,
        "prompts": made.prompts,
        "eval_prompts": made.eval_prompts,
        "pairs": made.pairs,
    }
    quoted = {
        key: tomlkit.string(str(target / path.name)).as_string() for key, path in files.items()
    }
    return _CONFIG.format(seed=seed, **quoted)


def _publish(temporary: Path, target: Path) -> list[str]:
    """Move the files into the target, but for those that it has; an interruption takes them back.

    Returns:
        What was moved.
    """
    names = [str(p.relative_to(temporary)) for p in temporary.rglob("*") if p.is_file()]
    if not target.exists():
        temporary.replace(target)
        return names
    moved: list[str] = []
    try:
        # The record first: after a power cut the rest is known to be missing.
        for name in sorted(names, key=lambda name: name != RECORD):
            if not (target / name).exists():
                (target / name).parent.mkdir(exist_ok=True)
                moved.append(name)
                (temporary / name).replace(target / name)
    except BaseException:
        for name in moved:
            (target / name).unlink(missing_ok=True)
        raise
    return moved
