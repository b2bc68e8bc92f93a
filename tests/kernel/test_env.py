"""Settings from the environment: typed, bounded, and every fault of a boot named at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from eventservice.kernel.env import Environment

Reader = Callable[[Environment], Any]

READERS: dict[str, tuple[Reader, str, Any, Any]] = {
    # name: reader, a given text, what it becomes, what it is when nothing is given
    "text": (lambda env: env.string("V", "x"), "hello", "hello", "x"),
    "text is stripped": (lambda env: env.string("V", "x"), "  hello ", "hello", "x"),
    "integer": (lambda env: env.integer("V", 3), "42", 42, 3),
    "seconds": (lambda env: env.seconds("V", 1.0), "0.25", 0.25, 1.0),
    "yes": (lambda env: env.boolean("V", False), "Yes", True, False),
    "off": (lambda env: env.boolean("V", True), "off", False, True),
    "choice": (lambda env: env.choice("V", "a", ("a", "b")), "b", "b", "a"),
    "words": (lambda env: env.words("V", ["z"]), "a, b,,c ", ["a", "b", "c"], ["z"]),
}


@pytest.mark.parametrize(("read", "given", "becomes", "_"), READERS.values(), ids=READERS)
def test_it_reads(read: Reader, given: str, becomes: Any, _: Any) -> None:
    env = Environment({"V": given})
    assert read(env) == becomes
    env.check()


@pytest.mark.parametrize("variables", [{}, {"V": ""}, {"V": "   "}], ids=["unset", "empty", "blank"])
@pytest.mark.parametrize(("read", "_", "__", "default"), READERS.values(), ids=READERS)
def test_it_falls_back_on_the_default(
    read: Reader, _: Any, __: Any, default: Any, variables: dict[str, str]
) -> None:
    env = Environment(variables)
    assert read(env) == default
    env.check()


WRONG: list[tuple[Reader, str, str]] = [
    (lambda env: env.integer("V", 3), "many", "a whole number 0-2147483647"),
    (lambda env: env.integer("V", 3), "1.5", "a whole number"),
    (lambda env: env.integer("V", 3, least=1, most=9), "0", "a whole number 1-9"),
    (lambda env: env.integer("V", 3, least=1, most=9), "10", "a whole number 1-9"),
    (lambda env: env.seconds("V", 1.0), "0", "a number of seconds 0.001-86400.0"),
    (lambda env: env.seconds("V", 1.0), "nan", "a number of seconds"),
    (lambda env: env.seconds("V", 1.0), "inf", "a number of seconds"),
    (lambda env: env.boolean("V", False), "perhaps", "true or false"),
    (lambda env: env.choice("V", "a", ("a", "b")), "c", "one of a, b"),
]


@pytest.mark.parametrize(("read", "given", "expected"), WRONG)
def test_it_says_what_was_given_and_what_was_expected(read: Reader, given: str, expected: str) -> None:
    env = Environment({"V": given})
    read(env)
    with pytest.raises(ImproperlyConfigured) as refusal:
        env.check()
    assert f"V is {given!r}: expected {expected}" in str(refusal.value)


def test_it_names_every_fault_at_once() -> None:
    env = Environment({"A": "x", "B": "y"})
    env.integer("A", 1)
    env.boolean("B", True)
    env.secret("C", "development", production=True)
    with pytest.raises(ImproperlyConfigured) as refusal:
        env.check()
    lines = str(refusal.value).splitlines()
    assert [line.split()[0] for line in lines] == ["The", "A", "B", "C"]


def test_a_secret_has_a_default_only_outside_production() -> None:
    assert Environment({}).secret("S", "development", production=False) == "development"
    assert Environment({"S": "given"}).secret("S", "development", production=True) == "given"
    env = Environment({})
    env.secret("S", "development", production=True)
    with pytest.raises(ImproperlyConfigured, match="S is not set: expected a long random text"):
        env.check()


def test_each_word_of_a_list_is_looked_at_and_told_by_its_place() -> None:
    env = Environment({"NUMBERS": "1,two,3,four"})
    env.words("NUMBERS", each=int)
    with pytest.raises(ImproperlyConfigured) as refusal:
        env.check()
    told = [line.strip().partition(":")[0] for line in str(refusal.value).splitlines()[1:]]
    assert told == ["NUMBERS, No. 2", "NUMBERS, No. 4"]


def test_a_right_environment_passes() -> None:
    Environment({"UNKNOWN": "is ignored"}).check()
