"""/api/v1/tenants/{tenantId}/service-calls"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.utils.http import parse_etags
from rest_framework.request import Request

from eventservice.api import call_serializers as shapes
from eventservice.api.call_details import show_details
from eventservice.api.call_filters import parse_list
from eventservice.api.call_parameters import IF_NONE_MATCH, LIST, WAIT
from eventservice.api.call_presentation import show_attempt, show_event, show_listed, show_submitted
from eventservice.api.call_submission import (
    KEY_RULE,
    LONGEST_NAME,
    Asking,
    parse_submission,
    read_due,
    read_tags,
    wrong_tag,
)
from eventservice.api.fields import MISSING, Fields, raise_if_invalid
from eventservice.api.long_poll import reserve_waiting_slot
from eventservice.api.openapi import IDEMPOTENCY, PAGING, described
from eventservice.api.pagination import Query, listed, make_cursor
from eventservice.api.parsers import has_body, read_json, read_object
from eventservice.api.problems import FieldError, InvalidRequest, reading_after_commit
from eventservice.api.views import ApiView, no_content, reply
from eventservice.db.bulk import to_json
from execution.attempt_log import list_attempts_after
from orchestration import lifecycle
from orchestration.commands import IDEMPOTENCY_KEY
from orchestration.queries import calls as call_queries
from orchestration.states import FAVORITE, TERMINAL
from outbox.queries import list_aggregate_events

LOOK_AGAIN_SECONDS = (0.02, 0.25)


class CallsView(ApiView):
    """What the endpoints of calls share."""

    @property
    def asking(self) -> Asking:
        return Asking(self.tenant, self.correlation_id, self.request.headers.get("Idempotency-Key"))

    def accepted(self, path: str, service_call_id: uuid.UUID, *, replayed: bool = False) -> HttpResponse:
        headers = {"Location": f"{path}/{service_call_id}"}
        if replayed:
            headers["Idempotent-Replayed"] = "true"
        with reading_after_commit():
            return reply(show_details(self.tenant.tenant_id, service_call_id), 202, headers)


class ServiceCalls(CallsView):
    @described(
        "listServiceCalls",
        "service calls",
        gives=shapes.CallPage,
        parameters=LIST,
        about="Calls, without bodies.",
    )
    def get(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        asked = parse_list(request._request.GET, tenant_id)
        page = asked.read()
        return reply(asked.answer(page, [show_listed(call) for call in page.calls]))

    @described(
        "submitServiceCall",
        "service calls",
        takes=shapes.SubmissionSerializer,
        gives=shapes.ServiceCallSerializer,
        status=202,
        parameters=[IDEMPOTENCY],
        sends=["Location", "Idempotent-Replayed"],
        about="Submit a call, due now or later.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        command = parse_submission(read_json(request, self.most_bytes), self.asking)
        (submitted,) = lifecycle.submit([command])
        if submitted.submitted_at is None or submitted.due_at is None:
            return self.accepted(request.path, submitted.service_call_id, replayed=True)
        shown = show_submitted(command, submitted.submitted_at, submitted.due_at, self.tenant.secret_headers)
        return reply(shown, 202, {"Location": f"{request.path}/{submitted.service_call_id}"})


# --- one call -------------------------------------------------------------------------------------------------


class ServiceCall(CallsView):
    @described(
        "getServiceCall",
        "service calls",
        gives=shapes.ServiceCallSerializer,
        status=(200, 304),
        parameters=[WAIT, IF_NONE_MATCH],
        sends=["ETag", "Retry-After"],
        about="A call with its timer and its last attempt.",
    )
    def get(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        waited = self._wait(request, tenant_id, service_call_id)
        body = to_json(show_details(tenant_id, service_call_id)).encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"} | ({} if waited else {"Retry-After": "1"})
        if not {tag, "*"}.isdisjoint(_entity_tags(request)):
            return HttpResponse(status=304, headers=headers)
        return HttpResponse(body, "application/json", headers=headers)

    def _wait(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> bool:
        """False: all places are taken, so the answer comes at once."""
        faults: list[FieldError] = []
        query = Query(request._request.GET, faults)
        seconds = query.duration("wait", most=float(settings.API_MAX_WAIT_SECONDS))
        query.no_others()
        raise_if_invalid(faults)
        if not seconds:
            return True
        with reserve_waiting_slot() as there_is_one:
            if there_is_one:
                wait_until(lambda: call_queries.get_status(tenant_id, service_call_id) in TERMINAL, seconds)
        return there_is_one

    @described(
        "changeServiceCall",
        "service calls",
        takes=shapes.ChangesSerializer,
        needs_body=True,
        gives=shapes.ServiceCallSerializer,
        about="Change its name or tags, or, while it is Scheduled, its due time. Whether it is a favourite stays as it "
        "is.",
    )
    def patch(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        faults: list[FieldError] = []
        fields = Fields(read_object(request, self.most_bytes), faults)
        changes: dict[str, Any] = {}
        if "name" in fields:
            changes["name"] = fields.text("name", most=LONGEST_NAME)
        if "tags" in fields:
            # Which its own address sets.
            changes["tags"] = read_tags(fields, required=True) - {FAVORITE}
        if "dueAt" in fields:
            changes["due_at"] = read_due(fields, "dueAt", MISSING)
        fields.no_others()
        raise_if_invalid(faults)
        lifecycle.edit(tenant_id, service_call_id, **changes)
        with reading_after_commit():
            return reply(show_details(tenant_id, service_call_id))

    @described(
        "deleteServiceCall",
        "service calls",
        status=204,
        about="Remove a call that is not Running, and all that hangs on it.",
    )
    def delete(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        lifecycle.delete(tenant_id, service_call_id)
        return no_content()


def wait_until(reached: Callable[[], bool], seconds: float) -> None:
    """Looks again and again, at first often: a call that is due now ends soon."""
    pause, longest = LOOK_AGAIN_SECONDS
    deadline = time.monotonic() + seconds
    while not reached() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, longest)


def _entity_tags(request: Request) -> list[str]:
    """A `*` alone is any that there is."""
    return [tag.removeprefix("W/") for tag in parse_etags(request.headers.get("If-None-Match", ""))]


class Cancel(CallsView):
    @described(
        "cancelServiceCall",
        "service calls",
        gives=shapes.ServiceCallSerializer,
        status=202,
        sends=["Location"],
        about="Cancel a call. A running attempt is let end first.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        refuse_body(request)
        lifecycle.cancel(tenant_id, service_call_id)
        return self.accepted(_parent(request.path), service_call_id)


class RunNow(CallsView):
    @described(
        "runServiceCallNow",
        "service calls",
        gives=shapes.ServiceCallSerializer,
        status=202,
        sends=["Location"],
        about="Make a Scheduled call due now.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        refuse_body(request)
        lifecycle.reschedule(tenant_id, service_call_id, None)
        return self.accepted(_parent(request.path), service_call_id)


class Replay(CallsView):
    @described(
        "replayServiceCall",
        "service calls",
        gives=shapes.ServiceCallSerializer,
        status=202,
        parameters=[IDEMPOTENCY],
        sends=["Location", "Idempotent-Replayed"],
        about="A new call that asks for the same as one that has ended.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        refuse_body(request)
        key = request.headers.get("Idempotency-Key")
        if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
            raise InvalidRequest([FieldError("/headers/Idempotency-Key", f"must be {KEY_RULE}")])
        made = lifecycle.replay(tenant_id, service_call_id, self.correlation_id, key)
        return self.accepted(_parent(request.path), made.service_call_id, replayed=made.is_repeat)


def refuse_body(request: Request) -> None:
    """These take nothing; an empty object is nothing too."""
    if has_body(request) and read_json(request, 1024) not in ({}, None):
        raise InvalidRequest([FieldError("", "must be empty: this takes no body")])


def _parent(path: str) -> str:
    """…/service-calls of …/service-calls/{id}/{action}."""
    return path.rsplit("/", 2)[0]


class Tag(CallsView):
    @described("addTag", "service calls", status=204, about="Tag a call.")
    def put(
        self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID, tag: str
    ) -> HttpResponse:
        refuse_body(request)
        lifecycle.add_tag(tenant_id, service_call_id, _checked_tag(tag))
        return no_content()

    @described("removeTag", "service calls", status=204, about="Take a tag off.")
    def delete(
        self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID, tag: str
    ) -> HttpResponse:
        lifecycle.remove_tag(tenant_id, service_call_id, _checked_tag(tag))
        return no_content()


def _checked_tag(tag: str) -> str:
    if wrong := wrong_tag(tag):
        raise InvalidRequest([FieldError("/path/tag", wrong)])
    return tag


class Favorite(CallsView):
    @described("addFavorite", "service calls", status=204, about="Tag a call as a favourite.")
    def put(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        refuse_body(request)
        lifecycle.add_tag(tenant_id, service_call_id, FAVORITE)
        return no_content()

    @described("removeFavorite", "service calls", status=204, about="Not a favourite any more.")
    def delete(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        lifecycle.remove_tag(tenant_id, service_call_id, FAVORITE)
        return no_content()


class Executions(CallsView):
    @described(
        "listExecutions",
        "service calls",
        gives=shapes.AttemptPage,
        parameters=PAGING,
        about="Its attempts, the first one first.",
    )
    def get(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        after, limit = self.page_of("executions", service_call_id)
        call_queries.get_status(tenant_id, service_call_id)
        attempts = list_attempts_after(tenant_id, service_call_id, after, limit + 1)
        more = len(attempts) > limit
        cursor = make_cursor(f"executions {service_call_id}", [attempts[limit - 1].attempt]) if more else None
        return reply(listed([show_attempt(attempt) for attempt in attempts[:limit]], cursor))

    def page_of(self, what: str, service_call_id: uuid.UUID) -> tuple[int, int]:
        faults: list[FieldError] = []
        query = Query(self.request._request.GET, faults)
        limit, position = query.limit(), query.cursor(f"{what} {service_call_id}")
        query.no_others()
        raise_if_invalid(faults)
        return (position[0] if position else 0), limit


class Events(Executions):
    @described(
        "listEvents",
        "service calls",
        gives=shapes.EventPage,
        parameters=PAGING,
        about="Its events, in order, as long as the outbox keeps them.",
    )
    def get(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        after, limit = self.page_of("events", service_call_id)
        call_queries.get_status(tenant_id, service_call_id)
        events = list_aggregate_events(tenant_id, service_call_id, after, limit + 1)
        more = len(events) > limit
        cursor = make_cursor(f"events {service_call_id}", [events[limit - 1].aggregate_seq]) if more else None
        return reply(listed([show_event(event) for event in events[:limit]], cursor))
