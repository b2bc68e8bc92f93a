"""The version of the code that this process runs: a process that was not restarted after an upgrade has another one."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("eventservice", "execution", "orchestration", "outbox", "timers")
VERSION_LENGTH = 12


@cache
def get_version() -> str:
    """Return a hash of the source code, as it was on disk when this process first asked: when it started."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:VERSION_LENGTH]
