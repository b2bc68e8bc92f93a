"""Batches: many calls in one request."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orchestration.models import ServiceCall
from tests.api.conftest import SPEC, Api, build_submission, create_api, get_errors

pytestmark = pytest.mark.django_db


def submit_batch(api: Api, *items: Any, **more: Any) -> Any:
    return api.post("/service-calls/batch", {"items": list(items), **more})


def count_calls(api: Api) -> int:
    return ServiceCall.objects.for_tenant(api.tenant.tenant_id).count()


def test_a_bad_item_does_not_lose_the_good_ones(acme: Api) -> None:
    response = submit_batch(acme, build_submission(name="a"), {"name": ""}, build_submission(name="b"), 7)
    assert response.status_code == 202
    answer = response.json()
    assert [item["status"] for item in answer["items"]] == [202, 400, 202, 400]
    assert (answer["accepted"], answer["refused"], count_calls(acme)) == (2, 2, 2)
    assert {fault["pointer"] for fault in answer["items"][1]["errors"]} == {
        "/items/1/name",
        "/items/1/requestSpec",
    }
    for item, name in ((answer["items"][0], "a"), (answer["items"][2], "b")):
        assert acme.get(item["location"]).json()["name"] == name


def test_an_atomic_batch_accepts_all_items_or_none(acme: Api) -> None:
    refused = submit_batch(acme, build_submission(), {"name": ""}, atomic=True)
    assert set(get_errors(refused)) == {"/items/1/name", "/items/1/requestSpec"}
    assert count_calls(acme) == 0
    assert submit_batch(acme, build_submission(), build_submission(), atomic=True).json()["accepted"] == 2


def test_a_conflict_takes_no_other_item_with_it(acme: Api) -> None:
    there = acme.submit(idempotencyKey="once")
    answer = submit_batch(
        acme,
        build_submission(name="fresh"),
        build_submission(idempotencyKey="once"),
        build_submission(idempotencyKey="once", name="other"),
        build_submission(serviceCallId=there["serviceCallId"]),
    ).json()
    assert [item["status"] for item in answer["items"]] == [202, 202, 409, 409]
    assert [item["replayed"] for item in answer["items"]] == [False, True, False, False]
    assert answer["items"][1]["serviceCallId"] == there["serviceCallId"]
    assert [item["code"] for item in answer["items"][2:]] == ["idempotency_conflict", "already_exists"]
    pointers = [[error["pointer"] for error in item["errors"]] for item in answer["items"]]
    assert pointers == [[], [], ["/items/2/idempotencyKey"], ["/items/3/serviceCallId"]]
    existing = [item["existingServiceCallId"] for item in answer["items"]]
    assert existing == [None, None, there["serviceCallId"], None]
    assert answer["items"][3]["detail"] == f"A call with the id {there['serviceCallId']} exists."
    assert count_calls(acme) == 2


def test_a_refused_item_names_no_call_to_a_key_that_may_not_read(acme: Api) -> None:
    there = acme.submit(idempotencyKey="once")["serviceCallId"]
    writer = create_api(acme.tenant, ["write"])
    other = build_submission(idempotencyKey="once", name="other")
    for atomic in (True, False):
        response = submit_batch(writer, other, atomic=atomic)
        assert "idempotency_conflict" in response.content.decode()
        assert there not in response.content.decode()


def test_the_pointers_of_an_atomic_batch_name_every_id_that_is_taken(acme: Api) -> None:
    one, two = (acme.submit()["serviceCallId"] for _ in range(2))
    items = [build_submission(), *(build_submission(serviceCallId=taken) for taken in (two, one))]
    refused = submit_batch(acme, *items, atomic=True).json()
    assert (refused["status"], refused["code"]) == (409, "already_exists")
    assert refused["detail"] == f"A call with the id {two} (and 1 more) exists."
    assert [error["pointer"] for error in refused["errors"]] == [
        "/items/1/serviceCallId",
        "/items/2/serviceCallId",
    ]


@pytest.mark.parametrize("atomic", [True, False])
def test_the_id_of_a_deleted_call_is_named_with_its_item(acme: Api, atomic: bool) -> None:
    gone = acme.submit()["serviceCallId"]
    assert acme("DELETE", f"/service-calls/{gone}").status_code == 204
    answer = submit_batch(
        acme, build_submission(), build_submission(serviceCallId=gone), atomic=atomic
    ).json()
    refused = answer if atomic else answer["items"][1]
    assert (refused["status"], refused["code"]) == (409, "already_used")
    assert [error["pointer"] for error in refused["errors"]] == ["/items/1/serviceCallId"]
    assert gone in refused["detail"]


@pytest.mark.parametrize("atomic", [True, False])
def test_two_different_items_with_the_same_key_are_refused(acme: Api, atomic: bool) -> None:
    items = [build_submission(name=name, idempotencyKey="k") for name in ("a", "b")]
    answer = submit_batch(acme, *items, atomic=atomic).json()
    refused = answer if atomic else answer["items"][1]
    assert (refused["status"], refused["code"]) == (409, "idempotency_conflict")
    assert [error["pointer"] for error in refused["errors"]] == ["/items/1/idempotencyKey"]
    # Of an atomic batch nothing was stored, so there is no call to name.
    assert refused.get("existingServiceCallId") == (None if atomic else answer["items"][0]["serviceCallId"])


def test_a_batch_of_refused_items_only_is_answered_with_202(acme: Api) -> None:
    response = submit_batch(acme, {"name": ""}, {"name": ""})
    assert response.status_code == 202
    assert (response.json()["accepted"], response.json()["refused"], count_calls(acme)) == (0, 2, 0)


def test_an_atomic_batch_with_a_conflict_stores_nothing(acme: Api) -> None:
    acme.submit(idempotencyKey="once")
    response = submit_batch(
        acme, build_submission(), build_submission(idempotencyKey="once", name="other"), atomic=True
    )
    assert response.status_code == 409
    assert [error["pointer"] for error in response.json()["errors"]] == ["/items/1/idempotencyKey"]
    assert count_calls(acme) == 1


def test_a_key_twice_in_one_batch_is_one_call(acme: Api) -> None:
    answer = submit_batch(
        acme, build_submission(idempotencyKey="k"), build_submission(idempotencyKey="k")
    ).json()
    assert [item["replayed"] for item in answer["items"]] == [False, True]
    assert count_calls(acme) == 1


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize(
    "differences",
    [
        pytest.param([{"name": "a"}, {"name": "b"}], id="different"),
        pytest.param([{}, {}], id="alike"),
        pytest.param([{"idempotencyKey": "a"}, {"idempotencyKey": "b"}], id="different keys"),
        pytest.param([{"idempotencyKey": "a"}, {}], id="one key"),
    ],
)
def test_two_items_with_the_same_id_are_refused(
    acme: Api, differences: list[dict[str, str]], atomic: bool
) -> None:
    one = "01900000-0000-7000-8000-000000000001"
    items = [build_submission(serviceCallId=one, **difference) for difference in differences]
    answer = acme.post("/service-calls/batch", {"items": items, "atomic": atomic})
    refused = answer.json() if atomic else answer.json()["items"][1]
    assert (refused["status"], refused["code"]) == (409, "already_exists")
    assert [fault["pointer"] for fault in refused["errors"]] == ["/items/1/serviceCallId"]
    assert "dempotency" not in refused["detail"]


@pytest.mark.parametrize("atomic", [True, False])
def test_an_item_with_an_id_of_another_version_is_refused(acme: Api, atomic: bool) -> None:
    items = [build_submission(), build_submission(serviceCallId="9a1bef62-6d2c-4da0-b815-eb380b622b76")]
    answer = acme.post("/service-calls/batch", {"items": items, "atomic": atomic}).json()
    refused = answer if atomic else answer["items"][1]
    assert (refused["status"], refused["code"]) == (400, "invalid")
    assert refused["errors"] == [
        {"pointer": "/items/1/serviceCallId", "detail": "must be a UUID of version 7"}
    ]
    assert count_calls(acme) == (0 if atomic else 1)


def test_a_thousand_items_are_one_transaction(acme: Api) -> None:
    answer = submit_batch(acme, *(build_submission(name=str(n)) for n in range(1000))).json()
    assert answer["accepted"] == 1000
    moments = ServiceCall.objects.for_tenant(acme.tenant.tenant_id).values_list("submitted_at").distinct()
    assert len(moments) == 1


@pytest.mark.parametrize(
    "document", [{}, {"items": []}, {"items": {}}, {"items": [{}] * 1001}, {"items": None}]
)
def test_a_batch_has_one_to_a_thousand_items(acme: Api, document: Any) -> None:
    assert set(get_errors(acme.post("/service-calls/batch", document))) == {"/items"}


def test_an_idempotency_key_for_a_whole_batch_is_refused(acme: Api) -> None:
    items = {"items": [build_submission()]}
    refused = acme.post("/service-calls/batch", items, headers={"Idempotency-Key": "order-17"})
    rule = "must not be sent with a batch: give each item its own idempotencyKey"
    assert get_errors(refused) == {"/headers/Idempotency-Key": rule}
    assert count_calls(acme) == 0


def test_the_due_times_of_a_batch_need_no_query_each(acme: Api) -> None:
    counts = []
    for size in (1, 1, 5):  # the first one fills the caches
        items = [{"name": "n", "requestSpec": SPEC, "dueAt": "2030-01-01T00:00:00Z"}] * size
        with CaptureQueriesContext(connection) as queries:
            assert submit_batch(acme, *items).json()["accepted"] == size
        counts.append(len([query for query in queries if query["sql"].startswith("SELECT")]))
    assert counts[2] == counts[1]
