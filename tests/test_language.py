"""Names and docstrings are plain English, as far as a test can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests import language_rules as language
from tests import source_rules as rules
from tests.source_rules import Source

SOURCES = rules.list_sources()
SOURCES_AND_TESTS = [*SOURCES, *rules.list_test_sources()]

# Django looks for these names.
NAMED_BY_DJANGO = {"Command", "DatabaseWrapper"}


def find_violations(check: Callable[[Source], list[str]], sources: Iterable[Source]) -> dict[str, list[str]]:
    return {source.name: found for source in sources if (found := check(source))}


def test_a_module_is_named_after_what_is_inside() -> None:
    assert find_violations(language.check_module_name, SOURCES) == {}


def test_a_function_begins_with_a_verb() -> None:
    assert find_violations(language.check_functions, SOURCES_AND_TESTS) == {}


def test_a_bound_is_a_maximum_or_a_minimum() -> None:
    assert find_violations(language.check_constants, SOURCES_AND_TESTS) == {}


def test_a_docstring_is_a_sentence_or_a_noun() -> None:
    assert find_violations(language.check_docstrings, SOURCES_AND_TESTS) == {}


def test_a_class_name_is_unique() -> None:
    repeated = language.find_repeated_classes(SOURCES)
    assert set(repeated) <= NAMED_BY_DJANGO, repeated


def build_source(text: str, name: str = "timers.example") -> Source:
    return Source(name, text)


@pytest.mark.parametrize(
    "name", ["timers.asked", "outbox.filling", "eventservice.console.whose", "timers.utils"]
)
def test_finds_a_module_named_by_a_participle_or_a_pronoun(name: str) -> None:
    assert language.check_module_name(build_source("", name))
    assert not language.check_module_name(build_source("", "timers.shard_leases"))


@pytest.mark.parametrize(
    "name", ["told", "_checked", "whose", "of_tenant", "_few_rows", "most_bytes", "in_words"]
)
def test_finds_a_function_without_a_verb(name: str) -> None:
    assert language.check_functions(build_source(f"class A:\n    async def {name}(self): ..."))


@pytest.mark.parametrize(
    "text",
    [
        "def get_x(): ...",
        "def to_json(): ...",
        "def on_body(): ...",
        "class A:\n    @property\n    def in_flight(self): ...",
    ],
)
def test_accepts_verbs_conversions_handlers_and_properties(text: str) -> None:
    assert language.check_functions(build_source(text)) == []


def test_finds_bounds_without_max_or_min() -> None:
    assert language.check_constants(build_source("MOST_COUNTED = 5\nclass A:\n    LONGEST_NAME: int = 3"))
    assert not language.check_constants(build_source("MAX_COUNTED = 5\nAT_LEAST_ONCE = 'at_least_once'"))


@pytest.mark.parametrize(
    "start", ["Of all tenants", "For tests", "Which shard", "Those that wait", "And keep it", "What is due"]
)
def test_finds_a_docstring_that_is_no_sentence(start: str) -> None:
    assert language.check_docstrings(build_source(f'def find_x():\n    """{start}."""'))
    assert not language.check_docstrings(
        build_source('"""Keys of tenants."""\ndef find_x():\n    """Return x."""')
    )


def test_finds_class_names_that_two_modules_have() -> None:
    same = [
        build_source("class A: ...", "timers.one"),
        build_source("class A: ...\nclass B: ...", "outbox.two"),
    ]
    assert language.find_repeated_classes(same) == {"A": ["timers.one", "outbox.two"]}
