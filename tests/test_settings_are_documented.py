"""Every environment variable that the settings read is documented in docs/operations.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
READ = {
    "DATABASE_URL",
    "DB_PATH",
    *re.findall(r"env\.\w+\(\s*\"([A-Z][A-Z_]+)\"", (HOME / "eventservice" / "settings.py").read_text()),
}
ROWS = [line for line in (HOME / "docs" / "operations.md").read_text().splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("name", sorted(READ))
def test_the_variable_is_documented(name: str) -> None:
    assert any(f"`{name}`" in row.split("|")[1] for row in ROWS), name


def test_the_settings_are_found() -> None:
    assert {"SECRET_KEY", "TRUST_FORWARDED_PROTO", "API_MAX_BATCH_BYTES"} <= READ
