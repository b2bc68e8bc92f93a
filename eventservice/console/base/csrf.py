"""What is sent with a token that is no longer good: whoever signs in gets another, and so do all tabs of the browser.

Scripts send the newest (console.js). This is for browsers without them, and for pages whose cookies are gone.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import REASON_NO_CSRF_COOKIE
from django.views.csrf import csrf_failure as refused

# So begin Django's reasons when there is a token, and the form is not one of another site.
TOO_OLD = "CSRF token from "


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Whatever was asked for is not done. A page of ours says what to do about it."""
    match: Any = request.resolver_match
    view: Any = getattr(match.func, "view_class", None)
    cookies_are_gone = reason == REASON_NO_CSRF_COOKIE and not request.user.is_authenticated
    if hasattr(view, "handle_csrf_failure") and (reason.startswith(TOO_OLD) or cookies_are_gone):
        page: Any = view(**match.func.view_initkwargs)
        page.setup(request, *match.args, **match.kwargs)
        answer: HttpResponse = page.handle_csrf_failure()
        return answer
    return refused(request, reason)
