"""The OpenAPI document at /api/v1/openapi.json: what the operations have in common, and how models are described.

A view describes each of its methods with `describe`. The models of eventservice.api.schema, which also validate, become
the components of the document.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from drf_spectacular.contrib.pydantic import PydanticExtension
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from drf_spectacular.views import SpectacularSwaggerSplitView
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from eventservice.api.schema.problems import ProblemSchema
from eventservice.tenants.models import ApiKey
from orchestration.commands import IDEMPOTENCY_KEY

if TYPE_CHECKING:
    from drf_spectacular.openapi import AutoSchema
    from drf_spectacular.utils import Direction

Handler = TypeVar("Handler", bound=Callable[..., HttpResponse])  # a method of a view
Endpoint = tuple[str, str, str, Callable[..., HttpResponseBase]]  # path, pattern, method, view

SUFFIX = "Schema"
REF_TEMPLATE = "#/components/schemas/{model}"
PROBLEM = ("default", "application/problem+json")

DESCRIPTION = """\
A durable, multi-tenant scheduler of HTTP calls. You submit a call, and the service sends its request when it is due,
repeats it by your retry policy, and keeps a log of all attempts.

**Authentication.** Send an API key with each request: `Authorization: Bearer es_…`. A key belongs to a tenant and has the
scopes `read`, `write` or `admin`. The key of an operator is valid in every tenant.

**Idempotency.** A submission with an idempotency key can be repeated safely: the repeat returns the call that the first
request made, and has the header `Idempotent-Replayed`.

**Errors.** Every error is a problem (RFC 9457) with a stable `code`. If fields are invalid, `errors` has all of them, each
with a JSON pointer. `Retry-After` says when to try again, if that can help. Quote the `correlationId` when you ask for help.

**Lists.** A list has pages of up to `limit` items. Pass `nextCursor` as `cursor` to get the next page, until it is null.

**Rate limits.** The headers `RateLimit` and `RateLimit-Policy` say how many requests are left. Above the limit, the response
is 429.

**Durations and times.** Durations are written as `90s`, `5m`, `1d12h` or `PT90S`. Times have an offset, and responses use UTC
with milliseconds.
"""
TAGS = {
    "service calls": "HTTP requests that are sent once they are due.",
    "durable timers": "Callbacks at a time, with an id of your choice.",
    "tenants": "Tenants, their namespaces and their API keys.",
    "operations": "The state of the whole system.",
}

CORRELATION_ID = OpenApiParameter(
    "X-Correlation-Id",
    {"type": "string"},
    OpenApiParameter.HEADER,
    description="A UUIDv7. By default one is generated.",
)
IDEMPOTENCY_KEY_HEADER = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "pattern": f"^{IDEMPOTENCY_KEY.pattern}$"},
    OpenApiParameter.HEADER,
    description="Makes it safe to repeat the request, for example after a timeout or a 503 `outcome_unknown`. A repeat "
    "with the same key and the same request returns the same call. Another request is refused with 409 `idempotency_conflict`: "
    "the call of the key exists. Repeat exactly what you sent first, and use a new key only for another call.",
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    {"type": "string"},
    OpenApiParameter.HEADER,
    description="The `ETag` of an earlier response. If the call has not changed, the response is 304 without a body.",
)


def _describe_header(description: str, *, required: bool = False, **schema: object) -> dict[str, object]:
    return {"description": description, "required": required, "schema": {"type": "string", **schema}}


RESPONSE_HEADERS = {
    "X-Correlation-Id": _describe_header(
        "The one of the request, or a generated one.", required=True, format="uuid"
    ),
    "RateLimit": _describe_header(
        "With a tenant's key: the number of requests that are left (`r`), and the seconds until the limit is full again "
        "(`t`)."
    ),
    "RateLimit-Policy": _describe_header(
        "With a tenant's key: the limit that counted this request (`tenant` or `administration`), with its number of "
        "requests (`q`) in a number of seconds (`w`)."
    ),
    "Retry-After": _describe_header("The seconds after which to try again.", type="integer"),
    "Location": _describe_header(
        "The address of what was created or changed.", required=True, format="uri-reference"
    ),
    "Idempotent-Replayed": _describe_header(
        "Present if the call is that of an earlier request.", enum=["true"]
    ),
    "ETag": _describe_header("For `If-None-Match`.", required=True),
}


def describe(
    operation_id: str,
    tag: str,
    description: str,
    *,
    query: type[BaseModel] | None = None,
    request: type[BaseModel] | None = None,
    response: type[BaseModel] | None = None,
    status: int | Sequence[int] = 200,
    parameters: Sequence[OpenApiParameter] = (),
    response_headers: Sequence[str] = (),
    body_required: bool = True,
) -> Callable[[Handler], Handler]:
    """Describe one operation. Every operation has the correlation id, and a problem as its response to errors.

    A method without a `query` refuses query parameters (ApiView). The first sentence of the description is its summary. `response_headers` names those of RESPONSE_HEADERS that a
    successful response has beside the common ones.
    """
    statuses = [status] if isinstance(status, int) else status

    def decorate(handler: Handler) -> Handler:
        described: Handler = extend(handler)
        described.has_query = query is not None  # type: ignore[attr-defined]
        return described

    responses: dict[object, object] = {
        one: response if response and one not in (204, 304) else OpenApiResponse(description="No content")
        for one in statuses
    }
    responses[PROBLEM] = OpenApiResponse(ProblemSchema, description="An error, as a problem (RFC 9457).")
    extend = extend_schema(
        operation_id=operation_id,
        tags=[tag],
        summary=description.partition(".")[0],
        description=description,
        request=request,
        responses=responses,
        parameters=[CORRELATION_ID, *parameters, *(describe_query(query) if query else [])],
        extensions={"x-response-headers": response_headers, "x-body-required": body_required},
    )
    return decorate


# --- models -------------------------------------------------------------------------------------------------------


class _JsonSchema(GenerateJsonSchema):
    """Names components after their models, without the suffix, and leaves out what only repeats the names."""

    def normalize_name(self, name: str) -> str:
        return super().normalize_name(name.removesuffix(SUFFIX))

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _omit(super().model_schema(schema), "title")

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _omit(super().typed_dict_schema(schema), "title")

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Omit null as the default: it stands for a default that the description names."""
        result = super().default_schema(schema)
        return _omit(result, "default") if result.get("default", ...) is None else result


def _omit(schema: JsonSchemaValue, *names: str) -> JsonSchemaValue:
    return {name: value for name, value in schema.items() if name not in names}


def _generate_schema(model: type[BaseModel], mode: JsonSchemaMode) -> JsonSchemaValue:
    return model.model_json_schema(ref_template=REF_TEMPLATE, schema_generator=_JsonSchema, mode=mode)


class ModelExtension(PydanticExtension):  # type: ignore[no-untyped-call]
    """Describes a request by the schema that validates it, where drf-spectacular would describe a response."""

    priority = 1

    def get_name(self, auto_schema: AutoSchema, direction: Direction) -> str:
        name = super().get_name(auto_schema, direction)  # type: ignore[no-untyped-call]
        return str(name).removesuffix(SUFFIX)

    def map_serializer(self, auto_schema: AutoSchema, direction: Direction) -> JsonSchemaValue:
        schema = _generate_schema(self.target, "validation" if direction == "request" else "serialization")
        for name, definition in schema.pop("$defs", {}).items():
            if "enum" in definition:
                definition = _omit(definition, "title", "description")  # its docstring is for developers
            component = ResolvedComponent(  # type: ignore[no-untyped-call]
                name=name, type=ResolvedComponent.SCHEMA, object=name, schema=definition
            )
            auto_schema.registry.register_on_missing(component)
        return schema


def describe_query(model: type[BaseModel]) -> list[OpenApiParameter]:
    """Return the parameters of a query that is declared as a model."""
    schema = _generate_schema(model, "validation")
    return [_describe_parameter(name, member) for name, member in schema.get("properties", {}).items()]


def _describe_parameter(name: str, member: JsonSchemaValue) -> OpenApiParameter:
    """Return a parameter, which cannot be null: a default of None means that it may be left out."""
    options = [option for option in member.get("anyOf", []) if option != {"type": "null"}]
    merged = {**member, **options[0]} if options else member
    description = member.get("description") or merged.get("description", "")
    merged = _omit(merged, "anyOf", "description", *(["default"] if merged.get("default") == [] else []))
    return OpenApiParameter(name, merged, OpenApiParameter.QUERY, description=description)


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "eventservice.api.authentication.ApiKeyAuthentication"
    name = ["apiKey", "session"]

    def get_security_definition(self, auto_schema: AutoSchema) -> list[dict[str, str]]:
        key = {"type": "http", "scheme": "bearer", "bearerFormat": "es_<env>_<id>_<secret>"}
        session = {"type": "apiKey", "in": "cookie", "name": "sessionid"}
        about = (
            "The session of a signed-in operator. It may only read; other requests get `session_reads_only`."
        )
        return [key, {**session, "description": about}]

    def get_security_requirement(self, auto_schema: Any) -> list[dict[str, list[str]]]:
        reads = auto_schema.view.get_required_scope(auto_schema.method) == ApiKey.Scope.READ
        return [{"apiKey": []}, {"session": []}] if reads else [{"apiKey": []}]


# --- the document -------------------------------------------------------------------------------------------------


def select_api_endpoints(endpoints: list[Endpoint]) -> list[Endpoint]:
    """Return the endpoints that the document describes: a preprocessing hook of drf-spectacular."""
    return [endpoint for endpoint in endpoints if endpoint[0].startswith("/api/v1/")]


def complete_document(result: JsonSchemaValue, **_: object) -> JsonSchemaValue:
    """Add what drf-spectacular cannot describe, such as headers of responses: a postprocessing hook."""
    result["info"] |= {"version": _read_version(), "description": DESCRIPTION}
    result["tags"] = [{"name": name, "description": about} for name, about in TAGS.items()]
    result["components"]["headers"] = RESPONSE_HEADERS
    for path, operations in result["paths"].items():
        for operation in operations.values():
            _complete_operation(operation, limited="{tenantId}" in path or path.endswith("/stats"))
            _show_example(operation, result["components"]["schemas"])
    return result


def _read_version() -> str:
    project = tomllib.loads((settings.BASE_DIR / "pyproject.toml").read_text())
    return str(project["project"]["version"])


def _complete_operation(operation: JsonSchemaValue, *, limited: bool) -> None:
    own_headers, body_required = operation.pop("x-response-headers"), operation.pop("x-body-required")
    if "requestBody" in operation:
        operation["requestBody"]["required"] = body_required
    common = ["X-Correlation-Id", *(["RateLimit", "RateLimit-Policy"] if limited else [])]
    for status, response in operation["responses"].items():
        names = [*common, *(["Retry-After"] if status == "default" else own_headers)]
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _show_example(operation: JsonSchemaValue, schemas: JsonSchemaValue) -> None:
    """Show the example of a request's model as the one of its body: Swagger UI offers it as the body to send."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        name = content["schema"]["$ref"].rpartition("/")[2]
        content["example"] = schemas[name]["examples"][0]


@csrf_exempt
@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        _render_document(), "application/vnd.oai.openapi+json", headers={"Cache-Control": "max-age=300"}
    )


@cache
def _render_document() -> bytes:
    generator = SchemaGenerator()  # type: ignore[no-untyped-call]
    document = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return bytes(OpenApiJsonRenderer().render(document, renderer_context={}))


class DocsView(SpectacularSwaggerSplitView):
    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Keep the page and its script, which contains the CSRF token, out of all caches."""
        response["Cache-Control"] = "no-store"
        return super().finalize_response(request, response, *args, **kwargs)

    def options(self, request: HttpRequest, *args: object, **kwargs: object) -> Any:
        """Respond without a body: Django REST framework would describe the page, by a template that does not exist."""
        return HttpResponse(status=204, headers={"Allow": ", ".join(self.allowed_methods)})
