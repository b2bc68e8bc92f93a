"""Signing in and out."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import ValidationError
from django.http import HttpResponse, HttpResponseRedirect

from eventservice.operators.client_address import find_client_address
from eventservice.operators.roles import role_of
from eventservice.operators.sign_in_limits import (
    TOKEN_SECONDS,
    SignInRefused,
    create_browser_token,
    limit_sign_in,
)

KNOWN_BROWSER_COOKIE = "known_browser"


class OperatorForm(AuthenticationForm):
    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": "Wrong username or password.",
        "too_often": "Too many failed attempts for this username. Try again in five minutes.",
        "too_many": "Too many failed attempts. Try again in a few minutes.",
        "busy": "Somebody else is signing in at this moment. Try again.",
        "no_operator": "This user is not an operator. An admin can give operators staff status.",
    }

    refusal: SignInRefused | None = None

    def clean(self) -> dict[str, Any]:
        assert self.request is not None  # noqa: S101 (SignIn passes it)
        name = str(self.cleaned_data.get("username", ""))
        token = self.request.COOKIES.get(KNOWN_BROWSER_COOKIE)
        try:
            with limit_sign_in(name, find_client_address(self.request), token):
                return super().clean()
        except SignInRefused as refusal:
            self.refusal = refusal
            raise ValidationError(self.error_messages[refusal.code], refusal.code) from None

    def confirm_login_allowed(self, user: Any) -> None:
        super().confirm_login_allowed(user)
        if role_of(user) is None:
            raise ValidationError(self.error_messages["no_operator"], "no_operator")


class SignIn(LoginView):
    template_name = "console/login.html"
    authentication_form = OperatorForm
    next_page = "console:dashboard"

    @property
    def redirect_authenticated_user(self) -> bool:  # type: ignore[override]
        return role_of(self.request.user) is not None if self.request.user.is_authenticated else False

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_valid(form)
        response.set_cookie(
            KNOWN_BROWSER_COOKIE,
            create_browser_token(form.get_user().get_username()),
            max_age=TOKEN_SECONDS,
            path=self.request.path,
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Lax",
        )
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_invalid(form)
        if (refusal := getattr(form, "refusal", None)) is not None:
            response.status_code = 429
            response["Retry-After"] = str(refusal.retry_after)
        return response

    def handle_csrf_failure(self) -> HttpResponse:
        """Answer a form that is older than the last sign-in, which may have happened in another tab."""
        if self.redirect_authenticated_user:
            return HttpResponseRedirect(self.get_success_url())
        form = OperatorForm(self.request, initial={"username": self.request.POST.get("username", "")})
        return self.render_to_response(self.get_context_data(form=form, outdated=True), status=403)


class SignOut(LogoutView):
    next_page = "console:login"
