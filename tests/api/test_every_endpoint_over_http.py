"""Every operation of the OpenAPI document is sent once over real HTTP to a running server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import requests

from eventservice.client import Client
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from orchestration.models import ServiceCall
from tests.api.conftest import ALL, Api, build_submission, create_api
from tests.api.endpoints import Endpoint, list_endpoints

pytestmark = pytest.mark.django_db(transaction=True)


class Recorder(requests.Session):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, int]] = []

    def request(self, method: Any, url: Any, *args: Any, **options: Any) -> requests.Response:
        response = super().request(method, url, *args, **options)
        self.seen.append((method, requests.utils.urlparse(response.url).path, response.status_code))  # type: ignore[attr-defined]
        return response


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as session:
        yield session


def is_match(endpoint: Endpoint, path: str) -> bool:
    pattern = re.sub(r"<path:\w+>", "§", endpoint.route)
    pattern = re.sub(r"<\w+:\w+>", "[^/]+", pattern).replace("§", ".+")
    return re.fullmatch("/" + pattern, path) is not None


def test_every_endpoint_answers_over_http(served: str, recorder: Recorder) -> None:
    acme = create_api(create_tenant("acme"))
    _use_calls(Client(served, acme.tenant.tenant_id, acme.key, session=recorder))
    _use_the_rest(served, acme, recorder)
    unused = [
        str(e)
        for e in list_endpoints()
        if not any(m == e.method and is_match(e, path) for m, path, _ in recorder.seen)
    ]
    assert unused == []
    assert [one for one in recorder.seen if one[2] >= 400] == []


def _use_calls(client: Client) -> None:
    made = client.submit(
        "greet", "POST", "http://target.test/", headers={"X-A": "b"}, body={"n": 1}, delay="1h", tags=["x"]
    )
    one = made["serviceCallId"]
    assert client.get(one) == made
    assert client.submit_batch([build_submission(), build_submission()])["accepted"] == 2
    assert client.change(one, name="other")["name"] == "other"
    client.tag(one, "a/b")
    client.untag(one, "a/b")
    assert [call["name"] for call in client.list(tag="x", limit=1)] == ["other"]
    assert len(list(client.list(limit=1))) == 3
    assert client.run_now(one)["status"] == "Scheduled"
    assert client.cancel(one)["status"] == "Canceled"
    assert client.wait(one, 5)["status"] == "Canceled"
    assert client.replay(one)["replayOf"] == one
    assert [event["seq"] for event in client.events(one)] == [1, 2, 3, 4]
    assert list(client.executions(one)) == []
    (traced,) = client.trace(made["correlationId"])["items"]
    assert (traced["serviceCallId"], len(traced["events"]), len(traced["replays"])) == (one, 4, 1)
    client.delete(one)
    timer = client.create_timer("t", "2030-01-01T00:00:00Z", "http://target.test/", payload=1)
    assert client.get_timer("t") == timer
    assert client.update_timer("t", payload=2)["payload"] == 2
    assert [found["timerId"] for found in client.timers()] == ["t"]
    client.delete_timer("t")
    assert client.stats()["running"] == 0


def _use_the_rest(url: str, acme: Api, session: Recorder) -> None:
    operator = {"Authorization": f"Bearer {create_key(None, ALL)[1]}"}

    def ask(method: str, path: str, body: Any = None) -> Any:
        response = session.request(method, url + path, json=body, headers=operator)
        return response.json() if response.content and "json" in response.headers["Content-Type"] else None

    call = ask("POST", f"{acme.root}/service-calls", build_submission())["serviceCallId"]
    for method in ("PUT", "DELETE"):
        ask(method, f"{acme.root}/service-calls/{call}/favorite")
    made = ask("POST", "/api/v1/tenants", {"name": "other"})
    ask("PATCH", f"/api/v1/tenants/{made['tenantId']}", {"maxPending": 9})
    ask("POST", f"{acme.root}/namespaces", {"name": "blue"})
    key = ask("POST", f"{acme.root}/api-keys", {"scopes": ["read"]})["keyId"]
    ask("POST", f"{acme.root}/api-keys/{key}/rotate", {})
    ask("POST", f"{acme.root}/api-keys/{key}/revoke")
    for path in ("", "/usage", "/namespaces", "/namespaces/blue", "/api-keys"):
        ask("GET", acme.root + path)
    for paused in (True, False):
        ask("PATCH", "/api/v1/dispatch", {"paused": paused})
    for path in ("tenants", "shards", "nodes", "dispatch", "openapi.json", "docs"):
        ask("GET", f"/api/v1/{path}")


def test_fifty_submits_at_once_with_one_key_make_one_call(served: str) -> None:
    """Concurrent submissions with one idempotency key make one call (property P11)."""
    acme = create_api(create_tenant("acme"))
    together = Barrier(50)

    def submit(_: int) -> str:
        # The queue of the test server is short. It refuses connections, and the client retries.
        with Client(served, acme.tenant.tenant_id, acme.key, retries=20) as client:
            together.wait()
            made = client.submit("greet", "POST", "http://target.test/", delay="1h", idempotency_key="once")
            return str(made["serviceCallId"])

    with ThreadPoolExecutor(50) as pool:
        told = list(pool.map(submit, range(50)))
    (call,) = ServiceCall.objects.for_tenant(acme.tenant.tenant_id)
    assert set(told) == {str(call.service_call_id)}
