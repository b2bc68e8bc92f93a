"""django-q2's queue in the database, by the database's clock instead of each machine's.

An entry is locked while a cluster works on it. django-q2 also locks new entries, until the present, so an entry that was
written before the clock was set back would wait until the clock has caught up. Here new entries are not locked, and a
lock that lasts longer than any lock can is void: a task that is delivered twice does nothing the second time, because
its ticket has been consumed.

A database that is unavailable ends none of the cluster's readers. django-q2's pusher would sleep for 10 s and end.

Entries are signed with SECRET_KEY. django-q2 knows no SECRET_KEY_FALLBACKS, and reports an entry that was signed with
another key as an error with a traceback.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.signing import BadSignature, TimestampSigner
from django.db import DatabaseError, InterfaceError, connection
from django.db.models import Q
from django_q.brokers.orm import ORM
from django_q.conf import Conf

from eventservice.db.leases import CLOCK_MARGIN
from eventservice.db.now import DbNow, render_now
from eventservice.kernel.logging import get_logger

log = get_logger(__name__)

RETRY_SECONDS = 0.5
# Processes of an older release compare the lock with the present, so it must not be null.
NOT_LOCKED = datetime(1970, 1, 2, tzinfo=UTC)
FREE_SQL = """
SELECT id, payload, {lock} FROM django_q_ormq
WHERE {key} = %s AND ({lock} <= {now} OR {lock} > {latest}) ORDER BY id LIMIT %s"""
LOCK_SQL = "UPDATE django_q_ormq SET {lock} = {until} WHERE id = %s AND {lock} = %s"


class DatabaseClockBroker(ORM):  # type: ignore[misc]  # django-q2 has no types
    def enqueue(self, task: str) -> int:
        entry = self.get_connection().create(key=self.list_key, payload=task, lock=NOT_LOCKED)
        return int(entry.pk)

    _found_all = False  # with the last look

    def dequeue(self) -> list[tuple[int, str]]:
        """Lock the first free entries, and return their ids and tasks. Wait a moment first if there were no more."""
        if self._found_all:
            time.sleep(Conf.POLL)
        found = self._read_free(Conf.BULK + 1)
        self._found_all = len(found) <= Conf.BULK
        return [(key, payload) for key, payload, lock in found[: Conf.BULK] if self._lock(key, lock)]

    def _read_free(self, limit: int) -> list[tuple[int, str, Any]]:
        """Return the id, the task and the lock of the first free entries.

        Raw SQL, because the pusher asks every two seconds: through the ORM it took most of what it uses.
        """
        self.get_connection()  # closes one that is unusable
        now, values = render_now()
        latest, more = render_now(self._max_lock())
        sql = FREE_SQL.format(**_quote_names(), now=now, latest=latest)
        with connection.cursor() as cursor:
            cursor.execute(sql, [self.list_key, *values, *more, limit])
            return list(cursor.fetchall())

    def _lock(self, key: int, seen: Any) -> bool:
        """Lock the entry, unless another cluster was faster. `seen` is its lock, as a raw cursor has read it."""
        until, values = render_now(timedelta(seconds=Conf.RETRY))
        with connection.cursor() as cursor:
            cursor.execute(LOCK_SQL.format(**_quote_names(), until=until), [*values, key, seen])
            return bool(cursor.rowcount)

    def delete(self, task_id: int) -> None:
        self.get_connection()  # closes one that is unusable
        # One statement. The ORM opens a transaction for it.
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM django_q_ormq WHERE id = %s", [task_id])

    def queue_size(self) -> int:
        is_free = Q(lock__lte=DbNow()) | Q(lock__gt=DbNow(self._max_lock()))
        return int(self.get_connection().filter(is_free, key=self.list_key).count())

    def lock_size(self) -> int:
        return int(self.get_connection().filter(key=self.list_key).count()) - self.queue_size()

    def _max_lock(self) -> timedelta:
        return timedelta(seconds=Conf.RETRY) + CLOCK_MARGIN


def _quote_names() -> dict[str, str]:
    # Reserved words in MySQL and MariaDB.
    return {name: connection.ops.quote_name(name) for name in ("key", "lock")}


class PatientBroker(DatabaseClockBroker):
    """The queue as pusher and monitor use it: a database error ends neither of them."""

    def dequeue(self) -> list[tuple[int, str]]:
        """Return the next tasks, or none after a moment if the database is unavailable."""
        try:
            return list(self._select_signed(super().dequeue()))
        except (DatabaseError, InterfaceError) as error:
            _report_trouble("queue_unavailable", error)
            time.sleep(RETRY_SECONDS)
            return []

    def acknowledge(self, task_id: int) -> None:
        """Delete a finished task. If that fails, it is delivered again, and its ticket is void then."""
        try:
            super().acknowledge(task_id)
        except (DatabaseError, InterfaceError) as error:
            _report_trouble("task_not_acknowledged", error)

    def _select_signed(self, entries: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Yield the entries, signed with SECRET_KEY if they were with one of SECRET_KEY_FALLBACKS. Delete all others.

        Their chain goes on: a cluster begins with fresh tickets, and restarts chains that have stopped.
        """
        signer = TimestampSigner(key=Conf.SECRET_KEY, salt=Conf.PREFIX)
        for key, payload in entries:
            try:
                value = signer.unsign(payload)
            except BadSignature:
                log.warning("task_dropped", id=key, reason="It was signed with another SECRET_KEY.")
                self.delete(key)
            else:
                yield key, signer.sign(value)


def _report_trouble(event: str, error: Exception) -> None:
    log.warning(event, error=str(error))
    connection.close_if_unusable_or_obsolete()
