"""The row of a call in a list."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.urls import reverse

from eventservice.api.formats import parse_uuid
from eventservice.api.schema.calls import OutcomeSummarySchema
from eventservice.console.calls.presenters.call_state import (
    NOTICEABLE_DELAY,
    get_shown_status,
    name_last_error,
)
from eventservice.operators.error_kinds import explain_error_kind
from orchestration.queries.calls import CallKey, CallSummary, list_replayed
from orchestration.states import FAVORITE, LIVE, Status

MAX_TAGS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ListRow:
    call: CallSummary
    tenant: str
    tags: Sequence[str]
    more_tags: Sequence[str]
    favorite: bool
    verb: str
    moment: datetime
    is_overdue: bool
    lateness: timedelta | None
    latency_ms: float | None
    attempts: str
    status: str
    reason: str
    explanation: str
    is_replayed: bool

    @property
    def key(self) -> str:
        return f"{self.call.tenant_id}/{self.call.service_call_id}"

    @property
    def url(self) -> str:
        return reverse("console:call", args=self.call.key)

    @property
    def is_live(self) -> bool:
        return self.call.status in LIVE


def build_list_rows(
    calls: Sequence[CallSummary], now: datetime, tenant_names: Mapping[uuid.UUID, str] | None = None
) -> list[ListRow]:
    replayed = list_replayed([call.key for call in calls if call.status == Status.FAILED])
    names = tenant_names or {}
    return [
        _build_row(call, names.get(call.tenant_id, "–"), now, is_replayed=call.key in replayed)
        for call in calls
    ]


def _build_row(call: CallSummary, tenant: str, now: datetime, *, is_replayed: bool) -> ListRow:
    summary = OutcomeSummarySchema.from_stored(call.outcome_meta)
    tags = sorted(tag for tag in call.tags if tag != FAVORITE)
    verb, moment = _choose_moment(call)
    return ListRow(
        call=call,
        tenant=tenant,
        tags=tags[:MAX_TAGS_SHOWN],
        more_tags=tags[MAX_TAGS_SHOWN:],
        favorite=FAVORITE in call.tags,
        verb=verb,
        moment=moment,
        is_overdue=call.status == Status.SCHEDULED and call.due_at < now - NOTICEABLE_DELAY,
        lateness=_compute_lateness(call),
        latency_ms=summary.latency_ms if summary and call.finished_at else None,
        attempts=_format_attempts(call),
        status=get_shown_status(call),
        reason=_format_reason(call),
        explanation=_explain_reason(call),
        is_replayed=is_replayed,
    )


def _choose_moment(call: CallSummary) -> tuple[str, datetime]:
    if call.finished_at is not None:
        return "Canceled" if call.status == Status.CANCELED else "Finished", call.finished_at
    if call.status == Status.RUNNING and call.started_at is not None:
        return "Started", call.started_at
    return f"Attempt {_count_of_allowed(call, call.attempt + 1)}" if call.attempt else "Due", call.due_at


def _count_of_allowed(call: CallSummary, attempt: int) -> str:
    """Return the number of an attempt, and how many the retry policy allows. Interrupted attempts, and those that the
    callback of a timer asked for, can exceed it."""
    return f"{attempt} of {call.max_attempts}" if attempt <= call.max_attempts else str(attempt)


def _compute_lateness(call: CallSummary) -> timedelta | None:
    """Return how late the first attempt started. A retry moves the due time, so later attempts do not tell."""
    if call.started_at is None or call.attempt != 1:
        return None
    lateness = call.started_at - call.due_at
    return lateness if lateness >= NOTICEABLE_DELAY else None


def _format_attempts(call: CallSummary) -> str:
    made = call.attempt
    if call.status == Status.SCHEDULED:
        return ""
    if call.status == Status.RUNNING:
        return f"attempt {_count_of_allowed(call, made)}" if made > 1 else ""
    return f"{made} attempts" if made > 1 else ""


def _format_reason(call: CallSummary) -> str:
    if call.status in LIVE and call.cancel_requested:
        return "cancel requested"
    return "" if call.status == Status.SUCCEEDED else name_last_error(call)


def _explain_reason(call: CallSummary) -> str:
    error = (call.outcome_meta or {}).get("errorMeta") or {}
    return str(error.get("message") or explain_error_kind(error.get("kind")))


def parse_call_key(text: str) -> CallKey | None:
    """Return the key of "<tenant id>/<call id>", or None if the text is malformed."""
    tenant, _, call = text.partition("/")
    tenant_id, service_call_id = parse_uuid(tenant), parse_uuid(call)
    return (tenant_id, service_call_id) if tenant_id and service_call_id else None


def parse_call_keys(texts: Sequence[str]) -> list[CallKey]:
    """Return the keys in order, without duplicates and malformed ones."""
    return [key for key in map(parse_call_key, dict.fromkeys(texts)) if key]
