"""Service calls: /api/v1/tenants/{tenantId}/service-calls"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime

from django.http import HttpResponse
from django.utils.http import parse_etags
from rest_framework.request import Request
from rest_framework.response import Response

from eventservice.api.long_requests import limit_expensive_reads, limit_waiters
from eventservice.api.openapi import IDEMPOTENCY_KEY_HEADER, IF_NONE_MATCH, describe
from eventservice.api.pagination import make_cursor, read_cursor
from eventservice.api.parsers import is_storable
from eventservice.api.problems import (
    FieldError,
    InvalidRequest,
    Problem,
    list_field_errors,
    raise_for_errors,
    reading_after_commit,
)
from eventservice.api.renderers import ModelRenderer
from eventservice.api.schema.calls import (
    AttemptPageSchema,
    AttemptSchema,
    CallReceiptSchema,
    EventPageSchema,
    EventSchema,
    ListedCallSchema,
    ServiceCallOrReceiptSchema,
    ServiceCallPageSchema,
    ServiceCallSchema,
)
from eventservice.api.schema.queries import (
    CallListQuery,
    PageQuery,
    TimerListQuery,
    WaitQuery,
    parse_query,
)
from eventservice.api.schema.submissions import (
    CallChangesSchema,
    SubmissionSchema,
    find_bad_key,
    find_tag_error,
    parse_submission,
)
from eventservice.api.schema.types import CallContext
from eventservice.api.throttling import charge_bytes
from eventservice.api.views import ApiView, build_no_content
from execution.attempt_log import find_last_attempt, list_attempts_after
from execution.models import HttpExecution
from orchestration import call_changes, lifecycle
from orchestration.queries.call_lists import CallListPage, list_calls
from orchestration.queries.calls import get_call, get_status
from orchestration.states import FAVORITE, TERMINAL
from outbox.models import OutboxEvent
from outbox.queries import list_aggregate_events
from timers.persistence import timer_persistence

# How long a request that waits for a call pauses before it looks again: at first, and at most.
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.02, 0.25

# How many calls a search that may take long looks at, for one page.
MAX_WALKED = 20_000

TAG = "service calls"


def read_call(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> ServiceCallSchema:
    """Return a call with its timer and its last attempt; raise NotFound."""
    call = get_call(tenant_id, service_call_id)
    last_attempt = find_last_attempt(tenant_id, service_call_id) if call.attempt else None
    timer = timer_persistence.find_timer(tenant_id, service_call_id)
    return ServiceCallSchema.from_call(call, timer, last_attempt)


def read_list(query: TimerListQuery, tenant_id: uuid.UUID) -> tuple[CallListPage, str | None]:
    """Return the page of calls that a query asks for, and the cursor of the next one."""
    list_id = query.list_id(tenant_id)
    after = parse_position(read_cursor(query.cursor, list_id))
    limit = limit_expensive_reads() if query.is_expensive else nullcontext()
    with limit:
        page = list_calls(
            [query.to_filter(tenant_id)],
            query.order,
            query.limit,
            after=after,
            max_walked=MAX_WALKED if query.may_search_long else None,
        )
    return page, None if page.following is None else make_cursor(list_id, page.following)


def wait_until(is_done: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition until the time is over. The first pauses are short: a call that is due now ends soon."""
    pause = MIN_PAUSE_SECONDS
    deadline = time.monotonic() + seconds
    while not is_done() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, MAX_PAUSE_SECONDS)


class CallsView(ApiView):
    """The base of the views of calls and timers."""

    @property
    def context(self) -> CallContext:
        return CallContext(self.tenant, self.correlation_id, self.request.headers.get("Idempotency-Key"))

    def accept(self, path: str, service_call_id: uuid.UUID, *, replayed: bool = False) -> Response:
        headers = {"Location": f"{path}/{service_call_id}"}
        if replayed:
            headers["Idempotent-Replayed"] = "true"
        return Response(self.describe_changed(service_call_id), 202, headers=headers)

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, lifecycle.SubmissionConflict):
            exc = self.build_conflict(exc, list_field_errors(exc))
        return super().handle_exception(exc)

    def build_conflict(self, conflict: lifecycle.SubmissionConflict, errors: Sequence[FieldError]) -> Problem:
        """Return the problem of a conflict. It names the call that exists if the key may read it."""
        existing = self.get_readable_id(conflict)
        return Problem(409, conflict.code, conflict.message, errors, existing_call_id=existing)

    def get_readable_id(self, conflict: lifecycle.SubmissionConflict) -> uuid.UUID | None:
        return conflict.existing_call_id if self.may_read else None

    def describe_changed(self, service_call_id: uuid.UUID) -> ServiceCallSchema | CallReceiptSchema:
        """Return a call that was changed, as far as the key may read it."""
        tenant_id = self.tenant.tenant_id
        if not self.may_read:
            return CallReceiptSchema(service_call_id=service_call_id, tenant_id=tenant_id)
        with reading_after_commit():
            return read_call(tenant_id, service_call_id)


class ServiceCallsView(CallsView):
    @describe(
        "listServiceCalls",
        TAG,
        "List calls. Headers and bodies are left out.",
        query=CallListQuery,
        response=ServiceCallPageSchema,
    )
    def get(self, request: Request, tenant_id: uuid.UUID) -> Response:
        query = parse_query(CallListQuery, request.query_params, context=self.context)
        page, cursor = read_list(query, tenant_id)
        items = [ListedCallSchema.from_call(call) for call in page.calls]
        return Response({"items": items, "nextCursor": cursor})

    @describe(
        "submitServiceCall",
        TAG,
        "Submit a call. It is due now, at `dueAt` or after `delay`.",
        request=SubmissionSchema,
        response=ServiceCallOrReceiptSchema,
        status=202,
        parameters=[IDEMPOTENCY_KEY_HEADER],
        response_headers=["Location", "Idempotent-Replayed"],
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> Response:
        command = parse_submission(self.get_document(), self.context)
        (submitted,) = lifecycle.submit([command])
        if submitted.submitted_at is None or submitted.due_at is None:
            return self.accept(request.path, submitted.service_call_id, replayed=True)
        call = ServiceCallSchema.from_command(
            command, submitted.submitted_at, submitted.due_at, self.tenant.secret_headers
        )
        headers = {"Location": f"{request.path}/{submitted.service_call_id}"}
        return Response(call, 202, headers=headers)


# --- one call -----------------------------------------------------------------------------------------------------


class ServiceCallView(CallsView):
    @describe(
        "getServiceCall",
        TAG,
        "Get a call with its timer and its last attempt. With `wait`, the response comes when the call has ended, or "
        "after that time.",
        query=WaitQuery,
        response=ServiceCallSchema,
        status=(200, 304),
        parameters=[IF_NONE_MATCH],
        response_headers=["ETag", "Retry-After"],
    )
    def get(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        waited = self._wait(request, tenant_id, service_call_id)
        body = ModelRenderer().render(read_call(tenant_id, service_call_id))
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"} | ({} if waited else {"Retry-After": "1"})
        if not {tag, "*"}.isdisjoint(_read_entity_tags(request)):
            return HttpResponse(status=304, headers=headers)
        return HttpResponse(body, "application/json", headers=headers)

    def _wait(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> bool:
        """Return False if too many other requests are waiting."""
        seconds = parse_query(WaitQuery, request.query_params).wait
        if not seconds:  # none, or 0s
            return True
        with limit_waiters() as reserved:
            if reserved:
                wait_until(lambda: get_status(tenant_id, service_call_id) in TERMINAL, seconds)
        return reserved

    @describe(
        "changeServiceCall",
        TAG,
        "Change the name or the tags of a call, or its due time while it is Scheduled. Members that are left out stay "
        "as they are, and so does whether the call is a favorite.",
        request=CallChangesSchema,
        response=ServiceCallOrReceiptSchema,
    )
    def patch(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Response:
        changes = self.parse_body(CallChangesSchema).changes()
        if "tags" in changes:
            # The favorite tag has an endpoint of its own.
            changes["tags"] = frozenset(changes["tags"]) - {FAVORITE}
        call_changes.edit(tenant_id, service_call_id, **changes)
        return Response(self.describe_changed(service_call_id))

    @describe(
        "deleteServiceCall",
        TAG,
        "Delete a call that is not Running, with its attempts, its timer and its published events.",
        status=204,
    )
    def delete(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Response:
        call_changes.delete(tenant_id, service_call_id)
        return build_no_content()


class CancelView(CallsView):
    @describe(
        "cancelServiceCall",
        TAG,
        "Cancel a call. A running attempt may finish; no further attempt is made.",
        response=ServiceCallOrReceiptSchema,
        status=202,
        response_headers=["Location"],
    )
    def post(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Response:
        self.refuse_body()
        call_changes.cancel(tenant_id, service_call_id)
        return self.accept(_get_parent_path(request.path), service_call_id)


class RunNowView(CallsView):
    @describe(
        "runServiceCallNow",
        TAG,
        "Make a Scheduled call due now.",
        response=ServiceCallOrReceiptSchema,
        status=202,
        response_headers=["Location"],
    )
    def post(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Response:
        self.refuse_body()
        call_changes.reschedule(tenant_id, service_call_id, None)
        return self.accept(_get_parent_path(request.path), service_call_id)


class ReplayView(CallsView):
    @describe(
        "replayServiceCall",
        TAG,
        "Replay a call that has ended. This submits a new call with the same request, due now. A replay of a durable timer's "
        "call repeats the callback, but is not a timer.",
        response=ServiceCallOrReceiptSchema,
        status=202,
        parameters=[IDEMPOTENCY_KEY_HEADER],
        response_headers=["Location", "Idempotent-Replayed"],
    )
    def post(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Response:
        self.refuse_body()
        key = request.headers.get("Idempotency-Key")
        raise_for_errors(find_bad_key(key))
        replay = lifecycle.replay(tenant_id, service_call_id, self.correlation_id, key)
        timer = None if replay.is_repeat else timer_persistence.find_timer(tenant_id, replay.service_call_id)
        charge_bytes(self.principal, timer.request_bytes if timer else 0)
        return self.accept(_get_parent_path(request.path), replay.service_call_id, replayed=replay.is_repeat)


class TagView(CallsView):
    @describe("addTag", TAG, "Add a tag to a call.", status=204)
    def put(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID, tag: str) -> Response:
        self.refuse_body()
        lifecycle.add_tag(tenant_id, service_call_id, _check_tag(tag))
        return build_no_content()

    @describe("removeTag", TAG, "Remove a tag from a call.", status=204)
    def delete(
        self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID, tag: str
    ) -> Response:
        # A tag that would be refused today may have been stored before.
        if is_storable(tag):
            lifecycle.remove_tag(tenant_id, service_call_id, tag)
        return build_no_content()


class FavoriteView(CallsView):
    @describe("addFavorite", TAG, "Mark a call as a favorite.", status=204)
    def put(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Response:
        self.refuse_body()
        lifecycle.add_tag(tenant_id, service_call_id, FAVORITE)
        return build_no_content()

    @describe("removeFavorite", TAG, "Remove a call from the favorites.", status=204)
    def delete(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Response:
        lifecycle.remove_tag(tenant_id, service_call_id, FAVORITE)
        return build_no_content()


class ExecutionsView(CallsView):
    @property
    def list_id(self) -> str:
        return f"executions {self.kwargs['service_call_id']}"

    @describe(
        "listExecutions",
        TAG,
        "List the attempts of a call, the first one first.",
        query=PageQuery,
        response=AttemptPageSchema,
    )
    def get(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Response:
        def fetch(after: int | None, limit: int) -> Sequence[HttpExecution]:
            return list_attempts_after(tenant_id, service_call_id, after or 0, limit)

        get_status(tenant_id, service_call_id)  # raises NotFound
        attempts = self.paginator.paginate_rows(fetch, "attempt", request, self)
        return self.get_paginated_response([AttemptSchema.from_attempt(attempt) for attempt in attempts])


class EventsView(CallsView):
    @property
    def list_id(self) -> str:
        return f"events {self.kwargs['service_call_id']}"

    @describe(
        "listEvents",
        TAG,
        "List the events of a call in order, as long as the outbox keeps them.",
        query=PageQuery,
        response=EventPageSchema,
    )
    def get(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Response:
        def fetch(after: int | None, limit: int) -> Sequence[OutboxEvent]:
            return list_aggregate_events(tenant_id, service_call_id, after or 0, limit)

        get_status(tenant_id, service_call_id)  # raises NotFound
        events = self.paginator.paginate_rows(fetch, "aggregate_seq", request, self)
        return self.get_paginated_response([EventSchema.from_event(event) for event in events])


def parse_position(position: list[str] | None) -> tuple[datetime | uuid.UUID, ...] | None:
    """Return the position in a list of calls that a cursor holds."""
    if position is None:
        return None
    *values, service_call_id = position
    return *(datetime.fromisoformat(value) for value in values), uuid.UUID(service_call_id)


def _read_entity_tags(request: Request) -> list[str]:
    """Return the tags of If-None-Match, of which `*` matches any."""
    return [tag.removeprefix("W/") for tag in parse_etags(request.headers.get("If-None-Match", ""))]


def _get_parent_path(path: str) -> str:
    """Return the path of the collection, given that of an action: …/service-calls/{id}/{action}."""
    return path.rsplit("/", 2)[0]


def _check_tag(tag: str) -> str:
    if rule := find_tag_error(tag):
        raise InvalidRequest([FieldError("/path/tag", rule)])
    return tag
