"""An address that can never be called is refused when the call is submitted, with the setting that would allow it."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.settings import PRODUCTION
from execution.addresses import LOOPBACK
from tests.api.conftest import Api, build_submission, get_errors

pytestmark = pytest.mark.django_db

RESTRICTED = [
    ("http://127.0.0.1:3000/hook", "127.0.0.1:3000", "loopback (127.0.0.0/8)", "EGRESS_ALLOW"),
    ("http://127.0.0.1/", "127.0.0.1:80", "loopback", "EGRESS_ALLOW"),
    ("https://localhost/", "localhost:443", "loopback", "EGRESS_ALLOW=127.0.0.1:443"),
    ("http://app.localhost:3000/", "app.localhost:3000", "loopback", "EGRESS_ALLOW"),
    ("http://[::1]:3000/", "[::1]:3000", "loopback", "EGRESS_ALLOW=[::1]:3000"),
    ("http://169.254.169.254/latest", "169.254.169.254:80", "cloud metadata", "EGRESS_ALLOW"),
    ("http://10.1.2.3/", "10.1.2.3:80", "private", "EGRESS_ALLOW_PRIVATE or EGRESS_ALLOW=10.1.2.3:80"),
]


def build_spec(url: str) -> dict[str, Any]:
    return {"method": "POST", "url": url}


@pytest.fixture
def elsewhere_than_in_development(settings: Any) -> None:
    settings.EGRESS_ALLOW, settings.EGRESS_ALLOW_PRIVATE = [], False


@pytest.mark.usefixtures("elsewhere_than_in_development")
@pytest.mark.parametrize(("url", "address", "rule", "setting"), RESTRICTED)
def test_a_literal_address_is_refused_by_the_name_of_the_setting(
    acme: Api, url: str, address: str, rule: str, setting: str
) -> None:
    error = get_errors(acme.post("/service-calls", build_submission(requestSpec=build_spec(url))))
    assert list(error) == ["/requestSpec/url"]
    for part in (address, rule, setting):
        assert part in error["/requestSpec/url"]


@pytest.mark.usefixtures("elsewhere_than_in_development")
def test_a_timer_and_an_item_of_a_batch_are_refused_too(acme: Api) -> None:
    timer = {"id": "t", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://127.0.0.1:3000/"}
    assert "EGRESS_ALLOW" in get_errors(acme.post("/timers/create", timer))["/callbackUrl"]
    item = build_submission(requestSpec=build_spec("http://127.0.0.1:3000/"))
    (result,) = acme.post("/service-calls/batch", {"items": [item]}).json()["items"]
    assert (
        "EGRESS_ALLOW"
        in {error["pointer"]: error["detail"] for error in result["errors"]}["/items/0/requestSpec/url"]
    )


@pytest.mark.usefixtures("elsewhere_than_in_development")
def test_a_name_is_accepted_because_its_address_is_known_only_when_it_is_called(acme: Api) -> None:
    acme.submit(requestSpec=build_spec("http://localhost.example/"))


def test_an_exception_for_one_port_allows_that_port(acme: Api, settings: Any) -> None:
    settings.EGRESS_ALLOW = ["127.0.0.1:3000"]
    acme.submit(requestSpec=build_spec("http://127.0.0.1:3000/hook"))
    get_errors(
        acme.post("/service-calls", build_submission(requestSpec=build_spec("http://127.0.0.1:3001/")))
    )


@pytest.mark.parametrize("url", [url for url, _, rule, _ in RESTRICTED if "loopback" in rule])
def test_development_allows_loopback(acme: Api, settings: Any, url: str) -> None:
    assert not PRODUCTION
    assert set(settings.EGRESS_ALLOW) >= set(LOOPBACK)
    acme.submit(requestSpec=build_spec(url))
