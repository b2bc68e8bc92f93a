"""The query parameters of calls and timers, for the OpenAPI document."""

from drf_spectacular.utils import OpenApiParameter

from eventservice.api.call_filters import SORTS, TAG_MODES
from eventservice.api.openapi import PAGING, parameter
from eventservice.api.pagination import LONGEST_TEXT
from orchestration.states import Status

INSTANT = {"type": "string", "format": "date-time"}
TEXT = {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT}


def _choice(*values: str) -> dict[str, object]:
    return {"type": "string", "enum": list(values)}


COMMON = [
    parameter("status", {"type": "array", "items": _choice(*Status.values)}, "Any of these."),
    parameter("from", INSTANT, "Due then or later."),
    parameter("to", INSTANT, "Due before then."),
    parameter("namespace", TEXT),
    parameter("sort", _choice(*SORTS)),
    *PAGING,
]
LIST = [
    *COMMON,
    parameter(
        "tag", {"type": "array", "items": TEXT, "maxItems": 20}, "All of these, or any: see `tagMode`."
    ),
    parameter("tagMode", _choice(*TAG_MODES)),
    parameter("submittedFrom", INSTANT),
    parameter("submittedTo", INSTANT),
    parameter("name", TEXT, "The whole name."),
    parameter("host", TEXT, "The host that is called."),
    parameter("correlationId", {"type": "string", "format": "uuid"}),
    parameter("replayOf", {"type": "string", "format": "uuid"}, "The replays of this call."),
]
WAIT = parameter(
    "wait", {"type": "string"}, "Such as `30s`: answer when the call has ended, or after that time."
)
IF_NONE_MATCH = OpenApiParameter("If-None-Match", {"type": "string"}, OpenApiParameter.HEADER)
