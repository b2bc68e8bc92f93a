"""Error responses have a limited size, and no request costs more to refuse than it cost to send."""

from __future__ import annotations

import pytest

from eventservice.api.parsers import parse_json
from eventservice.api.problems import MAX_ERRORS, FieldError, Problem, truncate_errors
from tests.api.conftest import Api, build_submission, get_errors

pytestmark = pytest.mark.django_db


def test_a_repeated_name_is_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are looked up, not compared with all others."""
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other) is True

    from eventservice.api import parsers

    many = [(Name(number), 1) for number in range(3000)]
    with pytest.raises(ValueError, match='the name "2999" is given twice'):
        parsers._refuse_repeated_names([*many, (Name(2999), 1)])
    assert compared < 300


def test_a_repeated_name_is_named() -> None:
    with pytest.raises(Problem, match='the name "b" is given twice in one object'):
        parse_json('{"a": 1, "b": 2, "c": 3, "b": 4, "a": 5}')


def test_of_many_unknown_members_the_first_are_named(acme: Api) -> None:
    response = acme.post("/service-calls", build_submission(**{f"odd{number}": 1 for number in range(97)}))
    wrong = get_errors(response)
    assert len(wrong) == 21
    assert wrong[""] == "has 77 more unknown fields"


def test_an_object_with_too_many_members_is_refused_as_a_whole(acme: Api) -> None:
    """Finding an error for each member would take longer than sending them."""
    response = acme.post("/service-calls", build_submission(**{f"odd{number}": 1 for number in range(98)}))
    assert get_errors(response) == {"": "must have at most 100 members"}


def test_the_errors_of_a_batch_item_are_limited_too(acme: Api) -> None:
    odd = build_submission(
        requestSpec={"method": "GET", "url": "http://x.test", **{f"o{n}": 1 for n in range(98)}}
    )
    (item,) = acme.post("/service-calls/batch", {"items": [odd]}).json()["items"]
    assert len(item["errors"]) == 21
    assert item["errors"][0]["pointer"] == "/items/0/requestSpec"


def test_of_many_errors_the_first_are_reported() -> None:
    shown = truncate_errors([FieldError(f"/{number}", "is wrong") for number in range(5000)])
    assert len(shown) == MAX_ERRORS + 1
    assert shown[-1] == {"pointer": "", "detail": f"and {5000 - MAX_ERRORS} more"}


def test_an_atomic_batch_of_faults_has_an_answer_of_bounded_size(acme: Api) -> None:
    wrong = {"atomic": True, "items": [{"name": ""}] * 1000}
    response = acme.post("/service-calls/batch", wrong)
    assert (response.status_code, len(response.json()["errors"])) == (400, MAX_ERRORS + 1)
    assert response.json()["detail"] == "2000 fields are invalid."
