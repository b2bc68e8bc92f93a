"""What an operator may do with a call: each asks first (GET) and does it then (POST), as the API's endpoints do it."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.formats import format_instant
from eventservice.api.problems import FieldError, InvalidRequest
from eventservice.api.schema.calls import find_tag_error
from eventservice.console.base.confirm import ConfirmView
from eventservice.console.base.views import ConsoleView
from eventservice.console.calls.local_time import BadMoment, Moment, chosen_of, moment_of, zones
from eventservice.db.now import db_now
from eventservice.kernel.ids import new_id
from eventservice.operators.replay import replay
from eventservice.operators.roles import Role
from orchestration import lifecycle
from orchestration.queries.calls import CallDetails, get_call, list_replays
from orchestration.states import FAVORITE, LIVE, TERMINAL, Status


def said_request(call: CallDetails) -> str:
    spec = call.request_spec
    url = spec["url"] if len(spec["url"]) <= 160 else spec["url"][:160] + "…"
    return f"{spec['method']} {url}"


class Change(ConfirmView):
    nav = "calls"
    template = "console/confirm.html"
    read_role = Role.OPERATOR

    action = ""  # as the address has it, and the action log
    done_to = "changed"
    allowed: frozenset[Status] = LIVE

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        call = get_call(tenant_id, service_call_id)
        if Status(call.status) not in self.allowed:
            return self._too_late(call)
        return self.ask_about(call)

    def ask_about(self, call: CallDetails, **more: Any) -> HttpResponse:
        asked = {"now": db_now(), "call": call, **self.question(call), **more}
        return self.render_confirmation(back_to=self.page_of_call(call), template=self.template, **asked)

    def question(self, call: CallDetails) -> dict[str, Any]:
        raise NotImplementedError

    def _too_late(self, call: CallDetails) -> HttpResponse:
        """In a dialog too: the button that led here was shown before the call moved on."""
        text = f"It is {call.status} by now, and cannot be {self.done_to}."
        context = {"call": call, "text": text, "next": self.next_url(self.page_of_call(call))}
        return self.render(context, "console/calls/too_late.html", 200 if self.is_fragment else 409)

    def page_of_call(self, call: CallDetails) -> str:
        return self.page_of(call.tenant_id, call.service_call_id)

    def page_of(self, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> str:
        return reverse("console:call", args=[tenant_id, service_call_id])


class Cancel(Change):
    action = "cancel"
    done_to = "canceled"

    def question(self, call: CallDetails) -> dict[str, Any]:
        if call.status == Status.RUNNING:
            text = (
                f"Attempt {call.attempt} of {said_request(call)} is under way and is let end: it may have been"
                " sent. If it succeeds the call has succeeded; no further attempt is made."
            )
        else:
            text = f"{said_request(call)} will not be made. A canceled call stays canceled; Replay makes a new one."
        return {"title": f"Cancel {call.name}?", "text": text, "button": "Cancel the call", "danger": True}

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        status = self.run_audited(
            self.action,
            lambda: lifecycle.cancel(tenant_id, service_call_id),
            tenant_id=tenant_id,
            subject=service_call_id,
        )
        if status == Status.RUNNING:
            self.report_success(
                "Cancel is asked for: the attempt that is under way is let end, and no other is made."
            )
        else:
            self.report_success("Canceled.")
        return self.redirect_back(self.page_of(tenant_id, service_call_id))


class RunNow(Change):
    action = "run-now"
    done_to = "made due now"
    allowed = frozenset({Status.SCHEDULED})

    def question(self, call: CallDetails) -> dict[str, Any]:
        due = f"{call.due_at:%Y-%m-%d %H:%M:%S} UTC"
        text = f"{said_request(call)} is made now instead of at {due}."
        return {"title": f"Run {call.name} now?", "text": text, "button": "Run now"}

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        self.run_audited(
            self.action,
            lambda: lifecycle.reschedule(tenant_id, service_call_id, None),
            tenant_id=tenant_id,
            subject=service_call_id,
        )
        self.report_success("It is due now.")
        return self.redirect_back(self.page_of(tenant_id, service_call_id))


class Reschedule(Change):
    action = "reschedule"
    done_to = "rescheduled"
    allowed = frozenset({Status.SCHEDULED})
    template = "console/calls/reschedule.html"

    def question(self, call: CallDetails) -> dict[str, Any]:
        return {
            "title": f"Reschedule {call.name}",
            "text": f"When shall {said_request(call)} be made?",
            "button": "Reschedule",
            "zones": zones(),
            "chosen": chosen_of(call.due_at),
            "resolved": Moment(call.due_at),
        }

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        chosen = {name: request.POST.get(name, "") for name in ("date", "time", "zone")}
        only_look = request.POST.get("do") == "when"
        try:
            moment = moment_of(chosen, db_now())
        except BadMoment as wrong:
            return self._ask_again(tenant_id, service_call_id, chosen, wrong=str(wrong), resolved=None)
        if only_look:
            return self._ask_again(tenant_id, service_call_id, chosen, resolved=moment)
        self.run_audited(
            self.action,
            lambda: lifecycle.reschedule(tenant_id, service_call_id, moment.at),
            tenant_id=tenant_id,
            subject=service_call_id,
            dueAt=format_instant(moment.at),
        )
        self.report_success(f"It is due at {moment.at:%Y-%m-%d %H:%M:%S} UTC now. {moment.note}".strip())
        return self.redirect_back(self.page_of(tenant_id, service_call_id))

    def _ask_again(
        self, tenant_id: uuid.UUID, service_call_id: uuid.UUID, chosen: dict[str, str], **more: Any
    ) -> HttpResponse:
        return self.ask_about(get_call(tenant_id, service_call_id), chosen=chosen, **more)


class Replay(Change):
    action = "replay"
    done_to = "replayed"
    allowed = TERMINAL
    template = "console/calls/replay.html"

    def question(self, call: CallDetails) -> dict[str, Any]:
        text = f"Replay makes a new call, {said_request(call)}, now: with the same headers, body and terms."
        for before in list_replays(call.tenant_id, call.service_call_id, 1):
            text += f" It has been replayed before: that call is {before.status}."
        # Sent twice, it makes one.
        return {
            "title": f"Replay {call.name}?",
            "text": text,
            "button": "Replay now",
            "key": f"replay-{new_id()}",
        }

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        key = request.POST.get("key") or None
        made = self.run_audited(
            self.action,
            lambda: replay(request, tenant_id, service_call_id, key),
            tenant_id=tenant_id,
            subject=service_call_id,
            changed=lambda made: not made.replayed,
        )
        if made.replayed:
            self.report_success(
                "This form was sent before: this is the call that it made. Nothing was made twice."
            )
        else:
            self.report_success("Replayed. This is the new call.")
        return self.redirect_to("console:call", tenant_id, made.service_call_id)


# --- what needs no question -----------------------------------------------------------------------------------


class Labels(ConsoleView):
    nav = "calls"

    def label(
        self, tenant_id: uuid.UUID, service_call_id: uuid.UUID, action: str, tag: str, *, add: bool
    ) -> bool:
        """False: it was so already."""

        def command() -> bool:
            if add:
                return lifecycle.add_tag(tenant_id, service_call_id, tag)
            return lifecycle.remove_tag(tenant_id, service_call_id, tag)

        return self.run_audited(
            action, command, tenant_id=tenant_id, subject=service_call_id, changed=bool, tag=tag
        )


class Favorite(Labels):
    """`on=1` or `on=0`. htmx gets the star again, anybody else the page that they came from."""

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        on = request.POST.get("on") == "1"
        action = "favorite" if on else "unfavorite"
        self.label(tenant_id, service_call_id, action, FAVORITE, add=on)
        if not self.is_fragment:
            return self.redirect_back(reverse("console:call", args=[tenant_id, service_call_id]))
        context = {"tenant_id": tenant_id, "service_call_id": service_call_id, "favorite": on}
        return self.render(context, "console/calls/_favorite_button.html")


class Tags(Labels):
    """`add` or `remove`: one tag."""

    def post(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        add = request.POST.get("add", "").strip()
        tag = add or request.POST.get("remove", "")
        if wrong := find_tag_error(tag):
            raise InvalidRequest([FieldError("The tag", wrong)])
        action = "tag" if add else "untag"
        if not self.label(tenant_id, service_call_id, action, tag, add=bool(add)):
            self.report_success(
                f"Nothing to change: it {'has this tag already' if add else 'has no such tag'}."
            )
        return self.redirect_back(reverse("console:call", args=[tenant_id, service_call_id]))
