"""One command for many calls: which ones it touches is fixed when it is shown, and then done in pieces.

A piece is a transaction. What is left travels, signed, with the page that says how far it is, so that nothing is kept
here; and each call is done once however often a page is sent: a call that has been canceled cannot be again, and
one that has been retried is not.
"""

from __future__ import annotations

import time
import uuid
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from django.core import signing
from django.db import transaction

from eventservice.db.deadlocks import again_after_deadlock
from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict, DomainError
from eventservice.kernel.ids import new_id
from eventservice.operators import action_log
from eventservice.tenants.directory import profile
from orchestration import lifecycle
from orchestration.admission import refuse_inactive, take_room
from orchestration.models import ServiceCall
from orchestration.queries.calls import CallKey, by_tenant
from orchestration.states import Status

MOST_CALLS = 10_000
# So many of a transaction: on SQLite the engine waits for it.
PIECE = 50
# A worker of the web tier is held for so long, and then the page comes back with what is left.
SECONDS = 5.0
GOOD_FOR_SECONDS = 3600
_signer = signing.TimestampSigner(salt="eventservice.console.bulk")


@dataclass(frozen=True, slots=True)
class Bulk:
    bulk_id: uuid.UUID
    kind: str
    calls: tuple[CallKey, ...]
    tag: str = ""
    confirmed: bool = False
    gone_through: int = 0
    done: int = 0
    left_alone: Mapping[str, int] | None = None  # how many, by why

    @property
    def is_over(self) -> bool:
        return self.gone_through >= len(self.calls)


class BulkKind(NamedTuple):
    """`run` acts on one call; it says whether there was anything to do, or raises a DomainError."""

    verb: str
    title: str  # with what is counted
    done: str
    applies_to: frozenset[str]
    about: str
    run: Callable[[Bulk, CallKey, uuid.UUID], bool]
    danger: bool = False


def _cancel(bulk: Bulk, key: CallKey, correlation_id: uuid.UUID) -> bool:
    lifecycle.cancel(*key)
    return True


def _retry(bulk: Bulk, key: CallKey, correlation_id: uuid.UUID) -> bool:
    refuse_inactive(profile(key[0]))
    lifecycle.retry(*key, correlation_id)
    return True


def _run_now(bulk: Bulk, key: CallKey, correlation_id: uuid.UUID) -> bool:
    calls = ServiceCall.objects.for_tenant(key[0]).filter(service_call_id=key[1], due_at__lte=db_now())
    if calls.exists():
        raise Conflict("is_due", "It is due already.")
    lifecycle.reschedule(*key, None)
    return True


def _tag(bulk: Bulk, key: CallKey, correlation_id: uuid.UUID) -> bool:
    return lifecycle.add_tag(*key, bulk.tag)


def _untag(bulk: Bulk, key: CallKey, correlation_id: uuid.UUID) -> bool:
    return lifecycle.remove_tag(*key, bulk.tag)


ANY = frozenset(Status.values)
KINDS = {
    "cancel": BulkKind(
        "Cancel",
        "Cancel {}",
        "Canceled",
        frozenset({Status.SCHEDULED, Status.RUNNING}),
        "Scheduled calls are canceled at once; of Running ones the attempt under way is let end first.",
        _cancel,
        danger=True,
    ),
    "replay": BulkKind(
        "Retry",
        "Retry {}",
        "Retried",
        frozenset({Status.FAILED}),
        "Each gets a new call that asks for the same, due now. The failed ones stay as they are, and are not "
        "retried here a second time: if a new one fails too, that one can be.",
        _retry,
    ),
    "run-now": BulkKind(
        "Run now",
        "Run {} now",
        "Made due",
        frozenset({Status.SCHEDULED}),
        "They become due now, in place of their own time.",
        _run_now,
    ),
    "tag": BulkKind("Tag", "Tag {}", "Tagged", ANY, "They keep the tags that they have.", _tag),
    "untag": BulkKind(
        "Take a tag off", "Take a tag off {}", "Took the tag off", ANY, "Other tags stay.", _untag
    ),
}


# --- how it travels -----------------------------------------------------------------------------------------------


def start(kind: str, keys: Sequence[CallKey]) -> Bulk:
    """In the order of their ids, as every writer locks them."""
    return Bulk(new_id(), kind, tuple(sorted(keys)))


def sign(bulk: Bulk, user: Any) -> str:
    ids = {
        tenant_id.hex: b64encode(b"".join(one.bytes for one in ids)).decode()
        for tenant_id, ids in by_tenant(bulk.calls).items()
    }
    state = [bulk.confirmed, bulk.gone_through, bulk.done, bulk.left_alone or {}]
    return _signer.sign_object([user.pk, bulk.bulk_id.hex, bulk.kind, bulk.tag, state, ids], compress=True)


def unsign(text: str, user: Any) -> Bulk:
    """Raises Conflict for what is not this user's, or too old."""
    try:
        owner, bulk_id, kind, tag, state, ids = _signer.unsign_object(text, max_age=GOOD_FOR_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        owner, bulk_id, kind, tag, state, ids = None, "", "", "", [], {}
    if owner is None or owner != user.pk:
        raise Conflict("bulk_expired", "This page is too old to act on. Choose the calls again.")
    calls = [(uuid.UUID(tenant), one) for tenant, packed in ids.items() for one in _unpacked(packed)]
    return Bulk(uuid.UUID(bulk_id), kind, tuple(calls), tag, *state)


def _unpacked(packed: str) -> list[uuid.UUID]:
    raw = b64decode(packed)
    return [uuid.UUID(bytes=raw[at : at + 16]) for at in range(0, len(raw), 16)]


# --- doing it -----------------------------------------------------------------------------------------------------


def go_on(bulk: Bulk, user: Any, correlation_id: uuid.UUID, step: Callable[[Bulk], None]) -> Bulk:
    """Piece by piece until its time is up. `step` is told of each, so that an error takes nothing back that was said."""
    deadline = time.monotonic() + SECONDS
    while not bulk.is_over:
        bulk = _piece(bulk, user, correlation_id)
        step(bulk)
        if time.monotonic() > deadline:
            break
    return bulk


@again_after_deadlock
def _piece(bulk: Bulk, user: Any, correlation_id: uuid.UUID) -> Bulk:
    keys = bulk.calls[bulk.gone_through : bulk.gone_through + PIECE]
    with transaction.atomic():
        if bulk.gone_through == 0 and not action_log.actions_on(bulk.bulk_id, limit=1):
            action_log.note(user, f"bulk-{bulk.kind}", subject=bulk.bulk_id, **_summary(bulk))
        if bulk.kind == "replay":
            for tenant_id, ids in by_tenant(keys).items():
                take_room(profile(tenant_id), len(ids))
        whys = [_one(bulk, key, user, correlation_id) for key in keys]
    left_alone = Counter(bulk.left_alone or {}) + Counter(filter(None, whys))
    return replace(
        bulk,
        gone_through=bulk.gone_through + len(keys),
        done=bulk.done + whys.count(""),
        left_alone=dict(left_alone),
    )


def _summary(bulk: Bulk) -> dict[str, Any]:
    return {"calls": len(bulk.calls), **({"tag": bulk.tag} if bulk.tag else {})}


def _one(bulk: Bulk, key: CallKey, user: Any, correlation_id: uuid.UUID) -> str:
    """Why it was left alone; empty: it was not."""
    try:
        with transaction.atomic():
            if not KINDS[bulk.kind].run(bulk, key, correlation_id):
                return "done already"
            tag = {"tag": bulk.tag} if bulk.tag else {}
            action_log.note(user, bulk.kind, tenant_id=key[0], subject=key[1], bulk=str(bulk.bulk_id), **tag)
    except DomainError as error:
        return WHYS.get(error.code, error.message)
    return ""


WHYS = {
    "wrong_state": "changed meanwhile",
    "not_found": "gone",
    "is_due": "due already",
    "tenant_inactive": "of a tenant that is not active",
    "replayed_before": "retried before",
    "too_many_tags": "with as many tags as there may be",
}
