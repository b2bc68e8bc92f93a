"""The behavior that is particular to the timer store on DynamoDB."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest

pytest.importorskip("boto3")

from eventservice.kernel.ids import new_id
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
from tests.contracts.timer_stores.dynamodb import SECRET_KEY, DynamoDbStoreUnderTest
from tests.contracts.timer_stores.faulty_dynamodb import (
    Answer,
    Document,
    Fault,
    FaultyDynamoDb,
    change,
    fail_after_execution,
    refuse,
    run_faulty_dynamodb,
)
from tests.contracts.timer_stores.fixtures import build_faulty_fixtures, build_fixtures
from tests.tcp_proxy import TcpProxy, Trouble
from timers.stores.dynamodb import client
from timers.stores.dynamodb.items import MAX_TIMER_BYTES, build_timer_item, measure_bytes
from timers.stores.dynamodb.table import DUE_INDEX
from timers.stores.factory import build_store
from timers.stores.health import examine_store
from timers.stores.port import (
    OutcomeUnknown,
    Position,
    Progress,
    StoredTimer,
    StoreUnavailable,
    TimerRefused,
    TimerStore,
    TimerStoreError,
    TimerTooLarge,
)
from timers.stores.store_spec import StoreSpec

SHARD = build_key().shard
MINUTE = timedelta(minutes=1)
THROTTLED = refuse("ProvisionedThroughputExceededException")

SPECIFIED_TIMER = {
    "shard_id": "N",
    "sortKey": "S",
    "row_type": "S",
    "timer_execute_at": "S",
    "timer_uuid": "S",
    "timer_id": "S",
    "timer_namespace": "S",
    "timer_callback_url": "S",
    "timer_payload": "S",
    "timer_retry_policy": "S",
    "timer_callback_timeout_seconds": "N",
    "timer_created_at": "S",
    "timer_attempts": "N",
}
SPECIFIED_SHARD = {
    "shard_id": "N",
    "sortKey": "S",
    "row_type": "S",
    "shard_version": "N",
    "shard_owner_id": "S",
    "shard_claimed_at": "S",
    "shard_metadata": "S",
    "updated_at": "S",
}


server, stores, store, new_stores = build_fixtures(DynamoDbStoreUnderTest)
faulty, faulty_store = build_faulty_fixtures(
    lambda stores: run_faulty_dynamodb(stores.endpoint),
    lambda stores, faulty: stores.build_spec(faulty.endpoint),
)


@pytest.fixture
def proxy(stores: DynamoDbStoreUnderTest) -> Iterator[TcpProxy]:
    assert stores.spec is not None
    proxy = TcpProxy("127.0.0.1", int(stores.endpoint.rpartition(":")[2]))
    yield proxy
    proxy.close()


def list_pages(store: TimerStore, limit: int = 10) -> list[list[StoredTimer]]:
    """Return the pages of a list of the namespace."""
    pages, after = [], None
    while True:
        page = store.scan(ALERTS, NUM_SHARDS, after, limit)
        pages.append(page.timers)
        after = page.after
        if after is None:
            return pages


# --- the table ----------------------------------------------------------------------------------------------------


def test_the_table_has_the_specified_keys_and_index(stores: DynamoDbStoreUnderTest) -> None:
    table = stores.client.describe_table(TableName=stores.table_name)["Table"]
    assert table["KeySchema"] == [
        {"AttributeName": "shard_id", "KeyType": "HASH"},
        {"AttributeName": "sortKey", "KeyType": "RANGE"},
    ]
    types = {one["AttributeName"]: one["AttributeType"] for one in table["AttributeDefinitions"]}
    assert types == {"shard_id": "N", "sortKey": "S", "timer_execute_at": "S"}
    (index,) = table["LocalSecondaryIndexes"]
    assert index["IndexName"] == "timer_execute_at-index"
    assert index["KeySchema"] == [
        {"AttributeName": "shard_id", "KeyType": "HASH"},
        {"AttributeName": "timer_execute_at", "KeyType": "RANGE"},
    ]


def test_items_have_the_specified_attributes(stores: DynamoDbStoreUnderTest, store: TimerStore) -> None:
    timer = build_timer("user-reminder-123", payload={"userId": 1}, retry_policy={"maxRetries": 3})
    store.put(timer, None, NOW)
    assert store.claim(store.shards([timer.key.shard])[0], "instance-1", {"processId": "1"})
    items = stores.client.scan(TableName=stores.table_name)["Items"]
    timer_item, shard_item = sorted(items, key=lambda item: item["row_type"]["S"], reverse=True)
    for item, specified in ((timer_item, SPECIFIED_TIMER), (shard_item, SPECIFIED_SHARD)):
        types = {name: next(iter(value)) for name, value in item.items()}
        assert {name: types[name] for name in specified} == specified
    assert timer_item["sortKey"] == {"S": f"TIMER#{ALERTS}#user-reminder-123"}
    assert timer_item["row_type"] == {"S": "TIMER"}
    assert timer_item["timer_execute_at"] == {"S": "2026-03-01T12:00:00.000Z"}
    assert timer_item["timer_retry_policy"] == {"S": '{"maxRetries": 3}'}
    assert shard_item["sortKey"] == {"S": "SHARD#OWNERSHIP"}
    assert shard_item["row_type"] == {"S": "SHARD"}


def test_only_timers_are_in_the_index(stores: DynamoDbStoreUnderTest, store: TimerStore) -> None:
    store.put(build_timer(), None, NOW)
    assert store.claim(store.shards([SHARD])[0], "owner", {})
    found = stores.client.scan(TableName=stores.table_name, IndexName=DUE_INDEX)["Items"]
    assert [set(item) for item in found] == [{"shard_id", "sortKey", "timer_execute_at"}]


def test_a_missing_table_is_reported_and_its_server_is_not_at_fault(
    new_stores: DynamoDbStoreUnderTest,
) -> None:
    store = new_stores.build()
    findings = {finding.code: finding for finding in examine_store("main", store, lambda: datetime.now(UTC))}
    assert findings["timer_store_server"].is_ok
    assert findings["timer_store_clock"].is_ok
    assert "timer_store migrate" in findings["timer_store_table"].remedy
    with pytest.raises(StoreUnavailable, match="timer_store migrate dynamodb"):
        store.put(build_timer(), None, NOW)
    assert store.measure_bytes() is None
    store.migrate()
    assert all(finding.is_ok for finding in store.check())


def test_a_table_of_another_shape_is_refused(new_stores: DynamoDbStoreUnderTest) -> None:
    """DynamoDB cannot add a local secondary index to a table that exists."""
    new_stores.client.create_table(
        TableName=new_stores.table_name,
        KeySchema=[{"AttributeName": "shard_id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "shard_id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    store = new_stores.build()
    with pytest.raises(TimerStoreError, match=f"the table {new_stores.table_name} cannot be used") as raised:
        store.migrate()
    problems = {finding.code: finding.text for finding in store.check() if not finding.is_ok}
    for text in (str(raised.value), problems["timer_store_table"]):
        assert "its key is (shard_id) instead of (shard_id, sortKey)" in text
        assert "shard_id has the type S instead of N" in text
        assert "no local secondary index timer_execute_at-index (shard_id, timer_execute_at)" in text


# --- limits -------------------------------------------------------------------------------------------------------


def test_an_id_that_makes_a_key_of_too_many_bytes_is_refused(
    store: TimerStore, faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    namespace = replace(ALERTS, name="n" * 218)
    # 6 bytes of TIMER#, 255 of the namespace and one of the separator.
    longest, too_long = (build_timer("\U0001f514" * 190 + "x" * n, NOW, namespace) for n in (2, 3))
    store.put(longest, None, NOW)
    assert store.get(longest.key) == longest
    with pytest.raises(TimerRefused, match=r"^id: .* 1,025 bytes, and DynamoDB accepts 1,024"):
        faulty_store.put(too_long, None, NOW)
    assert faulty_store.get(too_long.key) is None
    assert not faulty.count


def test_a_timer_of_the_maximum_size_can_be_taken_and_rescheduled(
    store: TimerStore, faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    room = MAX_TIMER_BYTES - measure_bytes(build_timer_item(build_timer(payload=""), NOW))
    largest, too_large = (build_timer(payload="x" * (room + n)) for n in (0, 1))
    with pytest.raises(TimerTooLarge, match=r"^payload: the timer has 405,505 bytes"):
        faulty_store.put(too_large, None, NOW)
    assert not faulty.count
    store.put(largest, None, NOW)
    (taken,) = store.take([largest], NOW, NOW + MINUTE)
    assert reschedule_one(store, taken.take, NOW + MINUTE, Progress(10**9, 10**9, NOW, 10**12))
    assert store.remove([taken.take._replace(execute_at=NOW + MINUTE)]) == 0
    (due,) = store.due(SHARD, NOW + MINUTE, NOW + MINUTE, None, 10).timers
    assert due.payload == largest.payload


def test_what_is_too_large_for_dynamodb_only_is_refused_as_too_large(
    faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    message = "Item size has exceeded the maximum allowed size"
    faulty.add("PutItem", refuse("ValidationException", message=message))
    with pytest.raises(TimerTooLarge, match=message):
        faulty_store.put(build_timer(), None, NOW)


def test_timers_that_are_more_than_an_answer_can_have_are_returned_in_several_pages(
    store: TimerStore,
) -> None:
    """DynamoDB reads 1 MB at a time."""
    timers = build_timers_of_shard(SHARD, 6)
    timers = [replace(timer, payload="x" * 300_000) for timer in timers]
    for timer in timers:
        store.put(timer, None, NOW)
    pages = list_pages(store)
    assert max(map(len, pages)) < 6
    expected = sorted(timers, key=lambda timer: timer.key.timer_id)
    assert list(chain.from_iterable(pages)) == expected
    due: list[StoredTimer] = []
    after: Position | None = None
    for _ in timers:
        page = store.due(SHARD, NOW, NOW, after, 10)
        due += page.timers
        after = page.after
        if after is None:
            break
    assert sorted(due, key=lambda timer: timer.key.timer_id) == expected
    assert store.count_timers([SHARD], NOW) == [(SHARD, 6, 6)]


def test_a_position_after_the_end_of_the_range_is_the_end_of_the_list(store: TimerStore) -> None:
    """The clock that ended the earlier list was ahead of the one that ends this list."""
    for timer in build_timers_of_shard(SHARD, 2):
        store.put(timer, None, NOW)
    after = store.due(SHARD, NOW, NOW, None, 1).after
    assert after is not None
    assert store.due(SHARD, NOW, NOW - MINUTE, after, 1) == ([], None)


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [Trouble.RESET, Trouble.SWALLOW], ids=lambda trouble: trouble.value)
def test_a_write_without_an_answer_is_reported_and_can_be_repeated(
    stores: DynamoDbStoreUnderTest, proxy: TcpProxy, trouble: Trouble
) -> None:
    store = build_store(stores.build_spec(f"http://127.0.0.1:{proxy.port}"), CELL)
    timer = build_timer()
    assert store.get(timer.key) is None
    expected = OutcomeUnknown if trouble is Trouble.SWALLOW else (OutcomeUnknown, StoreUnavailable)
    with proxy.make_trouble(trouble, 0), pytest.raises(expected):
        store.put(timer, None, NOW)
    store.put(timer, None, NOW)
    assert stores.build().get(timer.key) == timer
    store.close()


def slow_down(forward: Callable[[], Answer], request: Document) -> Answer:
    """Give a busy machine the time to notice the error of another request."""
    time.sleep(0.2)
    return forward()


def test_timers_are_taken_once_although_dynamodb_fails_meanwhile(
    faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    timers = build_timers_of_shard(SHARD, 40)
    for timer in timers:
        faulty_store.put(timer, None, NOW)
    faulty.add("UpdateItem", fail_after_execution("InternalServerError", 500), *[slow_down] * 39)
    with pytest.raises(OutcomeUnknown):
        faulty_store.take(timers, NOW, NOW + MINUTE)
    # The rest was not begun.
    assert faulty.count["UpdateItem"] < len(timers)
    faulty.faults.clear()
    found = faulty_store.due(SHARD, NOW, NOW, None, 100).timers
    taken = [timer for timer in found if timer.taken_by == CELL]
    assert 1 <= len(taken) < len(timers)
    won = faulty_store.take(found, NOW, NOW + MINUTE)
    assert {timer.key for timer in [*taken, *won]} == {timer.key for timer in timers}
    assert all(timer.takes == 1 for timer in [*taken, *won])


def test_a_throttled_write_is_repeated(faulty_store: TimerStore, faulty: FaultyDynamoDb) -> None:
    timer = build_timer()
    faulty.add("PutItem", THROTTLED, refuse("ThrottlingException"))
    faulty_store.put(timer, None, NOW)
    assert faulty.count["PutItem"] == 3
    assert faulty_store.get(timer.key) == timer


def test_a_write_that_remains_throttled_is_reported_and_was_not_made(
    monkeypatch: pytest.MonkeyPatch, faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    monkeypatch.setattr(client, "REPEAT_SECONDS", 0.0)
    timer = build_timer()
    faulty.add("PutItem", THROTTLED)
    with pytest.raises(StoreUnavailable, match="ProvisionedThroughputExceededException: refused by the test"):
        faulty_store.put(timer, None, NOW)
    assert faulty_store.get(timer.key) is None


def test_a_write_that_failed_within_dynamodb_is_not_repeated(
    faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    """Its repeat would find the timer deleted, and the client would be told that there was none."""
    timer = build_timer()
    faulty_store.put(timer, None, NOW)
    faulty.add("DeleteItem", fail_after_execution("InternalServerError", 500))
    with pytest.raises(OutcomeUnknown, match="InternalServerError"):
        faulty_store.delete(timer, NOW)
    assert faulty.count["DeleteItem"] == 1
    assert faulty_store.get(timer.key) is None


def test_a_read_that_failed_within_dynamodb_is_repeated(
    faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    faulty.add("GetItem", refuse("InternalServerError", 500), refuse("ServiceUnavailable", 503))
    assert faulty_store.get(build_key()) is None
    assert faulty.count["GetItem"] == 3


def test_a_refused_write_is_unavailable(faulty_store: TimerStore, faulty: FaultyDynamoDb) -> None:
    faulty.add("PutItem", refuse("AccessDeniedException"))
    with pytest.raises(StoreUnavailable, match="AccessDeniedException"):
        faulty_store.put(build_timer(), None, NOW)
    assert faulty.count["PutItem"] == 1


def test_a_part_of_a_batch_that_was_not_read_is_requested_again(
    store: TimerStore, faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    def leave_half(forward: object, request: Document) -> Answer:
        (name, keys) = next(iter(request["RequestItems"].items()))
        half = keys | {"Keys": keys["Keys"][:150]}
        return Answer(200, {"Responses": {}, "UnprocessedKeys": {name: half}})

    for shard in (3, 120):
        assert store.claim(store.shards([shard])[0], f"owner-{shard}", {})
    faulty.add("BatchGetItem", leave_half, leave_half)
    found = faulty_store.shards([*range(200), 3])
    assert [owned.shard for owned in found] == [*range(200), 3]
    assert {owned.shard: owned.owner for owned in found if owned.owner} == {3: "owner-3", 120: "owner-120"}
    assert faulty.count["BatchGetItem"] == 4


def test_a_server_that_cannot_be_reached_is_unavailable_and_its_secret_is_not_shown() -> None:
    url = f"dynamodb://test:{SECRET_KEY}@us-east-1/timers?endpoint=http://127.0.0.1:1"
    store = build_store(StoreSpec.parse(f"main={url}"), CELL)
    with pytest.raises(StoreUnavailable, match=r"^main: ") as raised:
        store.put(build_timer(), None, NOW)
    assert SECRET_KEY not in str(raised.value)
    store.close()


def test_missing_credentials_are_reported_until_there_are_some(
    monkeypatch: pytest.MonkeyPatch, stores: DynamoDbStoreUnderTest
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    url = f"dynamodb://us-east-1/{stores.table_name}?endpoint={stores.endpoint}"
    store = build_store(StoreSpec.parse(f"main={url}"), CELL)
    with pytest.raises(StoreUnavailable, match=r"^main: .*credentials"):
        store.get(build_key())
    with pytest.raises(StoreUnavailable, match=r"^main: .*credentials"):
        store.shards(range(200))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert store.get(build_key()) is None
    store.close()


# --- the clock and the size ---------------------------------------------------------------------------------------


def test_the_clock_is_that_of_the_answer(faulty_store: TimerStore, faulty: FaultyDynamoDb) -> None:
    """The middle of the second that the header names."""
    date = {"Date": "Sun, 01 Mar 2026 12:00:00 GMT"}
    faulty.add("GetItem", lambda forward, request: forward()._replace(headers=date))
    assert faulty_store.read_clock() == NOW + timedelta(milliseconds=500)


def test_changes_carry_the_time_of_the_server(
    stores: DynamoDbStoreUnderTest, faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    date = {"Date": "Wed, 01 Jan 2031 00:00:00 GMT"}
    faulty.add("GetItem", lambda forward, request: forward()._replace(headers=date))
    faulty_store.read_clock()
    faulty_store.put(build_timer(), None, NOW)
    (item,) = stores.client.scan(TableName=stores.table_name)["Items"]
    assert item["updated_at"]["S"].startswith("2031-01-01T00:")


def grow(gigabytes: int) -> Fault:
    def change_size(document: Document) -> Document:
        return {"Table": document["Table"] | {"TableSizeBytes": gigabytes * 2**30}}

    return change(change_size)


def test_a_partition_near_its_maximum_size_is_reported(
    faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    """DynamoDB tells the size of a partition only in the answers to writes, and DynamoDB Local not at all."""

    def tell_sizes(shards_and_sizes: dict[str, list[float]]) -> Fault:
        def answer(forward: Callable[[], Answer], request: Document) -> Answer:
            assert request["ReturnItemCollectionMetrics"] == "SIZE"
            sizes = shards_and_sizes.get(request["Key"]["shard_id"]["N"], [0.0, 1.0])
            metrics = {"ItemCollectionMetrics": {"SizeEstimateRangeGB": sizes}}
            answer = forward()
            return answer._replace(document=answer.document | (metrics if answer.status == 200 else {}))

        return answer

    faulty_store.declare_namespace(ALERTS, NUM_SHARDS, {})
    for seen in faulty_store.shards(range(NUM_SHARDS - 1)):
        assert faulty_store.claim(seen, "owner", {})
    before = faulty_store.shards(range(NUM_SHARDS))
    faulty.count.clear()
    # Distributed evenly among 16 shards, 100 GB fill none of them.
    faulty.add("DescribeTable", grow(100))
    assert all(finding.is_ok for finding in faulty_store.check())
    assert faulty.count["UpdateItem"] == 0
    faulty.add("DescribeTable", grow(140))
    faulty.add("UpdateItem", *[tell_sizes({"3": [7.5, 8.5], "5": [9.0, 10.0]})] * NUM_SHARDS)
    (problem,) = [finding for finding in faulty_store.check() if not finding.is_ok]
    assert problem.code == "timer_store_partitions"
    assert "the partitions of the shards 3, 5 have 8 GB or more" in problem.text
    faulty.add("DescribeTable", grow(140))
    faulty.add("UpdateItem", *[tell_sizes({})] * NUM_SHARDS)
    (problem,) = [finding for finding in faulty_store.check() if not finding.is_ok]
    assert "the partitions of the shards 15, which nobody has claimed, are of unknown size" in problem.text
    assert faulty_store.shards(range(NUM_SHARDS)) == before
    assert faulty_store.claim(before[15], "owner", {})
    faulty.add("DescribeTable", grow(140))
    faulty.add("UpdateItem", *[tell_sizes({})] * NUM_SHARDS)
    assert all(finding.is_ok for finding in faulty_store.check())


def test_a_first_take_does_not_make_an_item_larger(stores: DynamoDbStoreUnderTest) -> None:
    """No item of a full partition can become larger, and its timers have to be executed nevertheless."""
    store = stores.build(str(new_id()))
    timer = build_timer()
    store.put(timer, None, NOW)
    (item,) = stores.client.scan(TableName=stores.table_name)["Items"]
    assert store.take([timer], NOW, NOW + MINUTE)
    (taken,) = stores.client.scan(TableName=stores.table_name)["Items"]
    assert measure_bytes(taken) < measure_bytes(item)


def test_a_full_partition_refuses_timers_and_says_why(
    faulty_store: TimerStore, faulty: FaultyDynamoDb
) -> None:
    message = "Item collection size limit of 10 GB exceeded"
    faulty.add("PutItem", refuse("ItemCollectionSizeLimitExceededException", message=message))
    with pytest.raises(StoreUnavailable, match=message):
        faulty_store.put(build_timer(), None, NOW)
