"""Where attempts wait until their destination's addresses are known and a connection is free."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

from execution.addresses import AddressPolicy
from execution.outcome import ErrorKind, Outcome
from execution.transfer import PreparedAttempt, refuse_address
from execution.url_rules import Origin

_MAX_ADDRESSES: Final = 8  # addresses of one name that are tried in turn; all are checked
_STALE_SECONDS: Final = 600.0  # how long addresses may be used while a new lookup fails


class Destination:
    """One origin with its addresses, and the attempts that wait for them or for a free connection."""

    __slots__ = (
        "active", "addresses", "fresh_until", "lookup_started_at", "lookup_tenants", "origin", "queue", "refusal",
        "usable_until",
    )  # fmt: skip

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.addresses = ""  # as in libcurl's option RESOLVE
        self.fresh_until = 0.0  # until then the addresses are used without a new lookup
        self.usable_until = 0.0  # until then they are used if a new lookup does not succeed
        self.refusal: str | None = None
        self.lookup_started_at: float | None = None
        self.lookup_tenants: set[Hashable] = set()  # on whose behalf the lookup was requested
        self.queue: deque[PreparedAttempt] = deque()
        self.active = 0

    @property
    def is_idle(self) -> bool:
        return not (self.active or self.queue or self.lookup_started_at)

    def set_addresses(self, addresses: tuple[str, ...], policy: AddressPolicy, fresh_until: float) -> None:
        """Use these addresses from now on. One that the policy refuses makes it refuse the whole destination."""
        self.fresh_until = fresh_until
        self.usable_until = fresh_until + _STALE_SECONDS
        checked = ((ip, policy.find_refusing_rule(ip, self.origin.port)) for ip in addresses)
        self.refusal = next((refuse_address(self.origin, ip, rule) for ip, rule in checked if rule), None)
        self.addresses = ",".join(f"[{ip}]" if ":" in ip else ip for ip in addresses[:_MAX_ADDRESSES])

    def expire_addresses(self) -> None:
        self.fresh_until = self.usable_until = 0.0

    def extend_addresses(self, now: float, seconds: float) -> bool:
        """Use the known addresses for some seconds more. Return False if there are none, or they are too old."""
        self.fresh_until = max(self.fresh_until, min(now + seconds, self.usable_until))
        return self.fresh_until > now

    def is_waiting_for_addresses(self, now: float) -> bool:
        return self.lookup_started_at is not None and self.fresh_until <= now

    def end_lookup(self, now: float) -> None:
        """Record that the lookup has ended, and how long the waiting attempts have waited for it."""
        if self.is_waiting_for_addresses(now):
            for prepared in self.queue:
                prepared.dns_seconds = now - max(prepared.sent_at, self.lookup_started_at or now)
        self.clear_lookup()

    def clear_lookup(self) -> None:
        self.lookup_started_at = None
        self.lookup_tenants = set()

    def take_expired(self, now: float, dns_timeout: float) -> list[Outcome]:
        """Remove the attempts that may wait no longer, and return their outcomes."""
        lookup_started_at = self.lookup_started_at if self.is_waiting_for_addresses(now) else None
        waiting, self.queue = self.queue, deque()
        expired: list[Outcome] = []
        for prepared in waiting:
            if prepared.deadline <= now:
                phase = "looking up the host name" if lookup_started_at else "waiting for a free connection"
                expired.append(prepared.fail(*prepared.explain_timeout(phase), now))
            elif lookup_started_at and max(prepared.sent_at, lookup_started_at) + dns_timeout <= now:
                message = f"The DNS lookup of {self.origin.host} took longer than {dns_timeout:g} s."
                expired.append(prepared.fail(ErrorKind.DNS, message, now))
            else:
                self.queue.append(prepared)
        return expired
