"""Traces: /api/v1/tenants/{tenantId}/traces/{correlationId}

Every request has a correlation id, but only one that submitted a call has a trace: any other id is not found, like the id of a
call that does not exist.
"""

from __future__ import annotations

import uuid

from rest_framework.request import Request
from rest_framework.response import Response

from eventservice.api.calls import TAG, parse_position
from eventservice.api.openapi import describe
from eventservice.api.pagination import make_cursor, read_cursor
from eventservice.api.schema.queries import TraceQuery, parse_query
from eventservice.api.schema.traces import TracedCallSchema, TraceSchema
from eventservice.api.views import ApiView
from orchestration.queries.traces import get_trace_overview, read_trace_page


class TraceView(ApiView):
    @describe(
        "getTrace",
        TAG,
        "Get the trace of a correlation id. It has the calls that one request, or several with the same "
        "`X-Correlation-Id`, submitted, in order, each with its timer, attempts, events and replays. It is kept as long as "
        "one of its calls.",
        query=TraceQuery,
        response=TraceSchema,
    )
    def get(self, request: Request, tenant_id: uuid.UUID, correlation_id: uuid.UUID) -> Response:
        query = parse_query(TraceQuery, request.query_params)
        list_id = f"trace {tenant_id} {correlation_id}"
        after = parse_position(read_cursor(query.cursor, list_id))
        overview = get_trace_overview(tenant_id, correlation_id)
        page = read_trace_page(tenant_id, correlation_id, query.limit, after)
        calls = [TracedCallSchema.from_traced(traced) for traced in page.calls]
        cursor = None if page.following is None else make_cursor(list_id, page.following)
        return Response(TraceSchema.build(tenant_id, correlation_id, overview, calls, cursor))
