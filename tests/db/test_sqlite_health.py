"""The process that holds SQLite's write lock is found in the list of locks that Linux keeps."""

from __future__ import annotations

import os

import pytest
from django.db import connection, transaction

from eventservice.db.dialects.sqlite.health import WRITE_LOCK_BYTE, check_database_lock, find_lock_holder

DEVICE, INODE = os.makedev(0xFD, 0x01), 1234567
WRITER = "1: POSIX  ADVISORY  WRITE 4711 fd:01:1234567 120 120"


@pytest.mark.parametrize(
    ("line", "holder"),
    [
        (WRITER, 4711),
        ("1: POSIX  ADVISORY  WRITE 4711 fd:01:1234567 120 127", 4711),
        ("1: POSIX  ADVISORY  WRITE 4711 fd:01:1234567 0 EOF", 4711),
        ("1: POSIX  ADVISORY  READ 4711 fd:01:1234567 120 120", None),
        ("1: POSIX  ADVISORY  WRITE 4711 fd:01:1234567 123 123", None),
        ("1: POSIX  ADVISORY  WRITE 4711 fd:01:7654321 120 120", None),
        ("1: POSIX  ADVISORY  WRITE 4711 fd:02:1234567 120 120", None),
        ("1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234567 0 EOF", None),
        ("1: -> POSIX  ADVISORY  WRITE 4711 fd:01:1234567 120 120", None),
    ],
)
def test_only_a_lock_of_the_byte_for_writers_counts(line: str, holder: int | None) -> None:
    assert find_lock_holder([line], DEVICE, INODE, WRITE_LOCK_BYTE) == holder


def test_it_is_found_among_others() -> None:
    other = "2: POSIX  ADVISORY  READ 12 fd:01:1234567 124 124"
    assert find_lock_holder([other, WRITER, other], DEVICE, INODE, WRITE_LOCK_BYTE) == 4711


@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite has this lock")
@pytest.mark.django_db(transaction=True)
def test_a_check_in_a_transaction_does_not_report_its_own_lock() -> None:
    with transaction.atomic():
        (finding,) = check_database_lock()
    assert (finding.code, finding.text) == ("database_lock", "no other process holds the write lock")
