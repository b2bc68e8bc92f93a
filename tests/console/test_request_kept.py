"""What was typed into the Request page's form outlasts a session that ends, and a sign-in in another tab."""

from __future__ import annotations

import pytest
from django.test import Client

from eventservice.tenants.directory import create_tenant
from tests.console.call_pages import BROWSER, NEW, calls, filled, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def acme() -> None:
    create_tenant("acme")


def test_a_form_that_is_older_than_the_last_sign_in_is_shown_as_it_was_typed(operator: Client) -> None:
    form = filled(operator, header_name=["X-A"], header_value=["typed"], body='{"n": 1}')
    operator.handler.enforce_csrf_checks = True
    operator.cookies["csrftoken"] = "n" * 32
    answer = operator.post(NEW, {**form, "csrfmiddlewaretoken": "o" * 32}, headers=BROWSER)
    assert answer.status_code == 403
    assert "Nothing was sent: this page was older than your last sign-in." in text_of(answer)
    page = answer.content.decode()
    for kept in ('value="greet"', 'value="typed"', "{&quot;n&quot;: 1}", form["key"]):
        assert kept in page, kept
    assert calls() == []
    token = page.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
    assert operator.post(NEW, {**form, "csrfmiddlewaretoken": token}).status_code == 303
    assert len(calls()) == 1


def test_a_form_that_is_sent_when_the_session_has_ended_is_said_to_be_unsent(operator: Client) -> None:
    form = filled(operator)
    response = Client().post(
        NEW, form, headers={**BROWSER, "Referer": "http://testserver/calls/new/?tenant=1"}
    )
    assert response["Location"] == "/login/?next=/calls/new/%3Ftenant%3D1%26unsent%3D1"
    page = operator.get(f"{NEW}?tenant=1&unsent=1")
    assert "Your session had ended, and nothing was sent." in text_of(page)
    assert "data-unsent" in page.content.decode()
    assert "data-unsent" not in operator.get(NEW).content.decode()
    assert calls() == []


def test_a_part_of_the_form_comes_back_to_it_too(db: None) -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": f"http://testserver{NEW}"}
    response = Client().post(NEW, {"do": "check"}, headers=headers)
    assert response["HX-Redirect"] == "/login/?next=/calls/new/%3Funsent%3D1"


def test_what_the_browser_kept_is_filled_in_again_and_the_headers_ask_for_their_values(
    operator: Client,
) -> None:
    kept = filled(
        operator, do="restore", header_name=["Authorization", "X-B", ""], header_value=["", "", ""],
        body="{\n}", when="schedule", date="2031-01-01", time="10:00", zone="UTC", timeout="5",
    )  # fmt: skip
    answer = operator.post(NEW, kept, headers=BROWSER)
    page, text = answer.content.decode(), text_of(answer)
    assert "What you typed is here again, but for the values of headers." in text
    assert page.count("The value was not kept: type it again.") == 2
    for shown in ('value="greet"', 'value="Authorization"', 'value="X-B"', 'value="2031-01-01"', 'value="5"'):
        assert shown in page, shown
    assert kept["key"] in page  # so that it still makes one call
    assert calls() == []
