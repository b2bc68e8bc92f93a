"""Unusual paths, queries and cookies that Django or a database would fail on are errors of the client."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.api.conftest import Api
from tests.api.endpoints import list_endpoints

pytestmark = pytest.mark.django_db


def test_more_parameters_than_django_parses_are_refused(acme: Api) -> None:
    for path in ("/service-calls", "/timers", "/namespaces", "/api/v1/stats"):
        response = acme.get(f"{path}?{'&' * 1001}")
        assert (response.status_code, response.json()["code"]) == (400, "bad_request"), path


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/namespaces/%00"),
        ("POST", "/api-keys/%00/rotate"),
        ("POST", "/api-keys/a%00b/revoke"),
        ("PUT", "/service-calls/01900000-0000-7000-8000-000000000000/tags/%00"),
    ],
)
def test_a_nul_in_a_path_is_not_found(acme: Api, method: str, path: str) -> None:
    response = acme(method, path)
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


@pytest.fixture
def admin(db: None) -> Client:
    client = Client(raise_request_exception=False, headers={"Accept": "text/html"})
    client.force_login(User.objects.create_superuser("anna"))
    return client


@pytest.mark.parametrize("path", ["/admin/tenants/apikey/%00/change/", "/calls/%00/", "/%00"])
def test_a_nul_in_the_path_of_a_page_is_not_found(admin: Client, path: str) -> None:
    response = admin.get(path)
    assert response.status_code == 404
    assert response["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("query", ["role__exact=%00", "q=%00", "%00=1", "a=1&q=x%00y"])
def test_a_nul_in_a_query_is_a_bad_request(admin: Client, acme: Api, query: str) -> None:
    page = admin.get(f"/admin/timers/node/?{query}")
    assert page.status_code == 400
    assert page["Content-Type"].startswith("text/html")
    assert page["Content-Security-Policy"]
    assert admin.get(f"/admin/timers/node/?{query}", headers={"Accept": "*/*"}).json()["status"] == 400
    assert acme.get(f"/service-calls?{query}").json()["code"] == "invalid"


def test_a_nul_in_a_cookie_is_a_bad_request(db: None) -> None:
    client = Client(raise_request_exception=False, headers={"Cookie": 'sessionid="abcdefgh\\000xx"'})
    assert client.get("/", headers={"Accept": "text/html"}).status_code == 400
    assert client.get("/api/v1/tenants").json()["code"] == "bad_request"


def test_an_escaped_percent_sign_is_not_taken_for_a_nul(admin: Client) -> None:
    assert admin.get("/admin/tenants/apikey/?q=100%2500").status_code == 200


def test_an_id_is_the_same_in_capitals(acme: Api) -> None:
    call = acme.submit()["serviceCallId"]
    root = acme.root.replace(str(acme.tenant.tenant_id), str(acme.tenant.tenant_id).upper())
    for path in (root, f"{root}/service-calls", f"{root}/service-calls/{call.upper()}/events"):
        assert acme.get(path).status_code == 200, path
    shown = acme.get(f"/service-calls/{call.upper()}")
    assert shown.content == acme.get(f"/service-calls/{call}").content


@pytest.mark.parametrize("form", ["{0.hex}", "{{{0}}}", "urn:uuid:{0}", "{0}0"])
def test_an_id_in_another_notation_is_not_found(acme: Api, form: str) -> None:
    call = uuid.UUID(acme.submit()["serviceCallId"])
    assert acme.get("/service-calls/" + form.format(call)).status_code == 404


def test_options_names_the_methods_of_each_endpoint(acme: Api, operator: Api) -> None:
    values = {
        "tenant_id": acme.tenant.tenant_id,
        "service_call_id": acme.submit()["serviceCallId"],
        "name": "default",
        "key_id": "missing",
        "correlation_id": uuid.UUID(int=0),
        "tag": "x",
    }
    for endpoint in list_endpoints():
        answer = operator("OPTIONS", endpoint.path(**values))
        assert answer.status_code == 204, endpoint
        assert endpoint.method in answer["Allow"], endpoint


def test_options_of_the_interactive_docs_need_no_key(db: None) -> None:
    assert Client().options("/api/v1/docs").status_code == 204


@pytest.mark.parametrize("rest", ["", "/service-calls", "/timers/create", "/no/such/path"])
def test_the_name_of_a_tenant_in_a_path_is_told_to_be_no_id(acme: Api, intruder: Api, rest: str) -> None:
    details = [
        api.get(f"/api/v1/tenants/{name}{rest}").json()["detail"]
        for api in (acme, intruder)
        for name in ("acme", "intruder", "nobody", acme.tenant.tenant_id.hex)
    ]
    assert set(details) == {
        "The tenant must be an id (a UUID) in addresses, not a name. GET /api/v1/tenants lists it for the key that you use."
    }


@pytest.mark.parametrize("rest", ["/service-calls/nope", "/service-calls/7/cancel", "/traces/last"])
def test_an_id_in_a_path_that_is_no_uuid_is_told_to_be_none(acme: Api, intruder: Api, rest: str) -> None:
    for api in (acme, intruder):
        answer = api.get(f"{acme.root}{rest}")
        assert answer.status_code == 404
        assert answer.json()["detail"] == (
            "Nothing was found at this address. The id in the address must be a UUID."
        )


def test_other_unknown_paths_are_not_explained(acme: Api) -> None:
    for path in ("/api/v1/nothing", f"{acme.root}/nothing", "/api/v1/tenant/acme"):
        assert acme.get(path).json()["detail"] == "Nothing was found at this address.", path


def test_a_path_that_ends_with_a_slash_is_told_that_addresses_have_none(acme: Api, intruder: Api) -> None:
    for api in (acme, intruder):
        for path in ("/api/v1/tenants/", f"{acme.root}/service-calls/", f"{acme.root}/timers/create/"):
            answer = api.get(path)
            assert answer.status_code == 404
            assert answer.json()["detail"] == (
                "Nothing was found at this address. Addresses have no slash at the end."
            )
