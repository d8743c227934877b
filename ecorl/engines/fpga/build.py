"""Build the kernels' C-simulation library with g++, once per change, into a cache.

One source, two builds here: *strict* computes with ap_int at exact widths and is the bit-exact
gate; *fast* computes the same results with native integers. The compiler flags live in
``hls_kernels/common.mk`` alone. No ``-march`` is given: a library runs on every CPU of its
architecture, and faster inner products choose themselves at run time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

from ecorl.errors import BuildError, MissingToolError

logger = logging.getLogger(__name__)

Build = Literal["fast", "strict"]
Progress = Callable[[str], None]

LIBRARY_NAME = "libecorl_csim.so"

AP_HEADERS = (
    "ap_common.h",
    "ap_decl.h",
    "ap_fixed.h",
    "ap_fixed_base.h",
    "ap_fixed_ref.h",
    "ap_fixed_special.h",
    "ap_int.h",
    "ap_int_base.h",
    "ap_int_ref.h",
    "ap_int_special.h",
    "etc/ap_private.h",
)
"""AMD's headers under the Apache licence, by name. Others in that folder are proprietary."""

_COMPILE_TIMEOUT_S = 900.0  # a source takes seconds; this ends a compiler that hangs
_MAX_JOBS = 4  # compiler processes at a time: more gain little and disturb a running training


@dataclass(frozen=True, slots=True)
class _Recipe:
    """All that a library depends on."""

    build: Build
    compiler: str
    compiler_version: str
    root: Path
    sources: tuple[Path, ...]
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    headers: Path | None
    key: str


def csim_library(build: Build, *, progress: Progress | None = None) -> Path:
    """Path of the C-simulation library, compiled first if the cache lacks it.

    The cache is ``$ECORL_CACHE/csim`` or ``~/.cache/ecorl/csim``. The key covers the kernel
    sources, the flags, the compiler's version, the architecture and, for ``strict``, the ap_int
    headers. Two processes that ask at once build once. ``$CXX`` names another compiler than g++.

    Args:
        build: ``"fast"`` (native integers) or ``"strict"`` (bit-true ap_int).
        progress: receives one line for each step of a compilation; silent on a cache hit.

    Raises:
        MissingToolError: no compiler, or no ap_int headers for ``strict``.
        BuildError: the sources do not compile, or the cache cannot be written.
    """
    if build not in get_args(Build):
        raise ValueError(f"build = {build!r}: allowed is one of {get_args(Build)}")
    recipe = _recipe(build)
    folder = cache_folder() / recipe.key
    library = folder / LIBRARY_NAME
    if library.is_file():
        return library
    try:
        with _locked(cache_folder() / f"{recipe.key}.lock"):
            if not library.is_file():  # another process may have built it while we waited
                _build_into(folder, recipe, progress or _log_progress)
    except OSError as error:
        raise BuildError(f"cannot write the C-simulation cache {folder}: {error}") from error
    return library


def cache_folder() -> Path:
    """Folder of the compiled libraries: ``$ECORL_CACHE/csim`` or ``~/.cache/ecorl/csim``."""
    root = os.environ.get("ECORL_CACHE") or "~/.cache/ecorl"
    return Path(root).expanduser() / "csim"


def kernel_root() -> Path:
    """Folder of the kernel sources, as installed.

    Raises:
        MissingToolError: when they are not there.
    """
    # Both packages come from one distribution and so always lie side by side.
    root = Path(str(resources.files("ecorl"))).parent / "hls_kernels"
    if not (root / "common.mk").is_file():
        raise MissingToolError(f"the kernel sources are not at {root}: reinstall ecorl")
    return root


def kernel_sources(root: Path) -> tuple[Path, ...]:
    """All sources of the library under `root`, test benches left out, in a fixed order."""
    found = (p for p in root.glob("*/*.cpp") if not p.name.endswith("_tb.cpp"))
    return tuple(sorted(found))


def ap_headers() -> Path:
    """A folder in the cache with AMD's Apache-licensed ap_int headers and nothing else.

    They are copied from the installed hls4ml package, which is not imported.

    Raises:
        MissingToolError: when hls4ml or one of its headers is absent.
        BuildError: when the cache cannot be written.
    """
    source = _hls4ml_headers()
    try:
        texts = {name: (source / name).read_bytes() for name in AP_HEADERS}
    except OSError as error:
        raise MissingToolError(
            f'the ap_int headers in hls4ml are incomplete ({error}): pip install "ecorl[strict]"'
        ) from error
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(f"{name}\0{len(text)}\0".encode() + text)
    folder = cache_folder() / f"ap_headers-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    try:
        with _fresh_folder(folder) as temporary:
            for name, text in texts.items():
                target = temporary / name
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(text)
    except OSError as error:
        raise BuildError(f"cannot write the header cache {folder}: {error}") from error
    return folder


def read_flags(path: Path) -> dict[str, tuple[str, ...]]:
    """The ``NAME := words`` lines of a makefile fragment.

    Raises:
        BuildError: when the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildError(f"cannot read the compiler flags: {error}") from error
    pairs = re.findall(r"^(\w+)[ \t]*:=[ \t]*(.*)$", text, flags=re.MULTILINE)
    return {name: tuple(words.split()) for name, words in pairs}


def _hls4ml_headers() -> Path:
    spec = importlib.util.find_spec("hls4ml")
    if spec is None or not spec.submodule_search_locations:
        raise MissingToolError(
            "the strict build needs the ap_int headers that hls4ml ships: "
            'pip install "ecorl[strict]"'
        )
    return Path(spec.submodule_search_locations[0]) / "templates" / "vivado" / "ap_types"


def _recipe(build: Build) -> _Recipe:
    compiler, version = _compiler()
    root = kernel_root()
    sources = kernel_sources(root)
    if not sources:
        raise BuildError(f"no kernel sources under {root}")
    flags = read_flags(root / "common.mk")
    compile_flags = (*flags["CSIM_CXXFLAGS"], *flags[f"CSIM_FLAGS_{build}"])
    headers = ap_headers() if build == "strict" else None
    link_flags = flags["CSIM_LDFLAGS"]
    parts = [
        build,
        version,
        platform.machine(),
        *compile_flags,
        *link_flags,
        headers.name if headers else "",  # the name holds the digest of their content
        _digest_sources(root),
    ]
    key = f"{build}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:20]}"
    return _Recipe(build, compiler, version, root, sources, compile_flags, link_flags, headers, key)


def _compiler() -> tuple[str, str]:
    name = os.environ.get("CXX") or "g++"
    compiler = shutil.which(name)
    if compiler is None:
        raise MissingToolError(
            f"{name} is not on this machine; the C-simulation needs a C++17 compiler "
            "(Debian: apt install g++)"
        )
    finished = _run([compiler, "--version"])
    if finished.returncode != 0:
        raise BuildError(f"{compiler} --version failed: {_first_error(finished.stderr)}")
    return compiler, finished.stdout.splitlines()[0] if finished.stdout else "unknown"


def _digest_sources(root: Path) -> str:
    """Digest of every file that a compilation may read."""
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".cpp", ".hpp", ".h"}):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()


def _build_into(folder: Path, recipe: _Recipe, progress: Progress) -> None:
    progress(
        f"compiling {len(recipe.sources)} kernel sources ({recipe.build} build, "
        f"{recipe.compiler_version})"
    )
    with _fresh_folder(folder) as temporary:
        jobs = max(1, min(_MAX_JOBS, os.cpu_count() or 1, len(recipe.sources)))
        with ThreadPoolExecutor(jobs) as pool:
            objects = list(pool.map(lambda s: _compile(recipe, s, temporary), recipe.sources))
        progress(f"linking {LIBRARY_NAME}")
        _link(recipe, objects, temporary / LIBRARY_NAME)
        for path in objects:
            path.unlink()
        facts: Mapping[str, object] = {
            "build": recipe.build,
            "compiler": recipe.compiler_version,
            "compile_flags": recipe.compile_flags,
            "link_flags": recipe.link_flags,
            "sources": [p.relative_to(recipe.root).as_posix() for p in recipe.sources],
        }
        (temporary / "build.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
    progress(f"built {folder / LIBRARY_NAME}")


def _compile(recipe: _Recipe, source: Path, folder: Path) -> Path:
    target = folder / f"{source.parent.name}-{source.stem}.o"
    includes = [f"-I{recipe.root / 'include'}", f"-I{recipe.root / 'sim'}"]
    if recipe.headers is not None:
        includes += ["-isystem", str(recipe.headers)]
    command = [recipe.compiler, *recipe.compile_flags, *includes, "-c", str(source)]
    finished = _run([*command, "-o", str(target)])
    if finished.returncode != 0:
        name = source.relative_to(recipe.root)
        raise BuildError(f"{name} ({recipe.build} build): {_first_error(finished.stderr)}")
    return target


def _link(recipe: _Recipe, objects: Sequence[Path], target: Path) -> None:
    command = [recipe.compiler, *recipe.link_flags, *map(str, objects), "-o", str(target)]
    finished = _run(command)
    if finished.returncode != 0:
        raise BuildError(f"linking ({recipe.build} build): {_first_error(finished.stderr)}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # The C locale keeps the word "error" in the compiler's messages.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMPILE_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} did not finish in {_COMPILE_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error


def _first_error(stderr: str) -> str:
    """The first line that names an error, else the first line at all."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\berror\b|undefined reference", line)]
    return (named or lines or ["the compiler gave no message"])[0]


def _log_progress(line: str) -> None:
    logger.info("%s", line)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the system frees it if this process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _fresh_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` in one step if the block ends well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        try:
            temporary.replace(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
