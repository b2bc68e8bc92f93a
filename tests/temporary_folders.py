"""The folder for the databases of a test run. It is removed at the end of the run, however that ends."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

PREFIX = "eventservice-tests-"
# Tells the workers of a run its folder.
VARIABLE = "EVENTSERVICE_TESTS_FOLDER"


def create_folder() -> None:
    """Create the folder of this run, and remove those of runs that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = re.fullmatch(rf"{PREFIX}(\d+)-\w+", folder.name)
        if owner and not _is_alive(int(owner[1])):
            shutil.rmtree(folder, ignore_errors=True)
    os.environ[VARIABLE] = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")


def remove_folder() -> None:
    shutil.rmtree(os.environ.pop(VARIABLE), ignore_errors=True)


def create_worker_folder() -> Path:
    """Create the folder of this process within that of the run."""
    folder = Path(os.environ[VARIABLE]) / os.environ.get("PYTEST_XDIST_WORKER", "main")
    folder.mkdir(exist_ok=True)
    return folder


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
