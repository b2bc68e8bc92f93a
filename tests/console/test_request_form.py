"""The form for a new call submits what the API would, once, and keeps the input if it cannot."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from eventservice.console.calls.request_form import DEFAULT_RETRIES
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import create_tenant, update_tenant
from eventservice.tenants.models import Tenant
from execution.redaction import decrypt_headers
from orchestration import admission
from orchestration.models import ServiceCallTag
from tests.console.call_pages import BROWSER, NEW, empty_form, fill_form, list_calls, read_text

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def acme() -> Tenant:
    admission.forget_allowances()
    return create_tenant("acme")


def submit(client: Client, **fields: Any) -> Any:
    return client.post(NEW, fill_form(client, **fields), headers=BROWSER)


def test_a_call_for_now_is_submitted_and_leads_to_its_response(operator: Client, acme: Tenant) -> None:
    response = submit(
        operator,
        method="PUT",
        header_name=["X-Shown", "", "Authorization"],
        header_value=[" yes ", "", "Bearer s3cret"],
        body='{"n": 1}',
        tags="billing, nightly",
        favorite="on",
    )
    (call,) = list_calls()
    sent = f"{NEW}?sent={acme.tenant_id}/{call.service_call_id}#response"
    assert (response.status_code, response["Location"]) == (303, sent)
    assert (call.tenant_id, call.name, call.status) == (acme.tenant_id, "greet", "Scheduled")
    assert call.due_at == call.submitted_at
    spec = call.request_spec
    assert (spec["method"], spec["url"], spec["body"]) == ("PUT", "http://target.test/hook", {"n": 1})
    assert decrypt_headers(spec["headers"]) == {"X-Shown": "yes", "Authorization": "Bearer s3cret"}
    assert isinstance(spec["headers"]["Authorization"], dict)
    tags = ServiceCallTag.objects.for_tenant(acme.tenant_id).values_list("tag", flat=True)
    assert set(tags) == {"billing", "nightly", "favorite"}


def test_the_options_of_the_form_are_submitted(operator: Client) -> None:
    submit(
        operator, timeout="2.5", delivery="at_most_once", max_attempts="4", backoff_multiplier="3",
        initial_interval="5s", max_interval="1m", max_attempts_duration="1h", body="a\r\nb", body_kind="text",
    )  # fmt: skip
    (call,) = list_calls()
    assert (call.timeout_seconds, call.delivery) == (2.5, "at_most_once")
    assert call.retry_policy == {
        "max_attempts": 4,
        "max_attempts_duration": 3600,
        "initial_interval": 5,
        "backoff_multiplier": 3,
        "max_interval": 60,
    }
    assert call.request_spec["body"] == "a\nb"


def test_the_submission_is_in_the_audit_log(operator: Client, acme: Tenant) -> None:
    submit(operator)
    (action,) = OperatorAction.across_tenants.all()
    assert (action.user, action.action, action.tenant_id) == ("oscar", "submit", acme.tenant_id)
    assert action.subject == str(list_calls()[0].service_call_id)


def test_a_form_that_is_sent_twice_creates_one_call(operator: Client) -> None:
    form = fill_form(operator)
    first, second = operator.post(NEW, form), operator.post(NEW, form)
    assert first["Location"] == second["Location"]
    assert len(list_calls()) == 1
    assert OperatorAction.across_tenants.count() == 1
    assert "This form was already sent" in read_text(operator.get(second["Location"]))


def test_a_changed_form_must_be_submitted_again_to_create_another_call(operator: Client) -> None:
    form = fill_form(operator)
    operator.post(NEW, form)
    changed = operator.post(NEW, {**form, "name": "other"}, headers=BROWSER)
    assert changed.status_code == 409
    assert "already created a call" in read_text(changed)
    assert 'value="other"' in changed.content.decode()
    assert len(list_calls()) == 1
    page = changed.content.decode()
    key = page.split('name="key" value="')[1].split('"')[0]
    assert key != form["key"]
    assert operator.post(NEW, {**form, "name": "other", "key": key}).status_code == 303
    assert [call.name for call in list_calls()] == ["greet", "other"]


def test_a_reloaded_form_has_a_new_key(operator: Client) -> None:
    assert empty_form(operator)["key"] != empty_form(operator)["key"]
    location = submit(operator)["Location"]
    again = empty_form(operator, location)
    assert again["key"] != list_calls()[0].idempotency_key


def test_reloading_the_response_submits_nothing(operator: Client) -> None:
    location = submit(operator)["Location"]
    for _ in range(2):
        assert operator.get(location).status_code == 200
    assert len(list_calls()) == 1


# --- scheduling ------------------------------------------------------------------------------------------------


def test_a_scheduled_call_is_due_at_the_chosen_instant(operator: Client, at_noon: datetime) -> None:
    response = submit(operator, when="schedule", date="2026-07-01", time="14:30", zone="Europe/Berlin")
    (call,) = list_calls()
    assert call.due_at == datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
    assert "2026-07-01 12:30:00 UTC" in read_text(operator.get(response["Location"]))


def test_the_instant_is_previewed(operator: Client, at_noon: datetime) -> None:
    form = fill_form(operator, do="when", when="schedule", date="2026-03-01", time="14:10", zone="UTC")
    page = operator.post(NEW, form)
    assert "in 2 h 10 m , Sun 2026-03-01 14:10:00 UTC" in read_text(page)
    assert list_calls() == []


def test_an_invalid_time_is_reported_in_the_preview(operator: Client, at_noon: datetime) -> None:
    form = fill_form(operator, do="when", when="schedule", date="2040-10-31", time="12:00", zone="UTC")
    page = read_text(operator.post(NEW, form))
    assert "The time must be within ten years from now." in page
    assert "in 5" not in page


def test_changes_of_clocks_are_explained(operator: Client, at_noon: datetime) -> None:
    gap = submit(operator, when="schedule", date="2026-03-29", time="02:30", zone="Europe/Berlin")
    assert "02:30 does not exist on this day in Europe/Berlin" in read_text(gap)
    assert list_calls() == []
    twice = submit(operator, when="schedule", date="2026-10-25", time="02:30", zone="Europe/Berlin")
    assert "the second is at 01:30 UTC" in read_text(operator.get(twice["Location"]))


@pytest.mark.parametrize(
    ("date", "message"),
    [("2026-02-28", "This time is in the past"), ("2040-01-01", "The time must be within ten years")],
)
def test_a_time_out_of_range_is_refused(operator: Client, at_noon: datetime, date: str, message: str) -> None:
    assert message in read_text(submit(operator, when="schedule", date=date, time="10:00", zone="UTC"))
    assert list_calls() == []


def test_a_preset_chooses_the_time(operator: Client, acme: Tenant, at_noon: datetime) -> None:
    page = submit(operator, do="when", preset="10m", when="now")
    assert "in 10 m , Sun 2026-03-01 12:10:00 UTC" in read_text(page)
    assert re.search(r'value="schedule"\s+id="when-schedule" checked', page.content.decode())
    assert list_calls() == []
    page = submit(operator, do="", preset="in", amount="none", when="schedule")  # without a script
    assert "Enter a whole number from 1 to 9999." in read_text(page)


# --- retries --------------------------------------------------------------------------------------------------


def read_retry_fields(client: Client, address: str = NEW) -> dict[str, str]:
    page = client.get(address, headers=BROWSER).content.decode()
    names = (
        "max_attempts",
        "initial_interval",
        "backoff_multiplier",
        "max_interval",
        "max_attempts_duration",
    )
    fields = {name: re.search(rf'<input[^>]*name="{name}"[^>]*>', page) for name in names}
    values = {name: re.search(r' value="([^"]*)"', field[0]) for name, field in fields.items() if field}
    return {name: value[1] if value else "" for name, value in values.items()}


def test_a_new_form_offers_retries_as_values_of_its_fields(operator: Client, acme: Tenant) -> None:
    assert read_retry_fields(operator) == {**DEFAULT_RETRIES, "max_attempts_duration": ""}
    page = operator.get(NEW, headers=BROWSER).content.decode()
    assert 'placeholder="e.g.' not in page
    assert submit(operator, **DEFAULT_RETRIES).status_code == 303
    (call,) = list_calls()
    assert call.retry_policy == {
        "max_attempts": 5,
        "max_attempts_duration": None,
        "initial_interval": 30,
        "backoff_multiplier": 2,
        "max_interval": 3600,
    }


def test_without_a_number_of_attempts_the_offered_delays_cause_no_retries(
    operator: Client, acme: Tenant
) -> None:
    submit(operator, **{**DEFAULT_RETRIES, "max_attempts": ""})
    (call,) = list_calls()
    assert call.retry_policy is None


def test_a_copy_has_the_retries_of_its_original(operator: Client, acme: Tenant) -> None:
    submit(operator)
    (call,) = list_calls()
    address = f"{NEW}?copy={call.tenant_id}/{call.service_call_id}"
    assert set(read_retry_fields(operator, address).values()) == {""}


# --- refusals --------------------------------------------------------------------------------------------------


def test_every_error_is_at_its_field_and_all_input_is_kept(operator: Client) -> None:
    response = submit(
        operator, name="", url="ftp://x.test/", header_name=["Host", "A B", "X-One", "X-One"],
        header_value=["h.test", "value-of-a-b", "1", "2"], body='{\n  "a" 1\n}', tags="fine," + "t" * 65, timeout="soon",
        max_attempts="0", initial_interval="quick", namespace="nowhere",
    )  # fmt: skip
    page, text = response.content.decode(), read_text(response)
    assert response.status_code == 200
    for message in (
        "Name must not be empty.",
        "URL is refused: the URL's scheme is not http or https.",
        "Host is refused: header Host is set by the HTTP client and cannot be overridden.",
        "A B is refused: 'A B' is not a valid header name.",
        "X-One is already in the list.",
        "expecting ':' delimiter at line 2",
        "must be at most 64 characters",
        "Timeout must be a number.",
        "Max attempts must be at least 1.",
        "Initial delay must be a duration",
        "Namespace must be a namespace of this tenant",
    ):
        assert message in text, message
    for kept in ("ftp://x.test/", "value-of-a-b", "&quot;a&quot; 1", "t" * 65, "soon", "quick", "nowhere"):
        assert kept in page, kept
    assert 'data-wrong-line="2"' in page
    assert page.count('aria-invalid="true"') >= 10
    assert text.count("Fix the highlighted headers.") == 1
    assert list_calls() == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"a": 1, "a": 2}', "given twice in one object"),
        ('"just a text"', "choose Text"),
        ("null", "choose Text"),
        ("NaN", "not a JSON value"),
        ('{"a": "\\u0000"}', "NUL"),
        ("[" * 40 + "]" * 40, "levels"),
        ('"' + "x" * 1_100_000 + '"', "choose Text"),
        ("[" + '"' + "x" * 1_100_000 + '"' + "]", "at most 1048576 bytes"),
    ],
)
def test_an_invalid_body_is_refused_with_the_reason(operator: Client, body: str, message: str) -> None:
    assert message in read_text(submit(operator, body=body))
    assert list_calls() == []


def test_nothing_is_submitted_without_an_active_tenant(operator: Client, acme: Tenant) -> None:
    for tenant in ("", "no-id", str(uuid.uuid4())):
        assert "Choose a tenant." in read_text(submit(operator, tenant=tenant))
    form = fill_form(operator)
    update_tenant(acme.tenant_id, active=False)
    assert "This tenant is not active." in read_text(operator.post(NEW, form))
    assert list_calls() == []


def test_an_empty_form_reports_all_errors_at_once(operator: Client, acme: Tenant) -> None:
    text = read_text(submit(operator, tenant="", name="", url="", when="schedule", namespace="blue"))
    for message in (
        "Choose a tenant.",
        "Name must not be empty",
        "URL must not be empty",
        "Choose a date",
        "Choose a time",
    ):
        assert message in text, message
    assert "Namespace must be" not in text  # a namespace belongs to a tenant
    form = fill_form(operator, name="")
    update_tenant(acme.tenant_id, active=False)
    text = read_text(operator.post(NEW, form))
    assert "This tenant is not active." in text
    assert "Name must not be empty" in text


def test_the_pending_limit_is_respected(operator: Client, acme: Tenant) -> None:
    update_tenant(acme.tenant_id, max_pending=1)
    clear_caches()
    assert submit(operator, when="schedule", date="2031-01-01", time="10:00").status_code == 303
    admission.forget_allowances()
    refused = submit(operator, name="one too many")
    assert refused.status_code == 429
    assert "pending limit of this tenant is 1." in read_text(refused)
    assert "one too many" in refused.content.decode()
    assert len(list_calls()) == 1


def test_a_viewer_has_no_form_and_submits_nothing(operator: Client, viewer: Client) -> None:
    form = fill_form(operator)
    assert viewer.get(NEW).status_code == 403
    assert viewer.post(NEW, form).status_code == 403
    assert list_calls() == []


def test_others_are_sent_to_the_login(operator: Client, outsider: Client) -> None:
    form = fill_form(operator)
    assert outsider.post(NEW, form).status_code == 302
    assert Client().post(NEW, form)["Location"].startswith("/login/")
    assert list_calls() == []


def test_a_form_of_another_site_is_refused(operator: Client) -> None:
    form = fill_form(operator)
    operator.handler.enforce_csrf_checks = True
    assert operator.post(NEW, form).status_code == 403
    assert list_calls() == []


def test_input_is_escaped(operator: Client) -> None:
    evil = "</textarea><script>alert(1)</script>\"'>"
    page = submit(
        operator, name=evil, url=evil, body=evil, tags=evil, timeout=evil, curl=evil
    ).content.decode()
    assert "<script>alert" not in page


# --- the other buttons --------------------------------------------------------------------------------------


def test_a_header_row_is_added_and_the_input_is_kept(operator: Client) -> None:
    form = fill_form(
        operator, do="add-row", header_name=["X-A", ""], header_value=["1", ""], body="{not json"
    )
    page = operator.post(NEW, form).content.decode()
    assert page.count('name="header_name"') == 3
    assert 'value="X-A"' in page
    assert "{not json" in page
    assert form["key"] in page
    assert list_calls() == []


def test_the_body_is_formatted_without_changing_its_numbers(operator: Client) -> None:
    form = fill_form(operator, do="format", body='{"id":12345678901234567890,"ä":[1.5]}')
    page = operator.post(NEW, form).content.decode()
    assert "{\n  &quot;id&quot;: 12345678901234567890,\n  &quot;ä&quot;: [\n    1.5\n  ]\n}" in page


@pytest.mark.parametrize("button", ["check", "format"])
def test_an_invalid_body_is_reported_before_anything_is_sent(operator: Client, button: str) -> None:
    form = fill_form(operator, do=button, name="", body='{\n  "a" 1\n}')
    page = operator.post(NEW, form)
    assert "expecting ':' delimiter at line 2" in read_text(page)
    assert 'data-wrong-line="2"' in page.content.decode()
    assert "&quot;a&quot; 1" in page.content.decode()
    assert "Name must" not in read_text(page)  # the other fields are not validated yet


def test_an_imported_curl_command_fills_in_the_form(operator: Client) -> None:
    line = "curl -k 'http://target.test/x' -H 'X-A: 1' --json '{\"a\":1}'"
    page = operator.post(NEW, fill_form(operator, do="import", curl=line, name=""))
    text, markup = read_text(page), page.content.decode()
    assert "-k was ignored: certificates are always verified." in text
    assert 'value="http://target.test/x"' in markup
    assert 'value="POST target.test"' in markup
    assert "{\n  &quot;a&quot;: 1\n}" in markup
    assert list_calls() == []


def test_an_invalid_curl_command_is_kept_with_the_reason(operator: Client) -> None:
    page = operator.post(NEW, fill_form(operator, do="import", curl="curl -d @file http://x.test/"))
    assert "@file cannot be read" in read_text(page)
    assert "curl -d @file http://x.test/" in read_text(page)


def test_a_copy_has_everything_except_secrets(operator: Client, acme: Tenant) -> None:
    submit(
        operator, header_name=["Authorization", "X-Shown"], header_value=["Bearer s3cret", "yes"],
        body='{"n": 1}', tags="billing", favorite="on", max_attempts="4", initial_interval="90s",
    )  # fmt: skip
    (call,) = list_calls()
    response = operator.get(f"{NEW}?copy={acme.tenant_id}/{call.service_call_id}")
    page = response.content.decode()
    assert "s3cret" not in page
    assert "••••••" in page
    assert "Secrets are not copied" in page
    for kept in ('value="yes"', 'value="billing"', "&quot;n&quot;: 1", 'value="90s"', 'value="4"'):
        assert kept in page, kept
    assert str(call.idempotency_key) not in page
    copied = {
        **empty_form(operator),
        "name": "greet",
        "url": "http://x.test/",
        "header_name": ["Authorization"],
    }
    refused = operator.post(NEW, {**copied, "header_value": [""]})
    assert "Authorization needs a value: secrets are not copied." in read_text(refused)
    assert len(list_calls()) == 1


def test_a_copy_of_an_unknown_call_is_not_found(operator: Client, acme: Tenant) -> None:
    for tenant_id in (acme.tenant_id, uuid.uuid4()):
        assert operator.get(f"{NEW}?copy={tenant_id}/{uuid.uuid4()}").status_code == 404


def test_a_time_in_the_current_minute_means_now(operator: Client, at_noon: datetime) -> None:
    at = at_noon - timedelta(seconds=30)
    response = submit(operator, when="schedule", date=f"{at:%Y-%m-%d}", time=f"{at:%H:%M:%S}", zone="UTC")
    assert response.status_code == 303
    assert list_calls()[0].due_at == at_noon
