"""/api/v1/tenants/{tenantId}/service-calls/batch: many calls in one transaction."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from rest_framework.request import Request

from eventservice.api import call_serializers as shapes
from eventservice.api.call_submission import Asking, read_submission
from eventservice.api.calls import CallsView
from eventservice.api.fields import MISSING, Fields, raise_if_invalid
from eventservice.api.openapi import described
from eventservice.api.parsers import read_object
from eventservice.api.problems import FieldError, InvalidRequest, list_field_errors, truncate_errors
from eventservice.api.views import reply
from eventservice.kernel.errors import DomainError
from orchestration import lifecycle
from orchestration.commands import SubmitServiceCall
from orchestration.lifecycle import Submitted


class Batch(CallsView):
    @described(
        "submitServiceCalls",
        "service calls",
        takes=shapes.BatchInputSerializer,
        gives=shapes.BatchSerializer,
        status=202,
        about="Submit many calls in one transaction. To be able to repeat it safely, give each item its "
        "`idempotencyKey`: the header `Idempotency-Key`, which would be one key for all of them, is refused.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        if "Idempotency-Key" in request.headers:
            rule = "must not be given for a batch: give each item its idempotencyKey"
            raise InvalidRequest([FieldError("/headers/Idempotency-Key", rule)])
        document = read_object(request, settings.API_MAX_BATCH_BYTES)
        items, atomic = _batch_items(document)
        asking = Asking(self.tenant, self.correlation_id)
        read = [_read_item(item, asking, index) for index, item in enumerate(items)]
        commands = [command for command, _ in read if command is not None]
        if atomic and len(commands) < len(items):
            raise InvalidRequest([fault for _, faults in read for fault in faults])
        results = iter(self._submit(commands, atomic=atomic))
        path = request.path.removesuffix("/batch")
        shown = [
            _refused(400, "invalid", faults) if command is None else _result(command, next(results), path)
            for command, faults in read
        ]
        accepted = sum(item["status"] == 202 for item in shown)
        return reply({"items": shown, "accepted": accepted, "refused": len(shown) - accepted}, 202)

    def _submit(self, commands: list[SubmitServiceCall], *, atomic: bool) -> list[Submitted | DomainError]:
        if atomic:
            return [*lifecycle.submit(commands)]
        return lifecycle.submit_each(commands)


def _batch_items(document: dict[str, Any]) -> tuple[list[Any], bool]:
    faults: list[FieldError] = []
    fields = Fields(document, faults)
    items = fields.value("items")
    if items is not MISSING and not isinstance(items, list):
        fields.fault("items", "must be an array")
    elif items is not MISSING and not 1 <= len(items) <= settings.API_MAX_BATCH:
        fields.fault("items", f"must have 1 to {settings.API_MAX_BATCH} items")
    atomic = fields.boolean("atomic", False)
    fields.no_others()
    raise_if_invalid(faults)
    return items, atomic


def _read_item(item: Any, asking: Asking, index: int) -> tuple[SubmitServiceCall | None, list[FieldError]]:
    faults: list[FieldError] = []
    return read_submission(item, asking, faults, f"/items/{index}"), faults


def _result(command: SubmitServiceCall, result: Submitted | DomainError, path: str) -> dict[str, Any]:
    if isinstance(result, DomainError):
        return _refused(409, result.code, list_field_errors(result), result.message)
    return {
        "status": 202,
        "serviceCallId": str(result.service_call_id),
        "location": f"{path}/{result.service_call_id}",
        "replayed": result.is_repeat,
        "code": None,
        "detail": None,
        "errors": [],
    }


def _refused(status: int, code: str, faults: list[FieldError], detail: str | None = None) -> dict[str, Any]:
    return {
        "status": status,
        "serviceCallId": None,
        "location": None,
        "replayed": False,
        "code": code,
        "detail": detail or InvalidRequest(faults).detail,
        "errors": truncate_errors(sorted(faults)),
    }
