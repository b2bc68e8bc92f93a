"""Pages that ask before they act: `get` asks, in the dialog or on a page of its own, and `post` acts."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse

from eventservice.console.base.views import ConsoleView
from eventservice.kernel.errors import Invalid


class ConfirmView(ConsoleView):
    def render_confirmation(
        self, title: str, button: str, *, back_to: str, template: str = "console/confirm.html", **more: Any
    ) -> HttpResponse:
        """`more`: text, word, danger, and what the template's own fields take."""
        context = {
            "title": title,
            "button": button,
            "action": self.request.path,
            "next": self.next_url(back_to),
            **more,
        }
        return self.render(context, template)

    def require_typed_word(self, word: str) -> None:
        """Also here: a form can be sent without our page."""
        if self.request.POST.get("word", "").strip() != word:
            raise Invalid("not_confirmed", f"Nothing has been changed: it takes the word “{word}”, typed.")
