"""The example and the limits in docs/webhooks.md are true."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eventservice.kernel.signing import build_signature_headers, decode_secret, generate_secret
from eventservice.tenants.models import Tenant
from orchestration.events import EventType
from outbox.models import OutboxEvent, WebhookDelivery
from outbox.publishers.webhook.deliverer import TIMEOUT_SECONDS
from outbox.publishers.webhook.delivery_queue import MAX_ATTEMPTS, MAX_RETRY_SECONDS
from outbox.publishers.webhook.endpoints import TEST_EVENT, create_endpoint, send_test_event

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
BODY = b'{"id": "1"}'


@pytest.fixture
def verify() -> Callable[..., None]:
    match = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert match
    names: dict[str, Any] = {}
    exec(match[1], names)
    found: Callable[..., None] = names["verify"]
    return found


def sign(secret: str, ago: float = 0) -> dict[str, str]:
    moment = datetime.fromtimestamp(time.time() - ago, UTC)
    return build_signature_headers(decode_secret(secret), "1", moment, BODY)


def test_its_example_verifies_our_signatures(verify: Callable[..., None]) -> None:
    secret = generate_secret()
    verify(secret, sign(secret), BODY)


@pytest.mark.parametrize(
    ("ago", "body", "same"), [(0, b"other", True), (0, BODY, False), (3600, BODY, True), (-3600, BODY, True)]
)
def test_its_example_refuses_other_and_old_signatures(
    verify: Callable[..., None], ago: float, body: bytes, same: bool
) -> None:
    secret = generate_secret()
    with pytest.raises(ValueError, match=r"match|too old"):
        verify(secret if same else generate_secret(), sign(secret, ago), body)


@pytest.fixture
def event_data(finished_calls: Tenant) -> dict[str, list[set[str]]]:
    """Return which members the data of each event have, by type, of calls that end in every way."""
    tenant = finished_calls
    found = defaultdict(list)
    for event in OutboxEvent.objects.for_tenant(tenant.tenant_id):
        found[event.event_type].append(set(event.event_payload))
    endpoint, _ = create_endpoint(tenant.tenant_id, "https://hooks.test/")
    send_test_event(tenant.tenant_id, endpoint.endpoint_id)
    test_event = json.loads(WebhookDelivery.objects.for_tenant(tenant.tenant_id).get().body)
    found[test_event["type"]].append(set(test_event["data"]))
    return found


@pytest.mark.django_db
def test_its_table_has_the_members_of_every_events_data(event_data: dict[str, list[set[str]]]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (`.*?`) \|(.*?)\|$", PAGE.partition("### Data")[2], re.M)
    table = {kind: [set(re.findall(r"`(\w+)`", cell)) for cell in cells] for kind, *cells in rows}
    assert set(table) == set(event_data) == {*EventType, TEST_EVENT}
    for kind, members in event_data.items():
        always = set.intersection(*members)
        assert table[kind] == [always, set.union(*members) - always], kind


def test_it_names_every_event_type_and_every_limit() -> None:
    assert [str(event_type) for event_type in EventType if f"`{event_type}`" not in PAGE] == []
    assert f"after {MAX_ATTEMPTS} attempts" in PAGE
    assert f"up to {MAX_RETRY_SECONDS / 3600:.0f} hours" in PAGE
    assert f"within {TIMEOUT_SECONDS:.0f} seconds" in PAGE
