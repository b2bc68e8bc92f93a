"""A broker has many events at once, but never two of one aggregate, so that none can overtake an earlier one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outbox.publisher import PoisonEvent, PublishError
from outbox.publishers.rounds import MAX_ROUND_BYTES, MAX_ROUND_EVENTS, Message, escape, publish_in_rounds
from tests.outbox.support import build_envelopes

LARGE = 10**9


class Connection:
    """Accepts messages apart from those with the numbers in `problems`."""

    def __init__(self, **problems: PublishError) -> None:
        self.problems = {int(name.removeprefix("event_")): problem for name, problem in problems.items()}
        self.rounds: list[list[int]] = []
        self.accepted: list[int] = []

    def send(self, messages: Sequence[Message]) -> list[PublishError | None]:
        numbers = [message.event.id for message in messages]
        self.rounds.append(numbers)
        self.accepted += [number for number in numbers if number not in self.problems]
        return [self.problems.get(number) for number in numbers]


def test_a_round_has_one_event_of_each_aggregate() -> None:
    connection = Connection()
    publish_in_rounds(build_envelopes("aabacb"), LARGE, connection.send)
    assert connection.rounds == [[0, 2, 4], [1, 5], [3]]


def test_a_round_is_limited_in_events_and_bytes() -> None:
    connection = Connection()
    aggregates = "".join(chr(256 + number) for number in range(MAX_ROUND_EVENTS + 1))
    publish_in_rounds(build_envelopes(aggregates), LARGE, connection.send)
    assert [len(numbers) for numbers in connection.rounds] == [MAX_ROUND_EVENTS, 1]
    connection = Connection()
    publish_in_rounds(build_envelopes("abc", MAX_ROUND_BYTES // 2), LARGE, connection.send)
    assert connection.rounds == [[0], [1], [2]]


def test_after_a_refusal_nothing_more_is_sent_and_the_accepted_events_are_counted_from_the_first() -> None:
    connection = Connection(event_2=PublishError("full"))
    with pytest.raises(PublishError, match="full") as raised:
        publish_in_rounds(build_envelopes("aabbcb"), LARGE, connection.send)
    assert connection.rounds == [[0, 2, 4]]
    assert raised.value.accepted == 1  # although event 4 was accepted, too
    assert not isinstance(raised.value, PoisonEvent)


def test_a_connection_that_fails_has_accepted_what_earlier_rounds_sent() -> None:
    rounds = []

    def send(messages: Sequence[Message]) -> list[PublishError | None]:
        rounds.append(messages)
        if len(rounds) == 2:
            raise PublishError("gone")
        return [None] * len(messages)

    with pytest.raises(PublishError, match="gone") as raised:
        publish_in_rounds(build_envelopes("aaa"), LARGE, send)
    assert raised.value.accepted == 1


def test_an_event_that_is_never_accepted_blocks_its_aggregate_only() -> None:
    connection = Connection(event_2=PoisonEvent("invalid"))
    with pytest.raises(PoisonEvent, match="invalid") as raised:
        publish_in_rounds(build_envelopes("aabbcc"), LARGE, connection.send)
    assert raised.value.accepted == 2
    assert connection.accepted == [0, 4, 1, 5]


def test_an_event_that_is_never_accepted_waits_for_those_before_it() -> None:
    connection = Connection(event_1=PoisonEvent("invalid"), event_0=PublishError("full"))
    with pytest.raises(PublishError, match="full") as raised:
        publish_in_rounds(build_envelopes("ab"), LARGE, connection.send)
    assert raised.value.accepted == 0
    assert not isinstance(raised.value, PoisonEvent)


def test_an_event_that_is_too_large_is_not_sent_and_none_behind_it() -> None:
    connection = Connection()
    events = [*build_envelopes("a"), *build_envelopes("xb", 2000)[1:], *build_envelopes("xxc")[2:]]
    with pytest.raises(PoisonEvent, match="more than 1000 bytes") as raised:
        publish_in_rounds(events, 1000, connection.send)
    assert (raised.value.accepted, connection.accepted) == (1, [0])


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("0198c9e2-7b1f-7000-8000-000000000001", "0198c9e2-7b1f-7000-8000-000000000001"),
        ("ServiceCall_Done", "ServiceCall_Done"),
        ("a.b", "a%2Eb"),
        ("a*b>c#d", "a%2Ab%3Ec%23d"),
        ("a b/c%d\n", "a%20b%2Fc%25d%0A"),
        ("Zoë", "Zo%C3%AB"),
    ],
)
def test_a_part_of_a_subject_has_no_character_with_a_meaning(text: str, escaped: str) -> None:
    assert escape(text) == escaped
