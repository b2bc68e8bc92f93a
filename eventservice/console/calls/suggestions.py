"""Suggestions for the filters of the list of calls, which htmx loads while a user types."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from eventservice.console.base.query import Query, drop_empty_params
from eventservice.console.base.views import ConsoleView
from eventservice.console.calls.list_query import MAX_TENANTS, parse_tenants
from eventservice.kernel.errors import NotFound
from orchestration.queries.suggestions import COLUMNS, list_suggestions

MAX_SUGGESTIONS = 12
MAX_LENGTH = 255


class FilterSuggestions(ConsoleView):
    nav = "calls"
    template = "console/calls/_suggestions.html"

    def get(self, request: HttpRequest, column: str) -> HttpResponse:
        if column not in COLUMNS:
            raise NotFound("filter")
        query = Query(drop_empty_params(request.GET), [])
        tenants, tenant = parse_tenants(query)
        # A form may have several tags; the last is being typed.
        text = "".join(query.texts(column)[-1:]).strip().strip('"')[:MAX_LENGTH]
        listed = [tenant] if tenant is not None and tenant in tenants else list(tenants)[:MAX_TENANTS]
        values = [] if query.errors else list_suggestions(listed, column, text, MAX_SUGGESTIONS)
        return self.render({"values": values})
