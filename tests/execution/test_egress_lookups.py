"""Lookups that get no response delay neither other tenants nor names that were resolved before."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from execution.addresses import AddressPolicy
from execution.egress import Egress, Limits
from execution.outcome import Attempt, Errored, ErrorKind, Outcome, Responded
from tests.execution import hostile
from tests.execution.hostile import LOOPBACK, answering, build_attempt, gather, perform, running

NEVER_FRESH = Limits(dns_keep_seconds=0)  # addresses are never fresh when they are needed again


class FakeNames:
    """A lookup whose results the test controls. Names in .dark get no response during the test."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Sequence[str] | Exception | None = ["127.0.0.1"]
        self._began = threading.Semaphore(0)
        self.over = threading.Event()

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        answer = None if host.endswith(".dark") else self.answer
        self._began.release()
        if answer is None:
            self.over.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait_for(self, count: int) -> None:
        """Wait until this many more lookups have started."""
        for _ in range(count):
            assert self._began.acquire(timeout=10)


@contextmanager
def running_with_names(
    names: FakeNames, limits: Limits | None = None, policy: AddressPolicy = LOOPBACK
) -> Iterator[tuple[Egress, int]]:
    """Run an egress, and yield it with the port of a server that responds."""
    with answering(lambda _request: hostile.OK) as server:
        try:
            with running(policy, limits, names) as egress:
                yield egress, server.port
        finally:
            names.over.set()


def call_unanswered_names(count: int, tenant: str) -> list[Attempt]:
    return [
        build_attempt(f"http://{tenant}-{n}.dark/", timeout=30, key=(tenant, n), tenant=tenant)
        for n in range(count)
    ]


def keeps_responding(egress: Egress, named: Attempt) -> bool:
    """Return whether all calls succeed for longer than any addresses stay fresh."""
    ends_at = time.monotonic() + 0.1
    while time.monotonic() < ends_at:
        if not isinstance(perform(egress, named), Responded):
            return False
    return True


def find_first_error(egress: Egress, named: Attempt) -> ErrorKind:
    ends_at = time.monotonic() + 10
    while isinstance(outcome := perform(egress, named), Responded):
        assert time.monotonic() < ends_at
    return get_error_kind(outcome)


def get_error_kind(outcome: Outcome) -> ErrorKind:
    assert isinstance(outcome, Errored), outcome
    return outcome.kind


def test_unanswered_lookups_of_one_tenant_do_not_delay_another() -> None:
    names = FakeNames()
    with running_with_names(names) as (egress, port):
        egress.send(call_unanswered_names(100, "a"))
        names.wait_for(32)
        outcome = perform(egress, build_attempt(f"http://healthy.example:{port}/", tenant="b"))
        assert isinstance(outcome, Responded)
    assert len([name for name in names.asked if name.endswith(".dark")]) == 32


def test_unanswered_lookups_do_not_delay_a_name_that_was_resolved_before() -> None:
    names = FakeNames()
    with running_with_names(names, NEVER_FRESH) as (egress, port):
        healthy = build_attempt(f"http://healthy.example:{port}/", tenant="a")
        assert isinstance(perform(egress, healthy), Responded)
        egress.send(call_unanswered_names(100, "a"))
        names.wait_for(33)
        assert keeps_responding(egress, healthy)


def test_a_name_that_was_resolved_before_is_looked_up_first() -> None:
    names = FakeNames()
    with running_with_names(names, Limits(dns_keep_seconds=0, dns_threads=4)) as (egress, port):
        healthy = build_attempt(f"http://healthy.example:{port}/", tenant="a")
        assert isinstance(perform(egress, healthy), Responded)
        egress.send(call_unanswered_names(3, "a"))
        assert keeps_responding(egress, healthy)
        names.over.set()
        gather(egress, 3)
    assert names.asked[:4] == ["healthy.example", "a-0.dark", "healthy.example", "a-1.dark"]


def test_a_name_that_two_tenants_call_does_not_wait_in_the_queue_of_one() -> None:
    names = FakeNames()
    with running_with_names(names) as (egress, port):
        shared = f"http://shared.example:{port}/"
        egress.send([*call_unanswered_names(100, "a"), build_attempt(shared, key="a", tenant="a")])
        names.wait_for(32)
        egress.send([build_attempt(shared, key="b", tenant="b")])
        outcomes = gather(egress, 2)
    assert {outcome.key for outcome in outcomes if isinstance(outcome, Responded)} == {"a", "b"}
    assert names.asked.count("shared.example") == 1


def test_the_tenant_with_the_fewest_threads_comes_next() -> None:
    # Each tenant has a share of one of the four threads.
    names = FakeNames()
    with running_with_names(names, Limits(dns_threads=4)) as (egress, _port):
        for tenant in "abcde":
            egress.send(call_unanswered_names(5, tenant))
        names.wait_for(4)
        assert sorted(name[0] for name in names.asked) == ["a", "b", "c", "d"]


def test_a_name_that_nobody_waits_for_is_not_looked_up() -> None:
    names = FakeNames()
    with running_with_names(names, Limits(dns_threads=4, dns_timeout=0.2)) as (egress, port):
        egress.send(call_unanswered_names(100, "a"))
        assert {get_error_kind(outcome) for outcome in gather(egress, 100)} == {ErrorKind.DNS}
        names.over.set()
        outcome = perform(egress, build_attempt(f"http://healthy.example:{port}/", tenant="a"))
    assert isinstance(outcome, Responded)
    assert names.asked == ["a-0.dark", "healthy.example"]


def test_a_name_whose_lookup_was_given_up_is_looked_up_with_the_next_call() -> None:
    names = FakeNames()
    with running_with_names(names, Limits(dns_threads=4, dns_timeout=0.2)) as (egress, port):
        late = build_attempt(f"http://late.example:{port}/", timeout=30, tenant="a")
        egress.send(call_unanswered_names(1, "a"))
        names.wait_for(1)
        egress.send([late])
        assert [get_error_kind(outcome) for outcome in gather(egress, 2)] == [ErrorKind.DNS] * 2
        names.over.set()
        assert isinstance(perform(egress, late), Responded)


@pytest.mark.parametrize(
    "trouble", [None, socket.gaierror(socket.EAI_AGAIN, "try again"), OSError(5, "broken")]
)
def test_known_addresses_are_used_while_lookups_fail(trouble: Exception | None) -> None:
    names = FakeNames()
    with running_with_names(names, NEVER_FRESH) as (egress, port):
        named = build_attempt(f"http://name.example:{port}/")
        assert isinstance(perform(egress, named), Responded)
        names.answer = trouble  # None makes the lookup hang
        assert keeps_responding(egress, named)


@pytest.mark.parametrize("answer", [[], socket.gaierror(socket.EAI_NONAME, "no such name")])
def test_a_name_that_no_longer_exists_is_not_called_any_more(answer: Sequence[str] | Exception) -> None:
    names = FakeNames()
    with running_with_names(names, NEVER_FRESH) as (egress, port):
        named = build_attempt(f"http://name.example:{port}/")
        assert isinstance(perform(egress, named), Responded)
        names.answer = answer
        assert find_first_error(egress, named) is ErrorKind.DNS
        names.answer = None
        assert get_error_kind(perform(egress, build_attempt(named.url, timeout=0.6))) is ErrorKind.TIMEOUT


def test_a_name_that_is_rebound_after_failed_lookups_is_checked_again() -> None:
    """The address that was checked before is used while lookups fail; the new one never is."""
    names = FakeNames()
    limits = Limits(dns_keep_seconds=0, dns_timeout=0.2)
    with (
        answering(lambda _request: hostile.OK) as server,
        running(AddressPolicy(allow=frozenset({server.address})), limits, names) as egress,
    ):
        named = build_attempt(f"http://name.example:{server.port}/")
        assert isinstance(perform(egress, named), Responded)
        names.answer = OSError(5, "broken")
        assert keeps_responding(egress, named)
        names.answer = ["127.0.0.2"]
        assert find_first_error(egress, named) is ErrorKind.EGRESS
        names.answer = OSError(5, "broken")
        assert not keeps_responding(egress, named)
