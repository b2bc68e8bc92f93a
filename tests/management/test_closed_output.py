"""A command whose output nobody reads any more, as in `manage.py call last | head`, ends quietly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["when it flushes", "when it writes"])
def test_a_command_ends_quietly_when_its_output_is_closed(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, str(MANAGE), "newkey"],
            env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": unbuffered},
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
