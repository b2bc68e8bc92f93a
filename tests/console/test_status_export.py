"""The list as a file: all that match, in its order, and nothing that a spreadsheet would run or nobody may see."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from django.test import Client

from eventservice.console.calls import export
from eventservice.tenants.models import Tenant
from orchestration.queries import call_lists
from orchestration.queries.call_lists import CallListPage
from tests.console.status_rows import make_call

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def lines(client: Client, query: str = "") -> list[dict[str, Any]]:
    response = client.get(f"/calls/export.csv?{query}")
    assert response.status_code == 200
    text = b"".join(response.streaming_content).decode()  # type: ignore[attr-defined]
    return list(csv.DictReader(io.StringIO(text, newline="")))


def objects(client: Client, query: str = "") -> list[dict[str, Any]]:
    response = client.get(f"/calls/export.ndjson?{query}")
    text = b"".join(response.streaming_content).decode()  # type: ignore[attr-defined]
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PIECE", 3)


@pytest.fixture
def calls(tenant: Tenant, intruder: Tenant) -> None:
    for n in range(10):
        make_call(
            intruder if n % 2 else tenant,
            n,
            name=str(n),
            status="Failed" if n < 4 else "Scheduled",
            tags=("b", "a"),
        )


def test_both_have_all_that_match_in_the_order_of_the_list(viewer: Client, calls: None) -> None:
    for query, expected in (
        ("", "9876543210"),
        ("status=Failed&sort=dueAt", "0123"),
        ("name=7&limit=10", "7"),
    ):
        assert "".join(line["name"] for line in lines(viewer, query)) == expected
        assert "".join(line["name"] for line in objects(viewer, query)) == expected


def test_a_line_says_whose_it_is_and_how_it_stands(viewer: Client, calls: None, intruder: Tenant) -> None:
    (line,) = lines(viewer, "name=3")
    assert (line["tenant"], line["status"], line["tags"]) == ("intruder", "Failed", "a b")
    assert (line["submitted_at"], line["due_at"]) == ("2026-03-01T12:03:00.000Z", "2026-03-01T13:03:00.000Z")
    (document,) = objects(viewer, "name=3")
    assert (document["tenant"], document["tenantId"]) == ("intruder", str(intruder.tenant_id))
    assert document["request"]["host"] == "example.test"


@pytest.mark.parametrize("name", ['=HYPERLINK("x")', "+1", "-1", "@SUM(A1)", "\t=1"])
def test_no_cell_is_a_formula(viewer: Client, tenant: Tenant, name: str) -> None:
    make_call(tenant, name=name, tags=("=1+1",))
    (line,) = lines(viewer)
    assert line["name"] == f"'{name}"
    assert line["tags"] == "'=1+1"
    assert objects(viewer)[0]["name"] == name


def test_separators_and_lines_in_a_name_break_nothing(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, name='a,"b"\nc;d')
    assert [line["name"] for line in lines(viewer)] == ['a,"b"\nc;d']


def test_bodies_and_headers_are_in_neither(viewer: Client, tenant: Tenant) -> None:
    spec = {"method": "POST", "url": "http://x.test/", "headers": {"X-Key": "canary"}, "body": "canary"}
    make_call(tenant, request_spec=spec)
    for path in ("csv", "ndjson"):
        response = viewer.get(f"/calls/export.{path}")
        assert b"canary" not in b"".join(response.streaming_content)  # type: ignore[attr-defined]


def test_what_is_cut_short_says_so(viewer: Client, calls: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MOST_EXPORTED", 6)
    *kept, last = lines(viewer)
    assert [line["name"] for line in kept] == list("987654")
    assert last["id"].startswith("# There are more calls than these 6.")
    assert objects(viewer)[-1]["cutShort"].startswith("There are more calls than these 6.")


def test_it_holds_no_worker_for_minutes(viewer: Client, calls: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MOST_SECONDS", -1.0)
    assert len(lines(viewer)) == 3 + 1


def test_it_is_read_piece_by_piece(viewer: Client, calls: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def read(wanted: Any, order: Any, limit: int, **more: Any) -> CallListPage:
        asked.append(limit)
        return call_lists.list_calls(wanted, order, limit, **more)

    monkeypatch.setattr(export, "list_calls", read)
    stream = iter(viewer.get("/calls/export.csv").streaming_content)  # type: ignore[attr-defined]
    next(stream), next(stream)
    assert asked == [3]
    assert len(list(stream)) == 9
    assert len(asked) == 4


def test_a_filter_that_is_wrong_makes_no_file(viewer: Client) -> None:
    assert viewer.get("/calls/export.csv?from=yesterday").status_code == 400


def test_it_is_a_file_that_nothing_keeps(viewer: Client) -> None:
    response = viewer.get("/calls/export.csv")
    assert response["Content-Disposition"] == 'attachment; filename="calls-20260301-120000.csv"'
    assert response["Cache-Control"] == "no-store"
