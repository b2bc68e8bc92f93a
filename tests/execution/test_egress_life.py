"""The egress starts, wakes, closes, and survives errors."""

import json
import logging
import os
import resource
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eventservice.kernel.logging import build_logging_config
from execution.addresses import AddressPolicy
from execution.egress import Egress, EgressClosed, Limits
from execution.outcome import Errored, ErrorKind, Responded
from tests.database_clock import allow_for_load
from tests.execution import hostile
from tests.execution.hostile import LOOPBACK, answering, build_attempt, gather, perform, running

ROOT = Path(__file__).parents[2]


def list_descriptors() -> set[int]:
    """Return the open descriptors, without the one that is used to list them."""
    listed = (int(path.name) for path in Path("/proc/self/fd").iterdir())
    return {fd for fd in listed if Path(f"/proc/self/fd/{fd}").is_symlink()}


def ok(_request: hostile.Request) -> bytes:
    return hostile.OK


def test_creating_an_egress_starts_nothing() -> None:
    threads, opened = threading.active_count(), list_descriptors()
    Egress(LOOPBACK)
    assert threading.active_count() == threads
    assert list_descriptors() == opened


def test_nothing_can_be_sent_before_the_start_or_after_the_end() -> None:
    egress = Egress(LOOPBACK)
    with pytest.raises(EgressClosed):
        egress.send([build_attempt("http://127.0.0.1/")])
    egress.start()
    egress.close()
    egress.close()
    with pytest.raises(EgressClosed):
        egress.send([build_attempt("http://127.0.0.1/")])


def test_closing_returns_every_descriptor_and_thread() -> None:
    with answering(ok) as server:
        threads, opened = threading.active_count(), list_descriptors()
        with running() as egress:
            perform(egress, build_attempt(server.url()))
        ends_at = time.monotonic() + 5
        while len(list_descriptors()) > len(opened) + 1 and time.monotonic() < ends_at:
            time.sleep(0.01)  # the server's own end of the connection
        assert "egress" not in {thread.name for thread in threading.enumerate()}
        assert threading.active_count() <= threads + 1


def test_collect_returns_when_woken_and_when_time_is_up() -> None:
    with running() as egress:
        started = time.monotonic()
        assert egress.collect(0.05) == []
        assert time.monotonic() - started >= 0.05
        egress.wake()
        assert egress.collect(30) == []
        threading.Timer(0.05, egress.wake).start()
        assert egress.collect(30) == []
        assert time.monotonic() - started < 5


def test_closing_interrupts_attempts_in_progress() -> None:
    with hostile.listening_only() as hanging:
        egress = Egress(LOOPBACK, Limits(per_host_connections=2))
        egress.start()
        egress.send([build_attempt(hanging.url(), key=n, timeout=30) for n in range(5)])
        assert egress._loop is not None
        active = egress._loop._active
        while sum(transfer.sent for transfer, _destination in list(active.values())) < 2:
            time.sleep(0.001)
        egress.close()
        outcomes = egress.collect(0)
    assert [o.kind for o in outcomes if isinstance(o, Errored)] == [ErrorKind.INTERRUPTED] * 5
    assert (
        sorted(o.may_have_been_sent for o in outcomes if isinstance(o, Errored)) == [False] * 3 + [True] * 2
    )


def test_it_costs_nothing_when_there_is_nothing_to_do() -> None:
    with answering(ok) as server, hostile.listening_only() as hanging, running() as egress:
        perform(egress, build_attempt(server.url()))
        egress.send([build_attempt(hanging.url(), timeout=30, key=n) for n in range(50)])
        egress.collect(0.2)
        cpu = time.process_time()
        egress.collect(0.5)
        assert time.process_time() - cpu < 0.05


def test_idle_connections_are_closed() -> None:
    with answering(ok) as server, running(limits=Limits(idle_connection_seconds=1)) as egress:
        perform(egress, build_attempt(server.url()))
        assert is_connected_to(server.port)
        ends_at = time.monotonic() + 5
        while is_connected_to(server.port) and time.monotonic() < ends_at:
            time.sleep(0.05)
        assert not is_connected_to(server.port)
        assert isinstance(perform(egress, build_attempt(server.url())), Responded)


def is_connected_to(port: int) -> bool:
    """Return whether the kernel's table has an open connection to the port."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def test_sockets_do_not_leak_into_child_processes() -> None:
    with hostile.listening_only() as hanging, running() as egress:
        before = list_descriptors()
        egress.send([build_attempt(hanging.url(), timeout=30)])
        egress.collect(0.2)
        opened = list_descriptors() - before
        inheritable = [fd for fd in opened if is_socket(fd) and os.get_inheritable(fd)]
    assert inheritable == []


def is_socket(fd: int) -> bool:
    return stat.S_ISSOCK(os.fstat(fd).st_mode)


def test_running_out_of_descriptors_is_an_error_that_says_so() -> None:
    """Run in another process, whose limit is lowered below what the attempts need."""
    script = """
        import os, resource, socket
        from tests.execution.hostile import build_attempt, gather, listening_only, answering, running, OK, perform
        from execution.egress import Limits
        with answering(lambda r: OK) as good, listening_only() as hanging, running() as egress:
            perform(egress, build_attempt(good.url()))
            resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
            egress.send([build_attempt(hanging.url(), key=n, timeout=2) for n in range(200)])
            outcomes = gather(egress, 200)
            kinds = {o.kind.value for o in outcomes}
            messages = [o.message for o in outcomes if o.kind.value == "Connect"]
            assert kinds == {"Connect", "Timeout"}, kinds
            assert messages and all("file descriptor" in message for message in messages), messages
            assert perform(egress, build_attempt(good.url())).status == 200
            print("survived", len(outcomes))
    """
    assert run_alone(script) == "survived 200"


def test_it_opens_no_more_connections_than_the_process_has_descriptors_for() -> None:
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        from tests.execution.hostile import build_attempt, gather, listening_only, running
        with listening_only() as hanging, running() as egress:
            egress.send([build_attempt(hanging.url(), key=n, timeout=1) for n in range(600)])
            outcomes = gather(egress, 600)
            print({o.kind.value for o in outcomes}, len(outcomes))
    """
    assert run_alone(script) == "{'Timeout'} 600"


def test_an_egress_that_was_created_before_a_fork_can_be_started_after_it() -> None:
    script = """
        import os
        from tests.execution.hostile import LOOPBACK, OK, answering, build_attempt, perform
        from execution.egress import Egress
        egress = Egress(LOOPBACK)
        child = os.fork()
        with answering(lambda request: OK) as server:
            egress.start()
            status = perform(egress, build_attempt(server.url())).status
            egress.close()
        if child == 0:
            os._exit(0 if status == 200 else 1)
        print(status, os.waitpid(child, 0)[1])
    """
    assert run_alone(script) == "200 0"


def run_alone(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize("broken", [{"headers": [("X-A", 5)]}, {"headers": [5]}, {"url": None}])
def test_an_invalid_attempt_does_not_affect_others(
    broken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with answering(ok) as server, running() as egress:
        given: dict[str, Any] = {"url": server.url(), "method": "POST", "key": "bad"} | broken
        egress.send([build_attempt(server.url(), key="good"), build_attempt(**given)])
        outcomes = {o.key: o for o in gather(egress, 2)}
    assert isinstance(outcomes["good"], Responded)
    bad = outcomes["bad"]
    assert isinstance(bad, Errored)
    assert bad.kind is ErrorKind.PROTOCOL
    assert not bad.may_have_been_sent


class BrokenPolicy(AddressPolicy):
    """Raises an error while the switch is set."""

    broken = False

    def find_refusing_rule(self, ip: str, port: int) -> str | None:
        if BrokenPolicy.broken:
            raise ZeroDivisionError("a bug")
        return super().find_refusing_rule(ip, port)


def test_a_bug_ends_the_attempt_and_not_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = build_logging_config("ERROR", "json")["formatters"]["structured"]
    monkeypatch.setattr(caplog.handler, "formatter", config.pop("()")(**config))
    policy = BrokenPolicy(allow=LOOPBACK.allow)
    limits = Limits(dns_keep_seconds=0)
    with answering(ok) as server, running(policy, limits, lookup=lambda _host: ["127.0.0.1"]) as egress:
        named = f"http://name.example:{server.port}/"
        assert isinstance(perform(egress, build_attempt(server.url())), Responded)
        monkeypatch.setattr(BrokenPolicy, "broken", True)
        for url in (server.url(), named, "http://127.0.0.9/"):
            outcome = perform(egress, build_attempt(url, tenant="t-1"))
            assert isinstance(outcome, Errored)
            assert outcome.kind is ErrorKind.PROTOCOL
        monkeypatch.setattr(BrokenPolicy, "broken", False)
        assert isinstance(perform(egress, build_attempt(server.url())), Responded)
        assert isinstance(perform(egress, build_attempt(named)), Responded)
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    assert all("a bug" in line["exception"] for line in lines)
    assert ("attempt_not_prepared", "t-1") in {(line["event"], line.get("tenant_id")) for line in lines}


def test_an_attempt_ends_in_time_even_when_libcurl_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile.listening_only() as hanging, running() as egress:
        assert egress._loop is not None
        monkeypatch.setattr(egress._loop._multi, "take_finished", lambda: iter(()))
        started = time.monotonic()
        outcome = perform(egress, build_attempt(hanging.url(), timeout=0.2))
        assert time.monotonic() - started <= 0.2 + allow_for_load(0.5)
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.TIMEOUT
    assert outcome.may_have_been_sent


def test_an_error_message_contains_no_control_characters_of_the_server() -> None:
    evil = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: x\x1b[31mred\r\n\r\n"
    with hostile.serving(hostile.send_once(evil)) as server, running() as egress:
        outcome = perform(egress, build_attempt(server.url()))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.PROTOCOL
    assert outcome.message.isprintable()
    assert str(outcome.details["reason"]).isprintable()


@pytest.mark.parametrize(
    "error",
    [socket.gaierror(socket.EAI_NONAME, "unknown"), OSError(5, "broken"), UnicodeError("x"), KeyError("y")],
)
def test_a_lookup_that_fails_is_a_dns_error(error: Exception) -> None:
    def look_up(_host: str) -> list[str]:
        raise error

    with running(lookup=look_up) as egress:
        outcome = perform(egress, build_attempt("http://unknown.example/?secret=1"))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.DNS
    assert "unknown.example" in outcome.message
    assert "secret" not in outcome.message
    assert not outcome.may_have_been_sent


def test_a_name_without_addresses_is_a_dns_error() -> None:
    with running(lookup=lambda _host: []) as egress:
        outcome = perform(egress, build_attempt("http://empty.example/"))
    assert isinstance(outcome, Errored)
    assert outcome.kind is ErrorKind.DNS


def test_one_lookup_serves_all_attempts_that_wait_for_it() -> None:
    asked: list[str] = []

    def look_up(host: str) -> list[str]:
        asked.append(host)
        time.sleep(0.05)
        return ["127.0.0.1"]

    with answering(ok) as server, running(lookup=look_up) as egress:
        egress.send([build_attempt(f"http://name.example:{server.port}/{n}", key=n) for n in range(300)])
        assert len(gather(egress, 300)) == 300
    assert asked == ["name.example"]


def test_many_threads_may_send_at_once() -> None:
    with answering(ok) as server, running() as egress:

        def send(first: int) -> None:
            for n in range(first, first + 100):
                egress.send([build_attempt(server.url(), key=n)])

        threads = [threading.Thread(target=send, args=(first,)) for first in range(0, 400, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outcomes = gather(egress, 400)
    assert {o.key for o in outcomes if isinstance(o, Responded)} == set(range(400))


def test_descriptor_limit_of_this_process_is_left_alone() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with running():
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
