"""How the API describes itself: what every operation has in common, and the document at /api/v1/openapi.json.

The serializers here and in orchestration.api only describe. What is valid is decided where it is read
(eventservice.api.fields), and tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework import serializers

from eventservice.tenants.models import ApiKey

PROBLEM = ("default", "application/problem+json")
KEY_PATTERN = r"^[!-~]{1,255}$"


class FaultSerializer(serializers.Serializer[Any]):
    pointer = serializers.CharField(
        help_text="JSON pointer into the body; /query/…, /headers/… and /path/… for other places",
        allow_blank=True,
    )
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """RFC 9457."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    instance = serializers.CharField(help_text="urn:uuid: and the correlation id")
    code = serializers.CharField(help_text="Stable, for programs")
    correlationId = serializers.UUIDField()
    errors = FaultSerializer(many=True)  # type: ignore[assignment]  # a serializer has an `errors` of its own


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "eventservice.api.authentication.KeyAuthentication"
    name = ["apiKey", "session"]

    def get_security_definition(self, auto_schema: Any) -> Any:
        key = {"type": "http", "scheme": "bearer", "bearerFormat": "es_<env>_<id>_<secret>"}
        session = {"type": "apiKey", "in": "cookie", "name": "sessionid"}
        return [
            key,
            {
                **session,
                "description": "A signed-in operator, who only reads here: else `session_reads_only`.",
            },
        ]

    def get_security_requirement(self, auto_schema: Any) -> Any:
        reads = auto_schema.method == "GET" or auto_schema.view.scope == ApiKey.Scope.READ
        return [{"apiKey": []}, {"session": []}] if reads else [{"apiKey": []}]


CORRELATION = OpenApiParameter(
    "X-Correlation-Id", {"type": "string"}, OpenApiParameter.HEADER, description="A UUIDv7; else one is made."
)
IDEMPOTENCY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "pattern": KEY_PATTERN},
    OpenApiParameter.HEADER,
    description="A repeat with the same key and payload gives the same call; with another payload 409. So what had no "
    "answer, or a 503 `outcome_unknown`, can be sent again.",
)


def parameter(name: str, kind: Any = str, description: str = "", **more: Any) -> OpenApiParameter:
    return OpenApiParameter(name, kind, OpenApiParameter.QUERY, description=description, **more)


LIMIT = parameter("limit", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50})
CURSOR = parameter(
    "cursor", {"type": "string"}, "The `nextCursor` of the page before, with the same filters."
)
PAGING = [LIMIT, CURSOR]


def described(
    operation_id: str,
    tag: str,
    *,
    takes: Any = None,
    gives: Any = None,
    status: int | Sequence[int] = 200,
    parameters: Sequence[OpenApiParameter] = (),
    sends: Sequence[str] = (),
    needs_body: bool = False,
    about: str = "",
) -> Callable[[Any], Any]:
    """One operation, with what all have: the problem as the answer to whatever goes wrong.

    `sends`: of HEADERS, those that its other answers have beside those of all. A body that has nothing that must be
    there is taken for one that may be left out, unless it `needs_body`.
    """
    statuses = [status] if isinstance(status, int) else status
    responses: dict[Any, Any] = {
        one: gives if gives and one not in (204, 304) else OpenApiResponse(description="No content")
        for one in statuses
    }
    responses[PROBLEM] = OpenApiResponse(
        ProblemSerializer, description="Whatever goes wrong, as a problem (RFC 9457)"
    )
    return extend_schema(
        operation_id=operation_id,
        tags=[tag],
        summary=about.partition(".")[0] or None,
        description=about or None,
        request=takes,
        responses=responses,
        parameters=[CORRELATION, *parameters],
        extensions={"x-sends": sends, "x-needs-body": needs_body},
    )


def page_of(serializer: type[serializers.Serializer[Any]], name: str) -> Any:
    """{items, nextCursor}."""
    fields = {
        "items": serializer(many=True),
        "nextCursor": serializers.CharField(allow_null=True),
    }
    return type(f"{name}PageSerializer", (serializers.Serializer,), fields)


def _header(description: str, *, required: bool = False, **schema: Any) -> dict[str, Any]:
    return {"description": description, "required": required, "schema": {"type": "string", **schema}}


HEADERS = {
    "X-Correlation-Id": _header("The request's, or the one that was made.", required=True, format="uuid"),
    "RateLimit": _header(
        "With a tenant's key: how many requests are left (`r`), and in how many seconds all will be (`t`)."
    ),
    "RateLimit-Policy": _header(
        "With a tenant's key: whether `tenant` or `administration` is counted, and how many requests there may be (`q`) "
        "in how many seconds (`w`)."
    ),
    "Retry-After": _header("In so many seconds another try may do better.", type="integer"),
    "Location": _header("Of what was made or changed.", required=True, format="uri-reference"),
    "Idempotent-Replayed": _header("It is the call of an earlier request.", enum=["true"]),
    "ETag": _header("For `If-None-Match`.", required=True),
}


def complete(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """A postprocessing hook: what drf-spectacular has no words for."""
    result["components"]["headers"] = HEADERS
    for path, operations in result["paths"].items():
        for operation in operations.values():
            _complete(operation, limited="{tenantId}" in path or path.endswith("/stats"))
    return result


def _complete(operation: dict[str, Any], *, limited: bool) -> None:
    sends, needs_body = operation.pop("x-sends"), operation.pop("x-needs-body")
    if needs_body:
        operation["requestBody"]["required"] = True
    of_all = ["X-Correlation-Id", *(["RateLimit", "RateLimit-Policy"] if limited else [])]
    for status, response in operation["responses"].items():
        names = [*of_all, *(["Retry-After"] if status == "default" else sends)]
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}


# --- the document ---------------------------------------------------------------------------------------------


@csrf_exempt
@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        _document(), "application/vnd.oai.openapi+json", headers={"Cache-Control": "max-age=300"}
    )


@cache
def _document() -> bytes:
    generator = SchemaGenerator()  # type: ignore[no-untyped-call]
    document = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return bytes(OpenApiJsonRenderer().render(document, renderer_context={}))


class Docs(SpectacularSwaggerSplitView):
    def options(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Django REST framework would describe the page, by a template that there is not."""
        return HttpResponse(status=204, headers={"Allow": ", ".join(self.allowed_methods)})


def only_the_api(endpoints: list[Any]) -> list[Any]:
    """A preprocessing hook."""
    return [endpoint for endpoint in endpoints if endpoint[0].startswith("/api/v1/")]
