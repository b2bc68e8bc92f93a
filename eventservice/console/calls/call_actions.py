"""The actions on a single call. Most of them ask for confirmation (GET) before they act (POST)."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.formats import format_instant
from eventservice.api.schema.submissions import find_tag_error
from eventservice.console.base.confirm import ConfirmView
from eventservice.console.base.time_zone import format_instant as describe_instant
from eventservice.console.base.views import ConsoleView
from eventservice.console.calls.local_time import LocalTimeForm, RelativeTimeForm
from eventservice.db.now import db_now
from eventservice.kernel.ids import new_id
from eventservice.operators.replay import replay
from eventservice.operators.roles import Role
from execution.redaction import mask_query
from orchestration import call_changes, lifecycle
from orchestration.queries.calls import CallDetails, get_call, list_replays
from orchestration.states import FAVORITE, LIVE, TERMINAL, Status

MAX_URL_SHOWN = 160


def describe_request(call: CallDetails) -> str:
    spec = call.request_spec
    url = mask_query(spec["url"])
    shown = url if len(url) <= MAX_URL_SHOWN else url[:MAX_URL_SHOWN] + "…"
    return f"{spec['method']} {shown}"


class CallAction(ConfirmView):
    """An action that asks for confirmation if the call's status allows it."""

    nav = "calls"
    template = "console/confirm.html"
    read_role = Role.OPERATOR

    action = ""  # in the audit log
    past_participle = ""
    allowed: frozenset[Status] = LIVE

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        call = get_call(tenant_id, service_call_id)
        if Status(call.status) not in self.allowed:
            return self._render_too_late(call)
        return self.render_question(call)

    def render_question(self, call: CallDetails, **context: Any) -> HttpResponse:
        question = {"now": db_now(), "call": call, **self.build_question(call), **context}
        back_to = build_call_url(call.tenant_id, call.service_call_id)
        return self.render_confirmation(back_to=back_to, template=self.template, **question)

    def build_question(self, call: CallDetails) -> dict[str, Any]:
        raise NotImplementedError

    def _render_too_late(self, call: CallDetails) -> HttpResponse:
        """Say that the call has changed since the button was shown. htmx shows a successful response only."""
        context = {
            "call": call,
            "text": f"This call is now {call.status} and can no longer be {self.past_participle}.",
            "next": self.get_next_url(build_call_url(call.tenant_id, call.service_call_id)),
        }
        return self.render(context, "console/calls/too_late.html", 200 if self.is_fragment else 409)


def build_call_url(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> str:
    return reverse("console:call", args=[tenant_id, service_call_id])


class CancelCall(CallAction):
    action = "cancel"
    past_participle = "canceled"

    def build_question(self, call: CallDetails) -> dict[str, Any]:
        if call.status == Status.RUNNING:
            text = (
                f"Attempt {call.attempt} of {describe_request(call)} is running and may finish, because its request"
                " may already have been sent. If it succeeds, the call succeeds. No further attempts will be made."
            )
        else:
            text = f"{describe_request(call)} will not be sent. This cannot be undone, but you can replay the call later."
        return {"title": f"Cancel {call.name}?", "text": text, "button": "Cancel call", "danger": True}

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        status = self.run_audited(
            self.action,
            lambda: call_changes.cancel(tenant_id, service_call_id),
            tenant_id=tenant_id,
            subject=service_call_id,
        )
        if status == Status.RUNNING:
            self.report_success(
                "Cancellation requested. The running attempt may finish; no further attempts will be made."
            )
        else:
            self.report_success("Call canceled.")
        return self.redirect_back(build_call_url(tenant_id, service_call_id))


class RunCallNow(CallAction):
    action = "run-now"
    past_participle = "run early"
    allowed = frozenset({Status.SCHEDULED})

    def build_question(self, call: CallDetails) -> dict[str, Any]:
        due = describe_instant(call.due_at, milliseconds=False)
        text = f"{describe_request(call)} will be sent now instead of at {due}."
        return {"title": f"Run {call.name} now?", "text": text, "button": "Run now"}

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        self.run_audited(
            self.action,
            lambda: call_changes.reschedule(tenant_id, service_call_id, None),
            tenant_id=tenant_id,
            subject=service_call_id,
        )
        self.report_success("The call is due now.")
        return self.redirect_back(build_call_url(tenant_id, service_call_id))


class RescheduleCall(CallAction):
    action = "reschedule"
    past_participle = "rescheduled"
    allowed = frozenset({Status.SCHEDULED})
    template = "console/calls/reschedule.html"

    def build_question(self, call: CallDetails) -> dict[str, Any]:
        return {
            "title": f"Reschedule {call.name}",
            "text": f"When should {describe_request(call)} be sent?",
            "button": "Reschedule",
            "local_time": LocalTimeForm.from_instant(call.due_at, db_now()),
        }

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        now = db_now()
        relative = RelativeTimeForm(request.POST, now=now)
        if relative.is_asked:
            return self._choose_time(get_call(tenant_id, service_call_id), relative)
        form = LocalTimeForm(request.POST, now=now)
        is_preview = request.POST.get("do") == "when"
        if not form.is_valid() or form.resolved is None or is_preview:
            return self.render_question(get_call(tenant_id, service_call_id), local_time=form)
        due_at = form.resolved.at
        self.run_audited(
            self.action,
            lambda: call_changes.reschedule(tenant_id, service_call_id, due_at),
            tenant_id=tenant_id,
            subject=service_call_id,
            dueAt=format_instant(due_at),
        )
        due = describe_instant(due_at, milliseconds=False)
        self.report_success(f"Rescheduled to {due}. {form.resolved.note}".strip())
        return self.redirect_back(build_call_url(tenant_id, service_call_id))

    def _choose_time(self, call: CallDetails, relative: RelativeTimeForm) -> HttpResponse:
        """Show the time of the button that was pressed, for confirmation."""
        if not relative.is_valid():
            typed = LocalTimeForm(self.request.POST, now=relative.now)
            return self.render_question(call, local_time=typed, relative=relative)
        chosen = LocalTimeForm(relative.fields_of_moment, now=relative.now)
        return self.render_question(call, local_time=chosen)


class ReplayCall(CallAction):
    action = "replay"
    past_participle = "replayed"
    allowed = TERMINAL
    template = "console/calls/replay.html"

    def build_question(self, call: CallDetails) -> dict[str, Any]:
        text = f"Replaying creates a new call, due now: {describe_request(call)} with the same headers, body and options."
        for previous in list_replays(call.tenant_id, call.service_call_id, 1):
            text += f" This call has been replayed before; the latest replay is {previous.status}."
        if call.external_id is not None:
            text += " The new call repeats the callback, but it is not a durable timer: the timer keeps showing its old outcome."
        return {
            "title": f"Replay {call.name}?",
            "text": text,
            "button": "Replay now",
            # A form that is sent twice creates one call.
            "key": f"replay-{new_id()}",
        }

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        key = request.POST.get("key") or None
        submitted = self.run_audited(
            self.action,
            lambda: replay(request, tenant_id, service_call_id, key),
            tenant_id=tenant_id,
            subject=service_call_id,
            changed=lambda submitted: not submitted.is_repeat,
        )
        if submitted.is_repeat:
            self.report_success("This form was already sent. This is the call that it created.")
        else:
            self.report_success("Call replayed. This is the new call.")
        return self.redirect_to("console:call", tenant_id, submitted.service_call_id)


# --- tags: no confirmation ------------------------------------------------------------------------------------------


class TagAction(ConsoleView):
    nav = "calls"

    def set_tag(
        self, tenant_id: uuid.UUID, service_call_id: uuid.UUID, action: str, tag: str, *, present: bool
    ) -> bool:
        """Add or remove a tag. Return False if nothing changed."""
        command = lifecycle.add_tag if present else lifecycle.remove_tag
        return self.run_audited(
            action,
            lambda: command(tenant_id, service_call_id, tag),
            tenant_id=tenant_id,
            subject=service_call_id,
            changed=bool,
            tag=tag,
        )


class ToggleFavorite(TagAction):
    """Takes `on=1` or `on=0`. The response is the new button for htmx, or the previous page."""

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        favorite = request.POST.get("on") == "1"
        action = "favorite" if favorite else "unfavorite"
        self.set_tag(tenant_id, service_call_id, action, FAVORITE, present=favorite)
        if not self.is_fragment:
            return self.redirect_back(build_call_url(tenant_id, service_call_id))
        context = {"tenant_id": tenant_id, "service_call_id": service_call_id, "favorite": favorite}
        return self.render(context, "console/calls/_favorite_button.html")


class EditTags(TagAction):
    """Takes one tag as `add` or `remove`."""

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        added = request.POST.get("add", "").strip()
        tag = added or request.POST.get("remove", "")
        if rule := find_tag_error(tag):
            self.report_error(f"The tag {rule}.")
        elif added:
            changed = self.set_tag(tenant_id, service_call_id, "tag", tag, present=True)
            self.report_success("Tag added." if changed else "The call already has this tag.")
        else:
            changed = self.set_tag(tenant_id, service_call_id, "untag", tag, present=False)
            self.report_success("Tag removed." if changed else "The call does not have this tag.")
        return self.redirect_back(build_call_url(tenant_id, service_call_id))
