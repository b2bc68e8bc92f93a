"""The errors of commands, in words that a person can act on. API, console and CLI render them in their own ways."""

from collections.abc import Mapping


class DomainError(Exception):
    """A rule that a command broke.

    `code` is stable, for programs. `message` is a sentence for people. `errors` maps members of the command to the
    rule that each breaks.
    """

    def __init__(self, code: str, message: str, *, errors: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.errors = dict(errors or {})


class NotFound(DomainError):
    """Something that the command names does not exist, or belongs to another tenant."""

    def __init__(self, what: str) -> None:
        super().__init__("not_found", f"No such {what}.")


class Conflict(DomainError):
    """The command is well formed, but the state of what it names forbids it."""


class Invalid(DomainError):
    """The command itself breaks a rule."""
