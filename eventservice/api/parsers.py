"""Reading a JSON body: strictly, within limits, and with an answer of its own for everything that can be wrong."""

from __future__ import annotations

import json
import math
from typing import Any

from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from eventservice.api.problems import FieldError, InvalidRequest, Problem

# MariaDB's JSON functions know no more than 32 levels, and what is stored is wrapped in one more.
MAX_DEPTH = 30
UNSUPPORTED = "The body must be JSON: Content-Type: application/json, in UTF-8 and not compressed."


class Unread(BaseParser):
    """Nothing is read on the way here, nor refused in other words: a session's CSRF check would look into the body."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> dict[str, Any]:
        return {}


def read_json(request: Request, most_bytes: int) -> Any:
    """The document that the request carries; raises Refusal."""
    _check_head(request.META, most_bytes)
    raw = request._request.body
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise _malformed("The body is not UTF-8.") from None
    return parse_json(text)


def parse_json(text: str) -> Any:
    """Strictly; raises Refusal."""
    try:
        document = _decode(text)
    except ValueError as wrong:
        raise _malformed(f"The body is not JSON: {_reason(wrong)}.") from None
    except RecursionError:
        raise _malformed("The body is nested too deeply.") from None
    if "\\u" in text:
        _check_texts(document)
    return document


def read_object(request: Request, most_bytes: int) -> dict[str, Any]:
    document = read_json(request, most_bytes)
    if not isinstance(document, dict):
        raise InvalidRequest([FieldError("", "must be an object")])
    return document


def has_body(request: Request) -> bool:
    return (
        request.META.get("CONTENT_LENGTH") not in (None, "", "0") or "HTTP_TRANSFER_ENCODING" in request.META
    )


def _check_head(meta: dict[str, Any], most_bytes: int) -> None:
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
        raise Problem(411, "length_required", "The body must come with its Content-Length.")
    length = meta.get("CONTENT_LENGTH") or "0"
    if not length.isdecimal() or int(length[:20]) > most_bytes:
        raise Problem(413, "too_large", f"The body is larger than {most_bytes} bytes.")


def _malformed(detail: str) -> Problem:
    return Problem(400, "malformed_json", detail)


def _reason(wrong: ValueError) -> str:
    if isinstance(wrong, json.JSONDecodeError):
        return f"{wrong.msg.lower()} at line {wrong.lineno}, column {wrong.colno}"
    return str(wrong) if isinstance(wrong, _Unacceptable) else "a number is too long"


class _Unacceptable(ValueError):
    """Valid for Python's parser, and not for us."""


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Unacceptable(f"the name {json.dumps(_repeated(pairs)[:80])} is there twice in one object")
    return made


def _repeated(pairs: list[tuple[str, Any]]) -> str:
    """In one pass: an object may have as many names as a body has bytes for."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            break
        seen.add(name)
    return name


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Unacceptable("a number is too large")
    return number


def _no_constant(name: str) -> Any:
    raise _Unacceptable(f"{name} is no JSON value")


_decode = json.JSONDecoder(
    object_pairs_hook=_no_repeats, parse_float=_finite, parse_constant=_no_constant
).decode


def _check_texts(document: Any) -> None:
    """No database of ours stores a NUL in a text everywhere, and half a surrogate pair is no text at all."""
    rest = [document]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            rest += value.keys()
            rest += value.values()
        elif isinstance(value, list):
            rest += value
        elif isinstance(value, str) and not is_storable(value):
            raise _malformed(
                "The body has a text with a NUL character or half a surrogate pair (\\u0000, \\ud800)."
            )


def is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def is_too_deep(value: Any, levels: int = MAX_DEPTH) -> bool:
    if isinstance(value, dict):
        return levels == 0 or any(is_too_deep(member, levels - 1) for member in value.values())
    if isinstance(value, list):
        return levels == 0 or any(is_too_deep(member, levels - 1) for member in value)
    return False
