"""The one exception of the domain's boundary: a rule that a command broke, in words a person can act on."""

from collections.abc import Mapping
from typing import Any


class DomainError(Exception):
    """`code` is stable and for programs; the message and the faults name the field and the rule for people."""

    def __init__(
        self, code: str, message: str, *, faults: Mapping[str, str] | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.faults = dict(faults or {})
        self.details = details


class NotFound(DomainError):
    def __init__(self, what: str) -> None:
        super().__init__("not_found", f"No such {what}.")


class Conflict(DomainError):
    """The command is well formed, but the state of what it names forbids it."""


class Invalid(DomainError):
    """The command itself breaks a rule; `faults` maps each field to the rule it breaks."""
