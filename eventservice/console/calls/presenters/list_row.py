"""A call as a line of the list: what of it is worth a look, by how it stands."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from eventservice.api.call_presentation import show_summary
from eventservice.api.formats import parse_uuid
from orchestration.queries.calls import CallKey, CallSummary, list_replayed
from orchestration.states import FAVORITE, LIVE, Status

MOST_TAGS_SHOWN = 3
# A call is late when somebody would notice it, and overdue when the engine should have had it by now.
NOTICED = timedelta(seconds=1)
# The error that its status says better.
HTTP_STATUS = "HttpStatus"


@dataclass(frozen=True, slots=True)
class Row:
    call: CallSummary
    tenant: str
    tags: Sequence[str]
    more_tags: Sequence[str]
    favorite: bool
    verb: str
    moment: datetime
    overdue: bool
    late: timedelta | None
    latency_ms: float | None
    attempts: str
    reason: str
    retried: bool

    @property
    def key(self) -> str:
        return f"{self.call.tenant_id}/{self.call.service_call_id}"

    @property
    def is_live(self) -> bool:
        """It will change yet."""
        return self.call.status in LIVE


def rows_of(
    calls: Sequence[CallSummary], now: datetime, tenants: Mapping[uuid.UUID, str] | None = None
) -> list[Row]:
    """`tenants`: their names, where they are shown."""
    keys = [(call.tenant_id, call.service_call_id) for call in calls if call.status == Status.FAILED]
    retried = list_replayed(keys)
    return [
        _row(
            call,
            (tenants or {}).get(call.tenant_id, "–"),
            now,
            retried=(call.tenant_id, call.service_call_id) in retried,
        )
        for call in calls
    ]


def _row(call: CallSummary, tenant: str, now: datetime, *, retried: bool) -> Row:
    summary = show_summary(call.outcome_meta) or {}
    tags = sorted(tag for tag in call.tags if tag != FAVORITE)
    verb, moment = _when(call)
    return Row(
        call=call,
        tenant=tenant,
        tags=tags[:MOST_TAGS_SHOWN],
        more_tags=tags[MOST_TAGS_SHOWN:],
        favorite=FAVORITE in call.tags,
        verb=verb,
        moment=moment,
        overdue=call.status == Status.SCHEDULED and call.due_at < now - NOTICED,
        late=_lateness(call),
        latency_ms=summary.get("latencyMs") if call.finished_at else None,
        attempts=_attempts(call),
        reason=_reason(call, summary),
        retried=retried,
    )


def _when(call: CallSummary) -> tuple[str, datetime]:
    if call.finished_at is not None:
        return "Canceled" if call.status == Status.CANCELED else "Finished", call.finished_at
    if call.status == Status.RUNNING and call.started_at is not None:
        return "Started", call.started_at
    return "Due", call.due_at


def _lateness(call: CallSummary) -> timedelta | None:
    """Of the first attempt: the later ones have another due time."""
    if call.started_at is None or call.attempt != 1:
        return None
    late: timedelta = call.started_at - call.due_at
    return late if late >= NOTICED else None


def _attempts(call: CallSummary) -> str:
    made = call.attempt
    if call.status == Status.SCHEDULED:
        return f"attempt {made + 1}" if made else ""
    if call.status == Status.RUNNING:
        return f"attempt {made}" if made > 1 else ""
    return f"{made} attempts" if made > 1 else ""


def _reason(call: CallSummary, summary: Mapping[str, Any]) -> str:
    if call.status in LIVE and call.cancel_requested:
        return "cancel asked"
    if call.status == Status.SUCCEEDED:
        return ""
    kind, answer = summary.get("errorKind"), summary.get("status")
    return f"HTTP {answer}" if answer and kind in (None, HTTP_STATUS) else str(kind or "")


def read_key(text: str) -> CallKey | None:
    """Of `<tenant>/<call>`; None: it is none."""
    tenant, _, call = text.partition("/")
    tenant_id, service_call_id = parse_uuid(tenant), parse_uuid(call)
    return (tenant_id, service_call_id) if tenant_id and service_call_id else None


def read_keys(texts: Sequence[str]) -> list[CallKey]:
    """What is none is left out."""
    return [key for key in map(read_key, dict.fromkeys(texts)) if key]
