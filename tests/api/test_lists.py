"""Lists of calls contain what a scan of all rows would find, whatever the filters and the order."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from eventservice.api import calls
from eventservice.db.now import pin_time
from eventservice.kernel.machine_slots import reserve_slot
from eventservice.tenants.directory import declare_namespace
from orchestration.models import ServiceCall
from orchestration.queries import call_lists
from tests.api.conftest import SPEC, Api, build_submission, get_errors
from tests.factories import NOON, set_status

pytestmark = pytest.mark.django_db

Row = dict[str, Any]
CALLS = 60


@pytest.fixture
def rows(acme: Api, intruder: Api) -> list[Row]:
    """Create calls of all kinds, also for the intruder. Return Acme's as the API shows them."""
    declare_namespace(acme.tenant.tenant_id, "blue", 4)
    chance = random.Random(7)
    for n in range(CALLS):
        with pin_time(NOON + timedelta(minutes=n // 4)):
            made = acme.submit(
                name=chance.choice(["greet", "part"]),
                tags=chance.sample(["a", "b", "c"], chance.randint(0, 3)),
                namespace=chance.choice(["default", "blue"]),
                delay=chance.choice(["1h", "2h", "3h"]),
                requestSpec={**SPEC, "url": f"http://{chance.choice('xy')}.test/"},
            )
        if chance.random() < 0.5:
            status = chance.choice(["Succeeded", "Failed", "Running"])
            set_status(ServiceCall.across_tenants.filter(service_call_id=made["serviceCallId"]), status)
        elif n % 3:
            waiting = ServiceCall.across_tenants.filter(service_call_id=made["serviceCallId"])
            set_status(waiting, "Scheduled", attempt=1)
    intruder.submit(tags=["a", "b", "c"])
    return list(walk(acme, "limit=200"))


def walk(api: Api, query: str, path: str = "/service-calls") -> Iterator[Row]:
    """Yield the items of all pages."""
    cursor = ""
    while cursor is not None:
        page = api.get(f"{path}?{query}{cursor and '&cursor=' + cursor}")
        assert page.status_code == 200, page.content
        yield from page.json()["items"]
        cursor = page.json()["nextCursor"]


FILTERS: dict[str, Callable[[Row], bool]] = {
    "status=Succeeded": lambda row: row["status"] == "Succeeded",
    "status=Failed&status=Running": lambda row: row["status"] in ("Failed", "Running"),
    "retrying=true": lambda row: row["status"] == "Scheduled" and row["attempts"] > 0,
    "retrying=false": lambda row: True,
    "tag=a": lambda row: "a" in row["tags"],
    "tag=a&tag=b": lambda row: {"a", "b"} <= set(row["tags"]),
    "tag=a&tag=b&tagMode=any": lambda row: bool({"a", "b"} & set(row["tags"])),
    "name=part": lambda row: row["name"] == "part",
    "host=X.test": lambda row: row["request"]["host"] == "x.test",
    "host=X.test:80": lambda row: row["request"]["host"] == "x.test",
    "host=x.test:8443": lambda row: False,
    "namespace=blue": lambda row: row["namespace"] == "blue",
    "from=2026-03-01T14:05:00Z&to=2026-03-01T14:10:00Z": lambda row: (
        parse_clock("14:05") <= get_due_at(row) < parse_clock("14:10")
    ),
    "submittedFrom=2026-03-01T12:05:00Z": lambda row: (
        datetime.fromisoformat(row["submittedAt"]) >= parse_clock("12:05")
    ),
    "submittedTo=2026-03-01T13:10:00%2B01:00": lambda row: (
        datetime.fromisoformat(row["submittedAt"]) < parse_clock("12:10")
    ),
}
SORTS: dict[str, Callable[[Row], Any]] = {
    "submittedAt": lambda row: (row["submittedAt"], row["serviceCallId"]),
    "dueAt": lambda row: (row["dueAt"], row["serviceCallId"]),
}


def parse_clock(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-01T{clock}:00Z")


def get_due_at(row: Row) -> datetime:
    return datetime.fromisoformat(row["dueAt"])


@pytest.mark.parametrize("few", [0, 10, 5000], ids=["walks", "either", "few"])
def test_a_list_has_the_calls_that_match_its_filters(
    acme: Api, rows: list[Row], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", few)
    assert len(rows) == CALLS
    pairs = [("&".join(names), names) for n in (0, 1, 2) for names in itertools.combinations(FILTERS, n)]
    for turn, (query, names) in enumerate(pairs):
        if len(names) == 2 and names[0].split("=")[0] == names[1].split("=")[0]:
            continue  # together they would be one filter
        key, backwards = list(SORTS)[turn % 2], bool(turn // 2 % 2)
        expected = [row for row in rows if all(FILTERS[name](row) for name in names)]
        expected.sort(key=SORTS[key], reverse=backwards)
        sort = "-" * backwards + key
        found = list(walk(acme, f"{query}&sort={sort}&limit={7 + turn % 5}"))
        assert found == expected, (query, sort)


def test_the_newest_calls_come_first(acme: Api, rows: list[Row]) -> None:
    assert rows == sorted(rows, key=SORTS["submittedAt"], reverse=True)


def test_calls_with_a_tag_are_sorted_by_submission_whatever_their_ids(acme: Api) -> None:
    names: list[str] = []
    for n in (3, 1, 2):
        with pin_time(NOON + timedelta(seconds=len(names))):
            acme.submit(name=f"n{n}", tags=["t"], serviceCallId=f"01900000-0000-7000-8000-{n:012d}")
        names.append(f"n{n}")
    assert [row["name"] for row in walk(acme, "tag=t&sort=submittedAt&limit=1")] == names
    assert [row["name"] for row in walk(acme, "tag=t&limit=1")] == names[::-1]


def test_calls_can_be_filtered_by_correlation_id(acme: Api, rows: list[Row]) -> None:
    correlation = rows[3]["correlationId"]
    assert list(walk(acme, f"correlationId={correlation}")) == [rows[3]]
    assert list(walk(acme, f"correlationId={uuid.uuid4()}")) == []


def test_calls_can_be_filtered_by_the_call_they_replay(acme: Api, rows: list[Row]) -> None:
    origin = next(row["serviceCallId"] for row in rows if row["status"] == "Failed")
    made = acme.post(f"/service-calls/{origin}/replay").json()["serviceCallId"]
    (found,) = walk(acme, f"replayOf={origin}")
    assert (found["serviceCallId"], found["replayOf"]) == (made, origin)
    assert list(walk(acme, f"replayOf={origin}&status=Failed")) == []
    assert list(walk(acme, f"replayOf={made}")) == []


def test_an_exactly_full_page_can_be_the_last(acme: Api) -> None:
    for _ in range(3):
        acme.submit()
    assert acme.get("/service-calls?limit=3").json()["nextCursor"] is None
    assert acme.get("/service-calls?limit=2").json()["nextCursor"] is not None


def test_calls_submitted_meanwhile_do_not_shift_pages(acme: Api) -> None:
    first = [acme.submit()["serviceCallId"] for _ in range(4)][::-1]
    page = acme.get("/service-calls?limit=2").json()
    acme.submit()
    rest = acme.get(f"/service-calls?limit=2&cursor={page['nextCursor']}").json()
    assert [call["serviceCallId"] for call in page["items"] + rest["items"]] == first


def test_lists_have_neither_bodies_nor_headers(acme: Api) -> None:
    acme.submit(requestSpec={**SPEC, "headers": {"X-Seen": "canary"}, "body": "canary"})
    response = acme.get("/service-calls")
    assert b"canary" not in response.content
    assert response.json()["items"][0]["request"] == {
        "method": "POST",
        "url": SPEC["url"],
        "host": "target.test",
    }


@pytest.mark.parametrize("change", ["&sort=dueAt", "&tag=a", "&status=Failed", "&name=x"])
def test_a_cursor_is_valid_for_its_own_list_only(acme: Api, change: str) -> None:
    for _ in range(3):
        acme.submit()
    cursor = acme.get("/service-calls?limit=2").json()["nextCursor"]
    assert list(get_errors(acme.get(f"/service-calls?limit=2&cursor={cursor}{change}"))) == ["/query/cursor"]


def test_a_cursor_of_another_tenant_is_refused(acme: Api, intruder: Api) -> None:
    for _ in range(2):
        acme.submit()
    cursor = acme.get("/service-calls?limit=1").json()["nextCursor"]
    assert list(get_errors(intruder.get(f"/service-calls?limit=1&cursor={cursor}"))) == ["/query/cursor"]


@pytest.mark.parametrize("cursor", ["x", "a:b", "eyJ9:x", "%00", "%F0%9F%8E%89", "." * 3000])
def test_a_forged_cursor_is_refused(acme: Api, cursor: str) -> None:
    assert list(get_errors(acme.get(f"/service-calls?cursor={cursor}"))) == ["/query/cursor"]


@pytest.mark.parametrize(
    ("query", "pointers"),
    [
        ("limit=0", ["/query/limit"]),
        ("limit=201", ["/query/limit"]),
        ("limit=1&limit=2", ["/query/limit"]),
        ("limit=١", ["/query/limit"]),
        ("limit=99999999999999999999", ["/query/limit"]),
        ("status=Sleeping", ["/query/status"]),
        ("sort=name", ["/query/sort"]),
        ("from=yesterday&to=2026", ["/query/from", "/query/to"]),
        ("correlationId=7", ["/query/correlationId"]),
        ("tag=", ["/query/tag"]),
        ("name=%00", ["/query/name"]),
        ("color=red&limit=x", ["/query/color", "/query/limit"]),
        ("&".join(f"tag={n}" for n in range(21)), ["/query/tag"]),
        ("namespace=biling", ["/query/namespace"]),
        ("host=http://target.test", ["/query/host"]),
        ("host=a:b", ["/query/host"]),
        ("host=target.test:0", ["/query/host"]),
        ("host=target.test:99999", ["/query/host"]),
        ("host=target.test/hook", ["/query/host"]),
    ],
)
def test_an_invalid_query_is_refused(acme: Api, query: str, pointers: list[str]) -> None:
    assert list(get_errors(acme.get(f"/service-calls?{query}"))) == pointers


def test_an_undeclared_namespace_is_refused_in_the_list_of_timers(acme: Api, intruder: Api) -> None:
    declare_namespace(intruder.tenant.tenant_id, "blue", 4)
    refused = get_errors(acme.get("/timers?namespace=blue"))
    assert refused == {"/query/namespace": "must be a namespace of this tenant: this one does not exist"}


@pytest.mark.parametrize(
    "host",
    ["[2606:4700::1111]", "2606:4700::1111", "[2606:4700:0:0:0:0:0:1111]", "[2606:4700::1111]:80"],
)
def test_calls_are_found_by_an_address_in_any_notation(acme: Api, host: str) -> None:
    made = acme.submit(requestSpec={**SPEC, "url": "http://[2606:4700::1111]/"})
    assert [row["serviceCallId"] for row in walk(acme, f"host={host}")] == [made["serviceCallId"]]


def test_timers_are_listed_the_first_due_first(acme: Api, rows: list[Row]) -> None:
    assert list(walk(acme, "", "/timers")) == []
    for hour in ("03", "01", "02"):
        acme.post("/timers/create", create_timer(f"t{hour}", f"2030-01-01T{hour}:00:00Z"))
    assert [found["timerId"] for found in walk(acme, "limit=2", "/timers")] == ["t01", "t02", "t03"]
    later = list(walk(acme, "from=2030-01-01T02:00:00Z&namespace=default&status=Scheduled", "/timers"))
    assert [found["timerId"] for found in later] == ["t02", "t03"]
    assert list(walk(acme, "namespace=blue", "/timers")) == []


def create_timer(timer_id: str, execute_at: str) -> dict[str, Any]:
    return {
        "namespace": "default",
        "id": timer_id,
        "executeAt": execute_at,
        "callbackUrl": "http://target.test/",
    }


def test_a_list_shows_a_call_as_its_submission_did(acme: Api) -> None:
    made = acme.post("/service-calls", build_submission(tags=["x"])).json()
    (listed,) = acme.get("/service-calls").json()["items"]
    assert {name: made[name] for name in listed.keys() & made.keys()} == {
        n: listed[n] for n in listed.keys() & made.keys()
    }


# --- two common tags ----------------------------------------------------------------------------------------------


@pytest.fixture
def two_common_tags(acme: Api, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Create calls with one of two tags, and a few with both at the end of the walk. Return the ids of these."""
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", 5)
    monkeypatch.setattr(calls, "MAX_WALKED", 10)
    both = [acme.submit(tags=["a", "b"])["serviceCallId"] for _ in range(3)]
    for tag in ["a", "b"] * 30:
        acme.submit(tags=[tag])
    return both


@pytest.mark.parametrize("sort", ["-submittedAt", "submittedAt", "dueAt"])
def test_pages_of_two_common_tags_are_limited_and_lead_to_all_calls(
    acme: Api, two_common_tags: list[str], sort: str
) -> None:
    path = f"/service-calls?tag=a&tag=b&limit=2&sort={sort}"
    found: list[str] = []
    sizes: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = acme.get(f"{path}&cursor={cursor}" if cursor else path).json()
        found += [call["serviceCallId"] for call in page["items"]]
        sizes.append(len(page["items"]))
        cursor = page["nextCursor"]
    assert sorted(found) == sorted(two_common_tags)
    assert (0 in sizes) == (sort != "dueAt")


def test_a_search_for_tags_that_no_limit_bounds_runs_one_at_a_time(acme: Api) -> None:
    with reserve_slot("reading", 1):
        assert acme.get("/service-calls?tag=a&tag=b").status_code == 200
        assert acme.get("/service-calls?tag=a&tag=a&sort=dueAt").status_code == 200
        assert acme.get("/service-calls?tag=a&tag=b&sort=dueAt").status_code == 429
