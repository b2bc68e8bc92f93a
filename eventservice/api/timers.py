"""Durable timers: /api/v1/tenants/{tenantId}/timers

A timer is a service call that is addressed by its namespace and an id of the caller's choice. When it is due, a POST is
sent to its callback URL, whose response says whether the timer is done (orchestration.outcome_rules).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from rest_framework.request import Request
from rest_framework.response import Response

from eventservice.api.authentication import Scope
from eventservice.api.calls import CallsView, read_list
from eventservice.api.openapi import describe
from eventservice.api.pagination import make_cursor, read_cursor
from eventservice.api.problems import (
    FieldError,
    InvalidRequest,
    Problem,
    raise_for_errors,
    reading_after_commit,
)
from eventservice.api.schema.queries import TimerListQuery, parse_query
from eventservice.api.schema.submissions import DEFAULT_TIMEOUT
from eventservice.api.schema.timers import (
    ListedTimerSchema,
    TimerChangesSchema,
    TimerInputSchema,
    TimerKeySchema,
    TimerOrReceiptSchema,
    TimerPageSchema,
    TimerReceiptSchema,
    TimerSchema,
)
from eventservice.api.views import build_no_content
from eventservice.kernel.errors import NotFound
from orchestration import durable_timers
from orchestration.queries.calls import CallSummary
from orchestration.states import Status
from orchestration.timer_callbacks import build_timer_command

TAG = "durable timers"


class TimersView(CallsView):
    @describe(
        "listTimers",
        TAG,
        "List timers, the first due first. The list has pending timers and those that have ended, of all namespaces "
        "or of one. Of a namespace with a timer store, its pending timers are listed, in an order of the store's; "
        "with a `status` other than Scheduled, those that are running or have ended.",
        query=TimerListQuery,
        response=TimerPageSchema,
    )
    def get(self, request: Request, tenant_id: uuid.UUID) -> Response:
        query = parse_query(TimerListQuery, request.query_params, context=self.context)
        calls, cursor = self._read_stored(query) if self._is_in_store(query) else self._read_calls(query)
        return Response(
            {"items": [ListedTimerSchema.from_summary(call) for call in calls], "nextCursor": cursor}
        )

    def _is_in_store(self, query: TimerListQuery) -> bool:
        """Return whether the query asks for the pending timers of a namespace with a timer store."""
        namespace, statuses = query.namespace, set(query.status)
        if namespace is None or durable_timers.find_store(self.tenant.tenant_id, namespace) is None:
            return False
        if statuses and Status.SCHEDULED not in statuses:
            return False
        given = [name for name in ("from", "to", "sort") if name in self.request.query_params]
        rule = "must not be given for the pending timers of a namespace with a timer store"
        errors = [FieldError(f"/query/{name}", rule) for name in given]
        if len(statuses) > 1:
            rule = "must be Scheduled alone, or other statuses, for a namespace with a timer store"
            errors.append(FieldError("/query/status", rule))
        raise_for_errors(errors)
        return True

    def _read_stored(self, query: TimerListQuery) -> tuple[Sequence[CallSummary], str | None]:
        tenant_id, namespace = self.tenant.tenant_id, query.namespace or ""
        list_id = f"stored timers {tenant_id} {namespace}"
        position = read_cursor(query.cursor, list_id)
        after = None if position is None else position[0]
        page = durable_timers.list_stored_timers(tenant_id, namespace, after, query.limit)
        return page.timers, None if page.after is None else make_cursor(list_id, [page.after])

    def _read_calls(self, query: TimerListQuery) -> tuple[Sequence[CallSummary], str | None]:
        page, cursor = read_list(query, self.tenant.tenant_id)
        return page.calls, cursor


class TimerView(CallsView):
    """The base of the views of one timer."""

    def respond(self, key: tuple[str, str]) -> Response:
        if not self.may_read:
            namespace, timer_id = key
            return Response(TimerReceiptSchema(namespace=namespace, timer_id=timer_id))
        return Response(TimerSchema.from_call(durable_timers.get_timer(self.tenant.tenant_id, *key)))

    def refuse_idempotency_key(self) -> None:
        """Raise Problem if the request has a key: a client that relied on it would set a timer again after it has ended."""
        if "Idempotency-Key" in self.request.headers:
            rule = "has no effect here: the id of the timer identifies it"
            raise InvalidRequest([FieldError("/headers/Idempotency-Key", rule)])


class CreateTimerView(TimerView):
    @describe(
        "createTimer",
        TAG,
        "Set a timer. A pending timer with the same namespace and id is overwritten. When the timer is due, "
        '`callbackUrl` receives a POST with `{"namespace", "timerId", "payload", "executeAt", "attempt"}` as JSON. The '
        'response decides what happens next. After 200 `{"ok": true}` the timer is done. After 200 `{"ok": false}` the '
        "callback is repeated by the retry policy, or at `nextExecuteAt`, as often as responses name one. After a 4xx "
        "other than 408, 425 and 429 the timer has failed. After anything else, or without a response in time, the "
        "callback is repeated by the retry policy. A callback can arrive more than once, each time with the same "
        "`Idempotency-Key`. Do not send that header with this request: the id identifies the timer.",
        request=TimerInputSchema,
        response=TimerOrReceiptSchema,
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> Response:
        self.refuse_idempotency_key()
        timer = self.parse_body(TimerInputSchema, context=self.context)
        policy = timer.retry_policy
        command = build_timer_command(
            tenant_id,
            self.context.correlation_id,
            timer.key,
            execute_at=timer.execute_at,
            callback_url=timer.callback_url,
            payload=timer.payload,
            retry_policy=None if policy is None else policy.to_policy(),
            timeout_seconds=timer.callback_timeout_seconds or DEFAULT_TIMEOUT,
        )
        durable_timers.set_timer(command)
        with reading_after_commit():
            return self.respond(timer.key)


class GetTimerView(TimerView):
    @describe(
        "getTimer",
        TAG,
        "Get the pending timer with an id, or the last one that succeeded or failed. This needs the scope `read` although it is a "
        "POST: an id can be any string, so it is not part of the address.",
        request=TimerKeySchema,
        response=TimerSchema,
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> Response:
        return self.respond(self.parse_body(TimerKeySchema, context=self.context).key)

    def get_required_scope(self, method: str) -> Scope:
        return Scope.READ


class UpdateTimerView(TimerView):
    @describe(
        "updateTimer",
        TAG,
        "Change a pending timer. Members that are left out stay as they are. A timer that has ended is not found; "
        "`timers/create` sets it again.",
        request=TimerChangesSchema,
        response=TimerOrReceiptSchema,
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> Response:
        self.refuse_idempotency_key()
        update = self.parse_body(TimerChangesSchema, context=self.context)
        try:
            durable_timers.change_timer(
                tenant_id, self.correlation_id, update.key, update.to_command_fields()
            )
        except NotFound:
            raise _build_not_pending() from None
        with reading_after_commit():
            return self.respond(update.key)


class DeleteTimerView(TimerView):
    @describe(
        "deleteTimer",
        TAG,
        "Delete a pending timer. If its callback is being called, the running attempt may finish and then counts; no further "
        "one is made. A timer that has ended is not found.",
        request=TimerKeySchema,
        status=204,
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> Response:
        self.refuse_idempotency_key()
        timer = self.parse_body(TimerKeySchema, context=self.context)
        try:
            durable_timers.delete_timer(tenant_id, *timer.key)
        except NotFound:
            raise _build_not_pending() from None
        return build_no_content()


def _build_not_pending() -> Problem:
    # The answer for a timer that has ended, too: it can be read, but not changed.
    return Problem(404, "not_found", "There is no pending timer with this id.")
