"""Only operators may sign in, and wrong passwords are limited."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from eventservice.operators.sign_in_limits import PER_NAME

PASSWORD = "correct horse battery"
BROWSER = {"Accept": "text/html"}


@pytest.fixture
def otto(db: None) -> User:
    return User.objects.create_user("otto", password=PASSWORD, is_staff=True)


def test_an_anonymous_user_is_sent_to_the_login_and_back(otto: User) -> None:
    client = Client()
    response = client.get("/events/?type=ServiceCallFailed")
    assert response.status_code == 302
    assert response["Location"] == "/login/?next=/events/%3Ftype%3DServiceCallFailed"
    page = client.post("/login/", {"username": "otto", "password": PASSWORD, "next": "/events/"})
    assert (page.status_code, page["Location"]) == (302, "/events/")


def test_a_wrong_password_is_reported(otto: User) -> None:
    page = Client().post("/login/", {"username": "otto", "password": "guess"})
    assert "Wrong username or password" in page.content.decode()


def test_failed_sign_ins_of_a_user_are_limited(otto: User) -> None:
    client = Client()
    for _ in range(PER_NAME.max_attempts):
        client.post("/login/", {"username": "otto", "password": "guess"})
    page = client.post("/login/", {"username": "otto", "password": PASSWORD}, headers=BROWSER)
    assert "Too many failed attempts for this username" in page.content.decode()
    assert (page.status_code, int(page["Retry-After"]) > 0) == (429, True)


def test_signing_in_redirects_to_no_other_site(otto: User) -> None:
    page = Client().post("/login/", {"username": "otto", "password": PASSWORD, "next": "//evil.example/"})
    assert page["Location"] == "/"


def test_a_user_who_is_no_operator_is_told_so(db: None) -> None:
    User.objects.create_user("otto", password=PASSWORD)
    page = Client().post("/login/", {"username": "otto", "password": PASSWORD})
    assert "not an operator" in page.content.decode()


def test_the_session_of_an_outsider_opens_no_page(outsider: Client) -> None:
    assert outsider.get("/")["Location"].startswith("/login/")


def test_a_fragment_without_a_session_redirects_the_whole_page_to_the_login(db: None) -> None:
    response = Client().get("/", HTTP_HX_REQUEST="true")
    assert (response.status_code, response["HX-Redirect"]) == (401, "/login/")


def test_signing_in_after_a_fragment_returns_to_its_page(db: None) -> None:
    shown = {"HX-Request": "true", "HX-Current-URL": "http://testserver/calls/?status=Failed&name=a"}
    response = Client().post("/calls/look/?since=2026-03-01T12:00:00Z", headers=shown)
    assert response["HX-Redirect"] == "/login/?next=/calls/%3Fstatus%3DFailed%26name%3Da"
    for wrong in ("http://evil.example//evil.example/", "http://["):
        elsewhere = {**shown, "HX-Current-URL": wrong}
        assert Client().get("/", headers=elsewhere)["HX-Redirect"] == "/login/"


def test_a_post_without_a_session_is_reported_as_not_done(db: None) -> None:
    client = Client()
    response = client.post(
        "/calls/bulk/run/", headers={"Referer": "http://testserver/calls/bulk/?do=cancel", **BROWSER}
    )
    assert response["Location"] == "/login/?next=/calls/bulk/%3Fdo%3Dcancel"
    page = client.get(response["Location"]).content.decode()
    assert "Your session has ended, so nothing was changed." in page


def test_every_page_may_load_only_from_this_site(viewer: Client) -> None:
    for path in ("/", "/login/", "/admin/", "/nothing/"):
        policy = viewer.get(path, follow=True, HTTP_ACCEPT="text/html")["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy, path


def test_signing_out_ends_the_session(viewer: Client) -> None:
    assert viewer.post("/logout/")["Location"] == "/login/"
    assert viewer.get("/")["Location"].startswith("/login/")


# --- a page from before somebody signed in: its token is no longer good -----------------------------------------


def post_with_old_token(
    client: Client, address: str, headers: dict[str, str] | None = None, **fields: Any
) -> Any:
    """Post a form with the CSRF token of an earlier session, as a page does that was opened before."""
    client.handler.enforce_csrf_checks = True
    client.cookies["csrftoken"] = "n" * 32
    fields["csrfmiddlewaretoken"] = "o" * 32
    return client.post(address, fields, headers={**BROWSER, **(headers or {})})


def test_signing_in_twice_continues_to_the_page(viewer: Client) -> None:
    response = post_with_old_token(viewer, "/login/", username="vera", password="-", next="/events/")
    assert (response.status_code, response["Location"]) == (302, "/events/")


def test_an_outdated_login_page_is_shown_again(otto: User) -> None:
    response = post_with_old_token(Client(), "/login/", username="otto", password=PASSWORD, next="/events/")
    page = response.content.decode()
    assert response.status_code == 403
    assert "You are not signed in:" in page
    assert 'value="otto"' in page
    assert 'name="next" value="/events/"' in page
    assert PASSWORD not in page


def test_an_outdated_form_does_nothing_and_its_page_is_reloaded(operator: Client) -> None:
    came_from = {"Referer": "http://testserver/calls/?status=Failed"}
    response = post_with_old_token(operator, "/calls/bulk/", came_from, do="cancel")
    assert (response.status_code, response["Location"]) == (303, "/calls/?status=Failed")
    page = operator.get(response["Location"]).content.decode()
    assert "Nothing was changed, because that page was out of date." in page


def test_an_outdated_fragment_reloads_its_page(viewer: Client) -> None:
    response = post_with_old_token(viewer, "/calls/look/?since=2026-03-01T12:00:00Z", {"HX-Request": "true"})
    assert (response.status_code, response["HX-Refresh"]) == (403, "true")


def test_a_post_without_cookies_is_sent_to_the_login(db: None) -> None:
    shown = {"HX-Request": "true", "HX-Current-URL": "http://testserver/calls/?name=a"}
    client = Client(enforce_csrf_checks=True)
    response = client.post("/calls/look/?since=2026-03-01T12:00:00Z", headers=shown)
    assert (response.status_code, response["HX-Redirect"]) == (401, "/login/?next=/calls/%3Fname%3Da")


def test_a_missing_role_is_reported_whatever_the_token(viewer: Client) -> None:
    assert (
        "You need the operator role (you are a viewer)"
        in post_with_old_token(viewer, "/calls/new/").content.decode()
    )


def test_a_form_of_another_site_is_refused(operator: Client) -> None:
    elsewhere = {"Origin": "http://evil.example", "Referer": "http://evil.example/"}
    for address in ("/login/", "/calls/new/", "/calls/bulk/"):
        response = post_with_old_token(operator, address, elsewhere, name="evil")
        assert response.status_code == 403
        assert "was sent from another site" in response.content.decode()
        assert "evil" not in response.content.decode()
