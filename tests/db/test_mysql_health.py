"""`doctor` says which versions of MySQL nobody has tested."""

from __future__ import annotations

import pytest

from eventservice.db.dialects.mysql.health import judge_version
from eventservice.kernel.findings import Severity


@pytest.mark.parametrize(
    ("version", "severity"),
    [
        ("9.7.0", Severity.OK),
        ("9.7.4-debian", Severity.OK),
        ("8.4.6", Severity.WARNING),
        ("9.1.0", Severity.WARNING),
        ("10.0.1", Severity.WARNING),
    ],
)
def test_a_version_that_is_not_tested_is_a_warning(version: str, severity: Severity) -> None:
    finding = judge_version(version)
    assert (finding.code, finding.severity) == ("version", severity)
    assert version in finding.text
    assert finding.is_ok or "docs/databases.md" in finding.remedy
