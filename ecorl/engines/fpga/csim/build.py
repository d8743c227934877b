"""Build the kernels' C-simulation library, once per change, into a cache.

One source, two builds here: *strict* computes with ap_int at exact widths and is the bit-exact
reference; *fast* computes the same results with native integers. The compiler flags live in
``hls_kernels/common.mk`` alone. No ``-march`` is given: a library runs on every CPU of its
architecture, and the fastest inner product is selected at run time. The cache key still names the
CPU's vector instructions, so that machines that share a home folder do not share a library.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from ecorl.engines.fpga.csim.cache import cache_folder, fresh_folder, locked, sweep
from ecorl.engines.fpga.csim.compiler import Compiler, cpu_features, find_compiler, first_error, run
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
"""Names of AMD's headers under the Apache licence; others in that folder are proprietary."""

_FACTS_NAME = "build.json"
_MAX_JOBS = 4  # compiler processes at a time: more gain little and disturb a running training


@dataclass(frozen=True, slots=True)
class _Recipe:
    """All that a library depends on; a hash of `facts`, plain data, names its folder."""

    build: Build
    compiler: Compiler
    root: Path
    headers: Path | None
    facts: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Name of the library's folder in the cache."""
        text = json.dumps(self.facts, sort_keys=True)
        return f"{self.build}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def csim_library(build: Build, *, progress: Progress | None = None, anew: bool = False) -> Path:
    """Find the C-simulation library in the cache; compile it first if the cache lacks it.

    The cache is ``$ECORL_CACHE/csim`` or ``~/.cache/ecorl/csim``. The key covers the kernel
    sources, the flags, the compiler's version, the architecture and its vector instructions and,
    for ``strict``, the ap_int headers. Two processes that need it at once build it once. ``$CXX``
    names another compiler than g++. A damaged library is built again. Without a compiler, a library
    that any compiler made of the same sources and flags is used.

    Args:
        build: ``"fast"`` (native integers) or ``"strict"`` (bit-true ap_int).
        progress: called with one line for each step of a compilation; not on a cache hit.
        anew: compile even when the cache holds it; for a library that cannot be loaded.

    Raises:
        MissingToolError: no compiler, or no ap_int headers for ``strict``.
        BuildError: the sources do not compile, or the cache cannot be written.
    """
    if build not in get_args(Build):
        raise ValueError(f"build = {build!r}: allowed is one of {get_args(Build)}")
    try:
        recipe = _recipe(build)
    except MissingToolError as error:
        library = None if anew else _made_before(build)
        if library is None:
            raise
        logger.info("%s; it is not needed: %s is there", error, library)
        return library
    folder = cache_folder() / recipe.key
    if not anew and _is_intact(folder):
        return folder / LIBRARY_NAME
    try:
        with locked(cache_folder() / f"{recipe.key}.lock"):
            sweep(cache_folder())
            if anew or not _is_intact(folder):  # another process may have built it meanwhile
                if folder.exists():
                    logger.warning("%s cannot be used: it is built anew", folder)
                    shutil.rmtree(folder)
                _build_into(folder, recipe, progress or _log_progress)
    except OSError as error:
        raise BuildError(f"cannot write the C-simulation cache {folder}: {error}") from error
    return folder / LIBRARY_NAME


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


def kernels_digest() -> str:
    """SHA-256 of the kernels' sources, on which their results depend, as ``sha256:...``.

    Raises:
        MissingToolError: when they are not there.
    """
    return f"sha256:{_digest_sources(kernel_root())}"


def compiler_of(library: Path) -> str | None:
    """Version line of the compiler that made a library of the cache; None where it is not known."""
    found = _facts_of(library.parent).get("compiler")
    return found if isinstance(found, str) else None


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
    if _holds(folder, texts):
        return folder
    try:
        with locked(folder.with_suffix(".lock")):
            if not _holds(folder, texts):
                shutil.rmtree(folder, ignore_errors=True)
                _write(folder, texts)
    except OSError as error:
        raise BuildError(f"cannot write the header cache {folder}: {error}") from error
    return folder


def _holds(folder: Path, texts: Mapping[str, bytes]) -> bool:
    try:
        return all((folder / name).read_bytes() == text for name, text in texts.items())
    except OSError:
        return False


def _write(folder: Path, texts: Mapping[str, bytes]) -> None:
    with fresh_folder(folder) as temporary:
        for name, text in texts.items():
            target = temporary / name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(text)


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
    compiler, root = find_compiler(), kernel_root()
    facts = _source_facts(build, root)
    headers = ap_headers() if build == "strict" else None
    facts |= {
        "compiler": compiler.version,
        "compiler_flags": [*_flags(root)[f"CSIM_FLAGS_{compiler.family}"], *compiler.own_flags],
        "headers": headers.name if headers else "",  # the name holds the digest of their content
    }
    return _Recipe(build, compiler, root, headers, facts)


def _source_facts(build: Build, root: Path) -> dict[str, Any]:
    """The facts that a library depends on, without its compiler and the ap_int headers."""
    sources = kernel_sources(root)
    if not sources:
        raise BuildError(f"no kernel sources under {root}")
    flags = _flags(root)
    return {
        "build": build,
        "machine": platform.machine(),
        "cpu": cpu_features(),
        "compile_flags": [*flags["CSIM_CXXFLAGS"], *flags[f"CSIM_FLAGS_{build}"]],
        "link_flags": list(flags["CSIM_LDFLAGS"]),
        "sources": [path.relative_to(root).as_posix() for path in sources],
        "source_digest": _digest_sources(root),
    }


def _flags(root: Path) -> dict[str, tuple[str, ...]]:
    return read_flags(root / "common.mk")


def _made_before(build: Build) -> Path | None:
    """The newest library that any compiler made of these sources, or None."""
    wanted = _source_facts(build, kernel_root())
    if build == "strict":
        with contextlib.suppress(MissingToolError):  # the headers may be what is missing
            wanted["headers"] = ap_headers().name
    try:
        known = sorted(
            cache_folder().glob(f"{build}-*/{_FACTS_NAME}"),
            key=lambda path: path.stat().st_mtime,
            reverse=True,
        )
    except OSError:  # a folder went away meanwhile, or may not be read
        return None
    for folder in (path.parent for path in known):
        facts = _facts_of(folder)
        if all(facts.get(key) == value for key, value in wanted.items()) and _is_intact(folder):
            logger.info("using the library that %s made", facts.get("compiler"))
            return folder / LIBRARY_NAME
    return None


def _facts_of(folder: Path) -> dict[str, Any]:
    """Read ``build.json``; empty when it cannot be read."""
    try:
        facts = json.loads((folder / _FACTS_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _is_intact(folder: Path) -> bool:
    """Whether the library holds the bytes that were linked. A damaged one could end the process."""
    try:
        digest = _digest_of(folder / LIBRARY_NAME)
    except OSError:
        return False
    return bool(_facts_of(folder).get("library_digest") == digest)


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest_sources(root: Path) -> str:
    """Digest of every file that a compilation may read."""
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".cpp", ".hpp", ".h", ".inc"}):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()


def _build_into(folder: Path, recipe: _Recipe, progress: Progress) -> None:
    sources = kernel_sources(recipe.root)
    progress(
        f"compiling {len(sources)} kernel sources ({recipe.build} build, {recipe.compiler.version})"
    )
    with fresh_folder(folder) as temporary:
        jobs = max(1, min(_MAX_JOBS, os.cpu_count() or 1, len(sources)))
        with ThreadPoolExecutor(jobs) as pool:
            objects = list(pool.map(lambda s: _compile(recipe, s, temporary), sources))
        progress(f"linking {LIBRARY_NAME}")
        library = temporary / LIBRARY_NAME
        _link(recipe, objects, library)
        for path in objects:
            path.unlink()
        facts = {**recipe.facts, "library_digest": _digest_of(library)}
        (temporary / _FACTS_NAME).write_text(json.dumps(facts, indent=2), encoding="utf-8")
    progress(f"built {folder / LIBRARY_NAME}")


def _compile(recipe: _Recipe, source: Path, folder: Path) -> Path:
    target = folder / f"{source.parent.name}-{source.stem}.o"
    includes = [f"-I{recipe.root / 'include'}", f"-I{recipe.root / 'sim'}"]
    if recipe.headers is not None:
        includes += ["-isystem", str(recipe.headers)]
    flags = [*recipe.facts["compile_flags"], *recipe.facts["compiler_flags"]]
    command = [*recipe.compiler.command, *flags, *includes]
    finished = run([*command, "-c", str(source), "-o", str(target)])
    if finished.returncode != 0:
        name = source.relative_to(recipe.root)
        raise BuildError(f"{name} ({recipe.build} build): {first_error(finished.stderr)}")
    return target


def _link(recipe: _Recipe, objects: Sequence[Path], target: Path) -> None:
    command = [*recipe.compiler.command, *recipe.facts["link_flags"], *map(str, objects)]
    finished = run([*command, "-o", str(target)])
    if finished.returncode != 0:
        raise BuildError(f"linking ({recipe.build} build): {first_error(finished.stderr)}")


def _log_progress(line: str) -> None:
    logger.info("%s", line)
