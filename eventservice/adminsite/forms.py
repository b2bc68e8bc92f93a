"""Form fields of configuration."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from execution.url_rules import BadUrl, parse_target


class Lines(forms.CharField):
    """A list of texts, one on each line."""

    widget = forms.Textarea(attrs={"rows": 4, "cols": 60, "spellcheck": "false"})

    def __init__(self, *, most: int, longest: int, **kwargs: Any) -> None:
        super().__init__(required=False, **kwargs)
        self.most, self.longest = most, longest

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return (initial or []) != self._lines(data)

    def clean(self, value: Any) -> list[str]:
        lines = self._lines(super().clean(value))
        if len(lines) > self.most:
            raise ValidationError(f"At most {self.most} lines.")
        if any(len(line) > self.longest for line in lines):
            raise ValidationError(f"At most {self.longest} characters on a line.")
        return lines

    def _lines(self, text: Any) -> list[str]:
        return list(dict.fromkeys(line.strip() for line in (text or "").splitlines() if line.strip()))


class Url(forms.CharField):
    """One that may be dialled."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(widget=forms.TextInput(attrs={"size": 80}), **kwargs)

    def clean(self, value: Any) -> str:
        url = str(super().clean(value))
        try:
            parse_target(url)
        except BadUrl as wrong:
            raise ValidationError(f"This is no address to send to: {wrong}.") from None
        return url
