"""The pages for errors that no view has handled (`handler400` and `handler500` of the URL configuration).

Trouble with the database can meet every page: Django's own views, such as the sign-in and those of the admin, and the
session, which its middleware stores after a view. The answer is 503 with the sentence of the API, and not a bug's page.
"""

from __future__ import annotations

import sys

from django.contrib.sessions.exceptions import SessionInterrupted
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.defaults import bad_request, server_error

from eventservice.api.problems import Problem, find_problem, mark_as_logged


def handle_server_error(request: HttpRequest) -> HttpResponse:
    """Return the page for an unexpected exception. Django calls this while it handles the exception."""
    return _render_database_trouble(request, sys.exception()) or server_error(request)


def handle_bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return the page for a request that makes no sense.

    Django reports a session that could not be stored as one that was deleted meanwhile, whatever the reason.
    """
    page = None
    if isinstance(exception, SessionInterrupted) and exception.__context__ is not None:
        page = _render_database_trouble(request, exception.__context__.__context__)
    return page or bad_request(request, exception)


def render_problem(request: HttpRequest, problem: Problem) -> HttpResponse:
    """Return a page without the frame of the console, whose user is unknown. A program gets the problem itself."""
    context = {"base": "standalone.html", "text": problem.detail, "code": problem.status_code}
    response = render(request, "console/error.html", context, status=problem.status_code)
    return describe_by_problem(response, problem)


def describe_by_problem(response: HttpResponse, problem: Problem) -> HttpResponse:
    """Give a page the headers of the problem that it shows, and the problem, which ProblemMiddleware sends to programs."""
    for name, value in problem.headers.items():
        response[name] = value
    response.problem = problem  # type: ignore[attr-defined]
    return response


def _render_database_trouble(request: HttpRequest, error: BaseException | None) -> HttpResponse | None:
    """Return the page for an error of the database that is no bug, or None. Its line of the log has been written."""
    problem = find_problem(error) if isinstance(error, DatabaseError) else None
    return None if problem is None else mark_as_logged(render_problem(request, problem))
