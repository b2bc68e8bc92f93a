"""Pages report that the database is unavailable, even though the user is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

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
