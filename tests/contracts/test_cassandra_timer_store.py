"""The behavior that is particular to the timer store on Cassandra."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cassandra")

from cassandra.cluster import Session

from tests.contracts.timer_stores.base import (
    ALERTS,
    CELL,
    NOW,
    NUM_SHARDS,
    build_key,
    build_timer,
    build_timers_of_shard,
    reschedule_one,
)
from tests.contracts.timer_stores.cassandra import CassandraStoreUnderTest
from tests.contracts.timer_stores.faulty_cassandra import (
    CAS_TIMEOUT,
    COMMIT_TIMEOUT,
    OVERLOADED,
    READ_FAILURE,
    READ_TIMEOUT,
    SERVER_ERROR,
    UNAVAILABLE,
    CqlFault,
    FaultyCassandra,
    run_faulty_cassandra,
)
from tests.contracts.timer_stores.fixtures import build_faulty_fixtures, build_fixtures
from tests.contracts.tls_servers import Authority
from tests.tcp_proxy import TcpProxy, Trouble
from timers.stores.cassandra import client
from timers.stores.cassandra import store as store_module
from timers.stores.cassandra.address import CassandraAddress
from timers.stores.cassandra.client import CassandraClient
from timers.stores.cassandra.rows import MAX_TIMER_BYTES
from timers.stores.cassandra.statements import Statement
from timers.stores.factory import build_store
from timers.stores.health import examine_store
from timers.stores.port import (
    NO_CELL,
    OutcomeUnknown,
    Progress,
    StoredTimer,
    StoreUnavailable,
    TimerConflict,
    TimerRefused,
    TimerStore,
    TimerStoreError,
    TimerTooLarge,
)
from timers.stores.store_spec import StoreSpec

SECRET = "s3cret"
SHARD = build_key().shard
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
LONG_SECONDS = 60.0

# The specification's table, but for the type of one column: the API accepts fractions of seconds.
SPECIFIED_COLUMNS = {
    "shard_id": "int",
    "row_type": "smallint",
    "timer_execute_at": "timestamp",
    "timer_uuid": "uuid",
    "timer_id": "text",
    "timer_namespace": "text",
    "timer_callback_url": "text",
    "timer_payload": "text",
    "timer_retry_policy": "text",
    "timer_callback_timeout_seconds": "double",
    "timer_created_at": "timestamp",
    "timer_attempts": "int",
    "shard_version": "bigint",
    "shard_owner_id": "text",
    "shard_claimed_at": "timestamp",
    "shard_metadata": "text",
}
SPECIFIED_KEY = ["shard_id", "row_type", "timer_execute_at", "timer_uuid"]


server, stores, store, new_stores = build_fixtures(CassandraStoreUnderTest)
faulty, faulty_store = build_faulty_fixtures(
    lambda stores: run_faulty_cassandra(stores.server),
    lambda stores, faulty: stores.build_spec(port=faulty.port),
)


def parse(url: str) -> CassandraAddress:
    return CassandraAddress.parse(StoreSpec.parse(f"main={url}").parts)


# --- the URL ------------------------------------------------------------------------------------------------------


def test_a_url_names_hosts_and_a_keyspace() -> None:
    address = parse("cassandra://db-1.example,10.0.0.2:19042,[fe80::1]:9043/timers")
    assert address == CassandraAddress(
        (("db-1.example", 9042), ("10.0.0.2", 19042), ("fe80::1", 9043)), "timers"
    )
    assert address.build_tls_context() is None


def test_a_url_can_have_credentials_and_options() -> None:
    url = "cassandra+tls://us%40er:a%2Fb%2B%3A@h/timers?dc=eu-1&replication=eu-1:3,us:2&ca=/ca&cert=/c&key=/k"
    address = parse(url)
    assert (address.user, address.password) == ("us@er", "a/b+:")
    assert (address.data_center, address.replication) == ("eu-1", {"eu-1": 3, "us": 2})
    assert (address.is_encrypted, address.ca, address.cert, address.key) == (True, "/ca", "/c", "/k")
    assert "a/b+:" not in repr(address)


def test_one_number_is_the_replication_in_every_data_center() -> None:
    assert parse("cassandra://h/timers?replication=3").replication == {"replication_factor": 3}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("cassandra://h/Timers", "the keyspace must have up to 48 lowercase letters"),
        ("cassandra://h/a/b", "the keyspace must have up to 48 lowercase letters"),
        ("cassandra://h,,i/timers", "the hosts must be names or addresses"),
        ("cassandra://h:0/timers", "the hosts must be names or addresses"),
        ("cassandra://h:65536/timers", "the hosts must be names or addresses"),
        (f"cassandra://user:{SECRET}/x@h/timers", "/ and @ in a password are written as %2F and %40"),
        (f"cassandra://{SECRET}@h/timers", "both a user and a password"),
        (f"cassandra://:{SECRET}@h/timers", "both a user and a password"),
        (
            f"cassandra://h/timers?{SECRET}=1",
            "an unknown option; the options are dc, replication, ca, cert, key",
        ),
        ("cassandra://h/timers?dc=a&dc=b", "an option twice"),
        ("cassandra://h/timers?dc=", "the option dc has no value"),
        ("cassandra://h/timers?dc=a'b", "the option dc must be the name of a data center"),
        ("cassandra://h/timers?replication=0", "the option replication must be a number"),
        ("cassandra://h/timers?replication=a':3", "the option replication must be a number"),
        ("cassandra://h/timers?ca=/ca.pem", "the options ca, cert, key need the scheme cassandra+tls"),
        ("cassandra+tls://h/timers?cert=/cert.pem", "cert and key must be given together"),
    ],
)
def test_a_wrong_url_is_refused_without_being_quoted(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"main: ") as raised:
        build_store(StoreSpec.parse(f"main={url}"), NO_CELL)
    assert message in str(raised.value)
    assert SECRET not in str(raised.value)


# --- the table ----------------------------------------------------------------------------------------------------


def read_columns(stores: CassandraStoreUnderTest) -> list[Any]:
    text = "SELECT * FROM system_schema.columns WHERE keyspace_name = %s AND table_name = 'timers'"
    return list(stores.session.execute(text, (stores.keyspace,)))


def test_the_table_has_the_specified_columns_and_key(stores: CassandraStoreUnderTest) -> None:
    columns = {column.column_name: column for column in read_columns(stores)}
    types = {name: column.type for name, column in columns.items()}
    assert {name: types[name] for name in SPECIFIED_COLUMNS} == SPECIFIED_COLUMNS
    assert {types[name] for name in columns.keys() - SPECIFIED_COLUMNS.keys()} <= {
        "bigint",
        "int",
        "text",
        "timestamp",
        "uuid",
    }
    partition_key = [name for name, column in columns.items() if column.kind == "partition_key"]
    clustering = sorted(
        (column for column in columns.values() if column.kind == "clustering"),
        key=lambda column: int(column.position),
    )
    assert [*partition_key, *(column.column_name for column in clustering)] == SPECIFIED_KEY
    assert {column.clustering_order for column in clustering} == {"asc"}
    assert {column.kind for column in columns.values()} == {"partition_key", "clustering", "regular"}


def test_a_keyspace_is_created_with_the_replication_of_the_url_or_not_at_all(
    new_stores: CassandraStoreUnderTest,
) -> None:
    without = build_store(new_stores.build_spec(options=""), CELL)
    with pytest.raises(
        TimerStoreError, match=r"there is no keyspace timers_\w+: create it, or say in the URL"
    ):
        without.migrate()
    new_stores.build().migrate()
    without.migrate()
    without.close()
    text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
    (row,) = new_stores.session.execute(text, (new_stores.keyspace,))
    assert row.replication["class"].endswith("NetworkTopologyStrategy")
    assert row.replication["datacenter1"] == "1"


def test_a_missing_table_is_reported_and_its_server_is_not_at_fault(
    new_stores: CassandraStoreUnderTest,
) -> None:
    store = new_stores.build()
    findings = {finding.code: finding for finding in examine_store("main", store, store.read_clock)}
    assert findings["timer_store_server"].is_ok
    assert findings["timer_store_clock"].is_ok
    assert "timer_store migrate" in findings["timer_store_table"].remedy
    with pytest.raises(StoreUnavailable, match="timer_store migrate cassandra"):
        store.put(build_timer(), None, NOW)
    store.migrate()
    assert all(finding.is_ok for finding in store.check())
    new_stores.session.execute(f"DROP TABLE {new_stores.keyspace}.timers", timeout=60)
    with pytest.raises(StoreUnavailable, match="timer_store migrate cassandra"):
        store.put(build_timer(), None, NOW)


def test_a_table_of_another_shape_is_refused(new_stores: CassandraStoreUnderTest) -> None:
    stores = new_stores
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    stores.session.execute(f"CREATE KEYSPACE {stores.keyspace} WITH replication = {replication}", timeout=60)
    columns = "shard_id bigint PRIMARY KEY, timer_payload blob"
    stores.session.execute(f"CREATE TABLE {stores.keyspace}.timers ({columns})", timeout=60)
    store = stores.build()
    with pytest.raises(TimerStoreError, match="cannot be used") as raised:
        store.migrate()
    problems = {finding.code: finding.text for finding in store.check() if not finding.is_ok}
    for text in (str(raised.value), problems["timer_store_table"]):
        assert f"its key is (shard_id) instead of ({', '.join(SPECIFIED_KEY)})" in text
        assert "shard_id has the type bigint instead of int" in text
        assert "it has no column timer_uuid" in text


# --- limits -------------------------------------------------------------------------------------------------------


def test_a_timer_of_the_maximum_size_can_be_taken_and_rescheduled(store: TimerStore) -> None:
    room = MAX_TIMER_BYTES - len(build_timer().callback_url) - len('""')
    largest, too_large = (build_timer(payload="x" * (room + n)) for n in (0, 1))
    with pytest.raises(TimerTooLarge, match=r"^payload: .* 1,048,577 bytes"):
        store.put(too_large, None, NOW)
    store.put(largest, None, NOW)
    (taken,) = store.take([largest], NOW, NOW + MINUTE)
    assert reschedule_one(store, taken.take, NOW + MINUTE, Progress(attempts=1))
    (due,) = store.due(SHARD, NOW + MINUTE, NOW + MINUTE, None, 10).timers
    assert (due.payload, due.progress.attempts) == (largest.payload, 1)


def test_what_is_no_unicode_text_is_refused_in_a_url_and_kept_in_a_payload(store: TimerStore) -> None:
    with pytest.raises(TimerRefused, match="surrogates"):
        store.put(replace(build_timer(), callback_url="https://example.com/\ud800"), None, NOW)
    timer = build_timer(payload="\ud800\0")
    store.put(timer, None, NOW)
    assert store.get(timer.key) == timer


def test_a_position_after_the_end_of_the_range_is_the_end_of_the_list(store: TimerStore) -> None:
    """The clock that ended the earlier list was ahead of the one that ends this list."""
    for timer in build_timers_of_shard(SHARD, 2):
        store.put(timer, None, NOW)
    after = store.due(SHARD, NOW, NOW, None, 1).after
    assert after is not None
    assert store.due(SHARD, NOW, NOW - MINUTE, after, 1) == ([], None)


# --- rows and tombstones ------------------------------------------------------------------------------------------


def read_rows(stores: CassandraStoreUnderTest, row_type: int) -> list[Any]:
    text = f"SELECT * FROM {stores.keyspace}.timers WHERE shard_id = %s AND row_type = %s"
    return list(stores.session.execute(text, (SHARD, row_type)))


def test_a_timer_has_one_row_and_one_pointer_wherever_it_moves(
    stores: CassandraStoreUnderTest, store: TimerStore
) -> None:
    first = build_timer()
    later, same_time = build_timer(execute_at=NOW + HOUR), build_timer(execute_at=NOW + HOUR, payload=2)
    store.put(first, None, NOW)
    store.put(later, first, NOW)
    store.put(same_time, later, NOW)
    moved = store.move(same_time, NOW, NOW + MINUTE)
    assert moved is not None
    (taken,) = store.take([moved], NOW, NOW + MINUTE)
    assert reschedule_one(store, taken.take, NOW + 2 * HOUR)
    (row,) = read_rows(stores, 2)
    (pointer,) = read_rows(stores, 3)
    assert row.timer_uuid == pointer.timer_uuid == first.key.uuid
    assert row.timer_execute_at == pointer.timer_row_at == (NOW + 2 * HOUR).replace(tzinfo=None)
    last = store.get(first.key)
    assert last is not None
    assert store.delete(last, NOW)
    assert read_rows(stores, 2) == read_rows(stores, 3) == []


@pytest.fixture
def count_tombstones(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], int]:
    """Return a function that counts the tombstones that Cassandra reads during another function, by its traces."""
    execute_async = Session.execute_async

    def count(function: Callable[[], Any]) -> int:
        futures: list[Any] = []

        def execute_and_trace(*arguments: Any, **options: Any) -> Any:
            futures.append(execute_async(*arguments, **{**options, "trace": True}))
            return futures[-1]

        with monkeypatch.context() as patch:
            patch.setattr(Session, "execute_async", execute_and_trace)
            function()
        events = [event for future in futures for event in future.get_query_trace(30).events]
        # "Read 3 live rows and 40 tombstone cells"
        found = [event.description.split() for event in events if "tombstone cells" in event.description]
        assert found
        return sum(int(words[words.index("tombstone") - 1]) for words in found)

    return count


def test_due_timers_are_found_without_reading_those_that_were_removed(
    store: TimerStore, count_tombstones: Callable[[Callable[[], Any]], int]
) -> None:
    timers = [
        replace(timer, execute_at=NOW - HOUR + number * SECOND)
        for number, timer in enumerate(build_timers_of_shard(SHARD, 61))
    ]
    for timer in timers:
        store.put(timer, None, NOW)
    live = timers.pop()
    store.remove([timer.take for timer in store.take(timers, NOW, NOW + MINUTE)])

    def find() -> None:
        assert store.due(SHARD, NOW, NOW, None, 100).timers == [live]

    assert count_tombstones(find) >= len(timers)
    assert count_tombstones(find) == 0
    assert count_tombstones(lambda: store.count_timers([SHARD], NOW)) == 0
    assert count_tombstones(lambda: store.scan(ALERTS, NUM_SHARDS, None, 100)) == 0
    assert count_tombstones(lambda: store.get(live.key)) == 0
    new = build_timer(key=replace(build_key("new"), shard=SHARD))
    assert count_tombstones(lambda: store.put(new, None, NOW)) == 0
    assert store.delete(store.due(SHARD, NOW, NOW, None, 2).timers[1], NOW)
    assert store.remove([timer.take for timer in store.take([live], NOW, NOW + MINUTE)]) == 1
    later = NOW + HOUR
    assert store.due(SHARD, later, later, None, 100).timers == []
    assert count_tombstones(lambda: store.due(SHARD, later, later, None, 100)) == 0


# --- floors -------------------------------------------------------------------------------------------------------


def raise_floors(store: TimerStore, now: datetime = NOW) -> None:
    """Look for due timers, which raises the floors to a minute before the server's time or to the oldest timer."""
    store.due(SHARD, now, now, None, 1000)


@pytest.fixture
def floor(store: TimerStore) -> datetime:
    """Return the floor of a shard, whose only timer is there."""
    store.put(build_timer("oldest", key=replace(build_key("oldest"), shard=SHARD)), None, NOW)
    raise_floors(store)
    return NOW


def list_due(store: TimerStore) -> list[str]:
    return [timer.key.timer_id for timer in store.due(SHARD, NOW, NOW, None, 1000).timers]


def test_a_timer_before_the_floor_is_due_at_the_floor(store: TimerStore, floor: datetime) -> None:
    timer = build_timer(execute_at=NOW - HOUR)
    store.put(timer, None, NOW)
    assert store.get(timer.key) == replace(timer, execute_at=floor)
    assert sorted(list_due(store)) == ["oldest", timer.key.timer_id]
    # A repeat.
    store.put(timer, None, NOW)
    with pytest.raises(TimerConflict):
        store.put(build_timer(execute_at=NOW - HOUR), None, NOW)


@pytest.mark.parametrize(
    "change",
    [
        lambda store, timer: store.delete(timer, NOW),
        lambda store, timer: store.postpone(timer, NOW, NOW + MINUTE),
        lambda store, timer: store.put(build_timer(payload=2), timer, NOW) is None,
        lambda store, timer: store.put(build_timer(execute_at=NOW - HOUR, payload=2), timer, NOW) is None,
        lambda store, timer: store.move(timer, NOW, NOW + HOUR) == store.get(timer.key),
        lambda store, timer: store.move(timer, NOW, NOW - HOUR) == store.get(timer.key),
    ],
    ids=["delete", "postpone", "replace", "replace before the floor", "move", "move before the floor"],
)
@pytest.mark.usefixtures("floor")
def test_a_timer_before_the_floor_is_changed_by_those_who_do_not_know_of_the_floor(
    store: TimerStore, change: Callable[[TimerStore, StoredTimer], bool]
) -> None:
    timer = build_timer(execute_at=NOW - HOUR)
    store.put(timer, None, NOW)
    before = store.get(timer.key)
    assert change(store, timer)
    assert store.get(timer.key) != before


@pytest.mark.parametrize("end", ["remove", "reschedule", "release"])
@pytest.mark.usefixtures("floor")
def test_a_take_of_a_timer_before_the_floor_is_ended_by_those_who_do_not_know_of_the_floor(
    store: TimerStore, end: str
) -> None:
    timer = build_timer(execute_at=NOW - HOUR, takes=1, taken_by=CELL, taken_until=NOW + MINUTE)
    store.put(timer, None, NOW)
    if end == "remove":
        assert store.remove([timer.take]) == 1
        assert store.get(timer.key) is None
        return
    execute_at = timer.execute_at if end == "release" else NOW + HOUR
    assert reschedule_one(store, timer.take, execute_at)
    stored = store.get(timer.key)
    assert stored is not None
    assert (stored.execute_at, stored.taken_by) == (NOW if end == "release" else NOW + HOUR, None)


@pytest.mark.parametrize("column", ["shard_write_floor", "shard_read_floor"])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_a_timer_that_is_stored_while_the_floors_are_raised_is_found(
    monkeypatch: pytest.MonkeyPatch, stores: CassandraStoreUnderTest, column: str, *, is_before: bool
) -> None:
    raiser, writer = stores.build(), stores.build()
    first = build_timer("first", NOW - 2 * HOUR, key=replace(build_key("first"), shard=SHARD))
    writer.put(first, None, NOW)
    raise_floors(raiser)
    assert writer.delete(first, NOW)
    late = build_timer("late", NOW - HOUR, key=replace(build_key("late"), shard=SHARD))
    write, interrupted = CassandraClient.write, threading.Event()

    def write_and_interrupt(client: CassandraClient, *statements: Statement) -> bool:
        if interrupted.is_set() or not statements[0].text.startswith(f"UPDATE timers SET {column} ="):
            return write(client, *statements)
        interrupted.set()
        if is_before:
            writer.put(late, None, NOW)
        written = write(client, *statements)
        if not is_before:
            writer.put(late, None, NOW)
        return written

    with monkeypatch.context() as patch:
        patch.setattr(CassandraClient, "write", write_and_interrupt)
        raise_floors(raiser)
    assert interrupted.is_set()
    assert list_due(writer) == ["late"]
    raise_floors(raiser)
    assert list_due(writer) == ["late"]


def test_no_timer_is_lost_while_others_raise_the_floors(
    monkeypatch: pytest.MonkeyPatch, stores: CassandraStoreUnderTest
) -> None:
    monkeypatch.setattr(store_module, "FLOOR_STEP", timedelta(0))
    timers = [
        replace(timer, execute_at=NOW - HOUR + (number * 37 % 60) * MINUTE)
        for number, timer in enumerate(build_timers_of_shard(SHARD, 60))
    ]
    problems: list[Exception] = []

    def put_all(store: TimerStore, timers: list[StoredTimer]) -> None:
        try:
            for timer in timers:
                repeat(lambda: store.put(timer, None, NOW))  # noqa: B023 - it is called at once
        except Exception as error:  # noqa: BLE001 - it is raised again below
            problems.append(error)

    def repeat(function: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + LONG_SECONDS
        while True:
            try:
                return function()
            except OutcomeUnknown:  # too many writes of one shard at once
                assert time.monotonic() < deadline

    writers = [
        threading.Thread(target=put_all, args=(stores.build(), timers[number::2])) for number in range(2)
    ]
    for writer in writers:
        writer.start()
    store, removed = stores.build(), 0
    deadline = time.monotonic() + LONG_SECONDS
    while removed < len(timers) and not problems:
        assert time.monotonic() < deadline, f"{removed} of {len(timers)} timers were found"
        due = repeat(lambda: store.due(SHARD, NOW, NOW, None, 100)).timers
        taken = [timer for timer in due if timer.taken_by] + repeat(
            lambda: store.take([timer for timer in due if not timer.taken_by], NOW, NOW + MINUTE)  # noqa: B023
        )
        removed += repeat(lambda: store.remove([timer.take for timer in taken]))  # noqa: B023
    for writer in writers:
        writer.join()
    assert problems == []
    assert [timer for timer in timers if store.get(timer.key)] == []


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [CAS_TIMEOUT, COMMIT_TIMEOUT, READ_TIMEOUT, OVERLOADED, SERVER_ERROR],
    ids=lambda fault: hex(fault.code),
)
def test_a_write_whose_outcome_the_server_does_not_know_is_reported_and_not_repeated(
    stores: CassandraStoreUnderTest, faulty_store: TimerStore, faulty: FaultyCassandra, fault: CqlFault
) -> None:
    timer = build_timer()
    stores.build().put(build_timer("other", key=replace(build_key("other"), shard=SHARD)), None, NOW)
    faulty.faults.append(fault)
    with pytest.raises(OutcomeUnknown, match=r"^cassandra: "):
        faulty_store.put(timer, None, NOW)
    assert faulty.count == 1
    faulty_store.put(timer, None, NOW)
    assert stores.build().get(timer.key) == timer


def test_a_write_that_was_not_begun_is_unavailable(
    stores: CassandraStoreUnderTest, faulty_store: TimerStore, faulty: FaultyCassandra
) -> None:
    faulty.faults.append(UNAVAILABLE)
    with pytest.raises(StoreUnavailable, match=r"^cassandra: .*made by the test"):
        faulty_store.put(build_timer(), None, NOW)
    assert faulty.count == 1
    assert stores.build().get(build_key()) is None


@pytest.mark.parametrize(
    "fault", [READ_FAILURE, SERVER_ERROR, UNAVAILABLE], ids=lambda fault: hex(fault.code)
)
def test_a_read_that_failed_is_unavailable(
    faulty_store: TimerStore, faulty: FaultyCassandra, fault: CqlFault
) -> None:
    faulty.faults += [fault] * 2
    with pytest.raises(StoreUnavailable, match=r"^cassandra: "):
        faulty_store.get(build_key())
    faulty.faults.clear()
    assert faulty_store.get(build_key()) is None


def test_floors_that_cannot_be_raised_do_not_keep_timers_from_being_found(
    faulty_store: TimerStore, faulty: FaultyCassandra
) -> None:
    timer = build_timer()
    faulty_store.put(timer, None, NOW)
    # After the reads of the floors and of the timers.
    faulty.faults += [None, None, SERVER_ERROR]
    assert list_due(faulty_store) == [timer.key.timer_id]
    assert faulty.faults == []


@pytest.mark.parametrize("trouble", [Trouble.RESET, Trouble.SWALLOW], ids=lambda trouble: trouble.value)
def test_a_write_without_an_answer_is_reported_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, stores: CassandraStoreUnderTest, trouble: Trouble
) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 2)
    monkeypatch.setattr(client, "HEARTBEAT_SECONDS", 1)
    proxy = TcpProxy(stores.server.hostname or "", stores.server.port or 0)
    store = build_store(stores.build_spec(port=proxy.port), CELL)
    timer = build_timer()
    # The next one is prepared, and the shard has its floors.
    store.put(build_timer("other", key=replace(build_key("other"), shard=SHARD)), None, NOW)
    expected = OutcomeUnknown if trouble is Trouble.SWALLOW else (OutcomeUnknown, StoreUnavailable)
    with proxy.make_trouble(trouble, 0), pytest.raises(expected):
        store.put(timer, None, NOW)
    # It connects again by itself.
    deadline = time.monotonic() + LONG_SECONDS
    while True:
        try:
            store.put(timer, None, NOW)
            break
        except (OutcomeUnknown, StoreUnavailable):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert stores.build().get(timer.key) == timer
    store.close()
    proxy.close()


def test_a_server_that_cannot_be_reached_is_unavailable_and_its_password_is_not_shown() -> None:
    for host, message in (("127.0.0.1:1", "refused"), ("nothing.invalid", "not known")):
        store = build_store(StoreSpec.parse(f"main=cassandra://user:{SECRET}@{host}/timers"), CELL)
        with pytest.raises(StoreUnavailable, match=rf"^main: .*{message}") as raised:
            store.put(build_timer(), None, NOW)
        assert SECRET not in str(raised.value)
        store.close()


def test_a_wrong_password_is_reported_and_not_shown(stores: CassandraStoreUnderTest) -> None:
    store = build_store(stores.build_spec(password=SECRET), CELL)
    with pytest.raises(
        StoreUnavailable, match=r"^cassandra: no server is available: Failed to authenticate"
    ) as raised:
        store.get(build_key())
    assert SECRET not in str(raised.value)
    store.close()


def test_a_data_center_that_does_not_exist_is_named(stores: CassandraStoreUnderTest) -> None:
    store = build_store(stores.build_spec(options="dc=atlantis"), CELL)
    with pytest.raises(StoreUnavailable, match="no server of the data center 'atlantis' is available"):
        store.get(build_key())
    store.close()


# --- TLS ----------------------------------------------------------------------------------------------------------


def test_both_sides_verify_each_other_with_tls(stores: CassandraStoreUnderTest, tmp_path: Path) -> None:
    authority, other = (Authority(tmp_path, name) for name in ("authority", "other"))
    certificate, own = authority.issue("server"), authority.issue("client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.cert))
    context.load_cert_chain(certificate.cert, certificate.key)
    context.verify_mode = ssl.CERT_REQUIRED

    def read_clock(port: int, options: str) -> datetime:
        store = build_store(stores.build_spec(scheme="cassandra+tls", port=port, options=options), CELL)
        try:
            return store.read_clock()
        finally:
            store.close()

    identity = f"cert={own.cert}&key={own.key}"
    with run_faulty_cassandra(stores.server, context) as server:
        read_clock(server.port, f"ca={authority.cert}&{identity}")
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate.verify.failed"):
            read_clock(server.port, f"ca={other.cert}&{identity}")
        with pytest.raises(StoreUnavailable, match=r"^cassandra: no server is available"):
            read_clock(server.port, f"ca={authority.cert}")
        with pytest.raises(StoreUnavailable, match=r"^cassandra: .*No such file"):
            read_clock(server.port, f"ca={tmp_path}/missing.pem")
    with pytest.raises(StoreUnavailable, match=r"^cassandra: no server is available"):
        read_clock(stores.server.port or 0, f"ca={authority.cert}&{identity}")
