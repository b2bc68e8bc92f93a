"""The form of the admin whose rules are those of the API."""

from __future__ import annotations

from typing import Any

from django import forms

from eventservice.console.base.forms import SchemaValidation


class SchemaModelForm(SchemaValidation[Any], forms.ModelForm):  # type: ignore[type-arg]
    """A model form that is validated by a model of the API."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, member in self.get_schema().model_fields.items():
            if name in self.fields and not self.fields[name].help_text:
                self.fields[name].help_text = (member.description or "").replace("`", "")

    def clean(self) -> dict[str, Any]:
        """Validate the fields by the schema, and take over its values, such as normalized hosts."""
        values = super().clean()
        if not self.errors:
            values |= self.document.model_dump(
                mode="json", include=set(self.fields) & self.document.model_fields_set
            )
        return values

    def describe_rule(self, rule: str, line: int | None = None) -> str:
        return f"Line {line} {rule}." if line else f"This value {rule}."
