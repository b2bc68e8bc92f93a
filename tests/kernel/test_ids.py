"""Ids are UUIDv7: they grow with time, wherever they are generated."""

from __future__ import annotations

import time

from eventservice.kernel.ids import new_id


def test_ids_are_of_version_7() -> None:
    made = new_id()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")


def test_ids_grow_and_never_repeat_within_a_process() -> None:
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(set(made))


def test_ids_begin_with_the_time_in_milliseconds_however_many_are_generated() -> None:
    for _ in range(5000):
        new_id()
    before = time.time_ns() // 1_000_000
    stamped = new_id().int >> 80
    assert before <= stamped <= time.time_ns() // 1_000_000
