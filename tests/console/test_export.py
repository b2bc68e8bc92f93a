"""The export has all matching calls in the order of the list, without formulas, headers and bodies."""

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
from tests.console.call_list import make_call

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def read_csv(client: Client, query: str = "") -> list[dict[str, Any]]:
    response = client.get(f"/calls/export.csv?{query}")
    assert response.status_code == 200
    text = b"".join(response.streaming_content).decode()  # type: ignore[attr-defined]
    return list(csv.DictReader(io.StringIO(text, newline="")))


def read_ndjson(client: Client, query: str = "") -> list[dict[str, Any]]:
    response = client.get(f"/calls/export.ndjson?{query}")
    text = b"".join(response.streaming_content).decode()  # type: ignore[attr-defined]
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "BATCH_SIZE", 3)


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


def test_both_formats_have_all_matching_calls_in_the_order_of_the_list(viewer: Client, calls: None) -> None:
    for query, expected in (
        ("", "9876543210"),
        ("status=Failed&sort=dueAt", "0123"),
        ("name=7&limit=10", "7"),
    ):
        assert "".join(line["name"] for line in read_csv(viewer, query)) == expected
        assert "".join(line["name"] for line in read_ndjson(viewer, query)) == expected


def test_an_error_is_exported_by_its_kind_and_in_words(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, 1, status="Failed", outcome_meta={"errorMeta": {"kind": "Dns"}})
    failed = {"responseMeta": {"status": 503}, "errorMeta": {"kind": "HttpStatus"}}
    make_call(tenant, 2, status="Failed", outcome_meta=failed)
    make_call(tenant, 3, status="Succeeded", outcome_meta={"responseMeta": {"status": 200}})
    lines = [(line["error"], line["error_name"]) for line in read_csv(viewer)]
    assert lines == [("", ""), ("HttpStatus", "HTTP 503"), ("Dns", "DNS lookup failed")]


def test_a_line_has_the_tenant_and_the_state_of_its_call(
    viewer: Client, calls: None, intruder: Tenant
) -> None:
    (line,) = read_csv(viewer, "name=3")
    assert (line["tenant"], line["status"], line["tags"]) == ("intruder", "Failed", "a b")
    assert (line["submitted_at"], line["due_at"]) == ("2026-03-01T12:03:00.000Z", "2026-03-01T13:03:00.000Z")
    (document,) = read_ndjson(viewer, "name=3")
    assert (document["tenant"], document["tenantId"]) == ("intruder", str(intruder.tenant_id))
    assert document["request"]["host"] == "example.test"


@pytest.mark.parametrize(
    "name",
    [
        '=HYPERLINK("x")',
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        " =1",
        "＝1+1",
        "＋1",
        "－1",
        "＠SUM(A1)",
        "\u200b=1",
        '"=1',
        "\ufeff+1",
    ],
)
def test_cells_cannot_be_formulas(viewer: Client, tenant: Tenant, name: str) -> None:
    make_call(tenant, name=name, tags=("=1+1",))
    (line,) = read_csv(viewer)
    assert line["name"] == f"'{name}"
    assert line["tags"] == "'=1+1"
    assert read_ndjson(viewer)[0]["name"] == name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a;=1+1", "a;'=1+1"),
        ("a; ＠SUM(A1);-1", "a;' ＠SUM(A1);'-1"),
        ("=1;=1", "'=1;'=1"),
        ("a;b - c", "a;b - c"),
        ("a=b", "a=b"),
    ],
)
def test_a_semicolon_begins_no_formula(viewer: Client, tenant: Tenant, name: str, shown: str) -> None:
    make_call(tenant, name=name)
    assert [line["name"] for line in read_csv(viewer)] == [shown]


def test_exports_run_one_at_a_time_until_they_have_been_sent(viewer: Client, calls: None) -> None:
    first = viewer.get("/calls/export.csv")
    refused = viewer.get("/calls/export.ndjson", headers={"Accept": "text/html"})
    assert (refused.status_code, refused.streaming) == (429, False)
    assert refused["Retry-After"] == "1"
    assert "Try again in a moment" in refused.content.decode()
    problem = viewer.get("/calls/export.ndjson", headers={"Accept": "*/*"})
    assert (problem.status_code, problem["Retry-After"]) == (429, "1")
    assert problem.json()["code"] == "busy"
    assert "Try again in a moment" in problem.json()["detail"]
    assert len(b"".join(first.streaming_content).splitlines()) == 11  # type: ignore[attr-defined]
    assert len(read_csv(viewer)) == 10


def test_separators_and_line_breaks_in_a_name_are_quoted(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, name='a,"b"\nc;d')
    assert [line["name"] for line in read_csv(viewer)] == ['a,"b"\nc;d']


def test_neither_format_has_headers_or_bodies(viewer: Client, tenant: Tenant) -> None:
    spec = {"method": "POST", "url": "http://x.test/", "headers": {"X-Key": "canary"}, "body": "canary"}
    make_call(tenant, request_spec=spec)
    for path in ("csv", "ndjson"):
        response = viewer.get(f"/calls/export.{path}")
        assert b"canary" not in b"".join(response.streaming_content)  # type: ignore[attr-defined]


def test_a_truncated_export_says_so(viewer: Client, calls: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_EXPORTED_CALLS", 6)
    *kept, last = read_csv(viewer)
    assert [line["name"] for line in kept] == list("987654")
    assert last["id"].startswith("# Truncated after 6 calls.")
    assert read_ndjson(viewer)[-1]["cutShort"].startswith("Truncated after 6 calls.")


def test_an_export_ends_when_its_time_is_over(
    viewer: Client, calls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MAX_SECONDS", -1.0)
    assert len(read_csv(viewer)) == 3 + 1


def test_calls_are_read_in_batches(viewer: Client, calls: None, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []

    def record_limit(wanted: Any, order: Any, limit: int, **more: Any) -> CallListPage:
        limits.append(limit)
        return call_lists.list_calls(wanted, order, limit, **more)

    monkeypatch.setattr(export, "list_calls", record_limit)
    stream = iter(viewer.get("/calls/export.csv").streaming_content)  # type: ignore[attr-defined]
    next(stream), next(stream)
    assert limits == [3]
    assert len(list(stream)) == 9
    assert len(limits) == 4


def test_an_invalid_filter_is_refused(viewer: Client) -> None:
    assert viewer.get("/calls/export.csv?from=yesterday").status_code == 400


def test_the_response_is_a_file_that_is_not_cached(viewer: Client) -> None:
    response = viewer.get("/calls/export.csv")
    assert response["Content-Disposition"] == 'attachment; filename="calls-20260301-120000.csv"'
    assert response["Cache-Control"] == "no-store"
