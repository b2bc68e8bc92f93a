"""The requests that the client sends, and how it reads the responses."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from requests.adapters import BaseAdapter

from eventservice.client import ApiError, Client


class Wire(BaseAdapter):
    """Replace the network: every request gets the same response."""

    def __init__(self, status: int, body: bytes = b"{}", **headers: str) -> None:
        super().__init__()
        self.response = status, body, headers
        self.sent: list[requests.PreparedRequest] = []

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        self.sent.append(request)
        response = requests.Response()
        response.status_code, body, headers = self.response
        response.url, response.raw = str(request.url), io.BytesIO(body)
        response.headers.update(headers)
        return response

    def close(self) -> None:
        pass


def build_client(wire: Wire) -> Client:
    session = requests.Session()
    session.mount("http://", wire)
    return Client("http://api.test", "t", "key", session=session)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("location", ["https://api.test/", "http://[", "/caf\xe9"])
def test_a_redirect_is_reported_and_not_followed(status: int, location: str) -> None:
    wire = Wire(status, Location=location)
    with build_client(wire) as client, pytest.raises(ApiError) as refused:
        client.submit("n", "GET", "http://a.test/")
    assert (refused.value.status, refused.value.code) == (status, "redirected")
    assert f"/service-calls redirects to {location}. Check the base URL of the API." in str(refused.value)
    assert len(wire.sent) == 1


def test_a_redirect_without_a_location_is_reported_too() -> None:
    with build_client(Wire(304)) as client, pytest.raises(ApiError, match="redirects to another address"):
        client.get("1")


def test_credentials_in_netrc_do_not_replace_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine api.test login me password mine\n")
    monkeypatch.setenv("NETRC", str(netrc))
    wire = Wire(200)
    with build_client(wire) as client:
        client.submit("n", "GET", "http://a.test/", idempotency_key="own")
    sent = wire.sent[0].headers
    assert (sent["Authorization"], sent["Idempotency-Key"]) == ("Bearer key", "own")


PAGE = b'{"items": [], "nextCursor": null}'


@pytest.mark.parametrize(
    ("filters", "query"),
    [
        ({"status": []}, {"status": [""]}),
        ({"tag": ()}, {"tag": [""]}),
        ({"status": ["Failed", "Canceled"]}, {"status": ["Failed", "Canceled"]}),
        ({"retrying": True}, {"retrying": ["true"]}),
        ({"due_from": "2026-01-01T00:00:00Z"}, {"from": ["2026-01-01T00:00:00Z"]}),
        ({"tag": None}, {}),
    ],
)
@pytest.mark.parametrize("name", ["list", "timers"])
def test_filters_are_sent_as_the_api_reads_them(name: str, filters: dict[str, Any], query: Any) -> None:
    """An empty list must not list everything: the service refuses it."""
    wire = Wire(200, PAGE)
    assert list(getattr(build_client(wire), name)(**filters)) == []
    found = parse_qs(urlsplit(str(wire.sent[0].url)).query, keep_blank_values=True)
    assert {name: value for name, value in found.items() if name != "limit"} == query
