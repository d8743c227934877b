"""XRT without a card: its noop driver, and our module in place of pyxrt, which computes.

The module is compiled once, against the XRT that is installed, into the same cache as the
C-simulation. Nothing of it is used with a real card and AMD's ``pyxrt``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ecorl.engines.fpga.csim.build import Progress, kernel_root
from ecorl.engines.fpga.csim.cache import cache_folder, fresh_folder, locked
from ecorl.engines.fpga.csim.compiler import Compiler, find_compiler, first_error, run
from ecorl.errors import BuildError, ConfigError, MissingToolError

MODULE = "ecorl_xrt_csim"
MODE = "XCL_EMULATION_MODE"
ROOT = "XILINX_XRT"
DRIVER = "libxrt_noop.so.2"

_FLAGS = ("-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
_LIBRARIES = ("-lxrt_coreutil", "-luuid", "-ldl", "-lpthread")


@dataclass(frozen=True, slots=True)
class InstalledXrt:
    """The folders of XRT's headers and libraries."""

    include: Path
    lib: Path


def installed_xrt() -> InstalledXrt | None:
    """Find an XRT that can emulate, with headers and the noop driver; None without.

    ``$XILINX_XRT`` is looked at first, then AMD's folder, then Debian's.
    """
    own = os.environ.get(ROOT)
    homes = [Path(own)] if own else []
    homes.append(Path("/opt/xilinx/xrt"))
    places = [(home / "include", home / "lib") for home in homes]
    places += [(Path("/usr/include/xrt"), lib) for lib in Path("/usr/lib").glob("*-linux-gnu")]
    for include, lib in places:
        if (include / "xrt" / "xrt_kernel.h").is_file() and (lib / DRIVER).is_file():
            # Not by way of our own links, which $XILINX_XRT names once a card was opened.
            return InstalledXrt(include.resolve(), (lib / DRIVER).resolve().parent)
    return None


def can_emulate() -> bool:
    """Whether XRT and pybind11 are installed; a compiler may still be missing."""
    return installed_xrt() is not None and importlib.util.find_spec("pybind11") is not None


def emulated_pyxrt(progress: Progress | None = None) -> ModuleType:
    """Load our module, which has pyxrt's interface; compile it first if the cache lacks it.

    XRT reads two environment variables when a device is opened; this sets them for this process and
    those that it starts.

    Args:
        progress: receives one line when the module is compiled.

    Raises:
        MissingToolError: without XRT, pybind11 or a compiler.
        ConfigError: when the environment asks for another emulation mode.
        BuildError: when it does not compile or cannot be loaded.
    """
    xrt = installed_xrt()
    if xrt is None:
        raise MissingToolError(
            "XRT with its noop driver is not on this machine "
            "(Debian: apt install libxrt-dev uuid-dev)"
        )
    mode = os.environ.get(MODE, "noop")
    if mode != "noop":
        raise ConfigError(MODE, mode, "noop, or not set")
    library = _built(xrt, progress or (lambda _line: None))
    os.environ[MODE] = mode
    os.environ[ROOT] = str(library.parent / "xrt")
    return _loaded(library)


def _loaded(library: Path) -> ModuleType:
    known = sys.modules.get(MODULE)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(MODULE, library)
    if spec is None or spec.loader is None:
        raise BuildError(f"{library} is no Python module")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BuildError(f"{library} cannot be loaded: {error}") from error
    sys.modules[MODULE] = module
    return module


def _built(xrt: InstalledXrt, progress: Callable[[str], None]) -> Path:
    root = kernel_root() / "sim" / "xrt"
    sources = sorted(root.glob("*.cpp"))
    compiler, includes = find_compiler(), _includes(xrt)
    facts = {
        "compiler": compiler.version,
        "flags": [*_FLAGS, *compiler.own_flags],
        "includes": [str(path) for path in includes],
        "driver": str((xrt.lib / DRIVER).resolve()),
        "machine": platform.machine(),
        "sources": [
            hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (*sources, *sorted(root.glob("*.hpp")))
        ],
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]
    folder = cache_folder() / f"xrt-{key}"
    library = folder / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"
    if library.is_file():
        return library
    try:
        with locked(cache_folder() / f"xrt-{key}.lock"):
            if not library.is_file():
                shutil.rmtree(folder, ignore_errors=True)
                progress(f"compiling the XRT emulation ({compiler.version})")
                with fresh_folder(folder) as temporary:
                    _compile(compiler, xrt, includes, sources, temporary / library.name)
                    (temporary / "xrt" / "lib").mkdir(parents=True)
                    (temporary / "xrt" / "lib" / DRIVER).symlink_to(xrt.lib / DRIVER)
                    (temporary / "xrt" / "include").symlink_to(xrt.include)
    except OSError as error:
        raise BuildError(f"cannot write the cache {folder}: {error}") from error
    return library


def _includes(xrt: InstalledXrt) -> list[Path]:
    try:
        import pybind11
    except ImportError as error:
        raise MissingToolError(
            'the XRT emulation needs pybind11: pip install "ecorl[xrt]"'
        ) from error
    python = Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").is_file():
        raise MissingToolError(
            f"the XRT emulation needs Python's headers, and {python}/Python.h is not there "
            "(Debian: apt install python3-dev)"
        )
    return [xrt.include, Path(pybind11.get_include()), python]


def _compile(
    compiler: Compiler, xrt: InstalledXrt, includes: list[Path], sources: list[Path], target: Path
) -> None:
    command = [*compiler.command, *_FLAGS]
    for path in includes:
        command += ["-isystem", str(path)]
    command += [*map(str, sources), "-o", str(target), f"-L{xrt.lib}", *_LIBRARIES]
    finished = run(command)
    if finished.returncode != 0:
        raise BuildError(f"the XRT emulation: {first_error(finished.stderr)}")
