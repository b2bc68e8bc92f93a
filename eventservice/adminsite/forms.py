"""Forms of the admin, whose rules are those of the API: its Pydantic models validate what was entered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from eventservice.api.schema.base import RequestModel


class Lines(forms.CharField):
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


class SchemaForm(forms.ModelForm):  # type: ignore[type-arg]
    """A model form validated by a model of the API, whose path `schema` is.

    The model is imported when a form is used: every command loads the admin, and few need Pydantic.
    """

    schema = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, member in self.get_schema().model_fields.items():
            if name in self.fields and not self.fields[name].help_text:
                self.fields[name].help_text = (member.description or "").replace("`", "")

    def get_schema(self) -> type[RequestModel]:
        schema: type[RequestModel] = import_string(self.schema)
        return schema

    def clean(self) -> dict[str, Any]:
        """Validate the fields by the schema, and take over its values, such as normalized hosts."""
        from eventservice.api.schema.base import validate
        from eventservice.console.base.forms import describe_by_field

        entered: dict[str, Any] = super().clean() or {}
        schema = self.get_schema()
        names = {str(member.alias): name for name, member in schema.model_fields.items() if name in entered}
        document, errors = validate(schema, {member: entered[name] for member, name in names.items()})
        for member, rule in describe_by_field(errors).items():
            if member in names:
                self.add_error(names[member], f"This value {rule}.")
        if document is not None:
            entered |= document.model_dump(mode="json", include=set(names.values()))
        return entered
