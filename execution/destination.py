"""Where attempts wait until it is known where they may go, and there is a place."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

from execution.addresses import AddressPolicy
from execution.outcome import ErrorKind, Outcome
from execution.transfer import PreparedAttempt, describe_refusal
from execution.url_rules import Origin

_MAX_ADDRESSES: Final = 8  # of one name that are dialled in turn; all are judged
_KNOWN_SECONDS: Final = 600.0  # so long may addresses serve on while no new answer comes


class Destination:
    """One origin: its addresses, and the attempts that wait for them or for a place."""

    __slots__ = (
        "active", "asked_at", "asked_for", "fresh_until", "known_until", "origin", "queue", "refusal", "resolve",
    )  # fmt: skip

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.resolve: list[str] | None = None
        self.fresh_until = 0.0  # its addresses serve without asking
        self.known_until = 0.0  # and while no new answer comes
        self.refusal: str | None = None
        self.asked_at: float | None = None
        self.asked_for: set[Hashable] = set()  # the tenants in whose name it was asked
        self.queue: deque[PreparedAttempt] = deque()
        self.active = 0

    @property
    def is_idle(self) -> bool:
        return not (self.active or self.queue or self.asked_at)

    def learn(self, addresses: tuple[str, ...], policy: AddressPolicy, fresh_until: float) -> None:
        """Judges every address: one that is refused refuses the host, whatever the others are."""
        self.fresh_until = fresh_until
        self.known_until = fresh_until + _KNOWN_SECONDS
        rules = (policy.find_refusing_rule(ip, self.origin.port) for ip in addresses)
        self.refusal = next((describe_refusal(self.origin, rule) for rule in rules if rule), None)
        if not self.origin.is_literal:
            bracketed = (f"[{ip}]" if ":" in ip else ip for ip in addresses[:_MAX_ADDRESSES])
            self.resolve = [f"+{self.origin.host}:{self.origin.port}:{','.join(bracketed)}"]

    def unlearn(self) -> None:
        self.fresh_until = self.known_until = 0.0

    def waits_for_addresses(self, now: float) -> bool:
        return self.asked_at is not None and self.fresh_until <= now

    def hear(self, now: float) -> None:
        """Notes that the lookup has ended, and what it cost those that waited for it."""
        if self.waits_for_addresses(now):
            for ticket in self.queue:
                ticket.dns_seconds = now - max(ticket.sent_at, self.asked_at or now)
        self.forget_question()

    def forget_question(self) -> None:
        self.asked_at = None
        self.asked_for = set()

    def go_on(self, now: float, seconds: float) -> bool:
        """No answer comes: what is known serves a while longer, each address judged when it is dialled as ever."""
        self.fresh_until = max(self.fresh_until, min(now + seconds, self.known_until))
        return self.fresh_until > now

    def take_expired(self, now: float, dns_timeout: float) -> list[Outcome]:
        """Removes from the queue what may wait no longer."""
        asked_at = self.asked_at if self.waits_for_addresses(now) else None
        waiting, self.queue = self.queue, deque()
        expired: list[Outcome] = []
        for ticket in waiting:
            if ticket.deadline <= now:
                phase = "looking up its address" if asked_at else "waiting for a free connection"
                expired.append(ticket.fail(*ticket.timeout(phase), now))
            elif asked_at and max(ticket.sent_at, asked_at) + dns_timeout <= now:
                message = f"Looking up {self.origin.host} gave no answer within {dns_timeout:g} s."
                expired.append(ticket.fail(ErrorKind.DNS, message, now))
            else:
                self.queue.append(ticket)
        return expired
