"""The base view of the console: authentication, roles, fragments for htmx, errors, and the audit log."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views import View

from eventservice.api.problems import Problem, describe_refusal, find_problem
from eventservice.console.base.error_pages import describe_by_problem
from eventservice.console.base.time_zone import get_user_zone, get_zone_name
from eventservice.kernel.errors import DomainError
from eventservice.kernel.logging import get_logger
from eventservice.operators import audit_log
from eventservice.operators.roles import Role, role_of
from timers.pause import find_pause

log = get_logger(__name__)

R = TypeVar("R")

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SESSION_ENDED = "Your session has ended, so nothing was changed. Sign in and try again."
OUTDATED = "Nothing was changed, because that page was out of date. It is current now; please try again."


class ConsoleView(View):
    """A page for signed-in operators: `get` needs `read_role`, every other method `write_role`.

    A domain error that `get` raises becomes an error page. One that `post` raises becomes a message on the page that
    the operator came from.
    """

    nav = ""  # the current entry of the navigation
    template = ""
    read_role = Role.VIEWER
    write_role = Role.OPERATOR

    role: Role  # unset until the database has said who is signed in

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with timezone.override(get_user_zone(request)):
            return self._dispatch_in_zone(request, *args, **kwargs)

    def _dispatch_in_zone(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return self._refuse_unauthorized(request) or super().dispatch(request, *args, **kwargs)
        except (DomainError, Problem, DatabaseError) as error:
            return self._handle_error(error)

    def _refuse_unauthorized(self, request: HttpRequest) -> HttpResponse | None:
        role = role_of(request.user) if request.user.is_authenticated else None
        if role is None:
            return self._send_to_sign_in(request)
        self.role = role
        needed = self.read_role if request.method in SAFE_METHODS else self.write_role
        if role < needed:
            return self.render_error(
                403, f"You need the {needed.group} role (you are {_choose_article(role.group)} {role.group})."
            )
        return None

    def _send_to_sign_in(self, request: HttpRequest) -> HttpResponse:
        """Redirect to the sign-in page, which leads back. For a fragment, htmx redirects the whole page."""
        login = reverse("console:login")
        if self.is_fragment:
            on_show = _find_own_url(_get_path(request.headers.get("HX-Current-URL")))
            address = redirect_to_login(self.get_url_after_login(on_show), login).url if on_show else login
            return HttpResponse(status=401, headers={"HX-Redirect": address})
        if request.method in SAFE_METHODS:
            return redirect_to_login(request.get_full_path(), login)
        messages.warning(request, SESSION_ENDED)
        return redirect_to_login(
            self.get_url_after_login(self.find_previous_url() or request.get_full_path()), login
        )

    def get_url_after_login(self, on_show: str) -> str:
        """Return where to continue after a sign-in that interrupted the request."""
        return on_show

    def handle_csrf_failure(self) -> HttpResponse:
        """Answer a request whose CSRF token is no longer valid because somebody has signed in since."""
        return self._refuse_unauthorized(self.request) or self.respond_to_outdated_form()

    def respond_to_outdated_form(self) -> HttpResponse:
        if self.is_fragment:
            return HttpResponse(status=403, headers={"HX-Refresh": "true"})
        self.report_error(OUTDATED)
        return self.redirect_back()

    def _handle_error(self, error: DomainError | Problem | DatabaseError) -> HttpResponse:
        problem = find_problem(error)
        if problem is None:
            raise error
        if not self.has_role:
            # Nothing has been done yet.
            if isinstance(error, DatabaseError):
                problem = Problem(503, "database_busy", describe_refusal(error), headers={"Retry-After": "1"})
            return self._render_problem(problem)
        # A message for the next page would have to be stored in the session.
        is_page = isinstance(error, DatabaseError) or problem.status_code == 404 or self.is_fragment
        if is_page or self.request.method in SAFE_METHODS:
            return self._render_problem(problem)
        self.report_error(" ".join([problem.detail, *(f"{f.pointer} {f.detail}." for f in problem.errors)]))
        return self.redirect_back()

    # --- responses ----------------------------------------------------------------------------------------------

    @property
    def has_role(self) -> bool:
        """True once the role of the user has been read."""
        return hasattr(self, "role")

    @property
    def is_fragment(self) -> bool:
        """True if htmx asks for a fragment of a page."""
        return bool(getattr(self.request, "htmx", False))

    def render(
        self, context: Mapping[str, Any] | None = None, template: str | None = None, status: int = 200
    ) -> HttpResponse:
        """Render a template, which extends `base`: the frame of the page, or nothing for a fragment."""
        base = "console/base_fragment.html" if self.is_fragment else "console/base.html"
        page_context = {
            "base": base,
            "nav": self.nav,
            "role": self.role.group,
            "may_act": self.role >= Role.OPERATOR,
            "may_administer": self.role >= Role.ADMIN,
            "time_zone": get_zone_name(),
            # Called by the frame of a page. Fragments have none.
            "dispatch_pause": find_pause,
            **(context or {}),
        }
        response = render(self.request, template or self.template, page_context, status=status)
        response.headers.setdefault("Cache-Control", "no-store")
        # The same URL serves a page and a fragment of it.
        response.headers.setdefault("Vary", "HX-Request")
        return response

    def render_error(self, status: int, text: str, errors: Any = ()) -> HttpResponse:
        # The database may be what is wrong.
        context = {"text": text, "errors": errors, "code": status, "dispatch_pause": None}
        if self.has_role:
            return self.render(context, "console/error.html", status)
        # Without the frame, which shows the user.
        base = "console/base_fragment.html" if self.is_fragment else "standalone.html"
        return render(self.request, "console/error.html", {"base": base, **context}, status=status)

    def _render_problem(self, problem: Problem) -> HttpResponse:
        return describe_by_problem(
            self.render_error(problem.status_code, problem.detail, problem.errors), problem
        )

    def get_next_url(self, default: str) -> str:
        """Return the `next` parameter of the form or link if it is a URL of this site, otherwise the default."""
        return _find_own_url(self.request.POST.get("next"), self.request.GET.get("next")) or default

    def redirect_back(self, default: str = "") -> HttpResponseRedirect:
        """Redirect to the page that the operator came from. Its state is in its URL."""
        return redirect_see_other(self.find_previous_url() or default or reverse("console:dashboard"))

    def find_previous_url(self) -> str | None:
        return _find_own_url(self.request.POST.get("next"), _get_path(self.request.headers.get("Referer")))

    def redirect_to(self, name: str, *args: Any) -> HttpResponseRedirect:
        return redirect_see_other(reverse(name, args=args))

    # --- commands -----------------------------------------------------------------------------------------------

    def run_audited(
        self,
        action: str,
        command: Callable[[], R],
        *,
        tenant_id: uuid.UUID | None = None,
        subject: object = "",
        changed: Callable[[R], bool] = lambda result: True,
        **detail: Any,
    ) -> R:
        """Run a domain command and record it in the audit log, in one transaction."""
        return audit_log.run_audited(
            self.request.user,
            action,
            command,
            tenant_id=tenant_id,
            subject=subject,
            changed=changed,
            **detail,
        )

    def report_success(self, text: str) -> None:
        messages.success(self.request, text)

    def report_error(self, text: str) -> None:
        messages.error(self.request, text)


def _find_own_url(*addresses: str | None) -> str | None:
    """Return the first address that is on this site, or None."""
    return next((a for a in addresses if a and url_has_allowed_host_and_scheme(a, allowed_hosts=None)), None)


def _get_path(address: str | None) -> str | None:
    if not address:
        return None
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def redirect_see_other(address: str) -> HttpResponseRedirect:
    """Redirect with 303, so that reloading the page sends nothing again."""
    response = HttpResponseRedirect(address)
    response.status_code = 303
    return response


def _choose_article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
