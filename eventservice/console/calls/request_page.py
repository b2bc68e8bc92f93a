"""The page for a new call: a form that submits it, and below the form its response."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse

from eventservice.api.problems import find_problem
from eventservice.console.base.time_zone import format_instant
from eventservice.console.base.views import ConsoleView, redirect_see_other
from eventservice.console.calls.curl import InvalidCurl
from eventservice.console.calls.local_time import RelativeTimeForm
from eventservice.console.calls.presenters.http_exchange import build_exchange_context
from eventservice.console.calls.presenters.list_row import parse_call_key
from eventservice.console.calls.request_form import (
    DEFAULT_RETRIES,
    BodyForm,
    HeaderRow,
    RequestForm,
    generate_key,
)
from eventservice.console.calls.request_prefill import (
    build_initial_from_call,
    find_only_tenant,
    import_curl,
    list_header_rows_without_values,
)
from eventservice.db.now import db_now
from eventservice.kernel.errors import DomainError, NotFound
from eventservice.operators.roles import Role
from orchestration import lifecycle
from orchestration.commands import SubmitServiceCall
from orchestration.lifecycle import Submitted
from orchestration.queries.calls import CallDetails, find_call_by_idempotency_key, get_call
from orchestration.states import ResponseContract


class RequestView(ConsoleView):
    nav = "new-call"

    def get_url_after_login(self, on_show: str) -> str:
        """Return to the form, which then says that nothing was sent and restores what the browser kept."""
        return on_show + ("&" if "?" in on_show else "?") + "unsent=1"


class NewCall(RequestView):
    template = "console/calls/new.html"
    read_role = Role.OPERATOR

    def get(self, request: HttpRequest) -> HttpResponse:
        if sent := parse_call_key(request.GET.get("sent", "")):
            return self._show_sent(*sent)
        if copied := parse_call_key(request.GET.get("copy", "")):
            return self._show_copy(get_call(*copied))
        return self._show_new({**DEFAULT_RETRIES, "tenant": request.GET.get("tenant") or find_only_tenant()})

    def _show_copy(self, call: CallDetails) -> HttpResponse:
        is_callback = call.response_contract == ResponseContract.CALLBACK
        return self._show_new(build_initial_from_call(call), copied_from=call, copied_callback=is_callback)

    def _show_sent(self, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        """Show the form as it was sent, ready for another call, and the response."""
        try:
            call = get_call(tenant_id, service_call_id)
        except NotFound:
            return self._show_new({"tenant": str(tenant_id)}, sent_call_is_gone=True)
        initial = build_initial_from_call(call, as_sent=True)
        return self._show_new(initial, **_build_sent_context(call, self.request.GET))

    def post(self, request: HttpRequest) -> HttpResponse:
        # Without a script, the button of a preset sends no `do`.
        match "when" if "preset" in request.POST else request.POST.get("do"):
            case "add-row":
                return self._add_header_row()
            case "import":
                return self._import_curl()
            case "format":
                return self._format_body()
            case "check":
                return self._show_typed(body_form=BodyForm(request.POST, auto_id="%s"))
            case "when":
                return self._show_time()
            case "restore":
                rows = list_header_rows_without_values(request.POST)
                return self._show_typed({"headers": rows}, restored=True)
            case _:
                return self._submit()

    def respond_to_outdated_form(self) -> HttpResponse:
        if self.is_fragment:
            return super().respond_to_outdated_form()
        return self._show_typed(outdated=True, status=403)

    # --- showing the form -----------------------------------------------------------------------------------------

    def _show_new(self, initial: dict[str, Any], **context: Any) -> HttpResponse:
        return self._show(RequestForm(now=db_now(), initial=initial), **context)

    def _show_typed(self, changes: dict[str, Any] | None = None, **context: Any) -> HttpResponse:
        """Show what was typed, with changes, without validating it."""
        form = RequestForm.from_typed(self.request.POST, now=db_now(), **(changes or {}))
        return self._show(form, **context)

    def _show(self, form: RequestForm, *, status: int = 200, **context: Any) -> HttpResponse:
        context = {
            "form": form,
            "body_form": form,
            "header_rows": form.rows,
            "local_time": form.local_time,
            "now": form.now,
            "unsent": "unsent" in self.request.GET,
            **context,
        }
        return self.render(context, status=status)

    # --- the other buttons ----------------------------------------------------------------------------------------

    def _add_header_row(self) -> HttpResponse:
        form = RequestForm.from_typed(self.request.POST, now=db_now())
        filled = [row for row in form.header_rows if not row.is_empty]
        empty = [HeaderRow() for _ in range(len(form.header_rows) + 1 - len(filled))]
        return self._show(form, header_rows=[*filled, *empty], new_row=len(filled))

    def _import_curl(self) -> HttpResponse:
        try:
            changes, notes = import_curl(self.request.POST)
        except InvalidCurl as error:
            return self._show_typed(curl_error=str(error))
        return self._show_typed(changes, imported=True, notes=notes)

    def _format_body(self) -> HttpResponse:
        body_form = BodyForm(self.request.POST, auto_id="%s")
        body = body_form.format_body()
        return self._show_typed(body_form=body_form) if body is None else self._show_typed({"body": body})

    def _show_time(self) -> HttpResponse:
        """Show the instant of the chosen time, or choose the one of the button that was pressed."""
        relative = RelativeTimeForm(self.request.POST, now=db_now())
        if not relative.is_asked:
            return self._show_typed()
        if not relative.is_valid():
            return self._show_typed({"when": "schedule"}, relative=relative)
        return self._show_typed({"when": "schedule", **relative.fields_of_moment})

    # --- submitting -----------------------------------------------------------------------------------------------

    def _submit(self) -> HttpResponse:
        request: Any = self.request
        form = RequestForm(request.POST, now=db_now(), correlation_id=request.correlation_id)
        if not form.is_valid() or form.command is None:
            return self._show(form)
        try:
            submitted = self._store(form.command)
        except (DomainError, OperationalError) as error:
            return self._show_refusal(form.command, error)
        self._report(form, submitted)
        return redirect_see_other(
            _build_sent_url(form.command.tenant_id, submitted.service_call_id) + "#response"
        )

    def _store(self, command: SubmitServiceCall) -> Submitted:
        return self.run_audited(
            "submit",
            lambda: lifecycle.submit([command])[0],
            tenant_id=command.tenant_id,
            subject=command.service_call_id,
            changed=lambda submitted: not submitted.is_repeat,
        )

    def _report(self, form: RequestForm, submitted: Submitted) -> None:
        if submitted.is_repeat:
            self.report_success("This form was already sent. This is the call that it created.")
        elif form.local_time.resolved and submitted.due_at:
            note = form.local_time.resolved.note
            due = format_instant(submitted.due_at, milliseconds=False)
            self.report_success(f"Scheduled for {due}. {note}".strip())

    def _show_refusal(
        self, command: SubmitServiceCall, error: DomainError | OperationalError
    ) -> HttpResponse:
        """Show the form as it was typed. It keeps its key unless that belongs to another call."""
        problem = find_problem(error)
        if problem is None:
            raise error
        if problem.code == "idempotency_conflict":
            existing = find_call_by_idempotency_key(command.tenant_id, command.idempotency_key or "")
            existing_call = command.tenant_id, existing
            return self._show_typed({"key": generate_key()}, existing_call=existing_call, status=409)
        return self._show_typed(refused=problem.detail, status=problem.status_code)


# --- the response -------------------------------------------------------------------------------------------------


def _build_sent_url(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> str:
    return f"{reverse('console:new-call')}?sent={tenant_id}/{service_call_id}"


def _build_sent_context(call: CallDetails, parameters: QueryDict) -> dict[str, Any]:
    url = _build_sent_url(call.tenant_id, call.service_call_id)
    return {"sent": True, **build_exchange_context(call, parameters, url=url, fragment="#response")}


class NewCallResponse(RequestView):
    """The response below the form, which refreshes itself."""

    template = "console/calls/_new_response.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        return self.render(_build_sent_context(get_call(tenant_id, service_call_id), request.GET))
