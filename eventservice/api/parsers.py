"""Parsing JSON strictly and within limits. Everything that can be wrong has a problem of its own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import IO, Any, NoReturn

from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from eventservice.api.problems import Problem

# MariaDB's JSON functions support 32 levels, and what is stored is wrapped in one more.
MAX_DEPTH = 30
UNSUPPORTED = "The body must be JSON in UTF-8, not compressed: Content-Type: application/json."

# A NUL character, which some databases do not store, or half a surrogate pair, which is no character. All alternatives
# begin with the same two characters, for which the engine searches fast.
_UNSTORABLE_ESCAPE = re.compile(
    r"\\u(?:0000"
    r"|[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|[dD][c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)


class StrictJSONParser(BaseParser):
    """Parses `request.data`. The view says how long a body may be (`max_body_bytes`)."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        context = parser_context or {}
        check_body_headers(context["request"].META, context["view"].max_body_bytes)
        try:
            text = stream.read().decode()
        except UnicodeDecodeError:
            raise _build_malformed_json("The body is not UTF-8.") from None
        return parse_json(text)


def parse_json(text: str) -> object:
    """Return the document; raise Problem unless it is JSON without repeated names, NUL or half surrogate pairs."""
    try:
        document = _decode(text)
    except ValueError as error:
        raise _build_malformed_json(f"The body is not JSON: {_explain(error)}.") from None
    except RecursionError:
        raise _build_malformed_json("The body is nested too deeply.") from None
    if "\\u" in text and _UNSTORABLE_ESCAPE.search(text.replace(r"\\", "  ")):
        raise _build_malformed_json(
            "The body contains a NUL character or half of a surrogate pair (such as \\u0000 or \\ud800)."
        )
    return document


def has_body(request: Request) -> bool:
    return (
        request.META.get("CONTENT_LENGTH") not in (None, "", "0") or "HTTP_TRANSFER_ENCODING" in request.META
    )


def check_body_headers(meta: Mapping[str, str], max_bytes: int) -> None:
    """Raise Problem if the headers describe a body that is not accepted."""
    media_type, _, parameters = meta.get("CONTENT_TYPE", "").partition(";")
    charset = parameters.replace(" ", "").lower()
    if media_type.strip().lower() != "application/json" or charset not in (
        "",
        "charset=utf-8",
        'charset="utf-8"',
    ):
        raise Problem(415, "unsupported_media_type", UNSUPPORTED)
    if meta.get("HTTP_CONTENT_ENCODING", "identity").lower() != "identity":
        raise Problem(415, "unsupported_media_type", UNSUPPORTED)
    if "HTTP_TRANSFER_ENCODING" in meta and not meta.get("CONTENT_LENGTH"):
        raise Problem(411, "length_required", "Send the length of the body: Content-Length.")
    length = meta.get("CONTENT_LENGTH") or "0"
    if not length.isdecimal() or int(length[:20]) > max_bytes:
        raise Problem(413, "too_large", f"The body is larger than {max_bytes} bytes.")


def _build_malformed_json(detail: str) -> Problem:
    return Problem(400, "malformed_json", detail)


def _explain(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower()} at line {error.lineno}, column {error.colno}"
    return str(error) if isinstance(error, _Unacceptable) else "a number is too long"


class _Unacceptable(ValueError):
    """JSON that Python's parser accepts and this one does not."""


def _refuse_repeated_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Unacceptable(
            f"the name {json.dumps(_find_repeated_name(pairs)[:80])} is given twice in one object"
        )
    return members


def _find_repeated_name(pairs: list[tuple[str, object]]) -> str:
    # One pass: an object can have as many names as fit into the body.
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            break
        seen.add(name)
    return name


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Unacceptable("a number is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise _Unacceptable(f"{name} is not a JSON value")


_decode = json.JSONDecoder(
    object_pairs_hook=_refuse_repeated_names, parse_float=_parse_finite, parse_constant=_refuse_constant
).decode


def is_storable(text: str) -> bool:
    """Return whether every database can store the string: without NUL characters and half surrogate pairs."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def is_too_deep(value: object, levels: int = MAX_DEPTH) -> bool:
    """Return whether a value is nested deeper than `levels`."""
    if isinstance(value, dict):
        return levels == 0 or any(is_too_deep(member, levels - 1) for member in value.values())
    if isinstance(value, list):
        return levels == 0 or any(is_too_deep(member, levels - 1) for member in value)
    return False
