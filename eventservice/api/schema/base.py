"""The base class of all models of documents, and how their errors are reported.

Every error of a document is reported at once, each with a JSON pointer to the member that breaks a rule and with the
rule in plain English, so that "<member> <rule>" is a sentence: "/name must be a string".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from eventservice.api.formats import escape_pointer, format_number
from eventservice.api.problems import FieldError, InvalidRequest

M = TypeVar("M", bound="RequestModel")
T = TypeVar("T")

# An object with more members is refused as a whole: to report each of them would cost more than it cost to send them.
MAX_MEMBERS = 100
# How many unknown members of one object are named.
MAX_UNKNOWN_NAMED = 20
MAX_NAME_SHOWN = 200

_PATTERN_RULES: dict[str, str] = {}


class RequestModel(BaseModel):
    """A document that a client sends: strict types, camelCase names, and no unknown members."""

    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel)

    # What to use instead of members that other documents have, or that clients expect.
    hints: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _limit_members(cls, document: object) -> object:
        if isinstance(document, dict) and len(document) > MAX_MEMBERS:
            raise rule_error(f"must have at most {MAX_MEMBERS} members")
        return document

    def changes(self) -> dict[str, Any]:
        """Return the members that were given, by their Python names."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class ResponseModel(BaseModel):
    """A document that the API sends. It is built by its Python names and sent with camelCase names."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=False, serialize_by_alias=True
    )

    def to_document(self) -> dict[str, object]:
        """Return the document as JSON values."""
        return self.model_dump(mode="json", by_alias=True)


class Page(ResponseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None = Field(description="For the next page. Null on the last page.")


def omittable(**options: Any) -> Any:
    """Declare a member that may be left out, but not be null. What was given is in `changes()`."""
    return Field(default_factory=lambda: None, **options)


def pattern(regex: str, rule: str) -> StringConstraints:
    """Return the constraint that a string matches; `rule` is the text of the error."""
    _PATTERN_RULES[regex] = rule
    return StringConstraints(pattern=regex)


def rule_error(rule: str) -> PydanticCustomError:
    """Return the error that a validator raises where a member breaks a rule of ours."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule})


def raise_for_members(rules: Mapping[str | int, str]) -> NoReturn:
    """Raise from a validator of an object or array: each of these members breaks a rule."""
    details = [
        InitErrorDetails(type=rule_error(rule), loc=(name,), input=None) for name, rule in rules.items()
    ]
    raise ValidationError.from_exception_data("members", details)


def parse(model: type[M], document: object, *, context: object = None) -> M:
    """Return the document as its model; raise InvalidRequest with all errors."""
    parsed, errors = validate(model, document, context=context)
    if parsed is None:
        raise InvalidRequest(errors)
    return parsed


def validate(
    model: type[M], document: object, *, context: object = None, at: str = ""
) -> tuple[M | None, list[FieldError]]:
    """Return the document as its model, or None and everything that is wrong. Pointers start with `at`."""
    try:
        return model.model_validate(document, context=context), []
    except ValidationError as failure:
        return None, [_add_hint(error, model, at) for error in list_errors(failure, at)]


def _add_hint(error: FieldError, model: type[RequestModel], at: str) -> FieldError:
    """Say what to use instead of an unknown member of the document itself."""
    hint = model.hints.get(error.pointer.removeprefix(f"{at}/"))
    return error._replace(detail=f"{error.detail}: {hint}") if hint else error


def list_errors(failure: ValidationError, at: str = "") -> list[FieldError]:
    """Return the errors in the order of their pointers. Of many unknown members of one object the first are named."""
    errors: list[FieldError] = []
    unknown: Counter[str] = Counter()
    for line in failure.errors(include_url=False, include_input=False):
        steps = [escape_pointer(str(step)[:MAX_NAME_SHOWN]) for step in line["loc"]]
        if line["type"] == "extra_forbidden":
            parent = "/".join([at, *steps[:-1]])
            unknown[parent] += 1
            if unknown[parent] > MAX_UNKNOWN_NAMED:
                continue
        errors.append(FieldError("/".join([at, *steps]), _describe(line)))
    for parent, count in unknown.items():
        if count > MAX_UNKNOWN_NAMED:
            errors.append(FieldError(parent, f"has {count - MAX_UNKNOWN_NAMED} more unknown fields"))
    return sorted(errors)


_RULES: dict[str, str | Callable[[dict[str, Any]], str]] = {
    "missing": "is required",
    "extra_forbidden": "is not a known field",
    "string_type": "must be a string",
    "string_unicode": "must be a string of valid Unicode",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a number that is not too large",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "string_too_short": lambda limits: _format_min_length(limits["min_length"], "character"),
    "string_too_long": lambda limits: f"must be at most {limits['max_length']} characters",
    "too_short": lambda limits: _format_min_length(limits["min_length"], "item"),
    "too_long": lambda limits: f"must have at most {limits['max_length']} items",
    "greater_than_equal": lambda limits: f"must be at least {format_number(limits['ge'])}",
    "less_than_equal": lambda limits: f"must be at most {format_number(limits['le'])}",
    "string_pattern_mismatch": lambda limits: "must be " + _PATTERN_RULES[limits["pattern"]],
    "literal_error": lambda limits: _format_choices(limits["expected"]),
    "enum": lambda limits: _format_choices(limits["expected"]),
    "rule": lambda limits: str(limits["rule"]),
}


def _describe(line: ErrorDetails) -> str:
    rule = _RULES.get(line["type"])
    if rule is None:
        return line["msg"]
    return rule if isinstance(rule, str) else rule(line["ctx"])


def _format_min_length(length: int, unit: str) -> str:
    return "must not be empty" if length == 1 else f"must have at least {length} {unit}s"


def _format_choices(expected: str) -> str:
    return "must be one of " + expected.replace("'", "")
