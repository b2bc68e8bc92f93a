"""The view for requests with an invalid CSRF token.

A sign-in replaces the token in all tabs of the browser. Scripts send the newest one (console.js); this view is for
browsers without scripts, and for pages whose cookies are gone.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import REASON_NO_CSRF_COOKIE
from django.views.csrf import csrf_failure as django_csrf_failure

# Django's reasons begin like this if there is a token and the form is from this site.
OUTDATED = "CSRF token from "


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Refuse the request. A page of the console says how to continue."""
    match: Any = request.resolver_match
    view: Any = getattr(match.func, "view_class", None)
    cookies_are_gone = reason == REASON_NO_CSRF_COOKIE and not request.user.is_authenticated
    if hasattr(view, "handle_csrf_failure") and (reason.startswith(OUTDATED) or cookies_are_gone):
        page: Any = view(**match.func.view_initkwargs)
        page.setup(request, *match.args, **match.kwargs)
        answer: HttpResponse = page.handle_csrf_failure()
        return answer
    return django_csrf_failure(request, reason)
