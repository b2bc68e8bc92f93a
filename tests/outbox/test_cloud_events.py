"""An event is published as CloudEvents 1.0 in JSON, identically on every database."""

from __future__ import annotations

import io
import json

import pytest

from eventservice.kernel.ids import new_id
from outbox.publisher_spec import PublisherSpec
from outbox.publishers import build_publishers
from outbox.publishers.log.publisher import LogPublisher
from tests.outbox.support import build_dispatcher, build_event, store_events

pytestmark = pytest.mark.django_db


def _publish(**given: object) -> tuple[object, dict[str, object]]:
    written = store_events(build_event(new_id(), 7, **given))[0]
    stream = io.StringIO()
    build_dispatcher(LogPublisher(stream=stream)).dispatch_once()
    return written, json.loads(stream.getvalue())


def test_it_carries_all_attributes() -> None:
    tenant, correlation, causation = new_id(), new_id(), new_id()
    written, seen = _publish(
        tenant_id=tenant,
        correlation_id=correlation,
        causation_id=causation,
        data={"name": "Zoë", "n": [1, None]},
    )
    assert seen == {
        "specversion": "1.0",
        "id": str(written.event_id),  # type: ignore[attr-defined]
        "source": f"/tenants/{tenant}",
        "type": "ServiceCallSubmitted",
        "subject": str(written.aggregate_id),  # type: ignore[attr-defined]
        "time": "2026-03-01T12:00:00+00:00",
        "datacontenttype": "application/json",
        "tenantid": str(tenant),
        "aggregatetype": "ServiceCall",
        "correlationid": str(correlation),
        "causationid": str(causation),
        "sequence": "0000000007",
        "data": {"name": "Zoë", "n": [1, None]},
    }


def test_an_event_without_a_cause_has_no_causation_id() -> None:
    _, seen = _publish()
    assert "causationid" not in seen


def test_people_get_a_line_of_text() -> None:
    store_events(build_event(new_id(), 7))
    stream = io.StringIO()
    build_dispatcher(LogPublisher("console", stream)).dispatch_once()
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("2026-03-01T12:00:00.000Z [event    ] ServiceCallSubmitted")
    assert len(line) < 250


@pytest.mark.parametrize(("names", "expected"), [(["log"], ["log", "webhook"]), (["webhook"], ["webhook"])])
def test_webhooks_are_always_published_and_the_log_only_if_it_is_named(
    names: list[str], expected: list[str]
) -> None:
    specs = [PublisherSpec.parse(name) for name in names]
    assert [publisher.name for publisher in build_publishers(specs, "json")] == expected
