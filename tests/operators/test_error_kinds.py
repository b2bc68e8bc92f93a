"""Every kind of error has a name and an explanation for operators."""

from __future__ import annotations

import pytest

from eventservice.operators.error_kinds import explain_error_kind, get_error_name
from execution.outcome import ErrorKind


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_kind_is_named_and_explained(kind: ErrorKind) -> None:
    assert get_error_name(kind) not in ("", kind.value)
    assert explain_error_kind(kind.value).endswith(".")


def test_an_error_status_is_named_by_its_number() -> None:
    assert get_error_name("HttpStatus", 503) == "HTTP 503"
    assert get_error_name("Rejected", 200) == "Callback not done"


def test_a_kind_of_another_version_is_shown_as_it_is() -> None:
    assert get_error_name("Quantum") == "Quantum"
    assert explain_error_kind("Quantum") == ""
    assert get_error_name(None) == ""
