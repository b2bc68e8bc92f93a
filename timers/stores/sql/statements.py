"""The statements of a timer store on a SQL database. All values are parameters.

Each is a single statement that is committed by itself, so a client that freezes holds no lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Delete,
    Insert,
    Select,
    Update,
    and_,
    case,
    func,
    insert,
    literal,
    or_,
    select,
)

from timers.stores.port import (
    EPOCH,
    NIL_UUID,
    NO_NAMESPACE,
    NO_TIMER_ID,
    RESERVED_SHARD,
    Claim,
    Member,
    NamespaceDeclaration,
    NextAttempt,
    QualifiedNamespace,
    RowType,
    ShardOwnership,
    StoredTimer,
    Take,
    TimerKey,
    compute_namespace_uuid,
)
from timers.stores.rows import build_progress_columns, build_timer_row
from timers.stores.sql.tables import ServerTime, timers

_c = timers.c


def _match_key(
    shard: int, row_type: RowType, execute_at: datetime, row_uuid: uuid.UUID
) -> ColumnElement[bool]:
    return and_(
        _c.shard_id == shard,
        _c.row_type == int(row_type),
        _c.timer_execute_at == execute_at,
        _c.timer_uuid == row_uuid,
    )


def _match_state(timer: StoredTimer) -> ColumnElement[bool]:
    """Match the row of a timer in the state in which it was read."""
    return and_(
        _match_key(timer.key.shard, RowType.TIMER, timer.execute_at, timer.key.uuid),
        _c.timer_revision == timer.revision,
        _c.timer_takes == timer.takes,
        _c.timer_taken_until == timer.taken_until,
    )


def _match_take(take: Take, cell: str) -> ColumnElement[bool]:
    """Match the row of a timer that the cell has under this take."""
    return and_(
        _match_key(take.key.shard, RowType.TIMER, take.execute_at, take.key.uuid),
        _c.timer_revision == take.revision,
        _c.timer_takes == take.number,
        _c.timer_taken_by == cell,
    )


# --- timers -------------------------------------------------------------------------------------------------------


def insert_timer(timer: StoredTimer) -> Insert:
    return insert(timers).values(**build_timer_row(timer), updated_at=ServerTime())


def replace_timer(timer: StoredTimer, replaces: StoredTimer) -> Update:
    columns = {**build_timer_row(timer), "updated_at": ServerTime()}
    return timers.update().where(_match_state(replaces)).values(columns)


def select_timer(key: TimerKey) -> Select[Any]:
    return select(timers).where(
        _c.shard_id == key.shard,
        _c.row_type == int(RowType.TIMER),
        _c.timer_namespace == str(key.namespace),
        _c.timer_id == key.timer_id,
    )


def delete_timer(timer: StoredTimer) -> Delete:
    return timers.delete().where(_match_state(timer))


def select_due(
    shard: int,
    now: datetime,
    until: datetime,
    after: tuple[datetime, uuid.UUID] | None,
    limit: int,
    cell: str | None,
) -> Select[Any]:
    """Select timers that are due, with those that the cell has taken, if one is given."""
    free = _c.timer_taken_until <= now
    conditions = [
        _c.shard_id == shard,
        _c.row_type == int(RowType.TIMER),
        _c.timer_execute_at <= until,
        free if cell is None else or_(free, _c.timer_taken_by == cell),
    ]
    if after:
        execute_at, timer_uuid = after
        # The first condition follows from the second, and bounds the range of the primary key.
        conditions += [
            _c.timer_execute_at >= execute_at,
            or_(
                _c.timer_execute_at > execute_at,
                and_(_c.timer_execute_at == execute_at, _c.timer_uuid > timer_uuid),
            ),
        ]
    return select(timers).where(*conditions).order_by(_c.timer_execute_at, _c.timer_uuid).limit(limit)


def take_timers(read: Sequence[StoredTimer], until: datetime, cell: str, take_id: uuid.UUID) -> Update:
    columns = {
        "timer_takes": _c.timer_takes + 1,
        "timer_taken_until": until,
        "timer_taken_by": cell,
        "timer_take_id": take_id,
        "updated_at": ServerTime(),
    }
    return timers.update().where(or_(*map(_match_state, read))).values(columns)


def select_won(read: Sequence[StoredTimer], take_id: uuid.UUID) -> Select[Any]:
    """Select the UUIDs of those timers that were taken by the request with this id."""
    keys = [_match_key(timer.key.shard, RowType.TIMER, timer.execute_at, timer.key.uuid) for timer in read]
    return select(_c.timer_uuid).where(or_(*keys), _c.timer_take_id == take_id)


def postpone_timer(timer: StoredTimer, until: datetime) -> Update:
    columns = {"timer_taken_until": until, "timer_taken_by": None, "updated_at": ServerTime()}
    return timers.update().where(_match_state(timer)).values(columns)


def reschedule_timers(attempts: Sequence[NextAttempt], cell: str) -> Update:
    columns: dict[str, Any] = {
        "timer_execute_at": _choose(_c.timer_execute_at, {one.take: one.execute_at for one in attempts}),
        "timer_taken_until": EPOCH,
        "timer_taken_by": None,
        "timer_take_id": None,
        "updated_at": ServerTime(),
    }
    progress = {one.take: build_progress_columns(one.progress) for one in attempts if one.progress}
    for name in next(iter(progress.values()), {}):
        columns[name] = _choose(_c[name], {take: values[name] for take, values in progress.items()})
    return timers.update().where(or_(*(_match_take(one.take, cell) for one in attempts))).values(columns)


def _choose(column: Column[Any], values: Mapping[Take, object]) -> ColumnElement[Any]:
    """Return the value of a column after an update of several timers, by their takes. Others keep theirs.

    It refers to no column that the update changes: MySQL would use the new value.
    """
    cases = [
        (
            and_(_c.timer_revision == take.revision, _c.timer_takes == take.number),
            literal(value, column.type),
        )
        for take, value in values.items()
    ]
    return case(*cases, else_=column)


def move_timer(timer: StoredTimer, moved: StoredTimer) -> Update:
    columns = {
        "timer_execute_at": moved.execute_at,
        "timer_takes": moved.takes,
        "timer_taken_until": moved.taken_until,
        "timer_taken_by": moved.taken_by,
        "timer_take_id": None,
        "updated_at": ServerTime(),
    }
    return timers.update().where(_match_state(timer)).values(columns)


def remove_timers(takes: Sequence[Take], cell: str) -> Delete:
    return timers.delete().where(or_(*(_match_take(take, cell) for take in takes)))


def select_namespace_timers(
    namespace: QualifiedNamespace, shards: range, after_id: str | None, limit: int
) -> Select[Any]:
    """Select timers of a namespace in some shards, in the first of them after a timer id."""
    conditions = [
        _c.shard_id.in_(shards),
        _c.row_type == int(RowType.TIMER),
        _c.timer_namespace == str(namespace),
    ]
    if after_id is not None:
        conditions.append(or_(_c.shard_id > shards.start, _c.timer_id > after_id))
    return select(timers).where(*conditions).order_by(_c.shard_id, _c.timer_id).limit(limit)


def count_timers(shards: Sequence[int], now: datetime) -> Select[Any]:
    is_overdue = and_(_c.timer_execute_at <= now, _c.timer_taken_until <= now)
    overdue = func.sum(case((is_overdue, 1), else_=0))
    where = (_c.shard_id.in_(shards), _c.row_type == int(RowType.TIMER))
    return (
        select(_c.shard_id, func.count().label("pending"), overdue.label("overdue"))
        .where(*where)
        .group_by(_c.shard_id)
    )


# --- shards, members and namespaces -------------------------------------------------------------------------------


def _build_other_row(
    shard: int,
    row_type: RowType,
    row_uuid: uuid.UUID,
    namespace: str,
    version: int,
    metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the columns of a row that is no timer."""
    return {
        "shard_id": shard,
        "row_type": int(row_type),
        "timer_execute_at": EPOCH,
        "timer_uuid": row_uuid,
        "timer_namespace": namespace,
        "timer_id": NO_TIMER_ID if row_type is not RowType.MEMBER else str(row_uuid),
        "timer_created_at": ServerTime(),
        "shard_version": version,
        "shard_metadata": dict(metadata),
        "updated_at": ServerTime(),
    }


def select_shards(shards: Sequence[int]) -> Select[Any]:
    return select(
        _c.shard_id, _c.shard_version, _c.shard_owner_id, _c.shard_claimed_at, _c.shard_metadata
    ).where(
        _c.shard_id.in_(shards),
        _c.row_type == int(RowType.SHARD),
        _c.timer_execute_at == EPOCH,
        _c.timer_uuid == NIL_UUID,
    )


def insert_shard(shard: int, owner: str, metadata: Mapping[str, str]) -> Insert:
    row = _build_other_row(shard, RowType.SHARD, NIL_UUID, NO_NAMESPACE, 1, metadata)
    return insert(timers).values(**row, shard_owner_id=owner, shard_claimed_at=ServerTime())


def claim_shard(seen: ShardOwnership, owner: str, metadata: Mapping[str, str]) -> Update:
    key = _match_key(seen.shard, RowType.SHARD, EPOCH, NIL_UUID)
    return (
        timers.update()
        .where(key, _c.shard_version == seen.version)
        .values(
            shard_version=seen.version + 1,
            shard_owner_id=owner,
            shard_claimed_at=ServerTime(),
            shard_metadata=dict(metadata),
            updated_at=ServerTime(),
        )
    )


def release_shards(claims: Sequence[Claim]) -> Update:
    owned = (
        and_(_match_key(claim.shard, RowType.SHARD, EPOCH, NIL_UUID), _c.shard_version == claim.version)
        for claim in claims
    )
    return timers.update().where(or_(*owned)).values(shard_owner_id=None, updated_at=ServerTime())


def select_reserved(row_type: RowType) -> Select[Any]:
    """Select the rows of members or of namespaces."""
    return select(_c.timer_uuid, _c.timer_namespace, _c.shard_version, _c.shard_metadata).where(
        _c.shard_id == RESERVED_SHARD, _c.row_type == int(row_type)
    )


def insert_member(member: Member) -> Insert:
    row = _build_other_row(
        RESERVED_SHARD, RowType.MEMBER, member.id, NO_NAMESPACE, member.beats, member.metadata
    )
    return insert(timers).values(**row)


def update_member(member: Member) -> Update:
    key = _match_key(RESERVED_SHARD, RowType.MEMBER, EPOCH, member.id)
    return timers.update().where(key).values(shard_version=member.beats, updated_at=ServerTime())


def delete_member(member: Member) -> Delete:
    key = _match_key(RESERVED_SHARD, RowType.MEMBER, EPOCH, member.id)
    return timers.delete().where(key, _c.shard_version == member.beats)


def insert_namespace(namespace: QualifiedNamespace, metadata: Mapping[str, Any]) -> Insert:
    row_uuid = compute_namespace_uuid(namespace)
    row = _build_other_row(RESERVED_SHARD, RowType.NAMESPACE, row_uuid, str(namespace), 1, metadata)
    return insert(timers).values(**row)


def update_namespace(seen: NamespaceDeclaration, metadata: Mapping[str, Any]) -> Update:
    key = _match_key(RESERVED_SHARD, RowType.NAMESPACE, EPOCH, compute_namespace_uuid(seen.namespace))
    return (
        timers.update()
        .where(key, _c.shard_version == seen.version)
        .values(shard_version=seen.version + 1, shard_metadata=dict(metadata), updated_at=ServerTime())
    )
