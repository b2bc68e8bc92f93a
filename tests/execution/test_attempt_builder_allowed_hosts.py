"""A tenant's calls may go to its allowed hosts, or to every host if it has no list."""

from __future__ import annotations

import pytest

from execution.attempt_builder import check_target
from execution.outcome import ErrorKind


@pytest.mark.parametrize(
    "url", ["http://fine.test/", "https://FINE.test:8443/x?y=z", "http://[::1]/", "http://10.0.0.1/"]
)
def test_an_allowed_host_may_be_called_in_every_spelling(url: str) -> None:
    assert check_target(url, {"fine.test", "::1", "10.0.0.1"}, "k") is None


@pytest.mark.parametrize(
    "url", ["http://other.test/", "http://sub.fine.test/", "http://fine.test.evil.test/"]
)
def test_no_other_host_may_be_called(url: str) -> None:
    refused = check_target(url, {"fine.test"}, "k")
    assert refused is not None
    assert (refused.key, refused.kind, refused.may_have_been_sent) == ("k", ErrorKind.EGRESS, False)
    assert refused.timings.total_ms == 0


def test_without_a_list_every_host_may_be_called() -> None:
    assert check_target("http://anything.test/", (), "k") is None


@pytest.mark.parametrize(
    "url", ["ftp://fine.test/", "http://a@fine.test/", "http://fine.test\\@evil.test/", "x", "http://0x7f.1/"]
)
def test_an_ambiguous_url_is_refused_even_without_a_list(url: str) -> None:
    refused = check_target(url, (), "k")
    assert refused is not None
    assert refused.kind is ErrorKind.EGRESS
