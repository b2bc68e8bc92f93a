"""What a list of calls may be filtered and sorted by."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import QueryDict

from eventservice.api.fields import raise_if_invalid
from eventservice.api.pagination import Query, listed, make_cursor
from eventservice.api.problems import FieldError
from orchestration.queries.call_lists import CallFilter, CallListPage, Order, list_calls
from orchestration.states import Status

SORTS = {
    "submittedAt": Order("submitted_at", descending=False),
    "-submittedAt": Order("submitted_at"),
    "dueAt": Order("due_at", descending=False),
    "-dueAt": Order("due_at"),
}
TAG_MODES = ("all", "any")


@dataclass(frozen=True, slots=True)
class ListRequest:
    wanted: CallFilter
    order: Order
    after: tuple[Any, ...] | None
    limit: int
    list_id: str

    def read(self) -> CallListPage:
        return list_calls([self.wanted], self.order, self.limit, after=self.after)

    def answer(self, page: CallListPage, items: list[Any]) -> dict[str, Any]:
        following = page.following
        return listed(items, None if following is None else make_cursor(self.list_id, following))


def parse_list(parameters: QueryDict, tenant_id: uuid.UUID, *, timers: bool = False) -> ListRequest:
    """Raises Refusal with everything that is wrong."""
    faults: list[FieldError] = []
    query = Query(parameters, faults)
    wanted = _filter(query, tenant_id, timers)
    sort = query.choice("sort", SORTS, "dueAt" if timers else "-submittedAt")
    list_id = _list_id(wanted, sort)
    limit, position = query.limit(), query.cursor(list_id)
    query.no_others()
    raise_if_invalid(faults)
    return ListRequest(wanted, SORTS[sort], _position(position), limit, list_id)


def _filter(query: Query, tenant_id: uuid.UUID, timers: bool) -> CallFilter:
    common = {
        "statuses": query.choices("status", Status.values),
        "due_from": query.instant("from"),
        "due_to": query.instant("to"),
        "namespace": query.text("namespace"),
    }
    if timers:
        return CallFilter(tenant_id, timers=True, **common)  # type: ignore[arg-type]
    tags = frozenset(query.texts("tag"))
    if len(tags) > 20:
        query.fault("tag", "must be given at most 20 times")
    return CallFilter(
        tenant_id,
        tags=tags,
        any_tag=query.choice("tagMode", TAG_MODES, "all") == "any",
        submitted_from=query.instant("submittedFrom"),
        submitted_to=query.instant("submittedTo"),
        name=query.text("name"),
        host=_lowered(query.text("host")),
        correlation_id=query.identifier("correlationId"),
        replay_of=query.identifier("replayOf"),
        **common,  # type: ignore[arg-type]
    )


def _list_id(wanted: CallFilter, sort: str) -> str:
    values = [getattr(wanted, name) for name in CallFilter.__slots__]
    stable = [sorted(value) if isinstance(value, frozenset) else str(value) for value in values]
    return hashlib.sha256(repr((stable, sort)).encode()).hexdigest()[:16]


def _lowered(host: str | None) -> str | None:
    return host and host.lower()


def _position(position: list[Any] | None) -> tuple[Any, ...] | None:
    if position is None:
        return None
    *values, service_call_id = position
    return *(datetime.fromisoformat(value) for value in values), uuid.UUID(service_call_id)
