"""Problems (RFC 9457), as OpenAPI describes them; eventservice.api.problems makes them."""

from __future__ import annotations

import uuid

from pydantic import Field

from eventservice.api.schema.base import ResponseModel


class FieldErrorSchema(ResponseModel):
    pointer: str = Field(
        description="A JSON pointer into the body, or `/query/…`, `/headers/…` or `/path/…` for other places."
    )
    detail: str = Field(description="The rule that the value breaks, such as `must be a string`.")


class ProblemSchema(ResponseModel):
    """An error as described in RFC 9457."""

    type: str
    title: str
    status: int
    detail: str = Field(description="For people. It may change.")
    instance: str = Field(description="`urn:uuid:` and the correlation id.")
    code: str = Field(description="For programs. It is stable.")
    correlation_id: uuid.UUID
    errors: list[FieldErrorSchema] = Field(description="Every field that is invalid.")
    existing_service_call_id: uuid.UUID | None = Field(
        default=None,
        description="Only of `idempotency_conflict`, and only for a key with the scope `read`: the call that the "
        "idempotency key belongs to.",
    )
