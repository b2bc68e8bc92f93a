"""Batches of service calls: /api/v1/tenants/{tenantId}/service-calls/batch"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from eventservice.api.calls import TAG, CallsView
from eventservice.api.openapi import describe
from eventservice.api.problems import FieldError, InvalidRequest, list_field_errors, truncate_errors
from eventservice.api.schema.calls import BatchItemSchema, BatchSchema
from eventservice.api.schema.problems import FieldErrorSchema
from eventservice.api.schema.submissions import BatchInputSchema, validate_submission
from eventservice.kernel.errors import DomainError
from orchestration import lifecycle
from orchestration.commands import SubmitServiceCall
from orchestration.lifecycle import SubmissionConflict, Submitted


class BatchView(CallsView):
    @property
    def max_body_bytes(self) -> int:
        return int(settings.API_MAX_BATCH_BYTES)

    @describe(
        "submitServiceCalls",
        TAG,
        "Submit many calls in one transaction. The response is 202 even if every item was refused: look at `refused`. "
        "With `atomic`, a refusal is an error response like any other (400, 409, 429), and nothing is stored. To be able "
        "to repeat the request safely, give each item its own `idempotencyKey`. The header `Idempotency-Key` is refused, because it would be one key for all items.",
        request=BatchInputSchema,
        response=BatchSchema,
        status=202,
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> Response:
        if "Idempotency-Key" in request.headers:
            rule = "must not be sent with a batch: give each item its own idempotencyKey"
            raise InvalidRequest([FieldError("/headers/Idempotency-Key", rule)])
        batch, context = self.parse_body(BatchInputSchema), self.context
        parsed = [
            validate_submission(item, context, f"/items/{index}") for index, item in enumerate(batch.items)
        ]
        commands = [command for command, _ in parsed if command is not None]
        if batch.atomic and len(commands) < len(parsed):
            raise InvalidRequest([error for _, errors in parsed for error in errors])
        results = iter(self._submit(commands, atomic=bool(batch.atomic)))
        path = request.path.removesuffix("/batch")
        items = [
            _build_refused_item("invalid", InvalidRequest(errors).detail, errors)
            if command is None
            else self._describe_result(next(results), path, f"/items/{index}")
            for index, (command, errors) in enumerate(parsed)
        ]
        accepted = sum(item.status == 202 for item in items)
        return Response(BatchSchema(items=items, accepted=accepted, refused=len(items) - accepted), 202)

    def _submit(
        self, commands: list[SubmitServiceCall], *, atomic: bool
    ) -> Sequence[Submitted | DomainError]:
        if not atomic:
            return lifecycle.submit_each(commands)
        try:
            return lifecycle.submit(commands)
        except SubmissionConflict as conflict:
            # All items of an atomic batch are valid, so that there is a command for each.
            refused = {id(command) for command in conflict.commands}
            errors = [
                error
                for index, command in enumerate(commands)
                if id(command) in refused
                for error in list_field_errors(conflict, f"/items/{index}")
            ]
            raise self.build_conflict(conflict, errors) from None

    def _describe_result(self, result: Submitted | DomainError, path: str, at: str) -> BatchItemSchema:
        if isinstance(result, DomainError):
            existing = self.get_readable_id(result) if isinstance(result, SubmissionConflict) else None
            errors = list_field_errors(result, at)
            return _build_refused_item(result.code, result.message, errors, status=409, existing=existing)
        return BatchItemSchema(
            status=202,
            service_call_id=result.service_call_id,
            location=f"{path}/{result.service_call_id}",
            replayed=result.is_repeat,
            code=None,
            detail=None,
            errors=[],
            existing_service_call_id=None,
        )


def _build_refused_item(
    code: str,
    detail: str,
    errors: Sequence[FieldError],
    status: int = 400,
    existing: uuid.UUID | None = None,
) -> BatchItemSchema:
    return BatchItemSchema(
        status=status,
        service_call_id=None,
        location=None,
        replayed=False,
        code=code,
        detail=detail,
        errors=[FieldErrorSchema(**error) for error in truncate_errors(sorted(errors))],
        existing_service_call_id=existing,
    )
