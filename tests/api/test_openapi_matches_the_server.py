"""The OpenAPI document describes bodies, parameters and headers as the server treats them."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from eventservice.api.formats import parse_duration
from eventservice.tenants.directory import update_tenant
from orchestration.models import ServiceCall
from orchestration.outcome_rules import build_interrupted_meta, judge
from tests.api.conftest import Api, build_submission
from tests.factories import NOON
from tests.orchestration.support import build_error, build_response

pytestmark = pytest.mark.django_db

PREFIX = "/api/v1/tenants/{tenantId}"


@pytest.fixture
def document(acme: Api) -> Any:
    return json.loads(acme.get("/api/v1/openapi.json").content)


def list_operations_with_body(document: Any) -> list[tuple[str, str, bool]]:
    return [
        (method.upper(), path, operation["requestBody"].get("required", False))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    ]


def list_members(document: Any, shape: str, name: str) -> Any:
    """Return the schema of a member that is not null."""
    schema = document["components"]["schemas"][shape]["properties"][name]
    return schema.get("anyOf", [schema])[0]


def test_a_body_is_required_where_it_cannot_be_left_out(operator: Api, document: Any) -> None:
    known = {
        "tenantId": str(operator.tenant.tenant_id),
        "serviceCallId": operator.submit()["serviceCallId"],
        "keyId": operator.post("/api-keys", {"scopes": ["read"]}).json()["keyId"],
    }
    for method, path, required in list_operations_with_body(document):
        answer = operator(method, path.format(**known))
        assert (answer.status_code in (400, 415)) == required, (method, path, answer.content)


def test_response_headers_are_as_described(acme: Api, document: Any) -> None:
    keyed = {"headers": {"Idempotency-Key": "k"}}
    call = acme.post("/service-calls", build_submission(), **keyed).json()["serviceCallId"]
    path, of_call = f"/service-calls/{call}", f"{PREFIX}/service-calls/{{serviceCallId}}"
    tag = acme.get(path)["ETag"]
    answers = [
        ("post", f"{PREFIX}/service-calls", acme.post("/service-calls", build_submission(), **keyed)),
        ("get", of_call, acme.get(path)),
        ("get", of_call, acme.get(path, headers={"If-None-Match": tag})),
        ("patch", of_call, acme("PATCH", path, {"name": "n"})),
        ("post", f"{of_call}/cancel", acme.post(f"{path}/cancel")),
        ("post", f"{of_call}/run-now", acme.post(f"{path}/run-now")),  # 409
        ("post", f"{of_call}/replay", acme.post(f"{path}/replay")),
        ("post", f"{PREFIX}/namespaces", acme.post("/namespaces", {"name": "blue"})),
        ("get", "/api/v1/stats", acme.get("/api/v1/stats")),
    ]
    update_tenant(acme.tenant.tenant_id, requests_per_minute=1)
    answers += [("get", f"{PREFIX}/service-calls", acme.get("/service-calls")) for _ in range(2)]
    headers = document["components"]["headers"]
    came = set()
    for method, template, answer in answers:
        responses = document["paths"][template][method]["responses"]
        described = responses.get(str(answer.status_code), responses["default"])["headers"]
        sure = {name for name in described if headers[name]["required"]}
        here = {name for name in headers if name in answer}
        assert sure <= here <= set(described), (method, template, answer.status_code)
        came |= here
    assert came == set(headers)


METAS = {
    "a success": judge("status", build_response(headers={"X-A": "1"}), NOON).meta,
    "an error status": judge("status", build_response(status=503), NOON).meta,
    "no response": judge("status", build_error(), NOON).meta,
    "an interrupted attempt": build_interrupted_meta("Its process ended."),
}


@pytest.mark.parametrize("meta", METAS.values(), ids=METAS)
def test_an_outcome_is_shown_as_stored_and_as_described(acme: Api, document: Any, meta: Any) -> None:
    call = acme.submit()["serviceCallId"]
    ServiceCall.objects.for_tenant(acme.tenant.tenant_id).update(outcome_meta=meta)
    shown = acme.get(f"/service-calls/{call}").json()["outcome"]
    assert shown == meta
    jsonschema.validate(shown, {**document, "$ref": "#/components/schemas/Outcome"})
    (listed,) = acme.get("/service-calls").json()["items"]
    summary = {**document, "$ref": "#/components/schemas/OutcomeSummary"}
    jsonschema.validate(listed["outcome"], summary)


@pytest.mark.parametrize("key", ["k", "x" * 255, "x" * 256, "", "a b", "é", "a\n"])
def test_an_idempotency_key_is_as_described(acme: Api, document: Any, key: str) -> None:
    pattern = list_members(document, "Submission", "idempotencyKey")["pattern"]
    answer = acme.post("/service-calls", build_submission(idempotencyKey=key))
    assert (answer.status_code == 202) == bool(re.search(pattern.replace("$", r"\Z"), key))


@pytest.mark.parametrize(
    "given",
    [
        "01900000-0000-7000-8000-00000000000a",
        "01900000-0000-7000-BFFF-00000000000A",
        "01900000-0000-7000-c000-00000000000a",
        "9a1bef62-6d2c-4da0-b815-eb380b622b76",
        "0190000000007000800000000000000a",
    ],
)
def test_an_own_id_is_as_described(acme: Api, document: Any, given: str) -> None:
    pattern = list_members(document, "Submission", "serviceCallId")["pattern"]
    answer = acme.post("/service-calls", build_submission(serviceCallId=given))
    assert (answer.status_code == 202) == bool(re.search(pattern, given))


def test_the_described_number_of_tags_includes_the_favorite(acme: Api, document: Any) -> None:
    path = f"/service-calls/{acme.submit(tags=[f't{number}' for number in range(20)])['serviceCallId']}"
    acme("PUT", f"{path}/favorite")
    shown = acme.get(path).json()["tags"]
    assert acme("PATCH", path, {"tags": shown}).status_code == 200
    for shape in ("Submission", "CallChanges"):
        assert list_members(document, shape, "tags")["maxItems"] == len(shown)


@pytest.mark.parametrize("name", ["name", "tag"])
def test_a_search_text_is_as_long_as_described(acme: Api, document: Any, name: str) -> None:
    parameters = document["paths"][f"{PREFIX}/service-calls"]["get"]["parameters"]
    (schema,) = [parameter["schema"] for parameter in parameters if parameter["name"] == name]
    longest = schema.get("items", schema)["maxLength"]
    for length, status in ((longest, 200), (longest + 1, 400)):
        assert acme.get(f"/service-calls?{name}={'x' * length}").status_code == status


@pytest.mark.parametrize(
    "text",
    [
        "90s",
        "1h30m",
        "1d12h",
        "0.5s",
        "PT90S",
        "P1W",
        "P52WT",
        "PT",
        "P",
        "P1DT1H",
        "PT1H2M3.5S",
        "PT1.5H",
        "1m2h",
        "",
        "s",
    ],
)
def test_a_duration_is_as_described(document: Any, text: str) -> None:
    schema = list_members(document, "Submission", "delay")
    is_described = len(text) >= schema["minLength"] and bool(
        re.search(schema["pattern"].replace("$", r"\Z"), text)
    )
    assert is_described == (parse_duration(text) is not None)
