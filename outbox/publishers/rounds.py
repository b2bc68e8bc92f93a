"""How events are published to a broker that acknowledges each of them by itself: many at once, never two of one aggregate.

If two events of an aggregate were on their way together and the broker refused the first, for example because a queue
was full for a moment, the second would overtake it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

from outbox.envelope import Aggregate, Envelope
from outbox.publisher import PoisonEvent, PublishError

# What is on its way at once. A slow connection must be able to transmit it within the time limit.
MAX_ROUND_EVENTS, MAX_ROUND_BYTES = 500, 1024 * 1024

CONTENT_TYPE = "application/cloudevents+json; charset=UTF-8"


class Message(NamedTuple):
    """An event and its CloudEvent."""

    event: Envelope
    body: bytes


# Sends messages, and returns for each the reason why the broker has not accepted it, or None if it has.
Send = Callable[[Sequence[Message]], Sequence[PublishError | None]]


def publish_in_rounds(events: Sequence[Envelope], max_event_bytes: int, send: Send) -> None:
    """Send the events in rounds. Raise PublishError or PoisonEvent as `Publisher.publish` does.

    An exception of `send` may be a PublishError as well; then no message of its round counts as accepted.
    """
    messages = list(_build_messages(events, max_event_bytes))
    accepted: set[int] = set()
    problems: dict[int, PublishError] = {}
    blocked: set[Aggregate] = set()
    for numbers in _build_rounds(messages):
        # The events of other aggregates do not wait for one that will never be accepted.
        chosen = [number for number in numbers if messages[number].event.aggregate not in blocked]
        if not chosen:
            continue
        for number, problem in zip(chosen, _send_round(messages, chosen, send), strict=True):
            if problem is None:
                accepted.add(number)
            else:
                problems[number] = problem
                blocked.add(messages[number].event.aggregate)
        if any(not isinstance(problem, PoisonEvent) for problem in problems.values()):
            break
    count = next((number for number in range(len(messages)) if number not in accepted), len(messages))
    if problems:
        raise _choose_problem(problems, count)
    if count < len(events):
        raise build_size_error(max_event_bytes, count)


def build_size_error(max_event_bytes: int, accepted: int = 0) -> PoisonEvent:
    """Return the error for an event that has too many bytes."""
    return PoisonEvent(
        f"the event has more than {max_event_bytes} bytes, which is the limit of this publisher",
        accepted=accepted,
    )


def escape(text: str) -> str:
    """Return a text as one part of a subject, routing key or key, without the characters that have a meaning there.

    Letters and digits of ASCII, `-`, `_` and `~` stay. Others become `%` and two hexadecimal digits for each byte of UTF-8.
    """
    return quote(text, safe="").replace(".", "%2E")


def _build_messages(events: Sequence[Envelope], max_event_bytes: int) -> Iterator[Message]:
    """Yield the events that come before the first that is too large."""
    for event in events:
        body = event.to_json().encode()
        if len(body) > max_event_bytes:
            return
        yield Message(event, body)


def _build_rounds(messages: Sequence[Message]) -> Iterator[list[int]]:
    """Yield the numbers of the messages in rounds: of each aggregate at most one in a round, and its events in their order."""
    turns: list[list[int]] = []
    counts: Counter[Aggregate] = Counter()
    for number, message in enumerate(messages):
        turn = counts[message.event.aggregate]
        counts[message.event.aggregate] += 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(number)
    for numbers in turns:
        yield from _split(numbers, messages)


def _split(numbers: Sequence[int], messages: Sequence[Message]) -> Iterator[list[int]]:
    part: list[int] = []
    size = 0
    for number in numbers:
        length = len(messages[number].body)
        if part and (len(part) == MAX_ROUND_EVENTS or size + length > MAX_ROUND_BYTES):
            yield part
            part, size = [], 0
        part.append(number)
        size += length
    yield part


def _send_round(
    messages: Sequence[Message], chosen: Sequence[int], send: Send
) -> Sequence[PublishError | None]:
    try:
        return send([messages[number] for number in chosen])
    except PublishError as problem:
        return [problem] * len(chosen)


def _choose_problem(problems: dict[int, PublishError], count: int) -> PublishError:
    """Return the error for the first event that was not accepted, whose number is `count`."""
    problem = problems.get(count)
    if isinstance(problem, PoisonEvent):
        return PoisonEvent(str(problem), accepted=count)
    if problem is None:  # that event was not sent
        problem = next(found for found in problems.values() if not isinstance(found, PoisonEvent))
    return PublishError(str(problem), accepted=count)
