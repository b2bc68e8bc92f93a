"""The environments of the candidates: packages of Node and Python, installed from lock files into a cache folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import INSTALL_SECONDS, BenchmarkError, create_virtual_environment
from benchmarks.report import log_progress

HERE = Path(__file__).resolve().parent
NODE_SOURCES = HERE / "node"
PYTHON_LOCKS = HERE / "python"
MIN_NODE = (20, 18)


def get_cache_folder() -> Path:
    """Return the folder of the environments, in the user's cache folder."""
    parent = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(parent) / "eventservice" / "benchmark-peers"


def find_environment(kind: str, *sources: Path) -> Path:
    """Return the folder of the environment that these files describe. Changed files have another folder."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    return get_cache_folder() / f"{kind}-{digest}"


def install_python(lock_name: str) -> Path:
    """Return the Python of an environment with the packages of this lock file. Install them on the first use."""
    lock = PYTHON_LOCKS / f"{lock_name}.lock"
    folder = find_environment(lock_name, lock)
    complete = folder / "complete"
    if not complete.exists():
        log_progress(f"installing {lock_name} into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        create_virtual_environment(folder, ["--require-hashes", "--no-deps", "-r", str(lock)])
        complete.touch()
    return folder / "bin" / "python"


def install_node() -> Path:
    """Return a folder with the drivers of the Node candidates and their packages. Install them on the first use."""
    _check_node()
    package, lock = NODE_SOURCES / "package.json", NODE_SOURCES / "package-lock.json"
    folder = find_environment("node", package, lock)
    complete = folder / "complete"
    if not complete.exists():
        log_progress(f"installing the Node packages into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in (package, lock):
            shutil.copy(path, folder)
        # `npm ci` would refuse a lock file without the optional packages of platforms that a registry does not serve.
        # `npm install` takes the locked versions, too, and checks their hashes. No script of a package is run.
        _run(["npm", "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund"], folder)
        complete.touch()
    # Node resolves packages from the folder of the program, so the drivers are copied there, in their newest version.
    for path in NODE_SOURCES.glob("*.mjs"):
        shutil.copy(path, folder)
    return folder


def _check_node() -> None:
    try:
        version = _run(["node", "--version"], HERE).strip()
        _run(["npm", "--version"], HERE)
    except FileNotFoundError as error:
        raise BenchmarkError(f"{error.filename} is needed for the candidates of Node") from None
    if tuple(map(int, version.removeprefix("v").split(".")[:2])) < MIN_NODE:
        raise BenchmarkError(f"Node {'.'.join(map(str, MIN_NODE))} or newer is needed; this is {version}")


def _run(argv: Sequence[str], folder: Path) -> str:
    result = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if result.returncode:
        raise BenchmarkError(f"{' '.join(argv[:2])} failed: {result.stderr[-800:]}")
    return result.stdout


def read_python_versions(lock_name: str) -> dict[str, str]:
    """Return the versions in a lock file by package."""
    text = (PYTHON_LOCKS / f"{lock_name}.lock").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.M))
