"""Names whose servers do not answer hold up nobody else's attempts, nor those to names that did answer before."""

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
from tests.execution.hostile import LOOPBACK, answering, attempt, gather, perform, running

ASK_AT_ONCE = Limits(dns_keep_seconds=0)  # what is known has run out whenever it is needed again


class Names:
    """A lookup that this test speaks for. Names in .dark are not answered while it lasts."""

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
        """Until so many more lookups have begun."""
        for _ in range(count):
            assert self._began.acquire(timeout=10)


@contextmanager
def looking_up(
    names: Names, limits: Limits | None = None, policy: AddressPolicy = LOOPBACK
) -> Iterator[tuple[Egress, int]]:
    """An egress, and the port of a server that answers."""
    with answering(lambda _request: hostile.OK) as server:
        try:
            with running(policy, limits, names) as egress:
                yield egress, server.port
        finally:
            names.over.set()


def dark(count: int, tenant: str) -> list[Attempt]:
    return [
        attempt(f"http://{tenant}-{n}.dark/", timeout=30, key=(tenant, n), tenant=tenant)
        for n in range(count)
    ]


def goes_on(egress: Egress, named: Attempt) -> bool:
    """For longer than any answer serves."""
    ends_at = time.monotonic() + 0.1
    while time.monotonic() < ends_at:
        if not isinstance(perform(egress, named), Responded):
            return False
    return True


def first_error(egress: Egress, named: Attempt) -> ErrorKind:
    ends_at = time.monotonic() + 10
    while isinstance(outcome := perform(egress, named), Responded):
        assert time.monotonic() < ends_at
    return kind_of(outcome)


def kind_of(outcome: Outcome) -> ErrorKind:
    assert isinstance(outcome, Errored), outcome
    return outcome.kind


def test_a_hundred_names_of_one_tenant_that_are_not_answered_hold_up_no_other_tenant() -> None:
    names = Names()
    with looking_up(names) as (egress, port):
        egress.send(dark(100, "a"))
        names.wait_for(32)
        outcome = perform(egress, attempt(f"http://healthy.example:{port}/", tenant="b"))
        assert isinstance(outcome, Responded)
    assert len([name for name in names.asked if name.endswith(".dark")]) == 32


def test_nor_do_they_hold_up_a_name_of_the_same_tenant_that_answered_before() -> None:
    names = Names()
    with looking_up(names, ASK_AT_ONCE) as (egress, port):
        healthy = attempt(f"http://healthy.example:{port}/", tenant="a")
        assert isinstance(perform(egress, healthy), Responded)
        egress.send(dark(100, "a"))
        names.wait_for(33)
        assert goes_on(egress, healthy)


def test_a_name_that_answered_before_is_asked_for_ahead_of_those_that_did_not() -> None:
    names = Names()
    with looking_up(names, Limits(dns_keep_seconds=0, dns_threads=4)) as (egress, port):
        healthy = attempt(f"http://healthy.example:{port}/", tenant="a")
        assert isinstance(perform(egress, healthy), Responded)
        egress.send(dark(3, "a"))
        assert goes_on(egress, healthy)
        names.over.set()
        gather(egress, 3)
    assert names.asked[:4] == ["healthy.example", "a-0.dark", "healthy.example", "a-1.dark"]


def test_a_name_that_two_tenants_call_does_not_wait_in_the_line_of_the_one() -> None:
    names = Names()
    with looking_up(names) as (egress, port):
        shared = f"http://shared.example:{port}/"
        egress.send([*dark(100, "a"), attempt(shared, key="a", tenant="a")])
        names.wait_for(32)
        egress.send([attempt(shared, key="b", tenant="b")])
        outcomes = gather(egress, 2)
    assert {outcome.key for outcome in outcomes if isinstance(outcome, Responded)} == {"a", "b"}
    assert names.asked.count("shared.example") == 1


def test_who_has_the_fewest_threads_comes_next() -> None:
    """Four threads, so that each tenant has a share of one."""
    names = Names()
    with looking_up(names, Limits(dns_threads=4)) as (egress, _port):
        for tenant in "abcde":
            egress.send(dark(5, tenant))
        names.wait_for(4)
        assert sorted(name[0] for name in names.asked) == ["a", "b", "c", "d"]


def test_what_nobody_waits_for_any_more_is_not_looked_up() -> None:
    names = Names()
    with looking_up(names, Limits(dns_threads=4, dns_timeout=0.2)) as (egress, port):
        egress.send(dark(100, "a"))
        assert {kind_of(outcome) for outcome in gather(egress, 100)} == {ErrorKind.DNS}
        names.over.set()
        outcome = perform(egress, attempt(f"http://healthy.example:{port}/", tenant="a"))
    assert isinstance(outcome, Responded)
    assert names.asked == ["a-0.dark", "healthy.example"]


def test_what_was_given_up_is_looked_up_when_it_is_called_again() -> None:
    names = Names()
    with looking_up(names, Limits(dns_threads=4, dns_timeout=0.2)) as (egress, port):
        late = attempt(f"http://late.example:{port}/", timeout=30, tenant="a")
        egress.send(dark(1, "a"))
        names.wait_for(1)
        egress.send([late])
        assert [kind_of(outcome) for outcome in gather(egress, 2)] == [ErrorKind.DNS] * 2
        names.over.set()
        assert isinstance(perform(egress, late), Responded)


@pytest.mark.parametrize(
    "trouble", [None, socket.gaierror(socket.EAI_AGAIN, "try again"), OSError(5, "broken")]
)
def test_what_a_name_led_to_serves_on_while_nobody_can_tell(trouble: Exception | None) -> None:
    """None: the lookup hangs."""
    names = Names()
    with looking_up(names, ASK_AT_ONCE) as (egress, port):
        named = attempt(f"http://name.example:{port}/")
        assert isinstance(perform(egress, named), Responded)
        names.answer = trouble
        assert goes_on(egress, named)


@pytest.mark.parametrize("answer", [[], socket.gaierror(socket.EAI_NONAME, "no such name")])
def test_a_name_that_is_no_more_is_called_no_more(answer: Sequence[str] | Exception) -> None:
    names = Names()
    with looking_up(names, ASK_AT_ONCE) as (egress, port):
        named = attempt(f"http://name.example:{port}/")
        assert isinstance(perform(egress, named), Responded)
        names.answer = answer
        assert first_error(egress, named) is ErrorKind.DNS
        names.answer = None
        assert kind_of(perform(egress, attempt(named.url, timeout=0.6))) is ErrorKind.TIMEOUT


def test_a_name_that_is_rebound_after_a_silence_is_judged_again() -> None:
    """While nobody can tell, the address that was judged before serves; the new one never does."""
    names = Names()
    limits = Limits(dns_keep_seconds=0, dns_timeout=0.2)
    with (
        answering(lambda _request: hostile.OK) as server,
        running(AddressPolicy(allow=frozenset({server.address})), limits, names) as egress,
    ):
        named = attempt(f"http://name.example:{server.port}/")
        assert isinstance(perform(egress, named), Responded)
        names.answer = OSError(5, "broken")
        assert goes_on(egress, named)
        names.answer = ["127.0.0.2"]
        assert first_error(egress, named) is ErrorKind.EGRESS
        names.answer = OSError(5, "broken")
        assert not goes_on(egress, named)
