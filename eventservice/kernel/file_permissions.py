"""The check that only the user of the service can read a file."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

from eventservice.kernel.findings import Finding, Severity

READ, ENTER = 0o4, 0o1


def check_permissions(code: str, paths: Iterable[Path]) -> Finding:
    """Warn of files that other users of this machine can read. Those that do not exist are left out."""
    files = [path for path in paths if path.is_file()]
    exposed = [path for path in files if is_exposed(path)]
    if not exposed:
        text = "only this user can read " + ", ".join(map(str, files)) if files else "no such file"
        return Finding(code, Severity.OK, text)
    names = [str(path) for path in exposed]
    text = f"Other users of this machine can read {', '.join(names)}."
    return Finding(code, Severity.WARNING, text, f"Run `chmod go= {shlex.join(names)}`.")


def is_exposed(file: Path) -> bool:
    """Return whether group or others may read the file and enter its folder."""
    mode, folder = (stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent))
    return any(mode & READ << shift and folder & ENTER << shift for shift in (0, 3))
