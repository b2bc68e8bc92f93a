"""No response makes the process grow by more than 64 MB."""

import re
from pathlib import Path

import pytest

from execution.egress import Limits
from execution.outcome import Errored, ErrorKind, Outcome, Responded
from tests.execution import hostile
from tests.execution.hostile import MEBIBYTE, build_attempt, gather, perform, running, serving

MAX_GROWTH = 64 * MEBIBYTE
STATUS = Path("/proc/self/status")

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="measures resident memory through Linux's /proc")


def read_resident_bytes(which: str) -> int:
    found = re.search(rf"{which}:\s+(\d+) kB", STATUS.read_text())
    assert found
    return int(found[1]) * 1024


class Growth:
    """Measures how much resident memory has grown at most since it was created, including the server's."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        self._before = read_resident_bytes("VmRSS")

    def bytes(self) -> int:
        return read_resident_bytes("VmHWM") - self._before


def fetch(behavior: hostile.Behavior, limits: Limits) -> tuple[Outcome, int]:
    with serving(behavior) as server, running(limits=limits) as egress:
        growth = Growth()
        outcome = perform(egress, build_attempt(server.url(), timeout=30))
        return outcome, growth.bytes()


def test_a_body_of_1_gb_is_counted_and_not_kept() -> None:
    size = 1024 * MEBIBYTE
    outcome, growth = fetch(hostile.send_zeros(size), Limits(response_body=2 * size))
    assert isinstance(outcome, Responded), outcome
    assert outcome.body_size == size
    assert len(outcome.body) == Limits().keep_body
    assert growth <= MAX_GROWTH


def test_a_body_beyond_the_limit_ends_the_attempt() -> None:
    outcome, growth = fetch(hostile.send_zeros(1024 * MEBIBYTE), Limits())
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TOO_LARGE
    assert outcome.may_have_been_sent
    assert growth <= MAX_GROWTH


def test_a_gzip_bomb_stays_packed() -> None:
    bomb = hostile.gzip_bomb(1024 * MEBIBYTE)
    outcome, growth = fetch(hostile.send_once(bomb), Limits())
    assert isinstance(outcome, Responded), outcome
    assert outcome.body_size < 2 * MEBIBYTE
    assert outcome.body[:2] == b"\x1f\x8b"
    assert growth <= MAX_GROWTH


def test_header_floods_stay_small() -> None:
    flood = hostile.repeat(b"HTTP/1.1 200 OK\r\n", b"X-Filler: abcdefgh\r\n" * 1000)
    with serving(flood) as server, running() as egress:
        growth = Growth()
        egress.send([build_attempt(server.url(), key=n) for n in range(50)])
        outcomes = gather(egress, 50)
        grown = growth.bytes()
    assert [o.kind for o in outcomes if isinstance(o, Errored)] == [ErrorKind.TOO_LARGE] * 50
    assert grown <= MAX_GROWTH


def test_many_large_bodies_at_once_stay_small() -> None:
    with serving(hostile.send_zeros(8 * MEBIBYTE)) as server, running() as egress:
        growth = Growth()
        egress.send([build_attempt(server.url(), key=n, timeout=30) for n in range(40)])
        outcomes = gather(egress, 40)
        grown = growth.bytes()
    assert {o.body_size for o in outcomes if isinstance(o, Responded)} == {8 * MEBIBYTE}
    assert grown <= MAX_GROWTH
