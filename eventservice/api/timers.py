"""Durable timers: /api/v1/tenants/{tenantId}/timers.

A timer is a service call that is addressed by its namespace and an id of the caller's choice. It fires as a POST
to its callback URL, which says in its answer whether it is done (orchestration.outcome_rules). The body that is stored
is the callback's, but for `attempt`, which is filled in when an attempt starts (orchestration.lifecycle).
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from eventservice.api import call_serializers as shapes
from eventservice.api.authentication import Scope
from eventservice.api.call_filters import parse_list
from eventservice.api.call_parameters import COMMON
from eventservice.api.call_presentation import show_policy, show_summary
from eventservice.api.call_submission import (
    DEFAULT_TIMEOUT,
    read_body,
    read_due,
    read_namespace,
    read_retry_policy,
    read_timeout,
    read_url,
)
from eventservice.api.calls import CallsView
from eventservice.api.fields import MISSING, Fields, raise_if_invalid
from eventservice.api.formats import format_instant, parse_instant
from eventservice.api.openapi import described
from eventservice.api.parsers import read_object
from eventservice.api.problems import FieldError, Problem, reading_after_commit
from eventservice.api.views import no_content, reply
from eventservice.kernel.errors import NotFound
from eventservice.tenants.directory import TenantProfile
from orchestration import lifecycle
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.models import ServiceCall
from orchestration.queries.calls import CallSummary, CallView, TimerCall, get_timer_call
from orchestration.retries import RetryPolicy
from orchestration.states import ResponseContract

LONGEST_ID = 255


class TimerView(CallsView):
    def read_body(self) -> tuple[Fields, list[FieldError]]:
        faults: list[FieldError] = []
        return Fields(read_object(self.request, self.most_bytes), faults), faults

    def command(self, key: tuple[str, str], **asked: Any) -> SubmitServiceCall:
        return timer_command(self.tenant, self.correlation_id, key, **asked)

    def shown(self, key: tuple[str, str]) -> HttpResponse:
        return reply(show_timer(get_timer_call(self.tenant.tenant_id, *key)))


class Timers(TimerView):
    @described(
        "listTimers",
        "durable timers",
        gives=shapes.TimerPage,
        parameters=COMMON,
        about="Timers, the first due first. Pending ones and those that have ended, of all namespaces or of one.",
    )
    def get(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        asked = parse_list(request._request.GET, tenant_id, timers=True)
        page = asked.read()
        return reply(asked.answer(page, [show_listed_timer(call) for call in page.calls]))


class CreateTimer(TimerView):
    @described(
        "createTimer",
        "durable timers",
        takes=shapes.TimerInputSerializer,
        gives=shapes.TimerSerializer,
        about="Set a timer. A pending one of the same namespace and id is overwritten. When it is due, `callbackUrl` is "
        'sent a POST with `{"namespace", "timerId", "payload", "executeAt", "attempt"}` as JSON. The answer decides: '
        '200 `{"ok": true}` and the timer is done; 200 `{"ok": false}` and it is sent again by the retry policy, or at '
        "the `nextExecuteAt` that the answer names, as often as it names one; a 4xx other than 408, 425 and 429 and it "
        "has failed for good; anything else, or no answer in time, and it is sent again by the retry policy. It may be "
        "sent more than once: `Idempotency-Key` is the same each time.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        fields, faults = self.read_body()
        namespace = read_namespace(fields, self.tenant)
        timer_id = fields.text("id", most=LONGEST_ID)
        asked = {
            "execute_at": read_due(fields, "executeAt", MISSING),
            "callback_url": read_url(fields, "callbackUrl"),
            "payload": read_body(fields, "payload"),
            "retry_policy": read_retry_policy(fields),
            "timeout_seconds": read_timeout(fields, "callbackTimeoutSeconds"),
        }
        fields.no_others()
        raise_if_invalid(faults)
        lifecycle.set_timer(self.command((namespace, timer_id), **asked))
        with reading_after_commit():
            return self.shown((namespace, timer_id))


class GetTimer(TimerView):
    scope = Scope.READ

    @described(
        "getTimer",
        "durable timers",
        takes=shapes.TimerKeySerializer,
        gives=shapes.TimerSerializer,
        about="The pending timer of an id, or the last that ended. Takes the scope `read`, although it is a POST: an id "
        "may be any text, and so is not part of the address.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        fields, faults = self.read_body()
        key = _key(fields, self.tenant)
        fields.no_others()
        raise_if_invalid(faults)
        return self.shown(key)


class UpdateTimer(TimerView):
    @described(
        "updateTimer",
        "durable timers",
        takes=shapes.TimerChangesSerializer,
        gives=shapes.TimerSerializer,
        about="Change a pending timer. What is not given stays. One that has ended is not found; `timers/create` sets it "
        "anew.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        fields, faults = self.read_body()
        key = _key(fields, self.tenant)
        changes = _changes(fields)
        fields.no_others()
        raise_if_invalid(faults)
        try:
            lifecycle.change_timer(
                tenant_id, *key, lambda call: self.command(key, **{**asked_of(call), **changes})
            )
        except NotFound:
            raise _none_pending() from None
        with reading_after_commit():
            return self.shown(key)


class DeleteTimer(TimerView):
    @described(
        "deleteTimer",
        "durable timers",
        takes=shapes.TimerKeySerializer,
        status=204,
        about="Delete a pending timer. It is cancelled: a callback under way is let end, and no other is made. One that "
        "has ended is not found.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        fields, faults = self.read_body()
        key = _key(fields, self.tenant)
        fields.no_others()
        raise_if_invalid(faults)
        try:
            lifecycle.delete_timer(tenant_id, *key)
        except NotFound:
            raise _none_pending() from None
        return no_content()


def _none_pending() -> Problem:
    """Also of one that has ended, which can still be read."""
    return Problem(404, "not_found", "No pending timer of that id.")


def _key(fields: Fields, tenant: TenantProfile) -> tuple[str, str]:
    return read_namespace(fields, tenant), fields.text("timerId", most=LONGEST_ID)


def _changes(fields: Fields) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if "executeAt" in fields:
        changes["execute_at"] = changes["due_at"] = read_due(fields, "executeAt", MISSING)
    if "callbackUrl" in fields:
        changes["callback_url"] = read_url(fields, "callbackUrl")
    if "payload" in fields:
        changes["payload"] = read_body(fields, "payload")
    if "retryPolicy" in fields:
        changes["retry_policy"] = read_retry_policy(fields)
    if "callbackTimeoutSeconds" in fields:
        changes["timeout_seconds"] = read_timeout(fields, "callbackTimeoutSeconds")
    return changes


def timer_command(
    tenant: TenantProfile,
    correlation_id: uuid.UUID,
    key: tuple[str, str],
    *,
    execute_at: datetime,
    callback_url: str,
    due_at: datetime | None = None,
    payload: Any = None,
    retry_policy: RetryPolicy | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT,
) -> SubmitServiceCall:
    """`execute_at` is what the timer was set to and stays; `due_at` is when it is sent next, if that is another time."""
    namespace, timer_id = key
    body = {
        "namespace": namespace,
        "timerId": timer_id,
        "payload": payload,
        "executeAt": format_instant(execute_at),
    }
    return SubmitServiceCall(
        tenant_id=tenant.tenant_id,
        name=timer_id[:200],
        request=RequestSpec("POST", callback_url, {}, body),
        due_at=due_at or execute_at,
        namespace=namespace,
        external_id=timer_id,
        correlation_id=correlation_id,
        retry_policy=retry_policy,
        timeout_seconds=timeout_seconds,
        response_contract=ResponseContract.CALLBACK,
    )


def asked_of(call: ServiceCall) -> dict[str, Any]:
    """What a stored timer was asked for with."""
    spec, policy = call.request_spec, call.retry_policy
    return {
        "execute_at": parse_instant(spec["body"]["executeAt"]),
        "due_at": call.due_at,
        "callback_url": spec["url"],
        "payload": spec["body"]["payload"],
        "retry_policy": RetryPolicy.from_stored(policy) if policy else None,
        "timeout_seconds": call.timeout_seconds,
    }


def show_timer(call: TimerCall) -> dict[str, Any]:
    spec = call.request_spec
    return {
        **_show(call, spec["body"]["executeAt"]),
        "callbackUrl": spec["url"],
        "payload": spec["body"]["payload"],
        "retryPolicy": show_policy(call.retry_policy),
        "callbackTimeoutSeconds": call.timeout_seconds,
    }


def show_listed_timer(call: CallSummary) -> dict[str, Any]:
    return {**_show(call, call.execute_at), "callbackUrl": call.url}


def _show(call: CallView, execute_at: str | None) -> dict[str, Any]:
    return {
        "namespace": call.namespace,
        "timerId": call.external_id,
        "executeAt": execute_at,
        "dueAt": format_instant(call.due_at),
        "status": call.status,
        "serviceCallId": str(call.service_call_id),
        "attempts": call.attempt,
        "createdAt": format_instant(call.submitted_at),
        "finishedAt": format_instant(call.finished_at),
        "outcome": show_summary(call.outcome_meta),
    }
