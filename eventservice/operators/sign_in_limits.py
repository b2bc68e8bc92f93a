"""Limits for signing in with a password: by username, by address, and in total.

To compare a password costs a third of a second of a processor, whoever sends it. So attempts are counted before, and one
process of a machine at a time compares one. A browser in which a user has signed in before is known by a signed cookie.
It has a limit of its own for that user, so that nobody can lock users out by failing to sign in as them.

Each web process counts for itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.core import signing

from eventservice.kernel.logging import get_logger
from eventservice.kernel.machine_slots import reserve_slot

log = get_logger(__name__)

MAX_KEYS = 10_000
MAX_COMPARISONS = 1
# For how long a known browser waits for the comparison of another password to end.
KNOWN_BROWSER_WAIT_SECONDS = 3.0

_signer = signing.TimestampSigner(salt="eventservice.known-browser")


class SignInRefused(Exception):
    """An attempt that is refused before the password is looked at. `retry_after` is in seconds."""

    def __init__(self, code: str, retry_after: int) -> None:
        super().__init__(code)
        self.code, self.retry_after = code, retry_after


@dataclass(slots=True)
class AttemptLimit:
    """How many attempts each key may have in a period that ends now."""

    max_attempts: int
    period_seconds: float
    _attempts: dict[str, list[float]] = field(default_factory=dict)

    def find_wait(self, key: str) -> int:
        """Return how many seconds it takes until the key may have another attempt; 0 if it may have one now."""
        recent = self._list_recent(key)
        if len(recent) < self.max_attempts:
            return 0
        return max(1, math.ceil(recent[0] + self.period_seconds - time.monotonic()))

    def add(self, key: str) -> None:
        recent = self._list_recent(key)
        self._attempts.pop(key, None)
        if len(self._attempts) >= MAX_KEYS:
            del self._attempts[next(iter(self._attempts))]
        self._attempts[key] = [*recent, time.monotonic()]

    def remove_last(self, key: str) -> None:
        if attempts := self._attempts.get(key):
            attempts.pop()

    def clear(self) -> None:
        self._attempts.clear()

    def _list_recent(self, key: str) -> list[float]:
        since = time.monotonic() - self.period_seconds
        return [moment for moment in self._attempts.get(key, ()) if moment > since]


PER_NAME = AttemptLimit(10, 300.0)
PER_BROWSER = AttemptLimit(10, 300.0)
PER_ADDRESS = AttemptLimit(20, 300.0)
IN_TOTAL = AttemptLimit(12, 60.0)
LIMITS = (PER_NAME, PER_BROWSER, PER_ADDRESS, IN_TOTAL)


@contextmanager
def limit_sign_in(name: str, address: str | None, browser_token: str | None) -> Iterator[None]:
    """Compare the password in this context; an attempt that does not raise is not counted. Raise SignInRefused instead of
    entering it if there have been too many attempts, or if another password is being compared."""
    is_known = browser_token is not None and is_token_of(browser_token, name)
    counted = _select_limits(name, address, browser_token if is_known else None)
    for limit, key, code in counted:
        if wait := limit.find_wait(key):
            log.warning("sign_in_limited", reason=code, address=address)
            raise SignInRefused(code, wait)
    wait_seconds = KNOWN_BROWSER_WAIT_SECONDS if is_known else 0.0
    with reserve_slot("password", MAX_COMPARISONS, max_wait_seconds=wait_seconds) as is_reserved:
        if not is_reserved:
            raise SignInRefused("busy", 1)
        for limit, key, _ in counted:
            limit.add(key)
        yield
        for limit, key, _ in counted:
            limit.remove_last(key)


def _select_limits(
    name: str, address: str | None, known_token: str | None
) -> list[tuple[AttemptLimit, str, str]]:
    """Return the limits that count an attempt, each with its key and the code of its refusal."""
    if known_token is not None:
        return [(PER_BROWSER, known_token, "too_often")]
    by_address = [] if address is None else [(PER_ADDRESS, address, "too_many")]
    return [(PER_NAME, name, "too_often"), *by_address, (IN_TOTAL, "", "too_many")]


def clear_limits() -> None:
    """Forget all attempts (for tests)."""
    for limit in LIMITS:
        limit.clear()


# --- known browsers -----------------------------------------------------------------------------------------------

TOKEN_SECONDS = 180 * 86_400


def create_browser_token(name: str) -> str:
    return _signer.sign_object(name)


def is_token_of(token: str, name: str) -> bool:
    try:
        return bool(_signer.unsign_object(token, max_age=TOKEN_SECONDS) == name)
    except (signing.BadSignature, ValueError):
        return False
