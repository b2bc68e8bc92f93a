"""The Request page: a form that makes a call, and below it what the call came to."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import OperationalError, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.formats import parse_uuid
from eventservice.api.problems import DATABASE_BUSY, OUTCOME_UNKNOWN
from eventservice.console.base.tenant_select import list_tenant_options
from eventservice.console.base.views import ConsoleView, redirect_see_other
from eventservice.console.calls.curl import InvalidCurl, parse_curl
from eventservice.console.calls.local_time import BadMoment, moment_of, zones
from eventservice.console.calls.presenters.call_state import about
from eventservice.console.calls.presenters.exchange import answered, hostnames, rows_of
from eventservice.console.calls.presenters.list_row import read_key
from eventservice.console.calls.request_form import (
    LABELS,
    Draft,
    Faults,
    HeaderRow,
    body_of,
    chosen,
    command_of,
    draft_of,
    formatted,
    new_draft,
    new_key,
    restored,
    with_pasted,
)
from eventservice.db.errors import is_outcome_unknown, retry_on_deadlock
from eventservice.db.now import db_now
from eventservice.kernel.errors import DomainError, NotFound
from eventservice.operators.audit_log import record_action
from eventservice.operators.roles import Role
from eventservice.tenants.directory import TenantProfile, get_profile
from eventservice.tenants.models import Tenant
from execution.attempt_log import list_attempts_without_bodies
from execution.outcome import METHODS
from orchestration import lifecycle
from orchestration.commands import SubmitServiceCall
from orchestration.lifecycle import Submitted
from orchestration.queries.calls import CallDetails, find_call_by_idempotency_key, get_call
from orchestration.states import Delivery, ResponseContract

DELIVERIES = {Delivery.AT_LEAST_ONCE.value: "At least once", Delivery.AT_MOST_ONCE.value: "At most once"}


class RequestPage(ConsoleView):
    nav = "new-call"

    def url_after_login(self, on_show: str) -> str:
        """The form says that nothing was sent, and asks the browser for what it has kept of it."""
        return on_show + ("&" if "?" in on_show else "?") + "unsent=1"


class NewCall(RequestPage):
    template = "console/calls/new.html"
    read_role = Role.OPERATOR

    def get(self, request: HttpRequest) -> HttpResponse:
        sent, copied = read_key(request.GET.get("sent", "")), read_key(request.GET.get("copy", ""))
        if sent:
            return self._show_sent(*sent)
        if copied:
            return self._show_copy(get_call(*copied))
        return self.form(new_draft(request.GET.get("tenant") or _only_tenant()))

    def _show_copy(self, call: CallDetails) -> HttpResponse:
        is_timer = call.response_contract == ResponseContract.CALLBACK
        return self.form(draft_of(call), copied_from=call, copied_timer=is_timer)

    def _show_sent(self, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        """The form as it was sent, ready for another call, and the answer."""
        try:
            call = get_call(tenant_id, service_call_id)
        except NotFound:
            return self.form(new_draft(str(tenant_id)), gone=True)
        return self.form(draft_of(call, again=True), **response_of(self.request, call))

    def post(self, request: HttpRequest) -> HttpResponse:
        return self._doing().get(request.POST.get("do", ""), self._submit)(self._typed())

    def respond_to_outdated_form(self) -> HttpResponse:
        if self.is_fragment:
            return super().respond_to_outdated_form()
        return self.form(self._typed(), outdated=True, status=403)

    def _typed(self) -> Draft:
        draft = Draft.from_post(self.request.POST)
        draft.key = draft.key or new_key()
        return draft

    def _doing(self) -> Mapping[str, Callable[[Draft], HttpResponse]]:
        """What the form's other buttons ask for; each gives the form back."""
        return {
            "add-row": self._add_row,
            "import": self._import,
            "format": self._format,
            "check": self._check,
            "when": self.form,
            "restore": lambda draft: self.form(restored(draft), restored=True),
        }

    def form(
        self, draft: Draft, faults: Faults | None = None, status: int = 200, **more: Any
    ) -> HttpResponse:
        faults, now = faults or Faults(), db_now()
        context = {
            "now": now,
            "draft": draft,
            "rows": draft.rows,
            "faults": dict(faults.by_field),
            "body_line": faults.body_line,
            **_choice_of_tenant(draft),
            "methods": METHODS,
            "zones": zones(),
            "deliveries": DELIVERIES,
            "open_advanced": draft.has_advanced,
            "most_body": settings.API_MAX_BODY_BYTES,
            "labels": LABELS,
            "unsent": "unsent" in self.request.GET,
            **({} if faults.by_field.keys() & {"date", "time", "zone"} else self._resolved(draft, now)),
            **more,
        }
        return self.render(context, status=status)

    def _resolved(self, draft: Draft, now: datetime) -> dict[str, Any]:
        if not (draft.is_scheduled and draft.date and draft.time):
            return {}
        try:
            return {"resolved": moment_of(chosen(draft), now)}
        except BadMoment as wrong:
            return {"unresolved": str(wrong)}

    # --- the other buttons ------------------------------------------------------------------------------------

    def _add_row(self, draft: Draft) -> HttpResponse:
        shown = len(draft.headers)
        draft.headers = [row for row in draft.headers if not row.is_empty]
        empty = [HeaderRow() for _ in range(shown + 1 - len(draft.headers))]
        return self.form(draft, rows=[*draft.headers, *empty], new_row=len(draft.headers))

    def _import(self, draft: Draft) -> HttpResponse:
        faults = Faults()
        try:
            pasted = parse_curl(draft.curl)
        except InvalidCurl as wrong:
            faults.add("curl", str(wrong))
            return self.form(draft, faults)
        return self.form(with_pasted(draft, pasted), notes=pasted.notes, imported=True)

    def _format(self, draft: Draft) -> HttpResponse:
        faults = Faults()
        return self.form(formatted(draft, faults), faults)

    def _check(self, draft: Draft) -> HttpResponse:
        """Of the body alone, while the rest is still being typed."""
        faults = Faults()
        body_of(draft, faults)
        return self.form(draft, faults)

    # --- submitting -------------------------------------------------------------------------------------------

    def _submit(self, draft: Draft) -> HttpResponse:
        faults, now = Faults(), db_now()
        tenant = _tenant_of(draft, faults)
        correlation_id = self.request.correlation_id  # type: ignore[attr-defined]
        command = command_of(draft, tenant, correlation_id, now, faults)
        if tenant is None or command is None:
            return self.form(draft, faults)
        try:
            made = self._store(command)
        except (DomainError, OperationalError) as error:
            return self._refused(draft, error)
        self._say_how(draft, made, now)
        return redirect_see_other(_answer_address(command.tenant_id, made.service_call_id) + "#response")

    @retry_on_deadlock
    def _store(self, command: SubmitServiceCall) -> Submitted:
        with transaction.atomic():
            (made,) = lifecycle.submit([command])
            if not made.replayed:
                record_action(
                    self.request.user, "submit", tenant_id=command.tenant_id, subject=made.service_call_id
                )
        return made

    def _say_how(self, draft: Draft, made: Submitted, now: datetime) -> None:
        if made.replayed:
            self.report_success(
                "This form was sent before: this is the call that it made. Nothing was made twice."
            )
        elif draft.is_scheduled and made.due_at:
            chosen_moment = moment_of(chosen(draft), now)
            self.report_success(
                f"Scheduled for {made.due_at:%Y-%m-%d %H:%M:%S} UTC. {chosen_moment.note}".strip()
            )

    def _refused(self, draft: Draft, error: DomainError | OperationalError) -> HttpResponse:
        """Nothing that was typed is lost."""
        if isinstance(error, OperationalError):
            # Sent again, the form has the same key.
            return self.form(
                draft, refused=OUTCOME_UNKNOWN if is_outcome_unknown(error) else DATABASE_BUSY, status=503
            )
        if error.code == "idempotency_conflict":
            tenant_id = uuid.UUID(draft.tenant)
            made = tenant_id, find_call_by_idempotency_key(tenant_id, draft.key)
            draft.key = new_key()
            return self.form(draft, made_before=made, status=409)
        return self.form(draft, refused=error.message, status=429 if error.code == "pending_ceiling" else 409)


def _only_tenant() -> str:
    active = list(Tenant.objects.filter(active=True).values_list("tenant_id", flat=True)[:2])
    return str(active[0]) if len(active) == 1 else ""


def _choice_of_tenant(draft: Draft) -> dict[str, Any]:
    """Nobody's request is sent as another tenant's because that is the only one there is to choose."""
    tenants = list_tenant_options(parse_uuid(draft.tenant), active=True)
    among = draft.tenant in {str(tenant.pk) for tenant in tenants}
    return {
        "tenants": tenants,
        "decided": among and len(tenants) == 1,
        "not_offered": draft.tenant and not among,
    }


def _tenant_of(draft: Draft, faults: Faults) -> TenantProfile | None:
    tenant_id = parse_uuid(draft.tenant)
    try:
        tenant = get_profile(tenant_id) if tenant_id else None
    except NotFound:
        tenant = None
    if tenant is None or not tenant.active:
        faults.add("tenant", "This tenant is not active." if tenant else "Choose a tenant.")
    return tenant


# --- the response ---------------------------------------------------------------------------------------------


def _answer_address(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> str:
    return f"{reverse('console:new-call')}?sent={tenant_id}/{service_call_id}"


def response_of(request: HttpRequest, call: CallDetails) -> dict[str, Any]:
    key = call.tenant_id, call.service_call_id
    attempts = list_attempts_without_bodies(*key)
    return {
        "sent": True,
        "rows_so_far": rows_of(attempts, hostnames()) if len(attempts) > 1 else [],
        **about(call, db_now(), quick=True),
        **answered(request, call, _answer_address(*key), "#response"),
    }


class SentCall(RequestPage):
    """The part of the Request page that renews itself."""

    template = "console/calls/_new_response.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        return self.render(response_of(request, get_call(tenant_id, service_call_id)))
