"""Pages report that the database is unavailable, even though the user is unknown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import OperationalError, connection
from django.test import Client

from tests.database_errors import lock_timeout

pytestmark = pytest.mark.django_db

BROWSER = {"Accept": "text/html"}


@contextmanager
def database_unavailable() -> Iterator[None]:
    def refuse(*query: Any) -> None:
        raise OperationalError("gone away")

    with connection.execute_wrapper(refuse):
        yield


@pytest.mark.parametrize("path", ["/", "/calls/", "/cluster/", "/tenants/"])
def test_a_page_says_that_the_database_did_not_answer(operator: Client, path: str) -> None:
    with database_unavailable():
        response = operator.get(path, headers=BROWSER)
    assert response.status_code == 503
    assert "did not answer in time" in response.content.decode()


def test_a_fragment_says_it_too(operator: Client) -> None:
    with database_unavailable():
        response = operator.get("/calls/", headers={**BROWSER, "HX-Request": "true"})
    assert response.status_code == 503
    assert "<html" not in response.content.decode()


def test_a_post_changes_nothing_and_is_told_so(operator: Client) -> None:
    with database_unavailable():
        response = operator.post("/calls/bulk/", {"do": "cancel"}, headers=BROWSER)
    assert response.status_code == 503
    assert "Nothing was changed" in response.content.decode()


def test_a_page_says_that_the_database_has_no_tables(operator: Client) -> None:
    def read_missing_table(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        return execute("SELECT 1 FROM no_such_table", (), False, context)

    with connection.execute_wrapper(read_missing_table):
        response = operator.get("/", headers=BROWSER)
    assert response.status_code == 503
    assert "The database lacks tables or columns" in response.content.decode()


# --- a database that can be read, and not written -----------------------------------------------------------------

LOCKED = "Another process has locked the database for too long."


@contextmanager
def database_locked() -> Iterator[None]:
    """Let the database refuse every statement that writes."""

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(("INSERT", "UPDATE", "DELETE")):
            raise lock_timeout()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        yield


def post_while_locked(client: Client, path: str, body: dict[str, str], accept: str = "text/html") -> Any:
    client.raise_request_exception = False
    with database_locked():
        response = client.post(path, body, headers={"Accept": accept})
    assert response.status_code == 503, response.content
    assert response["Retry-After"] == "1"
    return response


def assert_logged_as_trouble(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert "'event': 'database_busy'" in record.getMessage()
    assert not record.exc_info


def test_nobody_can_sign_in_and_the_page_says_why(caplog: pytest.LogCaptureFixture) -> None:
    User.objects.create_superuser("otto", password="s3cret")
    response = post_while_locked(Client(), "/login/", {"username": "otto", "password": "s3cret"})
    assert f"{LOCKED} Nothing was changed; try again." in response.content.decode()
    assert "<html" in response.content.decode()
    assert_logged_as_trouble(caplog)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/logout/", {}),
        ("/preferences/", {"zone": "UTC"}),
        ("/events/replay/", {"since": "2h", "word": "replay"}),
        ("/admin/auth/group/add/", {"name": "readers"}),
        ("/admin/password_change/", {"old_password": "s3cret", "new_password1": "another-s3cret", "new_password2": "another-s3cret"}),
    ],
)  # fmt: skip
def test_what_writes_says_that_the_database_is_locked(
    path: str, body: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("otto", password="s3cret"))
    assert LOCKED in post_while_locked(client, path, body).content.decode()
    assert_logged_as_trouble(caplog)


def test_a_program_gets_the_same_sentence(admin: Client) -> None:
    problem = post_while_locked(admin, "/preferences/", {"zone": "UTC"}, "*/*").json()
    assert (problem["code"], problem["detail"]) == (
        "database_busy",
        f"{LOCKED} Nothing was changed; try again.",
    )


def test_a_program_that_reads_a_page_gets_the_sentence_too(operator: Client) -> None:
    with database_unavailable():
        problem = operator.get("/calls/", headers={"Accept": "*/*"}).json()
    assert problem["status"] == 503
    assert "did not answer in time" in problem["detail"]


def test_a_session_that_was_deleted_meanwhile_is_no_trouble(operator: Client) -> None:
    def delete_session(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE") and "django_session" in sql:
            Session.objects.all().delete()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(delete_session):
        response = operator.post("/preferences/", {"zone": "UTC"}, headers=BROWSER)
    assert response.status_code == 400
