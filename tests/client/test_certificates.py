"""The client trusts the authorities that the engine trusts, and says which variable names others."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventservice.client import Client, Unreachable
from tests.execution import hostile
from tests.execution.hostile import Authority, answering, make_authority

BODY = b'{"items": [], "nextCursor": null}'
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    return make_authority(tmp_path)


def respond(_request: hostile.Request) -> bytes:
    return RESPONSE


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_an_authority_that_a_variable_names_is_trusted(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, authority.ca_file)
    with (
        answering(respond, authority.server_context("localhost")) as server,
        Client(f"https://localhost:{server.port}", "t", "key", retries=0) as client,
    ):
        assert list(client.list()) == []


def test_a_certificate_of_an_unknown_authority_is_refused_with_the_variables(authority: Authority) -> None:
    with (
        answering(respond, authority.server_context("localhost")) as server,
        Client(f"https://localhost:{server.port}", "t", "key", retries=0) as client,
        pytest.raises(
            Unreachable, match=r"certificate verify failed.* set SSL_CERT_FILE or REQUESTS_CA_BUNDLE"
        ),
    ):
        list(client.list())
