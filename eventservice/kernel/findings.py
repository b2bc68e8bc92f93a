"""The result of a diagnosis, which every page and command that reports problems understands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it should resolve itself, or it can wait
    ERROR = "error"  # work is held up until somebody acts

    @property
    def is_ok(self) -> bool:
        return self is Severity.OK

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: how it is and, if something is wrong, what to do about it.

    `code` names the check and never changes; programs may rely on it. `text` and `remedy` are complete sentences.
    Commands in them stand between backticks.
    """

    code: str
    severity: Severity
    text: str
    remedy: str = ""

    @property
    def is_ok(self) -> bool:
        return self.severity.is_ok


def check(code: str, passed: bool, text: str, remedy: str = "") -> Finding:
    """Return a finding that is OK or an ERROR; the remedy is kept only for an error."""
    return Finding(code, Severity.OK, text) if passed else Finding(code, Severity.ERROR, text, remedy)
