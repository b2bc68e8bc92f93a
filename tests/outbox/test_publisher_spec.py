"""`PUBLISHERS` is checked when a process starts, and a message about it never contains a secret."""

from __future__ import annotations

import sys

import pytest
from django.test import override_settings

from outbox.checks import check_publishers
from outbox.publisher_spec import BROKERS, LIBRARIES, PublisherSpec
from outbox.publishers import build_publishers
from tests.services import require_library

SECRET = "s3cret"


def test_a_url_has_a_name_credentials_and_options() -> None:
    spec = PublisherSpec.parse("main=rediss://us%40er:p%2Fw@broker.example:6380/2?stream=a%23b&maxlen=9")
    assert spec.name == "main"
    url = spec.url
    assert url is not None
    assert (url.scheme, url.host, url.port, url.path) == ("rediss", "broker.example", 6380, "/2")
    assert (url.username, url.password) == ("us@er", "p/w")
    assert url.options == {"stream": "a#b", "maxlen": "9"}


def test_the_representation_has_no_password() -> None:
    assert SECRET not in repr(PublisherSpec.parse(f"main=redis://user:{SECRET}@broker.example"))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("kafka", "'kafka' is not one of log, webhook, or name=url"),
        (f"redis://user:{SECRET}@b.test", "an item is not one of log, webhook, or name=url"),
        (f"Main=redis://user:{SECRET}@b.test", "a name has up to 32 lowercase letters"),
        (f"log=redis://user:{SECRET}@b.test", "is not log or webhook"),
        (f"main=http://user:{SECRET}@b.test", "main: the scheme 'http' is not one of redis, "),
        (f"main=redis://user:{SECRET}@", "main: the URL has no host"),
        (f"main=redis://user:{SECRET}@b.test:99999", "main: the port is not a number"),
        (f"main=redis://:{SECRET}@b.test/?stream=a&stream=b", "main: an option is given twice"),
        (f"main=redis://:{SECRET}@b.test/#1", "main: the URL has a fragment"),
        # What follows a comma in a password.
        (f"{SECRET}@b.test", "an item is not one of log, webhook, or name=url"),
        (f"main=redis://:{SECRET}\u2100@b.test", "main: the URL cannot be read"),
    ],
)
def test_a_wrong_item_is_refused_without_being_quoted(item: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        PublisherSpec.parse(item)
    assert message in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://b.test/x", "main: the path must be the number of a database"),
        ("redis://b.test/?strem=a", "main: unknown option strem"),
        (
            "redis://b.test/?timeout=0",
            "main: the option timeout must be a number of seconds between 0.1 and 60",
        ),
        ("redis://b.test/?timeout=soon", "main: the option timeout must be"),
        ("redis://b.test/?maxlen=-1", "main: the option maxlen must be an integer"),
        ("redis://b.test/?create=maybe", "main: the option create must be true or false"),
        ("redis://b.test/?ca=%2Fetc%2Fhosts", "main: unknown option ca"),
        ("rediss://b.test/?ca=%2Fnowhere", "main: the file '/nowhere' does not exist"),
        ("rediss://b.test/?cert=%2Fetc%2Fhosts", "main: the options cert and key belong together"),
        ("amqp://b.test/?exchnge=a", "main: unknown option exchnge"),
        ("amqp://b.test/?ca=%2Fetc%2Fhosts", "main: unknown option ca"),
        ("nats://b.test/stream", "main: the URL of NATS has no path"),
        ("nats://b.test/?stream=a.b", "main: the option stream must consist of letters"),
        ("nats://b.test/?subject=a..b", "main: the option subject must consist of words"),
        ("nats://b.test/?subject=a.%3E", "main: the option subject must consist of words"),
        ("kafka://b.test/topic", "main: the URL of Kafka has no path"),
        ("kafka://b.test/?topic=a/b", "main: the option topic must consist of letters"),
        (
            "kafka://u:p@b.test/?sasl=GSSAPI",
            "main: the option sasl must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        ("kafka://b.test/?max_event_bytes=0", "main: the option max_event_bytes must be an integer"),
    ],
)
def test_the_system_check_reports_a_url_that_cannot_be_used(url: str, message: str) -> None:
    require_library(LIBRARIES[BROKERS[url.partition(":")[0]]])
    with override_settings(PUBLISHERS=[PublisherSpec.parse(f"main={url}"), PublisherSpec("log")]):
        (error,) = check_publishers()
    assert message in error.msg


def test_the_system_check_reports_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "outbox.publishers.redis.publisher", raising=False)
    with override_settings(PUBLISHERS=[PublisherSpec.parse("main=redis://b.test")]):
        (error,) = check_publishers()
    assert "main: the Python package 'redis' is not installed" in error.msg


def test_several_brokers_are_built_by_their_names() -> None:
    pytest.importorskip("redis")
    specs = [PublisherSpec.parse(item) for item in ("log", "a=redis://a.test", "b=rediss://b.test/1")]
    assert [publisher.name for publisher in build_publishers(specs, "json")] == ["log", "webhook", "a", "b"]
