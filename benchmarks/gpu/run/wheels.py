"""Packages for a machine without a network: fetched elsewhere as wheels, unpacked there.

``python3 -m benchmarks.gpu.run.wheels FOLDER`` fetches wheels for Python 3.12 on x86-64 Linux, in
the versions of ``constraints.txt``. The pass over the GPU unpacks of such a folder what its machine
lacks, into a temporary folder, and nothing else: a module that is there is never replaced.

Standard library only: it is used before anything else can be imported.
"""

from __future__ import annotations

import email
import importlib.util
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

CONSTRAINTS = Path(__file__).resolve().parents[3] / "constraints.txt"

FETCHED = (
    "trl", "datasets", "torchao", "accelerate", "pydantic", "pydantic-core", "annotated-types",
    "typing-inspection", "typing-extensions", "tomlkit", "dill", "multiprocess", "xxhash",
    "nvidia-ml-py", "psutil", "filelock", "jinja2", "markupsafe", "rich", "markdown-it-py", "mdurl",
    "pygments", "typer", "shellingham", "annotated-doc", "click", "huggingface-hub", "hf-xet",
    "httpx2", "httpcore2", "h11", "anyio", "idna", "truststore", "fsspec", "tokenizers",
    "safetensors", "tqdm", "pyyaml", "packaging",
)  # fmt: skip
"""All that ecorl, TRL and torchao need, but for `LARGE`."""

LARGE = ("torch", "transformers", "numpy", "matplotlib", "onnxruntime", "pandas", "pyarrow")
"""What is needed as well and too large to carry: the machine has to have it."""

LIMIT_BYTES = 40 * 2**20
"""Largest size of all wheels together, bytes."""

_TARGET = ("--python-version=3.12", "--implementation=cp", "--platform=manylinux_2_28_x86_64",
           "--platform=manylinux_2_24_x86_64", "--platform=manylinux_2_17_x86_64",
           "--platform=manylinux2014_x86_64")  # fmt: skip
_LEGACY = {"manylinux1": "2_5", "manylinux2010": "2_12", "manylinux2014": "2_17"}
"""Releases of glibc behind the old names of platforms."""


class Platform(NamedTuple):
    """What a wheel has to fit: minor version of Python 3, processor, release of glibc."""

    minor: int
    machine: str
    glibc: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel.

    Attributes:
        path: of its file.
        name: of the distribution, normalised.
        version: of it.
        modules: names that can be imported once it is unpacked.
        requires: distributions that it needs, normalised, and whether it needs them on every
            machine; those of extras are left out.
    """

    path: Path
    name: str
    version: str
    modules: frozenset[str]
    requires: Mapping[str, bool]


def here() -> Platform:
    """The platform of this interpreter; without glibc its release is 0.0."""
    release = re.fullmatch(r"(\d+)\.(\d+).*", platform.libc_ver()[1])
    glibc = (int(release[1]), int(release[2])) if release else (0, 0)
    return Platform(sys.version_info.minor, platform.machine(), glibc)


def normalised(name: str) -> str:
    """The one spelling of a distribution's name.

    Args:
        name: in any spelling.
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Versions that are tested together, by normalised name."""
    lines = (line.strip().partition("==") for line in CONSTRAINTS.read_text("utf-8").splitlines())
    return {normalised(name): version for name, equals, version in lines if equals}


def is_found(module: str) -> bool:
    """Whether a module of the top level can be imported, without importing it.

    Args:
        module: its name.
    """
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # it is imported already and does not say from where
        return True


def is_installed(name: str) -> bool:
    """Whether a distribution is installed.

    Args:
        name: of the distribution.
    """
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def fits(filename: str, where: Platform) -> bool:
    """Whether a wheel is for a platform, by the tags in its name.

    Args:
        filename: ``name-version-python-abi-platform.whl``.
        where: the platform.
    """
    parts = filename.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6):
        return False
    pythons, abis, platforms = (part.split(".") for part in parts[-3:])
    return any(
        _python_fits(python, abi, where.minor) for python in pythons for abi in abis
    ) and any(_platform_fits(one, where) for one in platforms)


def _python_fits(python: str, abi: str, minor: int) -> bool:
    if python.startswith("py3") or abi == "abi3":
        lowest = re.fullmatch(r"py3(\d*)" if abi == "none" else r"cp3(\d*)", python)
        return lowest is not None and int(lowest[1] or 0) <= minor
    return python == f"cp3{minor}" and abi in ("none", f"cp3{minor}")


def _platform_fits(name: str, where: Platform) -> bool:
    if name in ("any", f"linux_{where.machine}"):
        return True
    for old, release in _LEGACY.items():
        name = name.replace(f"{old}_", f"manylinux_{release}_")
    found = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{re.escape(where.machine)}", name)
    return found is not None and (int(found[1]), int(found[2])) <= where.glibc


def read_wheels(folder: Path, where: Platform) -> tuple[dict[str, Wheel], list[str]]:
    """Read the wheels of a folder; of several versions the highest counts.

    Args:
        folder: in which they lie.
        where: the platform that they have to fit.

    Returns:
        Wheels by the distribution's name; and of each file that is left out its name and why.
    """
    wheels: dict[str, Wheel] = {}
    skipped: list[str] = []
    for path in sorted(folder.glob("*.whl")):
        if not fits(path.name, where):
            skipped.append(f"{path.name} is not for Python 3.{where.minor} on this machine")
            continue
        try:
            wheel = read_wheel(path)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            skipped.append(f"{path.name} cannot be read ({error})")
            continue
        other = wheels.get(wheel.name)
        if other is None or _rank(other.version) < _rank(wheel.version):
            wheels[wheel.name] = wheel
    return wheels, skipped


def _rank(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def read_wheel(path: Path) -> Wheel:
    """Read what a wheel says of itself.

    Args:
        path: of its file.

    Raises:
        OSError: when it cannot be read.
        zipfile.BadZipFile: when it is not a whole zip file.
        ValueError: when it says nothing of itself.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        told = [n for n in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)]
        if len(told) != 1:
            raise ValueError("it has no METADATA")
        metadata = email.message_from_bytes(archive.read(told[0]))
    return Wheel(
        path,
        normalised(metadata["Name"]),
        str(metadata["Version"]),
        frozenset(module for module in map(_top_level, names) if module),
        _requires(metadata.get_all("Requires-Dist", ())),
    )


def _top_level(name: str) -> str | None:
    """The module of the top level to which a file of a wheel belongs, or None."""
    first, is_folder, _ = name.partition("/")
    if is_folder:
        return first if first.isidentifier() else None
    module, _, ending = first.partition(".")
    return module if ending == "py" or ending.endswith("so") else None


def _requires(lines: Iterable[str]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for line in lines:
        text, _, marker = line.partition(";")
        name = re.match(r"\s*([A-Za-z0-9][\w.-]*)", text)
        if name is not None and "extra" not in marker:
            found[normalised(name[1])] = not marker.strip()
    return found


def choose(modules: Iterable[str], wheels: Mapping[str, Wheel]) -> tuple[list[Wheel], list[str]]:
    """Choose the wheels that bring missing modules, with all that these require and is missing.

    Args:
        modules: that are wanted.
        wheels: by the distribution's name.

    Returns:
        The wheels; and the modules and distributions that are neither here nor among the wheels.
    """
    by_module = {module: wheel for wheel in wheels.values() for module in wheel.modules}
    missing = [module for module in modules if not is_found(module)]
    lacking = [module for module in missing if module not in by_module]
    waiting = [by_module[module] for module in missing if module in by_module]
    chosen: dict[str, Wheel] = {}
    while waiting:
        wheel = waiting.pop()
        if wheel.name in chosen:
            continue
        chosen[wheel.name] = wheel
        for name, is_always in wheel.requires.items():
            if is_installed(name):
                continue
            if name in wheels:
                if not all(map(is_found, wheels[name].modules)):
                    waiting.append(wheels[name])
            elif is_always:
                lacking.append(name)
    return list(chosen.values()), list(dict.fromkeys(lacking))


def unpack(wheels: Iterable[Wheel], folder: Path) -> None:
    """Unpack those modules of wheels that are missing, with what their distributions say.

    Args:
        wheels: that fit this platform.
        folder: where to; no module in it hides another, wherever it stands on the path.

    Raises:
        OSError: when there is no room.
        zipfile.BadZipFile: when a wheel is broken.
    """
    for wheel in wheels:
        missing = {module for module in wheel.modules if not is_found(module)}
        with zipfile.ZipFile(wheel.path) as archive:
            for name in archive.namelist():
                if _top_level(name) in missing or name.partition("/")[0].endswith(".dist-info"):
                    archive.extract(name, folder)


def _refused(line: str) -> int:
    print(f"make gpu-wheels: {line}", file=sys.stderr)
    return 2


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch all wheels by pip into the folder that is named; returns the exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    if len(given) != 1 or not given[0]:
        return _refused("WHEELS: allowed is one folder for the wheels")
    folder, versions = Path(given[0]).expanduser(), pins()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _refused(f"WHEELS = {str(folder)!r}: allowed is a folder that can be written "
                        f"({error.strerror})")  # fmt: skip
    wanted = [f"{name}=={versions[name]}" for name in FETCHED]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--only-binary=:all:", *_TARGET, "--dest", str(folder), *wanted]  # fmt: skip
    if subprocess.run(command, check=False).returncode:
        print("make gpu-wheels: pip could not fetch all packages", file=sys.stderr)
        return 1
    found = sorted(folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in found)
    print(f"{len(found)} wheels, {size / 2**20:.1f} MiB, in {folder}")
    print(f"too large to carry, to be there already: {', '.join(LARGE)}")
    if size > LIMIT_BYTES:
        print(f"make gpu-wheels: {size / 2**20:.1f} MiB are more than "
              f"{LIMIT_BYTES / 2**20:.0f}: take what is not needed out of {folder}",
              file=sys.stderr)  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
