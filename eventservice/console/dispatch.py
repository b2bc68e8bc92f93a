"""Pausing and resuming dispatch in the console, for admins."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.problems import FieldError, raise_for_errors
from eventservice.console.base.confirm import ConfirmView
from eventservice.db.bounded_count import MAX_COUNTED, format_capped
from eventservice.db.now import db_now
from eventservice.operators.dispatch import pause, resume
from eventservice.operators.roles import Role
from timers.pause import MAX_REASON_LENGTH
from timers.persistence import timer_persistence


class PauseDispatch(ConfirmView):
    nav = "cluster"
    read_role = write_role = Role.ADMIN

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.render_confirmation(
            "Pause dispatch?",
            "Pause",
            back_to=reverse("console:cluster"),
            template="console/pause_dispatch.html",
            text="Calls and events of all tenants are stored, and nothing is sent until somebody resumes dispatch: no call, "
            "no webhook, nothing to a message broker. Attempts that have begun end.",
            max_reason_length=MAX_REASON_LENGTH,
            danger=True,
        )

    def post(self, request: HttpRequest) -> HttpResponse:
        reason = request.POST.get("reason", "").strip()
        if len(reason) > MAX_REASON_LENGTH:
            raise_for_errors([FieldError("reason", f"must be at most {MAX_REASON_LENGTH} characters")])
        if pause(request.user, reason):
            self.report_success("Dispatch is paused.")
        else:
            self.report_error("Dispatch was paused already.")
        return self.redirect_back(reverse("console:cluster"))


class ResumeDispatch(ConfirmView):
    nav = "cluster"
    read_role = write_role = Role.ADMIN

    def get(self, request: HttpRequest) -> HttpResponse:
        due = timer_persistence.measure_backlog(db_now(), MAX_COUNTED).overdue
        return self.render_confirmation(
            "Resume dispatch?",
            "Resume",
            back_to=reverse("console:cluster"),
            text=f"Calls that are due now: {format_capped(due)}. They, and the events and webhooks that wait, are sent within "
            "seconds. Before, cancel what must not be sent: after a restore, calls may have been sent already.",
        )

    def post(self, request: HttpRequest) -> HttpResponse:
        if resume(request.user):
            self.report_success("Dispatch is running again.")
        else:
            self.report_error("Dispatch was not paused.")
        return self.redirect_back(reverse("console:cluster"))
