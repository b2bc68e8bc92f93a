"""/api/v1/tenants/{tenantId}/service-calls"""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from rest_framework.request import Request

from eventservice.api.bodies import read_json
from eventservice.api.views import ApiView, reply
from orchestration import lifecycle
from orchestration.api.details import show_details
from orchestration.api.presentation import show_submitted
from orchestration.api.submission import Asking, parse_submission


class ServiceCalls(ApiView):
    def post(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        asking = Asking(self.tenant, self.correlation_id, request.headers.get("Idempotency-Key"))
        command = parse_submission(read_json(request, self.most_bytes), asking)
        (submitted,) = lifecycle.submit([command])
        headers = {"Location": f"{request.path}/{submitted.service_call_id}"}
        if submitted.submitted_at is None or submitted.due_at is None:
            headers["Idempotent-Replayed"] = "true"
            return reply(show_details(tenant_id, submitted.service_call_id), 202, headers)
        shown = show_submitted(command, submitted.submitted_at, submitted.due_at, self.tenant.secret_headers)
        return reply(shown, 202, headers)


class ServiceCallDetail(ApiView):
    def get(self, request: Request, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        return reply(show_details(tenant_id, service_call_id))
