"""Ids are UUIDv7: they grow with time, wherever they are generated."""

from __future__ import annotations

import copy
import pickle
import time
import uuid

import pytest

from eventservice.kernel.ids import is_uuid7, new_id, parse_hex


def test_ids_are_of_version_7() -> None:
    made = new_id()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("01900000-0000-7000-8000-000000000001", True),
        ("01900000-0000-7000-bfff-ffffffffffff", True),
        ("9a1bef62-6d2c-4da0-b815-eb380b622b76", False),
        ("01900000-0000-1000-8000-000000000001", False),
        ("01900000-0000-7000-0000-000000000001", False),  # of another variant, which has no versions
        ("00000000-0000-0000-0000-000000000000", False),
    ],
)
def test_an_id_of_another_version_is_recognized(text: str, expected: bool) -> None:
    assert is_uuid7(uuid.UUID(text)) == expected
    assert is_uuid7(new_id())


def test_ids_grow_and_never_repeat_within_a_process() -> None:
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(set(made))


def test_ids_begin_with_the_time_in_milliseconds_however_many_are_generated() -> None:
    for _ in range(5000):
        new_id()
    before = time.time_ns() // 1_000_000
    stamped = new_id().int >> 80
    assert before <= stamped <= time.time_ns() // 1_000_000


def test_an_id_is_an_ordinary_uuid() -> None:
    made = new_id()
    same = uuid.UUID(str(made))
    assert (made, hash(made), made.hex, made.is_safe) == (same, hash(same), same.hex, same.is_safe)
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(TypeError, match="immutable"):
        made.int = 1  # type: ignore[misc]


def test_the_digits_of_an_id_are_read_as_its_constructor_reads_them() -> None:
    for expected in [uuid.UUID(int=0), uuid.UUID(int=(1 << 128) - 1), uuid.uuid4(), new_id()]:
        assert parse_hex(expected.hex) == expected
        assert copy.copy(parse_hex(expected.hex)).bytes == expected.bytes
