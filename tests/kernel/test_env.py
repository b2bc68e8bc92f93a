"""Environment variables are parsed and bounded, and all that are wrong are reported at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from eventservice.kernel.env import Environment, check_host, check_production_host

Reader = Callable[[Environment], Any]

READERS: dict[str, tuple[Reader, str, Any, Any]] = {
    # name: (reader, value of the variable, what is read, the default)
    "string": (lambda env: env.string("V", "x"), "hello", "hello", "x"),
    "string is stripped": (lambda env: env.string("V", "x"), "  hello ", "hello", "x"),
    "integer": (lambda env: env.integer("V", 3), "42", 42, 3),
    "seconds": (lambda env: env.seconds("V", 1.0), "0.25", 0.25, 1.0),
    "yes": (lambda env: env.boolean("V", False), "Yes", True, False),
    "off": (lambda env: env.boolean("V", True), "off", False, True),
    "choice": (lambda env: env.choice("V", "a", ("a", "b")), "b", "b", "a"),
    "strings": (lambda env: env.strings("V", ["z"]), "a, b,,c ", ["a", "b", "c"], ["z"]),
}


@pytest.mark.parametrize(("read", "given", "becomes", "_"), READERS.values(), ids=READERS)
def test_a_variable_is_read(read: Reader, given: str, becomes: Any, _: Any) -> None:
    env = Environment({"V": given})
    assert read(env) == becomes
    env.check()


@pytest.mark.parametrize("variables", [{}, {"V": ""}, {"V": "   "}], ids=["unset", "empty", "blank"])
@pytest.mark.parametrize(("read", "_", "__", "default"), READERS.values(), ids=READERS)
def test_an_unset_variable_has_its_default(
    read: Reader, _: Any, __: Any, default: Any, variables: dict[str, str]
) -> None:
    env = Environment(variables)
    assert read(env) == default
    env.check()


WRONG: list[tuple[Reader, str, str]] = [
    (lambda env: env.integer("V", 3), "many", "an integer between 0 and 2147483647"),
    (lambda env: env.integer("V", 3), "1.5", "an integer"),
    (lambda env: env.integer("V", 3, minimum=1, maximum=9), "0", "an integer between 1 and 9"),
    (lambda env: env.integer("V", 3, minimum=1, maximum=9), "10", "an integer between 1 and 9"),
    (lambda env: env.seconds("V", 1.0), "0", "a number of seconds between 0.001 and 86400.0"),
    (lambda env: env.seconds("V", 1.0), "nan", "a number of seconds"),
    (lambda env: env.seconds("V", 1.0), "inf", "a number of seconds"),
    (lambda env: env.string("V", max_length=3), "four", "a string of at most 3 characters"),
    (lambda env: env.boolean("V", False), "perhaps", "true or false"),
    (lambda env: env.choice("V", "a", ("a", "b")), "c", "one of a, b"),
]


@pytest.mark.parametrize(("read", "given", "expected"), WRONG)
def test_a_wrong_value_is_reported_with_what_is_expected(read: Reader, given: str, expected: str) -> None:
    env = Environment({"V": given})
    read(env)
    with pytest.raises(ImproperlyConfigured) as refusal:
        env.check()
    message = str(refusal.value)
    assert message.startswith(f"Invalid environment variables:\n  V must be {expected}")
    assert message.endswith(f", not {given!r}")


def test_all_wrong_variables_are_reported_at_once() -> None:
    env = Environment({"A": "x", "B": "y"})
    env.integer("A", 1)
    env.boolean("B", True)
    env.secret("C", "development", production=True)
    with pytest.raises(ImproperlyConfigured) as refusal:
        env.check()
    lines = str(refusal.value).splitlines()
    assert [line.split()[0] for line in lines] == ["Invalid", "A", "B", "C"]


def test_a_secret_has_a_default_only_outside_production() -> None:
    assert Environment({}).secret("S", "development", production=False) == "development"
    assert Environment({"S": "given"}).secret("S", "development", production=True) == "given"
    env = Environment({})
    env.secret("S", "development", production=True)
    with pytest.raises(
        ImproperlyConfigured,
        match="S must be set when ENVIRONMENT is production: expected a long random string",
    ):
        env.check()


def test_a_wrong_item_of_a_list_is_reported_by_its_position() -> None:
    env = Environment({"NUMBERS": "1,two,3,four"})
    env.strings("NUMBERS", check=int)
    with pytest.raises(ImproperlyConfigured) as refusal:
        env.check()
    reported = [line.strip().partition(":")[0] for line in str(refusal.value).splitlines()[1:]]
    assert reported == ["NUMBERS, item 2", "NUMBERS, item 4"]


def test_unknown_variables_are_ignored() -> None:
    Environment({"UNKNOWN": "value"}).check()


@pytest.mark.parametrize(
    "host", ["calls.example", ".calls.example", "10.0.0.5", "[::1]", "[fe80::1]", "LOCALHOST", "a-b.example"]
)
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    check_host(host)
    check_production_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "https://calls.example", "calls.example:8443", "calls.example/", "[::1]:8000", "::1", "me@calls.example",
        "calls example",
    ],
)  # fmt: skip
def test_a_host_has_neither_scheme_nor_port(host: str) -> None:
    for check in (check_host, check_production_host):
        env = Environment({"ALLOWED_HOSTS": f"a.example,{host}"})
        env.strings("ALLOWED_HOSTS", check=check)
        with pytest.raises(ImproperlyConfigured) as refusal:
            env.check()
        assert f"ALLOWED_HOSTS, item 2: {host!r} must be a host name without scheme or port" in str(
            refusal.value
        )


def test_only_development_accepts_any_host() -> None:
    check_host("*")
    with pytest.raises(ValueError, match="refused in production"):
        check_production_host("*")
