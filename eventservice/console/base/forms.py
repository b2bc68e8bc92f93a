"""Forms whose rules are those of the API: its Pydantic models validate what was entered.

Forms of the console and of the admin share this base. It imports no Pydantic, since every command loads the admin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django import forms
from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from eventservice.api.schema.base import RequestModel
    from eventservice.kernel.errors import DomainError

M = TypeVar("M", bound="RequestModel")

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class PlainText(forms.CharField):
    """A string, about which the schema knows everything else: whether it is required, its length and its form."""

    default_error_messages = {"null_characters_not_allowed": "must not have a NUL character"}

    def __init__(self, *, required: bool = False, **options: Any) -> None:
        super().__init__(required=required, **options)


class WholeNumber(PlainText):
    """A whole number. Any other text stays as it is, so that the schema reports it."""

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        return int(text) if text and _WHOLE_NUMBER.fullmatch(text) else text


class Lines(PlainText):
    """A list of strings, one per line. Empty lines and repeats are dropped."""

    widget = forms.Textarea(attrs={"rows": 4, "cols": 60, "spellcheck": "false"})

    def prepare_value(self, value: object) -> object:
        return "\n".join(value) if isinstance(value, list) else value

    def has_changed(self, initial: list[str] | None, data: str | None) -> bool:
        return (initial or []) != self._split(data)

    def clean(self, value: str | None) -> list[str]:
        return self._split(super().clean(value))

    def _split(self, text: str | None) -> list[str]:
        return list(dict.fromkeys(line.strip() for line in (text or "").splitlines() if line.strip()))


class Checkboxes(forms.MultipleChoiceField):
    """The values of the checked boxes. The schema decides which are valid."""

    def __init__(self) -> None:
        super().__init__(required=False)

    def validate(self, value: list[str]) -> None:
        """Accept every value."""


class SchemaValidation(forms.BaseForm, Generic[M]):
    """Validates a form by a model of the API, each of whose members is a field of the same name.

    `schema` is the model, or its path to import it only when a form is used. Once the form is valid, `document` is the
    model's instance. Fields that are None are left out of it.
    """

    schema: type[M] | str
    document: M

    def get_schema(self) -> type[M]:
        return import_string(self.schema) if isinstance(self.schema, str) else self.schema

    def clean(self) -> dict[str, Any]:
        """Validate the fields by the schema, and report each rule that is broken at its field."""
        from eventservice.api.schema.base import validate

        values: dict[str, Any] = super().clean() or {}
        names = {alias: name for alias, name in self._list_members() if values.get(name) is not None}
        document, errors = validate(self.get_schema(), {alias: values[name] for alias, name in names.items()})
        already_invalid = set(self.errors)
        for pointer, rule in errors:
            self._add_schema_error(pointer, rule, already_invalid)
        if document is not None:
            self.document = document
        return values

    def add_domain_error(self, error: DomainError) -> None:
        """Add what the domain refused, at the fields that it names."""
        for name, rule in error.errors.items():
            self.add_error(name if name in self.fields else None, self.describe_rule(rule))
        if not error.errors:
            self.add_error(None, error.message)

    def describe_rule(self, rule: str, line: int | None = None) -> str:
        """Return the rule that a field breaks, or a line of it, as the form shows it."""
        return f"line {line}: {rule}" if line else rule

    def _list_members(self) -> Iterator[tuple[str, str]]:
        for name, member in self.get_schema().model_fields.items():
            yield str(member.alias), name

    def _add_schema_error(self, pointer: str, rule: str, already_invalid: set[str]) -> None:
        _, member, item, *_ = [*pointer.split("/"), "", ""]
        name = dict(self._list_members()).get(member)
        if name not in self.fields:
            self.add_error(None, f"{pointer} {rule}.")
        elif name not in already_invalid:
            self.add_error(name, self.describe_rule(rule, int(item) + 1 if item.isdecimal() else None))


class SchemaForm(SchemaValidation[M], forms.Form):
    """A form of the console. In HTML its fields have the names that the members have in JSON, such as `maxPending`."""

    def add_prefix(self, field_name: str) -> str:
        member = self.get_schema().model_fields.get(field_name)
        return str(member.alias) if member else field_name
