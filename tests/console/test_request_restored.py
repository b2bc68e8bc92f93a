"""Input survives a session that ends, and a sign-in in another tab."""

from __future__ import annotations

import pytest
from django.test import Client

from eventservice.tenants.directory import create_tenant
from tests.console.call_pages import BROWSER, NEW, fill_form, list_calls, read_text

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def acme() -> None:
    create_tenant("acme")


def test_a_form_from_before_the_last_sign_in_keeps_its_input(operator: Client) -> None:
    form = fill_form(operator, header_name=["X-A"], header_value=["typed"], body='{"n": 1}')
    operator.handler.enforce_csrf_checks = True
    operator.cookies["csrftoken"] = "n" * 32
    answer = operator.post(NEW, {**form, "csrfmiddlewaretoken": "o" * 32}, headers=BROWSER)
    assert answer.status_code == 403
    assert "Not sent, because you have signed in since you opened this page." in read_text(answer)
    page = answer.content.decode()
    for kept in ('value="greet"', 'value="typed"', "{&quot;n&quot;: 1}", form["key"]):
        assert kept in page, kept
    assert list_calls() == []
    token = page.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
    assert operator.post(NEW, {**form, "csrfmiddlewaretoken": token}).status_code == 303
    assert len(list_calls()) == 1


def test_a_form_sent_after_the_session_ended_is_reported_as_not_sent(operator: Client) -> None:
    form = fill_form(operator)
    response = Client().post(
        NEW, form, headers={**BROWSER, "Referer": "http://testserver/calls/new/?tenant=1"}
    )
    assert response["Location"] == "/login/?next=/calls/new/%3Ftenant%3D1%26unsent%3D1"
    page = operator.get(f"{NEW}?tenant=1&unsent=1")
    assert "Your session had ended, and nothing was sent." in read_text(page)
    assert "data-unsent" in page.content.decode()
    assert "data-unsent" not in operator.get(NEW).content.decode()
    assert list_calls() == []


def test_a_fragment_returns_to_the_form_after_sign_in(db: None) -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": f"http://testserver{NEW}"}
    response = Client().post(NEW, {"do": "check"}, headers=headers)
    assert response["HX-Redirect"] == "/login/?next=/calls/new/%3Funsent%3D1"


def test_stored_input_is_restored_and_header_values_are_asked_for(
    operator: Client,
) -> None:
    kept = fill_form(
        operator, do="restore", header_name=["Authorization", "X-B", ""], header_value=["", "", ""],
        body="{\n}", when="schedule", date="2031-01-01", time="10:00", zone="UTC", timeout="5",
    )  # fmt: skip
    answer = operator.post(NEW, kept, headers=BROWSER)
    page, text = answer.content.decode(), read_text(answer)
    assert "Your input is restored, except for header values." in text
    assert page.count("The value was not stored. Enter it again.") == 2
    for shown in ('value="greet"', 'value="Authorization"', 'value="X-B"', 'value="2031-01-01"', 'value="5"'):
        assert shown in page, shown
    assert kept["key"] in page  # so that it still creates one call
    assert list_calls() == []
