"""Signing in and out."""

from __future__ import annotations

import time
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import ValidationError
from django.http import HttpResponse, HttpResponseRedirect

from eventservice.operators.roles import role_of

# How many failed sign-ins a username may have in this period, per web process.
MAX_FAILURES = 10
FAILURE_PERIOD_SECONDS = 300.0
MAX_NAMES = 10_000

_failures: dict[str, list[float]] = {}


class OperatorForm(AuthenticationForm):
    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": "Wrong username or password.",
        "too_often": "Too many failed attempts for this username. Try again in five minutes.",
        "no_operator": "This user is not an operator. An admin can give operators staff status.",
    }

    def clean(self) -> dict[str, Any]:
        name = str(self.cleaned_data.get("username", ""))
        if len(_list_recent_failures(name)) >= MAX_FAILURES:
            raise ValidationError(self.error_messages["too_often"], "too_often")
        try:
            return super().clean()
        except ValidationError:
            if len(_failures) >= MAX_NAMES:
                _failures.clear()
            _failures[name] = [*_list_recent_failures(name), time.monotonic()]
            raise

    def confirm_login_allowed(self, user: Any) -> None:
        super().confirm_login_allowed(user)
        if role_of(user) is None:
            raise ValidationError(self.error_messages["no_operator"], "no_operator")


def _list_recent_failures(name: str) -> list[float]:
    since = time.monotonic() - FAILURE_PERIOD_SECONDS
    return [moment for moment in _failures.get(name, ()) if moment > since]


def forget_failures() -> None:
    _failures.clear()


class SignIn(LoginView):
    template_name = "console/login.html"
    authentication_form = OperatorForm
    next_page = "console:dashboard"

    @property
    def redirect_authenticated_user(self) -> bool:  # type: ignore[override]
        return role_of(self.request.user) is not None if self.request.user.is_authenticated else False

    def handle_csrf_failure(self) -> HttpResponse:
        """Answer a form that is older than the last sign-in, which may have happened in another tab."""
        if self.redirect_authenticated_user:
            return HttpResponseRedirect(self.get_success_url())
        form = OperatorForm(self.request, initial={"username": self.request.POST.get("username", "")})
        return self.render_to_response(self.get_context_data(form=form, outdated=True), status=403)


class SignOut(LogoutView):
    next_page = "console:login"
