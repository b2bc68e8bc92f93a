"""Below the form: what has become of the call, renewed until it has ended, and a page without JavaScript as well."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from django.test import Client

from eventservice.db.now import pin_time
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from execution.outcome import ErrorKind
from orchestration import lifecycle
from orchestration.retries import RetryPolicy
from tests.console.call_pages import NEW, address_of, text_of
from tests.orchestration.support import Hand, after, errored, responded, submit

pytestmark = pytest.mark.django_db
PART = {"HX-Request": "true"}


@pytest.fixture
def acme(db: None) -> Tenant:
    return create_tenant("acme")


@pytest.fixture
def hand(db: None, at_noon: datetime) -> Hand:
    return Hand()


def response_part(client: Client, tenant: Tenant, service_call_id: Any) -> Any:
    address = address_of(tenant.tenant_id, service_call_id, "sent-call")
    return client.get(address, headers=PART)


def look_after(page: Any) -> int:
    found = re.search(r'id="response"[^>]* data-live="(\d+)"', page.content.decode())
    return int(found[1]) if found else 0


def test_it_is_looked_at_each_second_until_it_has_ended(operator: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    waiting = response_part(operator, acme, call)
    assert look_after(waiting) == 1
    assert "waiting for an engine" in text_of(waiting)
    started = hand.start_one()
    assert "Attempt 1 is under way" in text_of(response_part(operator, acme, call))
    hand.finish(
        (
            started,
            responded(started, 200, b'{"ok":true,"n":[1]}', {"X-Answer": "yes", "Set-Cookie": "s3cret"}),
        )
    )
    ended = response_part(operator, acme, call)
    text = text_of(ended)
    assert look_after(ended) == 0
    for said in ("Succeeded", "200 OK", "12 ms", "19 B", "X-Answer yes", "Set-Cookie ••••••"):
        assert said in text, said
    assert "{\n  &quot;ok&quot;: true,\n  &quot;n&quot;: [\n    1\n  ]\n}" in ended.content.decode()


def test_the_part_has_no_form_and_the_page_has(operator: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    assert 'id="request-form"' not in response_part(operator, acme, call).content.decode()
    page = operator.get(f"{NEW}?sent={acme.tenant_id}/{call}").content.decode()
    assert 'id="request-form"' in page
    # A link to the very address that is shown would only scroll.
    (refresh,) = re.findall(r'href="([^"]+)">Refresh</a>', page)
    assert refresh.startswith(f"{NEW}?sent={acme.tenant_id}/{call}&amp;at=")
    assert refresh.endswith("#response")
    assert address_of(acme.tenant_id, call) in page


def test_a_scheduled_one_counts_down_and_is_looked_at_less(
    operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme, due_at=after(7800))
    page = response_part(operator, acme, call)
    assert "Scheduled: due in 2 h 10 m , at 2026-03-01 14:10:00.000 UTC" in text_of(page)
    assert 'datetime="2026-03-01T14:10:00.000+00:00"' in page.content.decode()
    assert look_after(page) == 60
    with pin_time(after(7795)):
        assert look_after(response_part(operator, acme, call)) == 1


def test_an_error_is_said_in_words_with_the_attempts_so_far(
    operator: Client, acme: Tenant, hand: Hand
) -> None:
    call = submit(acme, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
    first = hand.start_one()
    hand.finish((first, errored(first, ErrorKind.DNS)))
    text = text_of(response_part(operator, acme, call))
    assert "Attempt 1 did not succeed. The next one is due now" in text
    assert "The name of the host could not be resolved. It did not work." in text
    second = hand.start_one()
    hand.finish((second, responded(second, 503)))
    text = text_of(response_part(operator, acme, call))
    assert "Failed now . The target answered with status 503. All 2 attempts were made." in text
    assert "Attempts so far" in text
    assert "503 Service Unavailable" in text


def test_one_that_no_engine_takes_leads_to_the_nodes(
    operator: Client, acme: Tenant, at_noon: datetime
) -> None:
    call = submit(acme)
    with pin_time(after(30)):
        assert "see Timers & nodes" in text_of(response_part(operator, acme, call))


def test_an_answer_is_shown_as_text_whatever_it_is(operator: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    started = hand.start_one()
    hand.finish((started, responded(started, 200, b"<script>alert(1)</script>", {"X-<b>": "<img src=x>"})))
    page = response_part(operator, acme, call).content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_as_text_it_is_what_came(operator: Client, acme: Tenant, hand: Hand) -> None:
    call = submit(acme)
    started = hand.start_one()
    hand.finish((started, responded(started, 200, b'{"a":1.10}')))
    page = operator.get(f"{NEW}?sent={acme.tenant_id}/{call}&view=text").content.decode()
    assert "{&quot;a&quot;:1.10}" in page


def test_a_call_that_is_gone_is_said_to_be(operator: Client, acme: Tenant, at_noon: datetime) -> None:
    call = submit(acme, due_at=after(60))
    lifecycle.delete(acme.tenant_id, call)
    assert "is no more" in text_of(operator.get(f"{NEW}?sent={acme.tenant_id}/{call}"))
    assert response_part(operator, acme, call).status_code == 404
